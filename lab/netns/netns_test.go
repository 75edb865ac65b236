package netns

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// newLab makes a lab for one test, or skips it where that is not possible.
func newLab(t *testing.T) *Lab {
	t.Helper()
	if err := Available(); err != nil {
		t.Skip(err)
	}
	l, err := New(t.Context(), "wefttest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	return l
}

// must unwraps what cannot reasonably fail in the set-up of a test.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func TestAProgramInAHostHasItsOwnResolvConfAndNetwork(t *testing.T) {
	l := newLab(t)
	h := must(l.AddHost("server"))(t)
	if err := h.SetResolvConf("nameserver 192.0.2.53\n"); err != nil {
		t.Fatal(err)
	}
	if got := must(h.Run(t.Context(), "cat", "/etc/resolv.conf"))(t); got != "nameserver 192.0.2.53\n" {
		t.Errorf("/etc/resolv.conf in the host is %q", got)
	}
	must(h.Run(t.Context(), "sh", "-c", "echo 'nameserver 100.100.100.100' > /etc/resolv.conf"))(t)
	if got := must(h.ResolvConf())(t); got != "nameserver 100.100.100.100\n" {
		t.Errorf("what a program in the host wrote to its resolv.conf reads %q", got)
	}
	if got := must(h.Run(t.Context(), "ip", "-br", "addr", "show", "eth0"))(t); !strings.Contains(got, h.Addr().String()) {
		t.Errorf("the host's interface is %q, want %v on it", got, h.Addr())
	}
	_, err := h.Run(t.Context(), "sh", "-c", "echo half; echo 'it is broken' >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "it is broken") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("the error of a failing program is %v", err)
	}
}

func TestWaitForTellsWhatWasMissing(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	looks := 0
	err := WaitFor(ctx, "the kettle", func() error { looks++; return errors.New("still cold") })
	if err == nil || !strings.Contains(err.Error(), "the kettle: still cold") || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the error is %v", err)
	}
	if looks < 2 {
		t.Errorf("it looked %d times in 50 ms", looks)
	}
	if err := WaitFor(ctx, "nothing", func() error { return nil }); err != nil {
		t.Errorf("what is there already was not found: %v", err)
	}
}

// traces is all that a lab could leave on the machine.
func traces(t *testing.T, id string) []string {
	t.Helper()
	var found []string
	for _, dir := range []string{runDir, etcDir, os.TempDir()} {
		names, err := filepath.Glob(filepath.Join(dir, id+"*"))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, names...)
	}
	return found
}

