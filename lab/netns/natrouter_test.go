package netns

import (
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft"
	"weft/lab/router"
	"weft/lab/vnet"
)

var (
	restricted = vnet.NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.PreservingAllocation}
	symmetric  = vnet.NATConfig{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressAndPortDependentFiltering}
	fullCone   = vnet.NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering}
)

func newNATHome(t *testing.T, n *Network, name string, nat vnet.NATConfig, options ...HostOption) home {
	t.Helper()
	r := must(n.AddNATRouter(name, nat, options...))(t)
	return home{r, must(r.AddHost(name + "-pc"))(t)}
}

func TestBehindTheLabsOwnNATProgramsSpeakUDPAndTCPAndPing(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	h := newNATHome(t, l.Public(), "home", symmetric)

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
	// Large segments: what the kernel would bundle must have been cut.
	const size = 4 << 20
	go func() { conn.Write(make([]byte, size)) }()
	if _, err := io.ReadFull(accepted, make([]byte, size)); err != nil {
		t.Fatal(err)
	}
	for _, to := range []netip.Addr{server.Addr(), h.Addr(), h.Inside().Gateway()} {
		if out, err := h.host.Run(t.Context(), "ping", "-c", "1", "-W", "2", to.String()); err != nil {
			t.Errorf("pinging %v: %v: %s", to, err, out)
		}
	}
	// An error about what went out comes back in: the server has no such port.
	closed := must(h.host.DialContext(t.Context(), "udp", at(server.Addr(), 9).String()))(t)
	defer closed.Close()
	refused(t, closed, "a closed port of the server's")
	dns := must(h.host.DialContext(t.Context(), "udp", at(h.Inside().Gateway(), 53).String()))(t)
	defer dns.Close()
	refused(t, dns, "the router, which serves no names,")
}

// refused expects ICMP's port unreachable.
func refused(t *testing.T, c net.Conn, what string) {
	t.Helper()
	c.Write([]byte("anybody?"))
	c.SetReadDeadline(time.Now().Add(2 * time.Second))
	if _, err := c.Read(make([]byte, 16)); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("%s answered %v, want connection refused", what, err)
	}
}

func TestAPoolOfAddressesIsAllReachableAndHairpinsBetweenTwoHosts(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	nat := fullCone
	nat.Pooling, nat.Hairpin = vnet.ArbitraryPooling, true
	r := must(l.AddNATRouter("carrier", nat, WithPool(4)))(t)
	a, b := must(r.AddHost("a"))(t), must(r.AddHost("b"))(t)
	late := must(l.AddHost("late"))(t)
	if slices.Contains(r.Public(), late.Addr()) || len(r.Public()) != 4 {
		t.Fatalf("the pool is %v, and a later host got %v", r.Public(), late.Addr())
	}
	s := udp(t, server, "0.0.0.0:7000")
	seen := map[netip.Addr]bool{}
	for i := range 64 {
		c := udp(t, a, "0.0.0.0:0")
		c.send(at(server.Addr(), 7000), "hello")
		from := s.expect("hello")
		if seen[from.Addr()] = true; !slices.Contains(r.Public(), from.Addr()) {
			t.Fatalf("%v is not in the pool %v", from, r.Public())
		}
		s.send(from, fmt.Sprint("back ", i))
		c.expect(fmt.Sprint("back ", i))
	}
	if len(seen) != 4 {
		t.Errorf("64 sockets have the outside addresses %v, want all four", seen)
	}
	sa, sb := udp(t, a, "0.0.0.0:6000"), udp(t, b, "0.0.0.0:6000")
	sa.send(at(server.Addr(), 7000), "a")
	mappedA := s.expect("a")
	sb.send(mappedA, "over the top")
	if from := sa.expect("over the top"); !slices.Contains(r.Public(), from.Addr()) {
		t.Errorf("a hairpinned packet came from %v, want its external address and port", from)
	} else {
		sa.send(from, "and back")
		if from := sb.expect("and back"); from != mappedA {
			t.Errorf("the answer came from %v, want %v", from, mappedA)
		}
	}
}

