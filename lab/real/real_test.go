package real

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/lab/scenario"
)

var weftBinary = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WEFT_BINARY"); path != "" {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	dir, err := os.MkdirTemp("", "weft-binary-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "weft")
	_, err = exec.Command("go", "build", "-o", path, "weft/cmd/weft").CombinedOutput()
	return path, err
})

func TestMain(m *testing.M) {
	if os.Getenv(victimEnv) != "" {
		victim()
	}
	code := m.Run()
	if path, err := weftBinary(); err == nil && path != os.Getenv("WEFT_BINARY") {
		os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

func parse(t *testing.T, text string) scenario.Scenario {
	t.Helper()
	s, err := scenario.Parse(t.Name(), []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// run runs a scenario, which must be possible.
func run(t *testing.T, text string, o scenario.Options) scenario.Result {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	var err error
	if o.Binary, err = weftBinary(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	began := time.Now()
	r, err := Backend{}.Run(ctx, parse(t, text), o)
	t.Logf("took %v: %+v %+v", time.Since(began).Round(time.Millisecond), r.Pairs, r.Outcomes)
	if err != nil || t.Failed() || !r.OK {
		for name, log := range r.Logs {
			t.Logf("--- %s\n%s", name, log[max(0, len(log)-4000):])
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

const twoHomes = `
router home-a on=internet nat=EIM-APDF ports=preserving delay=20ms jitter=1ms
router home-b on=internet nat=EIM-ADF ports=random delay=20ms jitter=1ms
server hub on=internet
host ann on=home-a
host bob on=home-b
expect ann bob direct within 10s for 2s
`

func TestTwoHomesMeetWithTheRealProgram(t *testing.T) {
	t.Parallel()
	r := run(t, twoHomes, scenario.Options{KeepTrace: true, Dir: t.TempDir()})
	if !r.OK || r.Pairs[0].Path != weft.PathDirect || r.Pairs[0].DirectAfter <= 0 || r.Pairs[0].Way != "plain" || r.Pairs[0].Packets == 0 {
		t.Errorf("the pair is %+v, and %+v", r.Pairs, r.Outcomes)
	}
	// What a node sends is seen at the node, at its router and at the other router.
	places := map[string]bool{}
	for _, p := range r.Trace {
		if strings.HasPrefix(p.What, "weft peer message") {
			places[p.Where] = true
		}
	}
	for _, place := range []string{"ann", "home-a", "home-b", "bob"} {
		if !places[place] {
			t.Errorf("no peer message was seen at %s, but at %v", place, places)
		}
	}
	for _, name := range []string{"ann", "bob", "hub"} {
		if r.Logs[name] == "" {
			t.Errorf("%s has no log", name)
		}
	}
}

func TestTheKernelsNATsServeAsWell(t *testing.T) {
	t.Parallel()
	r := run(t, `
router home   on=internet kernel=masquerade delay=2ms
router office on=internet kernel=firewall
router dorm   on=internet kernel=dnat
server hub on=internet
host ann on=home
host bob on=office
host carl on=dorm
expect ann bob direct within 10s
expect ann carl direct within 10s
expect bob carl direct within 10s
`, scenario.Options{})
	if !r.OK {
		t.Errorf("%+v", r.Outcomes)
	}
}

func TestEventsHappenToTheRealThing(t *testing.T) {
	t.Parallel()
	r := run(t, `
router home-a on=internet nat=EIM-APDF ports=preserving delay=5ms
router home-b on=internet nat=EIM-ADF ports=random delay=5ms
server hub on=internet
host ann on=home-a delay=1ms
host bob on=home-b start=1s
flow ann bob every=20ms start=4s
at 4s  block udp on home-a
at 10s allow udp on home-a
at 16s restart bob
at 22s down home-b
at 25s up home-b
expect ann bob direct within 4s
expect ann bob relay within 5s after block udp on home-a
expect ann bob direct within 6s after allow udp on home-a
expect ann bob direct within 6s after restart bob
expect ann bob silent at most 3s through block udp on home-a
limit 40s
`, scenario.Options{})
	if !r.OK {
		t.Errorf("%+v", r.Outcomes)
	}
	// While bob was off and while the link was down, data was lost: a flow that loses nothing there was never there.
	if len(r.Flows) != 1 || r.Flows[0].Sent < 1000 || r.Flows[0].Lost < 10 || r.Flows[0].Lost > 300 {
		t.Errorf("the flow was %+v", r.Flows)
	}
}

func TestCommandsOfOthersRunAndSayHowTheyReachEachOther(t *testing.T) {
	t.Parallel()
	r := run(t, `
router home on=internet nat=EIM-APDF
machine ann on=home
machine bob on=internet
run bob touch "$WEFT_LAB_DIR/../of-the-lab" && exec sleep infinity
probe ann bob test -e "$WEFT_LAB_DIR/../of-the-lab" && ping -c 1 -W 1 $ADDR_BOB > /dev/null && echo asking for $WEFT_LAB_PEER by $PUBLIC_HOME: direct
probe bob ann ping -c 1 -W 1 $ADDR_ANN > /dev/null 2>&1 && echo direct || echo relay
expect ann bob direct within 5s
limit 6s
`, scenario.Options{})
	if len(r.Pairs) != 1 {
		t.Errorf("the pairs are %+v", r.Pairs)
	}
}

func TestOtherPeoplesProgramsRunAsTheDocumentSays(t *testing.T) {
	for name, programs := range map[string][]string{"wireguard": {"wg", "wireguard-go", "ping"}, "tinc": {"tincd", "ping"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := netns.Available(); err != nil {
				t.Skip(err)
			}
			for _, p := range programs {
				if _, err := exec.LookPath(p); err != nil {
					t.Skipf("%s is not installed", p)
				}
			}
			text, err := os.ReadFile(filepath.Join("examples", name+".scn"))
			if err != nil {
				t.Fatal(err)
			}
			if r := run(t, string(text), scenario.Options{}); !r.OK {
				t.Errorf("%+v", r.Outcomes)
			}
		})
	}
}

func TestWhatCannotBeDoneIsRefusedWithItsLine(t *testing.T) {
	for text, why := range map[string]string{
		"router a on=internet kernel=masquerade\nserver hub on=internet\nhost ann on=a\nhost bob on=a\nat 1s rebind a\nexpect ann bob direct within 5s": "line 5: the netns backend cannot rebind",
		"router a on=internet nat=EIM-EIF public=8.8.8.8\nserver hub on=internet\nhost ann on=a":                                                        "line 1: the netns backend cannot give a the address 8.8.8.8",
	} {
		s := parse(t, text)
		err := Backend{}.check(s)
		var unsupported *scenario.Unsupported
		if !errors.As(err, &unsupported) || !strings.Contains(err.Error(), why) {
			t.Errorf("want a refusal that says %q, got %v", why, err)
		}
	}
	if _, err := program(parse(t, twoHomes), "/nonexistent/weft"); err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("without the program: %v", err)
	}
}

// left lists what labs of a process have left.
func left(t *testing.T, pid int) (names []string) {
	t.Helper()
	for _, dir := range []string{"/run/netns", "/etc/netns", os.TempDir()} {
		found, err := filepath.Glob(filepath.Join(dir, fmt.Sprintf("%s-%d-*", labPrefix, pid)))
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, found...)
	}
	return names
}

func TestAnInterruptedRunLeavesNothing(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	path, err := weftBinary()
	if err != nil {
		t.Fatal(err)
	}
	before := left(t, os.Getpid())
	ctx, cancel := context.WithCancelCause(t.Context())
	interrupted := errors.New("somebody said Ctrl-C")
	began := time.Now()
	_, err = Backend{}.Run(ctx, parse(t, twoHomes), scenario.Options{Binary: path, Log: func(string) { cancel(interrupted) }})
	if !errors.Is(err, interrupted) || time.Since(began) > 30*time.Second {
		t.Errorf("after %v the run ended with %v", time.Since(began), err)
	}
	if now := left(t, os.Getpid()); !slices.Equal(now, before) {
		t.Errorf("left behind: %v (before: %v)", now, before)
	}
}

// victimEnv makes the test's program run a scenario until it is killed.
const victimEnv = "WEFT_TEST_VICTIM"

func victim() {
	s, err := scenario.Parse("victim", []byte(twoHomes+"expect ann bob direct within 10s for 60s\n"))
	if err == nil {
		_, err = Backend{}.Run(context.Background(), s, scenario.Options{Binary: os.Getenv(victimEnv), Log: func(s string) { fmt.Println(s) }})
	}
	fmt.Println("it was not killed:", err)
	os.Exit(1)
}

func TestWhatAKilledRunLeftIsGoneWhenTheNextOneStarts(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	path, err := weftBinary()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, "-test.run=^$")
	cmd.Env = append(os.Environ(), victimEnv+"="+path)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	said := make([]byte, 256)
	n, err := out.Read(said) // that all is up
	if err != nil || !strings.Contains(string(said[:n]), "is up") {
		t.Errorf("it said %q, %v", said[:n], err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if len(left(t, cmd.Process.Pid)) == 0 {
		t.Error("a killed run left nothing, so this test looks in the wrong places")
	}
	if err := netns.Sweep(labPrefix); err != nil { // as every run does first
		t.Fatal(err)
	}
	if names := left(t, cmd.Process.Pid); len(names) != 0 {
		t.Errorf("left behind: %v", names)
	}
	for _, p := range processes(t) {
		if strings.Contains(p, fmt.Sprintf("%s-%d-", labPrefix, cmd.Process.Pid)) {
			t.Errorf("still running: %s", p)
		}
	}
}

// processes are the command lines of all.
func processes(t *testing.T) (lines []string) {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		if b, err := os.ReadFile(f); err == nil {
			lines = append(lines, strings.ReplaceAll(string(b), "\x00", " "))
		}
	}
	return lines
}

func TestTheWayIsTheAttemptThatWasUnderWay(t *testing.T) {
	began := time.Unix(1_700_000_000, 0)
	attempts := []weft.WayAttempt{{Way: "plain", At: began, TookMS: 9000}, {Way: "spray", At: began.Add(2 * time.Second), TookMS: 1500}}
	for _, c := range []struct {
		first time.Duration
		own   uint16
		want  string
	}{
		{100 * time.Millisecond, 0, "plain"},
		{3 * time.Second, 0, "sprayed"}, // and it moved to a shared socket since
		{20 * time.Second, 0, "plain"},  // long after the spray was given up
		{20 * time.Second, 4000, "sprayed"},
	} {
		a, b := weft.Explanation{Attempts: attempts, OwnSocket: c.own}, weft.Explanation{Attempts: attempts[:1]}
		for _, docs := range [][2]weft.Explanation{{a, b}, {b, a}} {
			if got := way(began.Add(c.first), docs[0], docs[1]); got != c.want {
				t.Errorf("direct after %v, with a socket of its own %d: %s, want %s", c.first, c.own, got, c.want)
			}
		}
	}
}