func TestCloseLeavesNothingBehind(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	links := func() string { // of this machine itself, where no lab may appear
		out, err := exec.Command("ip", "-o", "link").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	before := links()
	l := must(New(t.Context(), "wefttest"))(t)
	h := newHome(t, l, "home", PortRestrictedCone)
	if during := links(); during != before {
		t.Errorf("a lab changed the links of the machine from\n%s to\n%s", before, during)
	}

	tame := must(h.host.Start(h.host.Command(t.Context(), "sleep", "1000")))(t)
	// One that leaves its group and its parent and hears no SIGTERM: known by its namespace alone.
	_, err := h.host.Run(t.Context(), "sh", "-c", `(trap "" TERM; exec setsid sleep 1000) >/dev/null 2>&1 & echo $!`)
	if err != nil {
		t.Fatal(err)
	}
	id, ok := identify(filepath.Join(runDir, h.host.Namespace()))
	if !ok {
		t.Fatal("the namespace has no identity")
	}
	inside := map[fileID]bool{id: true}
	if pids := processesWithin(inside); len(pids) != 2 {
		t.Fatalf("processes in the host are %v, want two", pids)
	}
	if len(traces(t, l.ID())) == 0 {
		t.Fatal("a living lab leaves no traces, so this test looks in the wrong places")
	}

	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if left := traces(t, l.ID()); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if pids := processesWithin(inside); len(pids) != 0 {
		t.Errorf("still running: %v", pids)
	}
	if tame.Err() == nil {
		t.Error("a started program counts as running after Close")
	}
	if after := links(); after != before {
		t.Errorf("the links of the machine were\n%s and are\n%s", before, after)
	}
	if _, err := l.AddHost("late"); err == nil {
		t.Error("a closed lab took another host")
	}
	if err := l.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

func TestTheEndOfItsContextClosesALab(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	l := must(New(ctx, "wefttest"))(t)
	must(l.AddHost("server"))(t)
	cancel()
	if err := l.Close(); err != nil { // waits for the one under way
		t.Error(err)
	}
	if left := traces(t, l.ID()); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestLogsAreKeptWhereTheyAreAskedFor(t *testing.T) {
	if err := Available(); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	l := must(New(t.Context(), "wefttest", KeepLogs(dir)))(t)
	defer l.Close()
	h := must(l.AddHost("server"))(t)
	p := must(h.Start(h.Command(t.Context(), "sh", "-c", "echo to be read later; exit 1")))(t)
	<-p.Done()
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "to be read later") {
		t.Errorf("the error of a program that ended is %v", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if p.Log() != "to be read later\n" {
		t.Errorf("after Close the log reads %q", p.Log())
	}
}

func TestSweepRemovesLeftoversOfTheDeadAndSparesTheLiving(t *testing.T) {
	alive := newLab(t)
	must(alive.AddHost("server"))(t)

	// A process that has ended, and one that lives but did not start when the name says.
	ended := exec.Command("true")
	if err := ended.Run(); err != nil {
		t.Fatal(err)
	}
	dead := labID{"wefttest", ended.Process.Pid, 1, 1}.String()
	reused := labID{"wefttest", os.Getpid(), 1, 1}.String()
	foreign := "wefttest-notes"
	for _, name := range []string{dead + "-pc", reused + "-pc", foreign} {
		if err := tool("", "ip", "netns", "add", name); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { removeNamespaces([]string{name}) })
	}
	for _, dir := range []string{filepath.Join(etcDir, dead+"-pc"), filepath.Join(os.TempDir(), dead)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	// Two file systems, one inside the other, that a test mounted and was killed before it took them out.
	disk := filepath.Join(os.TempDir(), dead, "disk")
	for _, dir := range []string{disk, filepath.Join(disk, "inner")} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mount("weft-test", dir, "tmpfs", 0, "size=64k"); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
	}
	// A program that outlived its lab.
	orphan := exec.Command("ip", "netns", "exec", dead+"-pc", "sleep", "1000")
	if err := orphan.Start(); err != nil {
		t.Fatal(err)
	}
	id, _ := identify(filepath.Join(runDir, dead+"-pc"))
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	if err := WaitFor(ctx, "the orphan to enter its namespace", func() error {
		if len(processesWithin(map[fileID]bool{id: true})) == 0 {
			return errors.New("it has not")
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	go orphan.Wait()

	if err := Sweep("wefttest"); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{dead, reused} {
		if left := traces(t, id); len(left) != 0 {
			t.Errorf("left behind: %v", left)
		}
	}
	if left := traces(t, foreign); len(left) != 1 {
		t.Error("a namespace that no lab made was swept")
	}
	if len(traces(t, alive.ID())) == 0 {
		t.Error("a living lab was swept")
	}
	if pids := processesWithin(map[fileID]bool{id: true}); len(pids) != 0 {
		t.Errorf("the orphan still runs: %v", pids)
	}
}

func TestNamesThatCannotBeNamesAreRefused(t *testing.T) {
	l := newLab(t)
	for _, name := range []string{"", "UPPER", "a/b", "..", "-x", strings.Repeat("x", 33)} {
		if _, err := l.AddHost(name); err == nil {
			t.Errorf("the host name %q was accepted", name)
		}
	}
	must(l.AddHost("server"))(t)
	if _, err := l.AddHost("server"); err == nil {
		t.Error("two hosts have the same name")
	}
	if _, err := New(t.Context(), "a-b"); err == nil {
		t.Error("a prefix with a dash was accepted")
	}
	if _, err := l.AddRouter("r", "full-moon"); err == nil {
		t.Error("an unknown NAT kind was accepted")
	}
}

func FuzzLabNamesRoundTrip(f *testing.F) {
	f.Add("weft-4242-1x8kq-1-home-a")
	f.Add("weft-4242-1x8kq-1")
	f.Add("weft-99999999999999999999-0-1-x")
	f.Add("notes")
	f.Fuzz(func(t *testing.T, name string) {
		id, ok := parseLabID(name)
		if !ok {
			return
		}
		again, ok := parseLabID(id.String())
		if !ok || again != id {
			t.Errorf("%q is read as %v, which is read as %v, %v", name, id, again, ok)
		}
	})
}

func BenchmarkTwoHomesAndAServer(b *testing.B) {
	if err := Available(); err != nil {
		b.Skip(err)
	}
	for b.Loop() {
		l, err := New(b.Context(), "weftbench")
		if err != nil {
			b.Fatal(err)
		}
		_, err = l.AddHost("server")
		for _, name := range []string{"a", "b"} {
			r, rErr := l.AddRouter("home-"+name, PortRestrictedCone)
			if rErr != nil {
				b.Fatal(rErr)
			}
			_, hErr := r.AddHost("node-" + name)
			err = errors.Join(err, hErr)
		}
		b.StopTimer()
		if err = errors.Join(err, l.Close()); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