func TestNATsOfTheLabAndOfTheKernelNestEitherWay(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server", WithIPv6()))(t)
	outer := must(l.AddNATRouter("provider", restricted, WithIPv6()))(t)
	own := must(outer.Inside().AddNATRouter("own", symmetric, WithIPv6()))(t)
	kernel := must(outer.Inside().AddRouter("kernel", PortRestrictedCone, WithIPv6()))(t)
	deep := must(kernel.Inside().AddNATRouter("deep", vnet.NATConfig{Mapping: weft.NoNAT, Filtering: weft.AddressDependentFiltering}, WithIPv6()))
	for _, r := range []*Router{own, kernel, deep(t)} {
		pc := must(r.AddHost(r.Name+"-pc", WithIPv6()))(t)
		c, s := udp(t, pc, "[::]:6000"), udp(t, server, "[::]:7000")
		c.send(at(server.Addr(), 7000), "four")
		from := s.expect("four")
		if from.Addr() != outer.Addr() {
			t.Errorf("behind %s: the server sees %v, want the outer router's %v", r.Name, from, outer.Addr())
		}
		s.send(from, "back")
		c.expect("back")
		c.send(at(server.Addr6(), 7000), "six")
		if from := s.expect("six"); from != at(pc.Addr6(), 6000) {
			t.Errorf("behind %s: the server sees %v, want the host's own %v", r.Name, from, at(pc.Addr6(), 6000))
		}
		s.send(at(pc.Addr6(), 6000), "back")
		c.expect("back")
		stranger := udp(t, server, "[::]:7001")
		stranger.send(at(pc.Addr6(), 6000), "unsolicited")
		c.silent()
		for _, conn := range []socket{c, s, stranger} {
			conn.Close()
		}
	}
}

func TestALowTimeToLiveOpensTheOwnNATAndEndsBeforeTheOther(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	a := newNATHome(t, l.Public(), "a", restricted, WithHops(5))
	b := newNATHome(t, l.Public(), "b", restricted, WithHops(5))
	var mu sync.Mutex
	verdicts := map[string][]string{}
	for _, h := range []home{a, b} {
		if err := h.Trace(func(e router.Event) {
			mu.Lock()
			defer mu.Unlock()
			verdicts[e.Router] = append(verdicts[e.Router], e.Verdict)
		}); err != nil {
			t.Fatal(err)
		}
	}
	s, sa, sb := udp(t, server, "0.0.0.0:3478"), udp(t, a.host, "0.0.0.0:6000"), udp(t, b.host, "0.0.0.0:6000")
	sa.send(at(server.Addr(), 3478), "a")
	mappedA := s.expect("a")
	sb.send(at(server.Addr(), 3478), "b")
	mappedB := s.expect("b")
	if _, err := a.host.Run(t.Context(), "ping", "-c", "1", "-W", "2", "-t", "12", b.Addr().String()); err != nil {
		t.Errorf("a ping of 12 hops does not reach the other router, which is 12 away: %v", err)
	}
	setTTL(t, sa.UDPConn, 4)
	sa.send(mappedB, "opener")
	sb.silent()
	sb.send(mappedA, "probe") // and the opener let it in
	sa.expect("probe")
	setTTL(t, sa.UDPConn, 64)
	sa.send(mappedB, "answer")
	sb.expect("answer")
	mu.Lock()
	defer mu.Unlock()
	if !slices.Contains(verdicts["a"], vnet.DropTTL.String()) || slices.Contains(verdicts["b"], vnet.DropTTL.String()) {
		t.Errorf("the opener died elsewhere than at a's way outside: %v", verdicts)
	}
}

