package lab

import (
	"bytes"
	"debug/elf"
	le "encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/node"
)

// A clock is the wall clock of one running program, which can be set without touching the machine's. A program asks
// the kernel's code in its own memory (vdso(7)) what time it is; that code is replaced by a few instructions that
// ask the kernel itself and add an offset. Monotonic time, and so every timer, goes on as it was.
type clock struct {
	pid int
	at  int64 // of the offset, in the program's memory
}

// clockCode is __vdso_clock_gettime(clockid_t edi, struct timespec *rsi) for amd64, but for the offset.
//
//	b8 e4 00 00 00       mov eax, 228 (clock_gettime)
//	0f 05                syscall
//	85 ff                test edi, edi (CLOCK_REALTIME)
//	75 0d                jne +13
//	48 b9 ........       mov rcx, offset in seconds
//	48 01 0e             add [rsi], rcx
//	c3                   ret
var clockCode = []byte{
	0xb8, 0xe4, 0, 0, 0, 0x0f, 0x05, 0x85, 0xff, 0x75, 0x0d,
	0x48, 0xb9, 0, 0, 0, 0, 0, 0, 0, 0, 0x48, 0x01, 0x0e, 0xc3,
}

// clockOffset is where the offset stands in clockCode.
const clockOffset = 13

// set sets the clock to so much after the machine's; negative is before.
func (c *clock) set(after time.Duration) error {
	var b [8]byte
	le.LittleEndian.PutUint64(b[:], uint64(int64(after/time.Second)))
	return c.write(c.at, b[:])
}

func (c *clock) write(at int64, b []byte) error {
	f, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", c.pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(b, at)
	return err
}

// findClock puts the code in its place in a program that has run nothing of its own yet.
func findClock(pid int) (*clock, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(maps)) {
		var from, to int64
		if !strings.Contains(line, "[vdso]") {
			continue
		}
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return nil, err
		}
		mem, err := os.Open(fmt.Sprintf("/proc/%d/mem", pid))
		if err != nil {
			return nil, err
		}
		defer mem.Close()
		image := make([]byte, to-from)
		if _, err := mem.ReadAt(image, from); err != nil {
			return nil, err
		}
		f, err := elf.NewFile(bytes.NewReader(image))
		if err != nil {
			return nil, err
		}
		symbols, err := f.DynamicSymbols()
		if err != nil {
			return nil, err
		}
		for _, s := range symbols {
			if s.Name == "__vdso_clock_gettime" {
				c := &clock{pid: pid, at: from + int64(s.Value) + clockOffset}
				return c, c.write(from+int64(s.Value), clockCode)
			}
		}
	}
	return nil, errors.New("the kernel gives programs no code to ask the time with")
}

// asClock in the environment of this test's binary makes it start its arguments with a clock of their own.
const asClock = "WEFT_LAB_TEST_CLOCK_AFTER"

func init() {
	after, err := time.ParseDuration(os.Getenv(asClock))
	if err != nil {
		return
	}
	if err := runWithClock(after, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "clock:", err)
		os.Exit(70)
	}
}

// runWithClock runs a program to its end, and this process with it. It says where the clock is to be found.
func runWithClock(after time.Duration, args []string) error {
	runtime.LockOSThread() // whoever traces is a thread
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	attr := &syscall.SysProcAttr{Ptrace: true}
	if f := reflect.ValueOf(attr).Elem().FieldByName("Pdeathsig"); f.IsValid() { // Linux has it, where alone this runs
		f.SetInt(int64(syscall.SIGKILL)) // it must not outlive us
	}
	p, err := os.StartProcess(args[0], args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}, Sys: attr})
	if err != nil {
		return err
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(p.Pid, &status, 0, nil); err != nil {
		return err
	}
	if !status.Stopped() {
		return fmt.Errorf("%s has not stopped before its first instruction", args[0])
	}
	c, err := findClock(p.Pid)
	if err == nil {
		err = c.set(after)
	}
	if err != nil {
		p.Kill()
		return err
	}
	fmt.Printf("clock %d %d\n", c.pid, c.at)
	if err := syscall.PtraceDetach(p.Pid); err != nil {
		return err
	}
	go func() {
		for s := range signals {
			p.Signal(s)
		}
	}()
	state, err := p.Wait()
	if err != nil {
		return err
	}
	os.Exit(state.ExitCode())
	return nil
}

