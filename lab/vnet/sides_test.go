package vnet

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"weft"
)

// A node plays the plain way over a network: it knows its own addresses and where a server sees it.
type node struct {
	net     *Network
	socket  *Socket
	server  netip.AddrPort
	known   netip.AddrPort
	targets []netip.AddrPort
	direct  bool
}

func newNode(h *Host, server netip.AddrPort) *node {
	n := &node{net: h.plug.network, socket: must(h.Listen(playerPort)), server: server}
	n.socket.Handle(func(_ time.Time, from netip.AddrPort, b []byte) {
		switch string(b[0]) {
		case "s":
			n.known = netip.MustParseAddrPort(string(b[1:]))
		case "?":
			n.socket.Send(from, []byte("!"), 0)
			if !containsEndpoint(n.targets, from) {
				n.targets = append(n.targets, from)
			}
		case "!":
			n.direct = true
		}
	})
	return n
}

func (n *node) candidates() (all []netip.AddrPort) {
	h := n.socket.Host()
	for _, a := range []netip.Addr{h.Addr(), h.Addr6()} {
		if a.IsValid() {
			all = append(all, netip.AddrPortFrom(a, playerPort))
		}
	}
	if n.known.IsValid() {
		all = append(all, n.known)
	}
	return all
}

// meet has two nodes ask the server and then each other.
func meet(net *Network, a, b *node, rng *rand.Rand) bool {
	for _, n := range []*node{a, b} {
		n.socket.Send(n.server, []byte("s"), 0)
	}
	net.Run(time.Second)
	a.targets, b.targets = b.candidates(), a.candidates()
	for range 6 {
		order := [2]*node{a, b}
		if rng.IntN(2) == 0 {
			order = [2]*node{b, a}
		}
		for _, n := range order {
			for i := 0; i < len(n.targets); i++ {
				n.socket.Send(n.targets[i], []byte("?"), 0)
				net.Run(time.Millisecond)
			}
		}
		net.Run(150 * time.Millisecond)
	}
	return a.direct || b.direct
}

// drawInternet is one with routers in routers, two hosts somewhere, and a server.
func drawInternet(rng *rand.Rand) (net *Network, a, b *Host, server netip.AddrPort, what string) {
	names, configs := kinds()
	net = New(rng.Uint64())
	s := must(must(net.Internet().AddHost("server", LinkConfig{})).Listen(3478))
	s.Handle(func(_ time.Time, from netip.AddrPort, _ []byte) { s.Send(from, []byte("s"+from.String()), 0) })
	server = netip.AddrPortFrom(s.Host().Addr(), 3478)
	places := []*Segment{net.Internet()}
	for i := range 1 + rng.IntN(4) {
		kind := names[rng.IntN(len(names))]
		c := configs[kind]
		c.Hairpin = rng.IntN(2) == 0
		if rng.IntN(5) == 0 {
			c = NATConfig{Mapping: weft.NoNAT, Filtering: c.Filtering}
			kind = "wall-" + c.Filtering.Abbreviation()
		}
		c.BlockUDP = rng.IntN(12) == 0
		on := rng.IntN(len(places))
		r := must(places[on].AddRouter(fmt.Sprint("r", i+1), c, LinkConfig{}))
		what += fmt.Sprintf(" r%d=%s on r%d, hairpin %v, blocked %v;", i+1, kind, on, c.Hairpin, c.BlockUDP)
		if rng.IntN(3) == 0 && places[on].HasIPv6() {
			f := NATConfig{Mapping: weft.NoNAT, Filtering: filterings[rng.IntN(3)], BlockUDP: rng.IntN(8) == 0}
			if err := r.EnableIPv6(f); err != nil {
				panic(err)
			}
			what += fmt.Sprintf(" r%d IPv6, blocked %v;", i+1, f.BlockUDP)
		}
		if rng.IntN(6) == 0 {
			r.Inside().SetIsolated(true)
			what += fmt.Sprintf(" r%d isolated;", i+1)
		}
		places = append(places, r.Inside())
	}
	var hosts [2]*Host
	for i, name := range []string{"ann", "bob"} {
		on := rng.IntN(len(places))
		hosts[i] = must(places[on].AddHost(name, LinkConfig{}))
		what += fmt.Sprintf(" %s on r%d", name, on)
		if places[on].HasIPv6() && rng.IntN(2) == 0 {
			hosts[i].EnableIPv6()
			what += ", IPv6"
		}
	}
	return net, hosts[0], hosts[1], server, what
}

func TestTheOracleIsRightAboutAnyTwoHostsOfAnInternet(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	count := map[bool]int{}
	shared := 0
	for range 3000 {
		net, a, b, server, what := drawInternet(rng)
		x, y := Sides(a, b)
		way, why := Possible(x, y)
		if back, _ := Possible(y, x); back != way {
			t.Fatalf("%s: %v, and from the other side %v", what, way, back)
		}
		got := meet(net, newNode(a, server), newNode(b, server), rng)
		if got != (way == Plain) {
			t.Fatalf("%s: direct %v; the oracle says %v, as %s", what, got, way, why)
		}
		count[got]++
		if x.Shared > 0 {
			shared++
		}
	}
	t.Logf("plain: %v; %d with shared routers", count, shared)
	if count[true] < 500 || count[false] < 500 || shared < 500 {
		t.Error("too few of a kind to show anything")
	}
}
