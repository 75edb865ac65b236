package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"weft"
	"weft/lab/garbage"
	"weft/lab/netns"
)

// What bad input gets where there are real interfaces. Package cli has the tests of what needs none.

// resident is how much of a process is in memory, in MiB. Processes in hosts are the program itself.
func resident(t *testing.T, p *netns.Process) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "VmRSS:")
	kib, err := strconv.Atoi(strings.Fields(after)[0])
	if err != nil {
		t.Fatal(err)
	}
	return kib >> 10
}

func TestGarbageOnEveryPortOfEveryMachineIsNothing(t *testing.T) {
	w := newWorld(t)
	eve := w.must(w.net.AddHost("eve"))
	hostR, hostA, hostB := w.must(w.net.AddHost("relay")), w.must(w.net.AddHost("ann")), w.must(w.net.AddHost("bob"))
	token, err := w.server.Token(w.ctx, "--relay")
	if err != nil {
		t.Fatal(err)
	}
	cmd := hostR.Command(w.ctx, w.fleet.Binary, "relay", "--data", filepath.Join(w.fleet.Dir, "relay"),
		"--url", "https://"+hostR.Addr().String(), "--name", "elsewhere")
	cmd.Env = append(cmd.Environ(), "WEFT_TOKEN="+token)
	relay, err := hostR.Start(cmd)
	if err != nil {
		t.Fatal(err)
	}
	a, b := w.node(hostA), w.node(hostB)
	statusA := w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.Direct)
	w.relays(a, "home", "elsewhere")
	procs := map[string]*netns.Process{"server": w.server.Process, "relay": relay, "ann": a.Process, "bob": b.Process}
	before := map[string]int{}
	for name, p := range procs {
		before[name] = resident(t, p)
	}
	talk := w.converse(hostA, hostB, addrB)
	talk.goesOn(t, 20)

	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	const seed = 2
	port := func(h *netns.Host, n uint16) string { return netip.AddrPortFrom(h.Addr(), n).String() }
	text, err := hostA.ResolvConf()
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ = strings.Cut(text, "nameserver ")
	service, err := netip.ParseAddr(strings.Fields(text + " none")[0])
	if err != nil {
		t.Fatalf("ann's resolv.conf names no server: %v", err)
	}
	resolver := netip.AddrPortFrom(service, 53).String()
	var pouring sync.WaitGroup
	pour := func(from *netns.Host, network, addr string) {
		pouring.Go(func() {
			var err error
			if network == "udp" {
				err = garbage.UDP(ctx, from.DialContext, addr, seed, 4000)
			} else {
				err = garbage.TCP(ctx, from.DialContext, addr, seed, 100)
			}
			if err != nil {
				t.Errorf("%s %s: %v", network, addr, err)
			}
		})
	}
	pour(eve, "udp", port(w.server.Host, 3478))
	pour(eve, "tcp", port(w.server.Host, 443))
	pour(eve, "udp", port(hostR, 3478))
	pour(eve, "tcp", port(hostR, 443))
	pour(eve, "udp", port(hostA, statusA.Self.Port))
	pour(hostB, "udp", port(hostA, statusA.Self.Port)) // a peer's address, and a stranger's port
	pour(hostA, "udp", resolver)
	pour(hostA, "tcp", resolver)
	pouring.Wait()
	if silence := talk.goesOn(t, 50); silence > patience/10 {
		t.Errorf("in the shower the connection between the nodes was silent for %v", silence)
	}

	for _, addr := range []string{port(w.server.Host, 443), port(hostR, 443)} {
		crowd, err := garbage.Gather(ctx, eve.DialContext, addr, 500)
		if err != nil {
			t.Fatal(err)
		}
		defer crowd.Close()
	}
	c := w.node(w.must(w.net.AddHost("cid")))
	addrC := w.up(c).Self.Addrs[0]
	w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-w", "20", addrC.String())
	if got := w.run(hostA, "getent", "ahostsv4", "cid.weft.internal"); !strings.Contains(got, addrC.String()) {
		t.Errorf("cid is looked up as %q", got)
	}
	talk.goesOn(t, 50)
	for name, p := range procs {
		if err := p.Err(); err != nil {
			t.Error(err)
			continue
		}
		after := resident(t, p)
		t.Logf("%s: %d MiB became %d MiB", name, before[name], after)
		if after > before[name]+100 {
			t.Errorf("%s: %d MiB became %d MiB", name, before[name], after)
		}
		log := p.Log()
		for _, bad := range []string{"panic", "goroutine ", ".go:", w.token, token} {
			if strings.Contains(strings.ReplaceAll(log, "weft node --token", ""), bad) {
				t.Errorf("%s logged %q", name, bad)
			}
		}
		if lines := strings.Count(log, "\n"); lines > 50 {
			t.Errorf("%s wrote %d lines into its log", name, lines)
		}
	}
}