func TestTheLabsOwnNATForgetsRebindsBlocksAndChangesItsAddress(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	h := newNATHome(t, l.Public(), "home", restricted)
	c, s, dns := udp(t, h.host, "0.0.0.0:6000"), udp(t, server, "0.0.0.0:7000"), udp(t, server, "0.0.0.0:53")
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
	do(h.BlockUDPExceptDNS())
	c.send(at(server.Addr(), 7000), "out")
	s.send(mapped, "in")
	s.silent()
	c.silent()
	c.send(at(server.Addr(), 53), "query")
	dns.send(dns.expect("query"), "response")
	c.expect("response")
	do(h.BlockUDP())
	c.send(at(server.Addr(), 53), "query")
	dns.silent()
	do(h.BlockUDPBetween(h.host.Addr(), server.Addr()))
	c.send(at(server.Addr(), 7000), "out")
	s.silent()
	do(h.Unblock())
	if again := exchange(); again != mapped {
		t.Errorf("after the block the mapping is %v, want %v as before", again, mapped)
	}
	do(h.Rebind())
	s.send(mapped, "to the old port")
	c.silent()
	moved := exchange()
	if moved == mapped {
		t.Error("the mapping did not move")
	}
	do(h.Forget())
	s.send(moved, "late")
	c.silent()
	exchange()
	before := h.Addr()
	do(h.Readdress())
	if from := exchange(); from.Addr() == before || from.Addr() != h.Addr() {
		t.Errorf("after the change of address the server sees %v; the router says it is %v", from, h.Addr())
	}
	counts := must(h.Counts())(t)
	if counts[vnet.DropNoMapping.String()] < 2 || counts[vnet.DropBlocked.String()] < 4 || counts[vnet.Forward.String()] < 10 {
		t.Errorf("the counts are %v", counts)
	}
	do(h.SetUp(false))
	c.send(at(server.Addr(), 7000), "out")
	s.silent()
	do(h.SetUp(true))
	exchange()
}

func TestAHostMovesToAnotherNetworkAndBack(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	a, b := newNATHome(t, l.Public(), "a", restricted), newNATHome(t, l.Public(), "b", restricted)
	for _, link := range []vnet.LinkConfig{{}, {Delay: 5 * time.Millisecond}} {
		pc := must(a.AddHost("pc"+fmt.Sprint(link.Delay.Milliseconds()), WithLink(link)))(t)
		for _, on := range []home{a, b, a} {
			if pc.on != on.Inside() {
				if err := pc.Move(on.Inside()); err != nil {
					t.Fatal(err)
				}
			}
			s, c := udp(t, server, "0.0.0.0:7000"), udp(t, pc, "0.0.0.0:6000")
			began := time.Now()
			c.send(at(server.Addr(), 7000), "hello")
			from := s.expect("hello")
			s.send(from, "back")
			c.expect("back")
			if took := time.Since(began); from.Addr() != on.Addr() || took < 2*link.Delay {
				t.Errorf("the server sees %v after a round trip of %v, want %v and %v", from, took, on.Addr(), 2*link.Delay)
			}
			c.Close()
			s.Close()
		}
		if err := pc.SetUp(false); err != nil {
			t.Fatal(err)
		}
		s, c := udp(t, server, "0.0.0.0:7000"), udp(t, pc, "0.0.0.0:6000")
		c.WriteToUDPAddrPort([]byte("lost"), at(server.Addr(), 7000))
		s.silent()
		if err := pc.SetUp(true); err != nil {
			t.Fatal(err)
		}
		s.SetReadDeadline(time.Now().Add(3 * time.Second))
		for range 50 {
			c.WriteToUDPAddrPort([]byte("again"), at(server.Addr(), 7000))
		}
		s.expect("again")
		s.Close()
		c.Close()
	}
}
func setTTL(t *testing.T, c *net.UDPConn, ttl int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if ctlErr := raw.Control(func(fd uintptr) {
		err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_TTL, ttl)
		if v6 := unix.SetsockoptInt(int(fd), unix.IPPROTO_IPV6, unix.IPV6_UNICAST_HOPS, ttl); err != nil {
			err = v6
		}
	}); ctlErr != nil || err != nil {
		t.Fatal(ctlErr, err)
	}
}
