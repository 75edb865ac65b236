package vnet

import (
	"net/netip"
	"testing"
	"time"

	"weft"
)

func BenchmarkOutbound(b *testing.B) {
	for _, m := range mappings {
		b.Run(m.Abbreviation(), func(b *testing.B) {
			n := newNAT(b, NATConfig{Mapping: m, Filtering: apdf})
			all := flows(1024)
			for _, f := range all {
				n.Outbound(start, f.ours, f.remote)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				f := all[i&1023]
				n.Outbound(start.Add(time.Duration(i)), f.ours, f.remote)
				i++
			}
		})
	}
}

func BenchmarkInbound(b *testing.B) {
	for _, f := range filterings {
		b.Run(f.Abbreviation(), func(b *testing.B) {
			n := newNAT(b, NATConfig{Mapping: eim, Filtering: f, RefreshInbound: true})
			all := flows(1024)
			for i, f := range all {
				all[i].ours, _ = n.Outbound(start, f.ours, f.remote)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				f := all[i&1023]
				n.Inbound(start.Add(time.Duration(i)), f.remote, f.ours)
				i++
			}
		})
	}
}

// BenchmarkSpray is a prober's 2,048 mappings and their end.
func BenchmarkSpray(b *testing.B) {
	n := newNAT(b, NATConfig{Mapping: apdm, Filtering: apdf})
	src, dst := ap("10.0.0.2:5000"), netip.MustParseAddr("203.0.113.1")
	now := start
	b.ReportAllocs()
	for b.Loop() {
		for i := range SprayProbes {
			n.Outbound(now, src, netip.AddrPortFrom(dst, uint16(1024+i)))
		}
		now = now.Add(DefaultTimeout)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/SprayProbes, "ns/packet")
}

// BenchmarkHundredThousandMappings is a packet of one of as many.
func BenchmarkHundredThousandMappings(b *testing.B) {
	var pool []netip.Addr
	for i := range 4 {
		pool = append(pool, netip.AddrFrom4([4]byte{198, 51, 100, byte(i)}))
	}
	n := newNAT(b, NATConfig{Mapping: apdm, Filtering: apdf, Public: pool, Pooling: ArbitraryPooling})
	all := flows(100_000)
	for _, f := range all {
		n.Outbound(start, f.ours, f.remote)
	}
	b.ReportAllocs()
	i := 0
	for b.Loop() {
		f := all[i%len(all)]
		n.Outbound(start, f.ours, f.remote)
		i++
	}
}

func flows(count int) (all []flow) {
	for i := range count {
		all = append(all, flow{netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}), 5000),
			netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), uint16(1000+i>>8))})
	}
	return all
}

// BenchmarkNetwork is a packet from a host behind a NAT to one behind another, by four links with delay.
func BenchmarkNetwork(b *testing.B) {
	net := New(1)
	link := LinkConfig{Delay: 5 * time.Millisecond}
	c := NATConfig{Mapping: eim, Filtering: apdf}
	server := must(must(net.Internet().AddHost("server", link)).Listen(3478))
	var known [2]netip.AddrPort
	var sockets [2]*Socket
	for i, name := range []string{"ann", "bob"} {
		r := must(net.Internet().AddRouter(name+"'s", c, link))
		sockets[i] = must(must(r.Inside().AddHost(name, link)).Listen(41641))
		server.Handle(func(_ time.Time, from netip.AddrPort, _ []byte) { known[i] = from })
		sockets[i].Send(netip.AddrPortFrom(server.Host().Addr(), 3478), nil, 0)
		net.Run(time.Second)
	}
	arrived := 0
	for i, s := range sockets {
		s.Handle(func(time.Time, netip.AddrPort, []byte) { arrived++ })
		s.Send(known[1-i], nil, 0)
	}
	net.Run(time.Second)
	data := make([]byte, 100)
	arrived = 0
	b.ReportAllocs()
	sent := 0
	for b.Loop() {
		sockets[sent&1].Send(known[1-sent&1], data, 0)
		net.Run(10 * time.Microsecond)
		sent++
	}
	net.Run(time.Second)
	if arrived != sent {
		b.Fatalf("%d of %d arrived", arrived, sent)
	}
}

// TestWhatFollowsAMappingsFirstPacketAllocatesNothing holds for packets through a network too.
func TestWhatFollowsAMappingsFirstPacketAllocatesNothing(t *testing.T) {
	n := newNAT(t, NATConfig{Mapping: apdm, Filtering: adf, RefreshInbound: true})
	inside, remote := ap("10.0.0.2:5000"), ap("203.0.113.1:1")
	now := start
	if got := testing.AllocsPerRun(1000, func() {
		now = now.Add(time.Millisecond)
		outside, _ := n.Outbound(now, inside, remote)
		n.Inbound(now, remote, outside)
	}); got != 0 {
		t.Errorf("a packet and its answer through a NAT allocate %v times", got)
	}
	net := New(1)
	server := must(must(net.Internet().AddHost("server", LinkConfig{Delay: time.Millisecond})).Listen(3478))
	echo(server)
	home := must(net.Internet().AddRouter("home", NATConfig{Mapping: weft.AddressDependentMapping, Filtering: adf}, LinkConfig{}))
	s := must(must(home.Inside().AddHost("ann", LinkConfig{Delay: time.Millisecond, Jitter: time.Millisecond})).Listen(0))
	to := netip.AddrPortFrom(server.Host().Addr(), 3478)
	data := []byte("hello")
	if got := testing.AllocsPerRun(1000, func() {
		s.Send(to, data, 0)
		net.Run(10 * time.Millisecond)
	}); got != 0 {
		t.Errorf("a packet and its echo through a network allocate %v times", got)
	}
}