// startWithClock starts a program of a host with its clock set from its first instruction on.
func (w *world) startWithClock(h *netns.Host, after time.Duration, env []string, args ...string) (*netns.Process, *clock) {
	w.t.Helper()
	if runtime.GOARCH != "amd64" {
		w.t.Skipf("the clock of a program can be set on amd64 only, not on %s", runtime.GOARCH)
	}
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := h.Command(w.ctx, self, append([]string{w.fleet.Binary}, args...)...)
	cmd.Env = append(append(cmd.Environ(), asClock+"="+after.String()), env...)
	p, err := h.Start(cmd)
	if err != nil {
		w.t.Fatal(err)
	}
	c := &clock{}
	if err := netns.WaitFor(w.ctx, "the clock to be set", func() error {
		if err := p.Err(); err != nil {
			return err
		}
		_, err := fmt.Sscanf(p.Log(), "clock %d %d\n", &c.pid, &c.at)
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return p, c
}

const year = 365 * 24 * time.Hour

func TestTheClockOfAProgramCanBeSet(t *testing.T) {
	w := newNet(t)
	h := w.must(w.net.AddHost("host"))
	p, c := w.startWithClock(h, year, nil, "server", "--data", w.net.Dir()+"/server", "--url", "https://192.0.2.1")
	says := func(after time.Duration) {
		t.Helper()
		day := "time=" + time.Now().UTC().Add(after).Format(time.DateOnly)
		if err := netns.WaitFor(w.ctx, "it to log "+day, func() error {
			if !strings.Contains(p.Log(), day) {
				return errors.New(p.Log())
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	says(year)
	if err := c.set(-year); err != nil {
		t.Fatal(err)
	}
	cmd := h.Command(w.ctx, w.fleet.Binary, "admin", "--data", w.net.Dir()+"/server", "user", "create", "ann", "--json")
	out, err := cmd.Output()
	if day := time.Now().UTC().Add(-year).Format(time.DateOnly); err != nil || !strings.Contains(string(out), `"created": "`+day) {
		t.Errorf("a user was created %s (%v), not on %s", out, err, day)
	}
}

// nodeAt starts a node with its clock set.
func (w *world) nodeAt(h *netns.Host, after time.Duration, flags ...string) (*Node, *clock) {
	w.t.Helper()
	socket := filepath.Join(w.fleet.Dir, h.Name+".sock")
	n := &Node{
		Client: node.NewClient(socket), Name: h.Name, Host: h, State: filepath.Join(w.fleet.Dir, h.Name), Socket: socket, fleet: w.fleet,
	}
	var c *clock
	n.Process, c = w.startWithClock(h, after, []string{"WEFT_TOKEN=" + w.token},
		append([]string{"node", "--state", n.State, "--socket", n.Socket, "--name", n.Name}, flags...)...)
	return n, c
}

// WireGuard's initiations carry the time, and a peer takes none that is older than the last (section 5.1 of its
// paper): one that was sent by a clock a year ahead is the last for a year.
func TestANodeWhoseClockWasAYearAheadAndIsRightAgainIsReached(t *testing.T) {
	t.Parallel()
	for name, first := range map[string]bool{"joined first": true, "joined second": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			hostA, hostB := w.must(w.net.AddHost("ann")), w.must(w.net.AddHost("bob"))
			var a, b *Node
			join := []func(){func() { a, _ = w.nodeAt(hostA, year); w.up(a) }, func() { b = w.node(hostB); w.up(b) }}
			if !first { // the smaller number begins handshakes
				slices.Reverse(join)
			}
			for _, f := range join {
				f()
			}
			addrA, addrB := w.up(a).Self.Addrs[0], w.up(b).Self.Addrs[0]
			w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-w", "20", addrB.String())
			w.run(hostB, "ping", "-c", "3", "-i", "0.2", "-w", "20", addrA.String())
			if err := a.Process.Stop(); err != nil {
				t.Fatal(err)
			}
			if err := a.Start(w.ctx, ""); err != nil {
				t.Fatal(err)
			}
			w.up(a)
			w.reaches(a, "bob", weft.Direct)
			began := time.Now()
			w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-w", "30", addrB.String())
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("that took %v", took)
			}
			w.run(hostB, "ping", "-c", "3", "-i", "0.2", "-w", "30", addrA.String())
		})
	}
}

// serveAt starts the server with its clock set, and makes a token that lets machines in for a day.
func (w *world) serveAt(after time.Duration) *clock {
	w.t.Helper()
	h := w.must(w.net.AddHost("srv"))
	w.server = &Server{Host: h, Dir: filepath.Join(w.fleet.Dir, "server"), URL: "https://" + h.Addr().String(), fleet: w.fleet}
	var c *clock
	w.server.Process, c = w.startWithClock(h, after, nil, "server", "--data", w.server.Dir, "--url", w.server.URL)
	if err := netns.WaitFor(w.ctx, "the server to answer", func() (err error) {
		w.token, err = w.server.Token(w.ctx, "--reusable", "--expires", "24h")
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	return c
}

// relayAt starts a stand-alone relay with its clock set.
func (w *world) relayAt(after time.Duration) {
	w.t.Helper()
	h := w.must(w.net.AddHost("relay"))
	token, err := w.server.Token(w.ctx, "--relay", "--expires", "24h")
	if err != nil {
		w.t.Fatal(err)
	}
	p, _ := w.startWithClock(h, after, []string{"WEFT_TOKEN=" + token}, "relay", "--data", filepath.Join(w.fleet.Dir, "relay"),
		"--url", "https://"+h.Addr().String(), "--name", "elsewhere")
	if err := netns.WaitFor(w.ctx, "the relay to be a member", func() error {
		if !strings.Contains(p.Log(), "member of the network") {
			return errors.New(p.Log())
		}
		return p.Err()
	}); err != nil {
		w.t.Fatal(err)
	}
}

// relays waits until a node uses the relays of these names, by UDP and by stream, and returns what it says of others.
func (w *world) relays(n *Node, names ...string) (others string) {
	w.t.Helper()
	if err := netns.WaitFor(w.ctx, fmt.Sprintf("%s to use the relays %v", n.Name, names), func() error {
		s, err := n.Status(w.ctx)
		if err != nil {
			return err
		}
		others = ""
		for _, r := range s.Self.Relays {
			switch {
			case !slices.Contains(names, r.Name):
				others += r.Error
				if r.UDP || r.Stream || r.Error == "" {
					return fmt.Errorf("the relay %s is used: %+v", r.Name, r)
				}
			case !r.UDP || !r.Stream:
				return fmt.Errorf("%+v", r)
			}
		}
		return nil
	}); err != nil {
		w.t.Error(err)
	}
	return others
}

func TestClocksThatAreOffByAYearKeepNobodyOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		server, relay, ann time.Duration
		relays             []string
		says               string // of the other relay
	}{
		"a node ahead":    {ann: year, relays: []string{"home", "elsewhere"}},
		"a node behind":   {ann: -year, relays: []string{"home", "elsewhere"}},
		"a relay behind":  {relay: -year, relays: []string{"home", "elsewhere"}},
		"a relay ahead":   {relay: year, relays: []string{"home"}, says: "set that clock right"},
		"a server ahead":  {server: year, relays: []string{"home", "elsewhere"}},
		"a server behind": {server: -year, relays: []string{"home"}, says: "set that clock right"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newNet(t)
			w.serveAt(c.server)
			w.relayAt(c.relay)
			hostA, hostB := w.must(w.net.AddHost("ann")), w.must(w.net.AddHost("bob"))
			a, _ := w.nodeAt(hostA, c.ann)
			b := w.node(hostB)
			w.up(a)
			addr := w.up(b).Self.Addrs[0]
			w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-w", "20", addr.String())
			w.reaches(a, "bob", weft.Direct)
			w.reaches(b, "ann", weft.Direct)
			if says := w.relays(a, c.relays...); !strings.Contains(says, c.says) {
				t.Errorf("of the relay whose clock is off ann says %q", says)
			}
			w.relays(b, c.relays...)
			if r, err := w.server.Admin(w.ctx, "node", "list"); err != nil || strings.Count(r, "online") != 2 {
				t.Errorf("the server says %s (%v)", r, err)
			}
		})
	}
}

// A machine without a battery for its clock begins in the past, and is put right when its network is up: by then
// nodes have joined, with tickets of that time.
func TestAServersClockThatIsPutRightWhileItRunsCostsNobodyTheRelay(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes as long as a relay takes to look at its streams")
	}
	w := newNet(t)
	c := w.serveAt(-year)
	gwA, hostA := w.home("ann", netns.Symmetric)
	_, hostB := w.home("bob", netns.Symmetric)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.RelayUDP)
	w.relays(a, "home")
	w.relays(b, "home")
	if err := c.set(0); err != nil {
		t.Fatal(err)
	}
	talk := w.converse(hostA, hostB, addrB)
	if err := gwA.BlockUDP(); err != nil {
		t.Fatal(err)
	}
	talk.goesOn(t, 50)
	w.reaches(a, "bob", weft.RelayStream)
	// The relay looks at its streams every 15 s.
	began := time.Now()
	for time.Since(began) < 20*time.Second {
		if silence := talk.goesOn(t, 100); silence > 5*time.Second {
			t.Errorf("%v after the clock was put right the connection was silent for %v", time.Since(began), silence)
		}
	}
	w.reaches(a, "bob", weft.RelayStream)
}
