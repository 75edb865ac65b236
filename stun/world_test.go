package stun_test

import (
	"cmp"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft"
	"weft/lab/vnet"
	"weft/stun"
)

// A world of one host, one NAT and some servers, in virtual time. It steps a Discovery, and nothing in it runs by
// itself.
type world struct {
	nat     *vnet.NAT // nil: none
	inner   *vnet.NAT // between the host and that one; nil: none
	servers map[netip.AddrPort]server
	probers []stun.Prober
	refuse  bool    // probers do not want to
	loss    float64 // of each packet, each way
	rtt     time.Duration
	// disturb is done once, at that time after the start.
	disturb   func(*world)
	disturbAt time.Duration
	bare      uint16                             // the port of the only socket, where the discovery is not told
	forge     func(*stun.Discovery, stun.Action) // what a stranger does when a probe is asked for

	rand   *rand.Rand
	now    time.Time
	start  time.Time
	flight []flight
	begun  map[stun.TransactionID]time.Time
	asked  map[netip.AddrPort]bool
	sent   int
}

// server answers on one socket of the world.
type server func(req []byte, from, local netip.AddrPort) (stun.Reply, bool)

// flight is a packet on its way to where `to` is, outside of the NAT, or to a socket of the host.
type flight struct {
	at       time.Time
	from, to netip.AddrPort
	inside   bool
	pkt      []byte
	do       func() // instead of a packet
}

var (
	epoch   = time.Unix(1700000000, 0)
	hostIP  = netip.MustParseAddr("10.0.0.5")
	publics = []netip.Addr{
		netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("203.0.113.10"),
		netip.MustParseAddr("203.0.113.11"), netip.MustParseAddr("203.0.113.12"),
	}
	relayA, relayB = ap("192.0.2.1:3478"), ap("192.0.2.2:3478")
)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

// newWorld is a world behind a NAT that is as said, with an outside address of its own if it needs one.
func newWorld(t testing.TB, c vnet.NATConfig) *world {
	t.Helper()
	return &world{
		nat: newNAT(t, c), servers: map[netip.AddrPort]server{}, rtt: 30 * time.Millisecond,
		rand: rand.New(rand.NewPCG(c.Seed, 2)), now: epoch, start: epoch, begun: map[stun.TransactionID]time.Time{}, asked: map[netip.AddrPort]bool{},
	}
}

