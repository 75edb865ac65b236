package vnet

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
)

// benchOf puts a NAT on the bench.
func benchOf(n *NAT) Bench {
	now := start
	b := Bench{
		Out: func(src, server netip.AddrPort) (netip.AddrPort, bool) {
			from, v := n.Outbound(now, src, server)
			return from, v == Forward
		},
		In: func(server, dst netip.AddrPort) (netip.AddrPort, bool) {
			inside, v := n.Inbound(now, server, dst)
			return inside, v == Forward
		},
		Across: func(src, dst netip.AddrPort) (from, inside netip.AddrPort, ok bool) {
			from, inside, v := n.Hairpin(now, src, dst)
			return from, inside, v == HairpinBack
		},
		Wait: func(d time.Duration) { now = now.Add(d) },
	}
	b.Hosts, b.Servers = benchAddresses()
	return b
}

func benchAddresses() (hosts, servers []netip.Addr) {
	for i := range 64 {
		hosts = append(hosts, netip.AddrFrom4([4]byte{10, 0, 0, byte(2 + i)}))
	}
	for i := range 8 {
		servers = append(servers, netip.AddrFrom4([4]byte{203, 0, 113, byte(1 + i)}))
	}
	return hosts, servers
}

// found is what a classifier should find out about a config.
func found(c NATConfig) Findings {
	f := Findings{NAT: c.NAT(), Pooling: c.Pooling, Addresses: len(c.Public), Timeout: c.Timeout, RefreshOutbound: true,
		RefreshInbound: c.RefreshInbound, SessionRule: true, OpensLate: c.OpensLate > 0 && c.Filtering != apdf,
		Spoils: c.Spoils && c.Mapping == eim && c.Filtering != eif}
	if c.Mapping == weft.NoNAT || c.Mapping != eim && c.Filtering != eif {
		f.NAT.Hairpin = weft.SupportUnknown
	}
	if len(c.Public) <= 1 {
		f.Pooling = PairedPooling
	}
	return f
}

func TestAClassifierFindsOutWhatEveryNATIs(t *testing.T) {
	var pools [][]netip.Addr
	for _, size := range []int{1, 4} {
		var pool []netip.Addr
		for i := range size {
			pool = append(pool, netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}))
		}
		pools = append(pools, pool)
	}
	type allocation struct {
		weft.Allocation
		step int16
	}
	count := 0
	for _, m := range mappings {
		for _, f := range filterings {
			for _, a := range []allocation{{weft.PreservingAllocation, 0}, {weft.RandomAllocation, 0},
				{weft.SequentialAllocation, 1}, {weft.SequentialAllocation, -3}} {
				for i := range 1 << 6 {
					bit := func(n int) bool { return i>>n&1 == 1 }
					c := NATConfig{Mapping: m, Filtering: f, Allocation: a.Allocation, Step: a.step, Hairpin: bit(0),
						Public: pools[i>>1&1], RefreshInbound: bit(3), Spoils: bit(4), Seed: uint64(count),
						Timeout: time.Duration(40+i*7%64*4) * time.Second}
					if bit(2) {
						c.Pooling = ArbitraryPooling
					}
					if bit(5) {
						c.OpensLate = 300 * time.Millisecond
					}
					if diff := cmp.Diff(found(c), Classify(benchOf(newNAT(t, c)))); diff != "" {
						t.Fatalf("%+v (-config +found):\n%s", c, diff)
					}
					count++
				}
			}
		}
	}
	t.Logf("%d NATs", count)
}

func TestAClassifierFindsOutWhatAFirewallIs(t *testing.T) {
	for _, f := range filterings {
		c := NATConfig{Mapping: weft.NoNAT, Filtering: f, Timeout: time.Minute}
		if diff := cmp.Diff(found(c), Classify(benchOf(newNAT(t, c)))); diff != "" {
			t.Errorf("%v (-config +found):\n%s", f, diff)
		}
	}
}

func TestAClassifierSaysUnknownWherePacketsCannotTell(t *testing.T) {
	if f := Classify(benchOf(newNAT(t, NATConfig{Mapping: eim, Filtering: eif, BlockUDP: true}))); f != (Findings{Blocked: true}) {
		t.Errorf("a NAT that blocks UDP is %+v", f)
	}
	// What is spoiled stays so for longer than its mappings live.
	c := NATConfig{Mapping: eim, Filtering: apdf, Hairpin: true, Spoils: true, Timeout: 30 * time.Second}
	if f := Classify(benchOf(newNAT(t, c))); f.NAT.Hairpin != weft.SupportUnknown || !f.Spoils {
		t.Errorf("%+v", f)
	}
}

// netBench puts a router of a network on the bench, with real sockets on both sides.
func netBench(t *testing.T, c NATConfig) Bench {
	net := New(7)
	var b Bench
	servers := map[netip.Addr]*Host{}
	for i := range 8 {
		h := must(net.Internet().AddHost(fmt.Sprint("server", i), LinkConfig{Delay: time.Millisecond}))
		servers[h.Addr()] = h
		b.Servers = append(b.Servers, h.Addr())
	}
	for range c.Public {
		must(net.Internet().NewAddr())
	}
	r := must(net.Internet().AddRouter("router", c, LinkConfig{Delay: time.Millisecond}))
	hosts := map[netip.Addr]*Host{}
	for i := range 16 {
		h := must(r.Inside().AddHost(fmt.Sprint("host", i), LinkConfig{}))
		hosts[h.Addr()] = h
		b.Hosts = append(b.Hosts, h.Addr())
	}
	var from, at netip.AddrPort
	sockets := map[netip.AddrPort]*Socket{}
	socket := func(of map[netip.Addr]*Host, a netip.AddrPort) *Socket {
		if sockets[a] == nil {
			sockets[a] = must(of[a.Addr()].Listen(a.Port()))
			sockets[a].Handle(func(_ time.Time, f netip.AddrPort, _ []byte) { from, at = f, a })
		}
		return sockets[a]
	}
	send := func(s *Socket, to netip.AddrPort) bool {
		from, at = netip.AddrPort{}, netip.AddrPort{}
		if err := s.Send(to, []byte("test"), 0); err != nil {
			t.Fatal(err)
		}
		net.Run(3 * time.Millisecond)
		return at.IsValid()
	}
	b.Out = func(src, server netip.AddrPort) (netip.AddrPort, bool) {
		socket(servers, server)
		ok := send(socket(hosts, src), server)
		return from, ok
	}
	b.In = func(server, dst netip.AddrPort) (netip.AddrPort, bool) {
		ok := send(socket(servers, server), dst)
		return at, ok
	}
	b.Across = func(src, dst netip.AddrPort) (netip.AddrPort, netip.AddrPort, bool) {
		ok := send(socket(hosts, src), dst)
		return from, at, ok
	}
	b.Wait = func(d time.Duration) { net.Run(d) }
	return b
}

func TestAClassifierFindsOutTheSameOverTheNetwork(t *testing.T) {
	for _, m := range mappings {
		for _, f := range filterings {
			c := NATConfig{Mapping: m, Filtering: f, Allocation: weft.SequentialAllocation, Step: 3, Hairpin: true,
				Timeout: time.Minute, RefreshInbound: true, Seed: 5}
			want := found(c)
			want.Addresses = 1
			if diff := cmp.Diff(want, Classify(netBench(t, c))); diff != "" {
				t.Errorf("%v with %v (-config +found):\n%s", m, f, diff)
			}
		}
	}
}