func TestAnInterfaceOfThatNameIsSaidAndWaitedFor(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	h := w.must(w.net.AddHost("ann"))
	w.run(h, "ip", "link", "add", "weft0", "type", "veth", "peer", "name", "other")
	n := w.node(h)
	if err := netns.WaitFor(w.ctx, "the node to say so", func() error {
		s, err := n.Status(w.ctx)
		if err == nil && (s.State != weft.Starting || !strings.Contains(strings.Join(s.Problems, ""), "interface weft0 is in use")) {
			err = fmt.Errorf("it is %s: %v", s.State, s.Problems)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(n.Process.Log(), "--tun") {
		t.Errorf("the log says nothing of what to do: %s", n.Process.Log())
	}
	w.run(h, "ip", "link", "delete", "weft0")
	w.up(n)
}

func TestOnAFullDiskAnInterfaceNodeGoesOnAndStartsAgain(t *testing.T) {
	w := newWorld(t)
	hostA, hostB := w.must(w.net.AddHost("ann")), w.must(w.net.AddHost("bob"))
	const former = "nameserver 192.0.2.53\n"
	if err := hostA.SetResolvConf(former); err != nil {
		t.Fatal(err)
	}
	state := filepath.Join(w.fleet.Dir, "ann")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=128k", "weft-test", state).CombinedOutput(); err != nil {
		t.Skipf("a small disk cannot be mounted here: %v: %s", err, out)
	}
	unmount := sync.OnceFunc(func() {
		if out, err := exec.Command("umount", state).CombinedOutput(); err != nil {
			t.Errorf("%v: %s", err, out)
		}
	})
	a, b := w.node(hostA), w.node(hostB)
	defer unmount()
	defer a.Process.Kill()
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.run(hostA, "ping", "-c", "1", "-w", "20", addrB.String())
	if err := a.Process.Stop(); err != nil {
		t.Error(err)
	}
	f, err := os.Create(filepath.Join(state, "filler"))
	if err != nil {
		t.Fatal(err)
	}
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); errors.Is(err, syscall.ENOSPC) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	if err := a.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	s := w.up(a)
	w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-w", "20", addrB.String())
	// What would have to be undone is not done where it cannot be noted.
	if got, err := hostA.ResolvConf(); err != nil || got != former {
		t.Errorf("resolv.conf reads %q (%v)", got, err)
	}
	if problems := strings.Join(s.Problems, "\n"); !strings.Contains(problems, "names of the overlay") || !strings.Contains(problems, "disk is full") {
		t.Errorf("the problems are %q", problems)
	}
	if err := a.Process.Stop(); err != nil {
		t.Error(err)
	}
	if err := errors.Join(f.Close(), os.Remove(f.Name())); err != nil {
		t.Fatal(err)
	}
	if err := a.Start(w.ctx, ""); err != nil {
		t.Fatal(err)
	}
	w.up(a)
	if got := w.run(hostA, "getent", "ahostsv4", "bob.weft.internal"); !strings.Contains(got, addrB.String()) {
		t.Errorf("with space again bob is looked up as %q", got)
	}
	if err := a.Process.Stop(); err != nil {
		t.Error(err)
	}
}

func TestPingUntilDirectFailsWhereThereIsNoDirectPath(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, hostA := w.home("ann", netns.Symmetric)
	_, hostB := w.home("bob", netns.Symmetric)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	w.up(b)
	w.reaches(a, "bob", weft.RelayUDP)
	w.reaches(b, "ann", weft.RelayUDP) // or bob drops what a node says that it has not heard of
	ping := func(args ...string) (int, string) {
		cmd := hostA.Command(w.ctx, w.fleet.Binary, append([]string{"--socket", a.Socket, "ping", "bob", "--interval", "100ms"}, args...)...)
		out, err := cmd.CombinedOutput()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), string(out)
	}
	if code, out := ping("-c", "3"); code != 0 || strings.Count(out, "reply from bob seq=") != 3 || !strings.Contains(out, "by relay-udp home") {
		t.Errorf("exit code %d: %s", code, out)
	}
	if code, out := ping("-c", "3", "--until-direct"); code != 1 || strings.Count(out, "reply from bob seq=") != 3 {
		t.Errorf("until direct: exit code %d: %s", code, out)
	}
}

// A machine that listens and never says a word is no server, and no reason to wait for ever.
func TestAServerThatIsSilentIsSaidToBeSilent(t *testing.T) {
	t.Parallel()
	w := newNet(t)
	h := w.must(w.net.AddHost("hole"))
	l, err := h.Listen(netip.AddrPortFrom(h.Addr(), 443))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var held []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			held = append(held, c) // not read, not closed
		}
	}()
	w.serve()
	token, err := w.server.Token(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	w.token = token
	ann := w.must(w.net.AddHost("ann"))
	w.run(ann, "nft", fmt.Sprintf("add table ip holes; add chain ip holes out { type nat hook output priority -100; }; "+
		"add rule ip holes out ip daddr %s tcp dport 443 dnat to %s", w.server.Host.Addr(), h.Addr()))
	n := w.node(ann)
	if err := netns.WaitFor(w.ctx, "the node to say so", func() error {
		s, err := n.Status(w.ctx)
		if err == nil && !strings.Contains(strings.Join(s.Problems, ""), "does not answer: check the address") {
			err = fmt.Errorf("it is %s: %v", s.State, s.Problems)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	w.run(ann, "nft", "delete table ip holes")
	w.up(n)
}
