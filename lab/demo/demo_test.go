package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"weft/host"
	"weft/lab/netns"
)

// built is where the tests build weft, if they do.
var built string

// program is the weft program under test: $WEFT_BINARY where the caller has built it, else our own.
var program = sync.OnceValues(func() (string, error) {
	if path := os.Getenv("WEFT_BINARY"); path != "" {
		return path, nil
	}
	path := filepath.Join(built, "weft")
	cmd := exec.Command("go", "build", "-o", path, "weft/cmd/weft")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building weft: %w: %s", err, out)
	}
	return path, nil
})

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "weft-demo-test-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(built)
	os.Exit(code)
}

// tell plays a story and shows what it said if it fails.
func tell(t *testing.T, story func(*scene) error) string {
	t.Helper()
	weftProgram, err := program()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = story(&scene{teller: newTeller(&out), binary: weftProgram})
	t.Logf("%s", out.String())
	if err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// expectAll checks that the story says these things, in this order.
func expectAll(t *testing.T, told string, things ...string) {
	t.Helper()
	for _, thing := range things {
		_, after, found := strings.Cut(told, thing)
		if !found {
			t.Fatalf("the story does not say %q where it should", thing)
		}
		told = after
	}
}

func TestTheStoryOfTwoHomesIsTrue(t *testing.T) {
	if testing.Short() {
		t.Skip("the story takes half a minute")
	}
	if err := errors.Join(netns.Available(), host.CheckTUN(), need("curl", "iperf3")); err != nil {
		t.Skip(err)
	}
	told := tell(t, func(s *scene) error { return s.homes(t.Context()) })
	expectAll(t, told, "Hello from nas", "direct", "CUT", "relay-udp after", "CUT", "relay-stream after", "RESTORED", "direct after",
		"TCP stalled", "UDP restored", "0 lost", "nothing comes", "Hello from nas", "route approve", "Hello from printer", "record.printer", "Hello from printer", "cleaned up")
}

func TestTheStoryWithoutNamespacesIsTrue(t *testing.T) {
	told := tell(t, func(s *scene) error { return s.loopback(t.Context()) })
	expectAll(t, told, "without root and without an interface", "Hello from nas", "direct", "cleaned up")
}

func TestAnInterruptedStoryCleansUpAndSaysSo(t *testing.T) {
	weftProgram, err := program()
	if err != nil {
		t.Fatal(err)
	}
	before := leftovers(t)
	ctx, cancel := context.WithCancel(t.Context())
	out := &cancelOn{what: "laid out", cancel: cancel} // or, without namespaces, at the first line
	if netns.Available() != nil || host.CheckTUN() != nil {
		out.what = "userspace"
	}
	err = Run(ctx, Options{Binary: weftProgram, Out: out})
	if err == nil || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("an interrupted demonstration ends with %v", err)
	}
	if after := leftovers(t); after != before {
		t.Errorf("left behind:\n%s\nthere was before:\n%s", after, before)
	}
}

// cancelOn is a reader of the story who says Ctrl-C at some word.
type cancelOn struct {
	what   string
	cancel func()
}

func (c *cancelOn) Write(b []byte) (int, error) {
	if bytes.Contains(b, []byte(c.what)) {
		c.cancel()
	}
	return len(b), nil
}

// leftovers lists what a demonstration of this process could leave.
func leftovers(t *testing.T) string {
	t.Helper()
	var all []string
	for _, pattern := range []string{"/run/netns/weftdemo-*", "/etc/netns/weftdemo-*", filepath.Join(os.TempDir(), "weftdemo-*")} {
		names, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, names...)
	}
	return strings.Join(all, "\n")
}

func TestAMissingProgramIsNamedWithWhatToDo(t *testing.T) {
	err := Run(t.Context(), Options{Binary: filepath.Join(t.TempDir(), "weft"), Out: t.Output()})
	if err == nil || !strings.Contains(err.Error(), "make build") {
		t.Errorf("without the weft program: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	err = need("curl", "iperf3")
	if err == nil || !strings.Contains(err.Error(), "curl and iperf3: run scripts/install-deps") {
		t.Errorf("without curl and iperf3: %v", err)
	}
}

func TestReportsOfIperfAreRead(t *testing.T) {
	report, err := os.ReadFile("testdata/iperf3.json")
	if err != nil {
		t.Fatal(err)
	}
	mbit, err := parseIperf(string(report))
	if err != nil || mbit < 1 {
		t.Errorf("a report of iperf3 3.12 reads %v Mbit/s, %v", mbit, err)
	}
	for report, says := range map[string]string{
		"":     "cannot be read",
		"{}":   "moved nothing",
		"null": "moved nothing",
		`{"end":{},"error":"unable to connect to server: Connection refused"}`: "Connection refused",
		`{"end":{"sum_received":{"bits_per_second":0}}}`:                       "moved nothing",
	} {
		if _, err := parseIperf(report); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("the report %q gives the error %v, want one that says %q", report, err, says)
		}
	}
}

func FuzzReportsOfIperf(f *testing.F) {
	report, err := os.ReadFile("testdata/iperf3.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(string(report))
	f.Add(`{"end":{"sum_received":{"bits_per_second":1e300}}}`)
	f.Fuzz(func(t *testing.T, report string) {
		if mbit, err := parseIperf(report); err == nil && mbit == 0 {
			t.Error("nothing moved, and that is no error")
		}
	})
}

func TestTheTableReadsInUnitsThatPeopleUse(t *testing.T) {
	var out bytes.Buffer
	newTeller(&out).table([]phase{{
		What: "UDP restored", Path: "direct", After: 1240 * time.Millisecond, RTT: 412 * time.Microsecond,
		Mbit: 1731, Stall: 210 * time.Millisecond, Sent: 402, Lost: 7,
	}})
	want := "" +
		"  what was done   path     after   RTT       TCP           TCP stalled   UDP lost\n" +
		"  UDP restored    direct   1.2 s   0.41 ms   1.73 Gbit/s   210 ms        7 of 402\n"
	if out.String() != want {
		t.Errorf("the table is\n%s\nwant\n%s", out.String(), want)
	}
}
