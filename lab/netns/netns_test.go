package netns

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
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

// home is a router with one host behind it.
type home struct {
	*Router
	host *Host
}

func newHome(t *testing.T, l *Lab, name string, nat NAT, options ...HostOption) home {
	t.Helper()
	r := must(l.AddRouter(name, nat, options...))(t)
	return home{r, must(r.AddHost(name+"-pc", options...))(t)}
}

// socket is a UDP socket in a host that sends and expects small texts.
type socket struct {
	*net.UDPConn
	t *testing.T
}

func udp(t *testing.T, h *Host, at string) socket {
	t.Helper()
	conn := must(h.ListenUDP(netip.MustParseAddrPort(at)))(t)
	t.Cleanup(func() { conn.Close() })
	return socket{conn, t}
}

func (s socket) port() uint16 { return s.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

func (s socket) send(to netip.AddrPort, text string) {
	s.t.Helper()
	if _, err := s.WriteToUDPAddrPort([]byte(text), to); err != nil {
		s.t.Fatalf("sending %q to %v: %v", text, to, err)
	}
}

// expect waits for a text and returns where it came from.
func (s socket) expect(text string) netip.AddrPort {
	s.t.Helper()
	buf := make([]byte, 2048)
	s.SetReadDeadline(time.Now().Add(3 * time.Second))
	n, from, err := s.ReadFromUDPAddrPort(buf)
	if err != nil {
		s.t.Fatalf("waiting for %q: %v", text, err)
	}
	if string(buf[:n]) != text {
		s.t.Fatalf("got %q from %v, want %q", buf[:n], from, text)
	}
	return netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
}

// silent fails if anything arrives within a time that is a thousand times what a packet takes here.
func (s socket) silent() {
	s.t.Helper()
	buf := make([]byte, 2048)
	s.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
	n, from, err := s.ReadFromUDPAddrPort(buf)
	if err == nil {
		s.t.Fatalf("%q came in from %v, and nothing should", buf[:n], from)
	}
	if !errors.Is(err, os.ErrDeadlineExceeded) {
		s.t.Fatal(err)
	}
}

func at(a netip.Addr, port uint16) netip.AddrPort { return netip.AddrPortFrom(a, port) }

func TestAHostBehindANATReachesAPublicServerFromTheRoutersAddress(t *testing.T) {
	for _, nat := range []NAT{PortRestrictedCone, Symmetric} {
		t.Run(string(nat), func(t *testing.T) {
			l := newLab(t)
			server := must(l.AddHost("server"))(t)
			h := newHome(t, l, "home", nat)

			s, c := udp(t, server, "0.0.0.0:7000"), udp(t, h.host, "0.0.0.0:6000")
			c.send(at(server.Addr(), 7000), "hello")
			from := s.expect("hello")
			if from.Addr() != h.Addr() {
				t.Errorf("UDP arrived from %v, want the router's %v", from, h.Addr())
			}
			s.send(from, "back")
			c.expect("back")

			listener := must(server.Listen(netip.MustParseAddrPort("0.0.0.0:7000")))(t)
			defer listener.Close()
			conn := must(h.host.DialContext(t.Context(), "tcp", at(server.Addr(), 7000).String()))(t)
			defer conn.Close()
			accepted := must(listener.Accept())(t)
			defer accepted.Close()
			if got := accepted.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap(); got != h.Addr() {
				t.Errorf("TCP arrived from %v, want the router's %v", got, h.Addr())
			}
			if _, err := conn.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(accepted, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestAConeHasOnePortTowardsAllAndLetsInOnlyThoseWrittenTo(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	first, second, stranger := must(l.AddHost("first"))(t), must(l.AddHost("second"))(t), must(l.AddHost("stranger"))(t)
	h := newHome(t, l, "home", PortRestrictedCone)
	c := udp(t, h.host, "0.0.0.0:6000")
	s1, s2, s3 := udp(t, first, "0.0.0.0:7000"), udp(t, second, "0.0.0.0:7000"), udp(t, stranger, "0.0.0.0:7000")

	c.send(at(first.Addr(), 7000), "one")
	c.send(at(second.Addr(), 7000), "two")
	seen1, seen2 := s1.expect("one"), s2.expect("two")
	if seen1 != seen2 {
		t.Errorf("the two servers see %v and %v, want one endpoint-independent mapping", seen1, seen2)
	}
	s3.send(seen1, "unsolicited")
	otherPort := udp(t, first, "0.0.0.0:7001")
	otherPort.send(seen1, "known host, other port")
	c.silent()
	s1.send(seen1, "answer")
	c.expect("answer")
}

// The trap: a stranger's probe is tracked in PREROUTING, and where INPUT lets it pass, its entry takes
// the tuple that our own packet to that stranger needs.
func TestAProbeThatComesTooEarlyDoesNotChangeTheMappingOfACone(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server, peer := must(l.AddHost("server"))(t), must(l.AddHost("peer"))(t)
	h := newHome(t, l, "home", PortRestrictedCone)
	c := udp(t, h.host, "0.0.0.0:6000")
	s, p := udp(t, server, "0.0.0.0:7000"), udp(t, peer, "0.0.0.0:7000")

	c.send(at(server.Addr(), 7000), "who am I")
	mapped := s.expect("who am I")
	p.send(mapped, "too early")
	c.silent()
	c.send(at(peer.Addr(), 7000), "punch")
	if got := p.expect("punch"); got != mapped {
		t.Errorf("after an early probe the mapping is %v towards its sender, want %v as towards the server", got, mapped)
	}
	p.send(mapped, "now")
	c.expect("now")
}

func TestASymmetricNATHasAnotherPortForEveryDestination(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	h := newHome(t, l, "home", Symmetric)
	server := must(l.AddHost("server"))(t)
	c := udp(t, h.host, "0.0.0.0:6000")
	ports := map[uint16]bool{}
	for i := range uint16(4) {
		s := udp(t, server, fmt.Sprintf("0.0.0.0:%d", 7000+i))
		c.send(at(server.Addr(), 7000+i), "hello")
		ports[s.expect("hello").Port()] = true
	}
	// Four random ports of 64,512 are all different but once in ten thousand runs; two alike and
	// the mapping would still be no cone.
	if len(ports) < 3 {
		t.Errorf("four destinations saw %d ports, want one each", len(ports))
	}
}

// punch lets two hosts behind NATs learn their mappings from a server and write to each other's. It
// reports whether a packet passed in both directions.
func punch(t *testing.T, natA, natB NAT) bool {
	t.Helper()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	a, b := newHome(t, l, "a", natA), newHome(t, l, "b", natB)
	s, sa, sb := udp(t, server, "0.0.0.0:3478"), udp(t, a.host, "0.0.0.0:6000"), udp(t, b.host, "0.0.0.0:6000")
	sa.send(at(server.Addr(), 3478), "a")
	mappedA := s.expect("a")
	sb.send(at(server.Addr(), 3478), "b")
	mappedB := s.expect("b")

	heard := func(s socket) bool {
		s.SetReadDeadline(time.Now().Add(150 * time.Millisecond))
		_, _, err := s.ReadFromUDPAddrPort(make([]byte, 64))
		return err == nil
	}
	var gotA, gotB bool
	for range 3 {
		sa.send(mappedB, "probe")
		sb.send(mappedA, "probe")
		gotA, gotB = gotA || heard(sa), gotB || heard(sb)
	}
	return gotA && gotB
}

func TestHolePunchingWorksBetweenTwoConesAndFailsBetweenTwoSymmetricNATs(t *testing.T) {
	t.Parallel()
	if !punch(t, PortRestrictedCone, PortRestrictedCone) {
		t.Error("two port-restricted cones: no hole was punched")
	}
	if punch(t, Symmetric, Symmetric) {
		t.Error("two symmetric NATs: a hole was punched, so they are not symmetric")
	}
	if punch(t, PortRestrictedCone, Symmetric) {
		t.Error("cone and symmetric: a hole was punched, so filtering does not depend on the port")
	}
}

func TestAFirewallTranslatesNothingAndLetsInOnlyAnswers(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	h := newHome(t, l, "office", Firewall)
	c, s := udp(t, h.host, "0.0.0.0:6000"), udp(t, server, "0.0.0.0:7000")
	s.send(at(h.host.Addr(), 6000), "unsolicited")
	c.silent()
	c.send(at(server.Addr(), 7000), "hello")
	if from := s.expect("hello"); from != at(h.host.Addr(), 6000) {
		t.Errorf("the server sees %v, want the host's own %v", from, at(h.host.Addr(), 6000))
	}
	s.send(at(h.host.Addr(), 6000), "answer")
	c.expect("answer")
}

func TestAPlainRouterLetsEverythingThroughUntranslated(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server", WithIPv6()))(t)
	h := newHome(t, l, "campus", None, WithIPv6())
	c, s := udp(t, h.host, "[::]:6000"), udp(t, server, "[::]:7000")
	for _, a := range []netip.Addr{h.host.Addr(), h.host.Addr6()} {
		s.send(at(a, 6000), "unsolicited")
		c.expect("unsolicited")
	}
	c.send(at(server.Addr6(), 7000), "hello")
	if from := s.expect("hello"); from != at(h.host.Addr6(), 6000) {
		t.Errorf("the server sees %v, want %v", from, at(h.host.Addr6(), 6000))
	}
}

func TestTwoNATsInARowTranslateTwiceAndIPv6IsRoutedThroughBoth(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server", WithIPv6()))(t)
	outer := must(l.AddRouter("provider", PortRestrictedCone, WithIPv6()))(t)
	inner := must(outer.Inside().AddRouter("home", PortRestrictedCone, WithIPv6()))(t)
	pc := must(inner.AddHost("pc", WithIPv6()))(t)
	c, s := udp(t, pc, "[::]:6000"), udp(t, server, "[::]:7000")
	c.send(at(server.Addr(), 7000), "four")
	from := s.expect("four")
	if from.Addr() != outer.Addr() {
		t.Errorf("the server sees %v, want the outer router's %v", from, outer.Addr())
	}
	s.send(from, "back")
	c.expect("back")
	c.send(at(server.Addr6(), 7000), "six")
	if from := s.expect("six"); from != at(pc.Addr6(), 6000) {
		t.Errorf("the server sees %v, want the host's own %v", from, at(pc.Addr6(), 6000))
	}
	s.send(at(pc.Addr6(), 6000), "back")
	c.expect("back")
	stranger := udp(t, server, "[::]:7001")
	stranger.send(at(pc.Addr6(), 6000), "unsolicited")
	c.silent()
}

func TestAHostHasIPv6OnlyWhereItWasAskedFor(t *testing.T) {
	l := newLab(t)
	for name, options := range map[string][]HostOption{"with": {WithIPv6()}, "without": nil} {
		h := must(l.AddHost(name, options...))(t)
		var addrs []net.Addr
		err := h.Do(func() error {
			link, err := net.InterfaceByName(hostLink)
			if err == nil {
				addrs, err = link.Addrs()
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		has6 := slices.ContainsFunc(addrs, func(a net.Addr) bool { return netip.MustParsePrefix(a.String()).Addr().Is6() })
		if has6 != (options != nil) || h.Addr6().IsValid() != has6 {
			t.Errorf("the host %s IPv6 has the addresses %v and says it has %v", name, addrs, h.Addr6())
		}
	}
	r := must(l.AddRouter("v4only", PortRestrictedCone))(t)
	if _, err := r.AddHost("pc", WithIPv6()); err == nil {
		t.Error("a host got IPv6 behind a router that has none")
	}
}

func TestBlockingUDPCutsFlowsAndUnblockingRestoresThem(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server, other := must(l.AddHost("server"))(t), must(l.AddHost("other"))(t)
	h := newHome(t, l, "home", PortRestrictedCone)
	c, s, o, dns := udp(t, h.host, "0.0.0.0:6000"), udp(t, server, "0.0.0.0:7000"), udp(t, other, "0.0.0.0:7000"), udp(t, server, "0.0.0.0:53")
	exchange := func() netip.AddrPort {
		t.Helper()
		c.send(at(server.Addr(), 7000), "ping")
		from := s.expect("ping")
		s.send(from, "pong")
		c.expect("pong")
		return from
	}
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	mapped := exchange()

	do(h.BlockUDP())
	c.send(at(server.Addr(), 7000), "out")
	c.send(at(server.Addr(), 53), "query")
	s.send(mapped, "in")
	s.silent()
	dns.silent()
	c.silent()
	// Only UDP is cut.
	listener := must(server.Listen(netip.MustParseAddrPort("0.0.0.0:7000")))(t)
	defer listener.Close()
	must(h.host.DialContext(t.Context(), "tcp", at(server.Addr(), 7000).String()))(t).Close()

	do(h.Unblock())
	if again := exchange(); again != mapped {
		t.Errorf("after the block the mapping is %v, want %v as before", again, mapped)
	}

	do(h.BlockUDPExceptDNS())
	c.send(at(server.Addr(), 53), "query")
	dns.send(dns.expect("query"), "response")
	c.expect("response")
	c.send(at(server.Addr(), 7000), "out")
	s.silent()

	// Each block replaces the one before.
	do(h.BlockUDPBetween(h.host.Addr(), server.Addr()))
	c.send(at(other.Addr(), 7000), "hello")
	o.send(o.expect("hello"), "back")
	c.expect("back")
	c.send(at(server.Addr(), 7000), "out")
	s.send(mapped, "in")
	s.silent()
	c.silent()
	do(h.Unblock())
	exchange()
}

func TestARouterThatForgetsLetsNobodyInUntilTheHostSpeaksAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	h := newHome(t, l, "home", Symmetric)
	c, s := udp(t, h.host, "0.0.0.0:6000"), udp(t, server, "0.0.0.0:7000")
	c.send(at(server.Addr(), 7000), "hello")
	before := s.expect("hello")
	if err := h.Forget(); err != nil {
		t.Fatal(err)
	}
	s.send(before, "late")
	c.silent()
	c.send(at(server.Addr(), 7000), "again")
	s.send(s.expect("again"), "back")
	c.expect("back")
}

func TestAMappingEndsAfterItsTimeout(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	h := newHome(t, l, "home", PortRestrictedCone)
	if err := h.SetUDPTimeouts(time.Second, time.Second); err != nil {
		t.Fatal(err)
	}
	c, s := udp(t, h.host, "0.0.0.0:6000"), udp(t, server, "0.0.0.0:7000")
	c.send(at(server.Addr(), 7000), "hello")
	mapped := s.expect("hello")
	// The test of the end: packets from outside would keep the mapping alive, so it may only look
	// once, after the timeout and the granularity of a jiffy have passed for certain.
	c.SetReadDeadline(time.Now().Add(1500 * time.Millisecond))
	if _, _, err := c.ReadFromUDPAddrPort(make([]byte, 16)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("something came in, and nobody sent:", err)
	}
	s.send(mapped, "late")
	c.silent()
}

func TestLossDropsAboutItsShare(t *testing.T) {
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	h := newHome(t, l, "home", PortRestrictedCone)
	c, s := udp(t, h.host, "0.0.0.0:6000"), udp(t, server, "0.0.0.0:7000")
	if err := s.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	arrived := func() (n int) {
		for range 1000 {
			c.send(at(server.Addr(), 7000), "x")
		}
		for {
			s.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
			if _, _, err := s.ReadFromUDPAddrPort(make([]byte, 16)); err != nil {
				return n
			}
			n++
		}
	}
	if err := h.SetLoss(30); err != nil {
		t.Fatal(err)
	}
	// 700 expected with a deviation of 14.5: a hundred is seven deviations.
	if n := arrived(); n < 600 || n > 800 {
		t.Errorf("%d of 1000 packets passed at 30 %% loss, want about 700", n)
	}
	if err := h.SetLoss(0); err != nil {
		t.Fatal(err)
	}
	if n := arrived(); n != 1000 {
		t.Errorf("%d of 1000 packets passed without loss", n)
	}
	if err := h.SetLoss(101); err == nil {
		t.Error("a loss of 101 percent was accepted")
	}
}

func TestRateLimitsBothDirectionsUntilItIsLifted(t *testing.T) {
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	h := newHome(t, l, "home", PortRestrictedCone)
	listener := must(server.Listen(netip.MustParseAddrPort("0.0.0.0:7000")))(t)
	defer listener.Close()
	const size = 1 << 20
	transfer := func(up bool) time.Duration {
		t.Helper()
		near := must(h.host.DialContext(t.Context(), "tcp", at(server.Addr(), 7000).String()))(t)
		defer near.Close()
		far := must(listener.Accept())(t)
		defer far.Close()
		from, to := far, near
		if up {
			from, to = near, far
		}
		began := time.Now()
		go from.Write(make([]byte, size))
		if _, err := io.ReadFull(to, make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		return time.Since(began)
	}
	if err := h.SetRate(16_000_000); err != nil {
		t.Fatal(err)
	}
	for _, up := range []bool{true, false} {
		// 8.4 Mbit take 0.52 s at 16 Mbit/s.
		if took := transfer(up); took < 400*time.Millisecond || took > 3*time.Second {
			t.Errorf("1 MiB (up: %v) took %v at 16 Mbit/s, want about half a second", up, took)
		}
	}
	if err := h.SetRate(0); err != nil {
		t.Fatal(err)
	}
	if took := transfer(true); took > 400*time.Millisecond {
		t.Errorf("1 MiB took %v without a limit", took)
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
