package netns

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"
)

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

func TestIPv6HolesArePunchedThroughTwoFirewallsWhereIPv4IsSymmetric(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	a, b := newHome(t, l, "a", Symmetric, WithIPv6()), newHome(t, l, "b", Symmetric, WithIPv6())
	sa, sb := udp(t, a.host, "[::]:6000"), udp(t, b.host, "[::]:6000")
	sa.send(at(b.host.Addr6(), 6000), "lost, and opens the way back")
	sb.silent()
	sb.send(at(a.host.Addr6(), 6000), "hello")
	sa.expect("hello")
	sa.send(at(b.host.Addr6(), 6000), "back")
	sb.expect("back")
}