func newNAT(t testing.TB, c vnet.NATConfig) *vnet.NAT {
	t.Helper()
	if c.Mapping != weft.NoNAT && c.Public == nil {
		c.Public = publics[:1]
	}
	n, err := vnet.NewNAT(c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func served(r *stun.Responder) server {
	return func(req []byte, from, local netip.AddrPort) (stun.Reply, bool) {
		return r.Respond(nil, req, from, local)
	}
}

// relay puts a server with one address on the network, and the second port next to it if it has one.
func (w *world) relay(a netip.AddrPort, ports int) *world {
	r := &stun.Responder{Software: "weft"}
	if ports == 2 {
		r.Ports = [2]uint16{a.Port(), a.Port() + 1}
		w.servers[netip.AddrPortFrom(a.Addr(), a.Port()+1)] = served(r)
	}
	w.servers[a] = served(r)
	return w
}

// probing lets relays probe. They know the host by the first address that the NAT has, as if by a socket of long ago.
func (w *world) probing(relays ...netip.AddrPort) *world {
	for _, r := range relays {
		w.probers = append(w.probers, stun.Prober{Server: r, Seen: w.outside()})
	}
	return w
}

func (w *world) outside() netip.Addr {
	if w.nat != nil && len(w.nat.Config().Public) > 0 {
		return w.nat.Config().Public[0]
	}
	return hostIP
}

// four puts RFC 5780's four sockets on the network.
func (w *world) four(r *stun.Responder) *world {
	p, q := r.IPv4.Primary, r.IPv4.Alternate
	for _, a := range []netip.AddrPort{p, q, netip.AddrPortFrom(p.Addr(), q.Port()), netip.AddrPortFrom(q.Addr(), p.Port())} {
		w.servers[a] = served(r)
	}
	return w
}

// kill switches off what answers at an address.
func (w *world) kill(a netip.Addr) {
	for s := range w.servers {
		if s.Addr() == a {
			delete(w.servers, s)
		}
	}
}

func (w *world) lost() bool { return w.rand.Float64() < w.loss }

func (w *world) after(d time.Duration, f flight) {
	f.at = w.now.Add(d)
	at, _ := slices.BinarySearchFunc(w.flight, f.at.Add(1), func(f flight, t time.Time) int { return cmp.Compare(f.at.Sub(t), 0) })
	w.flight = slices.Insert(w.flight, at, f)
}

// leave takes a packet from the host as far as the servers, or back to the host if a NAT turns it back.
func (w *world) leave(from, to netip.AddrPort, pkt []byte) {
	for _, n := range []*vnet.NAT{w.inner, w.nat} {
		switch {
		case n == nil:
			continue
		case n.Owns(to.Addr()):
			if src, dst, v := n.Hairpin(w.now, from, to); v.Passed() {
				w.arrive(n, src, dst, pkt)
			}
			return
		}
		outside, v := n.Outbound(w.now, from, to)
		if !v.Passed() {
			return
		}
		from = outside
	}
	s := w.servers[to]
	if s == nil || w.lost() {
		return
	}
	if reply, ok := s(pkt, from, to); ok && w.servers[reply.From] != nil && !w.lost() {
		w.after(w.rtt, flight{from: reply.From, to: reply.To, pkt: reply.Packet})
	}
}

// arrive takes a packet that was let in by a NAT to the host.
func (w *world) arrive(n *vnet.NAT, from, to netip.AddrPort, pkt []byte) {
	if n == w.nat && w.inner != nil {
		inside, v := w.inner.Inbound(w.now, from, to)
		if !v.Passed() {
			return
		}
		to = inside
	}
	w.after(time.Millisecond, flight{from: from, to: to, inside: true, pkt: pkt})
}

// enter takes a packet from outside to the host, if the NATs let it in.
func (w *world) enter(f flight) {
	to := f.to
	if w.nat != nil {
		inside, v := w.nat.Inbound(w.now, f.from, to)
		if !v.Passed() {
			return
		}
		to = inside
	}
	w.arrive(w.nat, f.from, to, f.pkt)
}

// probe is what a relay does that is asked to: it sends one, and says so.
func (w *world) probe(d *stun.Discovery, a stun.Action) {
	i := slices.IndexFunc(w.probers, func(p stun.Prober) bool { return p.Server == a.To })
	if w.refuse || i < 0 || w.servers[a.To] == nil || w.lost() {
		w.after(2*w.rtt, flight{do: func() { d.Probed(w.now, a.Probe.ID, false) }})
		return
	}
	to := netip.AddrPortFrom(w.probers[i].Seen, a.Probe.Port)
	reply, ok := w.servers[a.To](stun.AppendBindingRequest(nil, a.Probe.ID, stun.Request{}), to, a.To)
	if ok && !w.lost() {
		w.after(w.rtt, flight{from: reply.From, to: reply.To, pkt: reply.Packet})
	}
	said := !w.lost()
	w.after(w.rtt, flight{do: func() { d.Probed(w.now, a.Probe.ID, said) }})
}

// config is a discovery's by all sockets, whose ports are as a system chooses them.
func (w *world) config(servers ...netip.AddrPort) stun.DiscoveryConfig {
	c := stun.DiscoveryConfig{Servers: servers, Probers: w.probers, Local: []netip.Addr{hostIP}}
	for len(c.Ports) < stun.DiscoverySockets {
		if p := uint16(32768 + w.rand.IntN(28232)); !slices.Contains(c.Ports, p) {
			c.Ports = append(c.Ports, p)
		}
	}
	return c
}

// discover runs a discovery by all sockets.
func (w *world) discover(t testing.TB, servers ...netip.AddrPort) (stun.Report, time.Duration) {
	t.Helper()
	return w.run(t, w.config(servers...))
}

// run drives a discovery to its end, and says what it found and how long it took.
func (w *world) run(t testing.TB, c stun.DiscoveryConfig) (stun.Report, time.Duration) {
	t.Helper()
	d := stun.NewDiscovery(w.now, c)
	ports := c.Ports
	if ports == nil {
		ports = []uint16{w.bare}
	}
	if w.disturb != nil {
		w.after(w.disturbAt, flight{do: func() { w.disturb(w) }})
	}
	for {
		a, next, done := d.Poll(w.now)
		switch {
		case done:
			w.paced(t)
			return d.Report(), w.now.Sub(w.start)
		case a.Probe.Port != 0:
			if w.forge != nil {
				w.forge(d, a)
			}
			w.probe(d, a)
			continue
		case a.Packet != nil:
			w.note(a)
			w.leave(netip.AddrPortFrom(hostIP, ports[a.Socket]), a.To, a.Packet)
			continue
		}
		if len(w.flight) > 0 && !w.flight[0].at.After(next) {
			f := w.flight[0]
			w.flight = w.flight[1:]
			w.now = f.at
			switch socket := slices.Index(ports, f.to.Port()); {
			case f.do != nil:
				f.do()
			case !f.inside:
				w.enter(f)
			case f.to.Addr() == hostIP && socket >= 0:
				d.Handle(w.now, socket, f.pkt, f.from)
			}
			continue
		}
		if !next.After(w.now) {
			t.Fatalf("the discovery wants to be polled at %v, which is not after %v", next, w.now)
		}
		w.now = next
	}
}

func (w *world) note(a stun.Action) {
	w.sent++
	w.asked[a.To] = true
	m, err := stun.Parse(a.Packet)
	if err == nil && m.Class == stun.ClassRequest && w.begun[m.ID].IsZero() {
		w.begun[m.ID] = w.now
	}
}

// paced fails where more than ten transactions were begun in a second (RFC 5780, section 5).
func (w *world) paced(t testing.TB) {
	t.Helper()
	var starts []time.Time
	for _, at := range w.begun {
		starts = append(starts, at)
	}
	slices.SortFunc(starts, time.Time.Compare)
	for i := 1; i < len(starts); i++ {
		if gap := starts[i].Sub(starts[i-1]); gap < time.Second/10 {
			t.Errorf("transactions begun within %v: more than ten a second", gap)
		}
	}
}
