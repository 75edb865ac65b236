package engine

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/engine/segment"
	"weft/host"
	"weft/key"
	"weft/wire"
	"weft/wireguard"
)

// quietNode is an engine with one peer, 2, and a relay, 7, to whom nothing arrives.
func quietNode(t testing.TB) (*node, *peer) {
	t.Helper()
	n := still(t, 1)
	mustSetPeers(t, n, Peer{ID: 2, Key: key.NewPrivate[key.Node]().Public()})
	n.SetRelay(7, relayAddr, nil)
	return n, n.Engine.peer(2)
}

var relayAddr = netip.MustParseAddrPort("192.0.2.7:3478")

func transport(size int, fill byte) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = fill
	}
	copy(b, []byte{4, 0, 0, 0})
	return b
}

// arrive has datagrams come from an address, one message each.
func arrive(n *node, from netip.AddrPort, datagrams ...[]byte) {
	var reads []host.UDPRead
	for _, d := range datagrams {
		d = append([]byte(nil), d...)
		reads = append(reads, host.UDPRead{Data: d, Segment: len(d), From: from})
	}
	n.receives(reads)
}

func TestABatchOfSeveralSourcesIsCountedToEach(t *testing.T) {
	n, p := quietNode(t)
	mustSetPeers(t, n, Peer{ID: 2, Key: p.key}, Peer{ID: 3, Key: key.NewPrivate[key.Node]().Public()})
	learned := netip.MustParseAddrPort("192.0.2.3:3")
	n.Learn(3, learned)
	data := func(id weft.NodeID, b []byte) []byte { return append(wire.AppendData(nil, id), b...) }
	arrive(n, relayAddr,
		data(2, transport(100, 1)), data(2, transport(200, 2)), data(3, transport(300, 3)), data(2, transport(400, 4)),
		data(4, transport(500, 5)), transport(600, 6))
	arrive(n, learned, transport(32, 0), transport(64, 0))
	for _, want := range []struct {
		id    weft.NodeID
		via   weft.Via
		n, by uint64
	}{{2, viaUDP, 3, 700}, {3, viaUDP, 1, 300}, {3, weft.DirectVia(0, learned), 2, 96}} {
		c := counters(n, want.id, want.via)
		if c.RxPackets != want.n || c.RxBytes != want.by {
			t.Errorf("peer %d by %v: %+v", want.id, want.via, c)
		}
	}
	if d := n.Drops(); d.NoPeer != 1 || d.Strange != 7 { // of no session are all but the one of no peer
		t.Errorf("drops %+v", d)
	}
	n.Forget(learned)
	arrive(n, learned, transport(64, 0))
	if c := counters(n, 3, weft.DirectVia(0, learned)); c.RxPackets != 2 {
		t.Error("an address that was forgotten is still somebody's")
	}
}

func TestViasOfAPeerAreBounded(t *testing.T) {
	n, p := quietNode(t)
	route := netip.MustParseAddrPort("192.0.2.1:1")
	n.SetRoute(2, weft.DirectVia(0, route))
	for i := range uint16(3 * maxWays) {
		addr := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, 1}), 1000+i)
		n.Learn(2, addr)
		if i%2 == 0 {
			n.Forget(addr)
		}
	}
	if len(p.ways) != maxWays {
		t.Errorf("%d vias are kept", len(p.ways))
	}
	if len(n.sources) > maxWays {
		t.Errorf("%d addresses are learned", len(n.sources))
	}
	for addr, s := range n.sources {
		if s.peer.find(weft.DirectVia(0, addr)) != s.way {
			t.Errorf("%v is counted where nobody sees it", addr)
		}
	}
	if p.find(weft.DirectVia(0, route)) != p.route.Load() {
		t.Error("the route was forgotten")
	}
}

// loop is a device without an end: it gives one super-packet as often as it is asked, and counts what it is given.
type loop struct {
	packet         []byte
	give           int
	packets, bytes int
}

func (l *loop) Await(time.Duration) error { return nil }
func (l *loop) TryRead(b []byte) (int, error) {
	if l.give == 0 {
		return 0, nil
	}
	l.give--
	return copy(b, l.packet), nil
}
func (l *loop) Write(b []byte) error {
	l.packets, l.bytes = l.packets+1, l.bytes+len(b)-segment.HeaderSize
	return nil
}
func (l *loop) Wake() {}

// super is a super-packet of TCP over IPv4 with a virtio-net header, of so many segments.
func super(from, to netip.Addr, segments int) []byte {
	const payload = MTU - 40
	size := 40 + segments*payload
	b := make([]byte, segment.HeaderSize+size)
	segment.Header{Flags: segment.NeedsChecksum, Type: segment.TCPv4, HeaderLen: 40, Size: payload, ChecksumStart: 20, ChecksumAt: 16}.Put(b)
	p := b[segment.HeaderSize:]
	p[0], p[8], p[9] = 0x45, 64, 6
	binary.BigEndian.PutUint16(p[2:], uint16(size))
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	p[32] = 5 << 4
	p[33] = 0x10
	return b
}

// talking is two engines with sessions, by a direct way.
func talking(t testing.TB) (a, b *node) {
	t.Helper()
	a, b = pair(t)
	connect(t, a, b)
	a.SetRoute(b.id, weft.DirectVia(0, b.addr()))
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	exchange(t, a, b, 1)
	exchange(t, b, a, 2)
	return a, b
}

func TestHotPathsAllocateNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools allocate")
	}
	a, b := talking(t)
	a.SetPolicy(manyRules(a, b))
	b.SetPolicy(manyRules(b, a))
	_, unread := listener(t)
	a.SetRelay(7, unread, nil)
	a.SetRelay(8, netip.AddrPort{}, nowhere{})
	a.SetConnection(2, viaDialed, nowhereAhead{})
	for _, via := range []weft.Via{weft.DirectVia(0, unread), viaUDP, viaStream, viaDialed} {
		a.SetRoute(2, via)
		for name, packet := range map[string][]byte{
			"super-packet": super(addrOf(1), addrOf(2), 44),
			"small packet": append(make([]byte, segment.HeaderSize), packet(addrOf(1), addrOf(2), 9, 100)...),
		} {
			l := &loop{packet: packet}
			o := newSender(a.Engine, l)
			once := func() {
				l.give = 3
				for l.give > 0 || o.queue.Len() > 0 {
					o.fill(true)
					o.send()
				}
			}
			once()
			if n := leastAllocs(once); n != 0 {
				t.Errorf("sending a %s by %v allocates %v times", name, via, n)
			}
		}
	}
	a.SetRoute(2, weft.DirectVia(0, b.addr()))

	// What comes: each message is new, sealed by the test.
	o, s := newBurst(a.Engine), a.Engine.peer(2).current.Load()
	o.place = make([]byte, 0, burstSize)
	for name, prefix := range map[string]bool{"direct": false, "relayed": true} {
		from := a.addr()
		if prefix {
			from = b.relays.Load().byID[viaUDP.Relay].udp.via.Addr
		}
		reads := make([]host.UDPRead, 1)
		big := super(addrOf(1), addrOf(2), 40)
		buf := make([]byte, len(big)+64)
		n := testing.AllocsPerRun(50, func() {
			copy(buf, big)
			o.place = o.place[:0]
			p := buf[:len(big)]
			if err := o.cutter.split.Begin(segment.ParseHeader(p), p[segment.HeaderSize:]); err != nil {
				t.Fatal(err)
			}
			size := 0
			for piece := o.cutter.split.Next(); piece != nil; piece = o.cutter.split.Next() {
				at := len(o.place)
				if prefix {
					o.place = wire.AppendData(o.place, a.id)
				}
				counter, _ := s.take()
				o.place = s.Seal(o.place, counter, piece)
				size = len(o.place) - at
			}
			reads[0] = host.UDPRead{Data: o.place, Segment: size, From: from}
			b.receives(reads)
			for len(b.tun.in) > 0 {
				<-b.tun.in
			}
		})
		// The test's device copies: a super-packet and 40 pieces.
		if n > 42 {
			t.Errorf("receiving a %s run allocates %v times", name, n)
		}
	}
	dst := make([]PathCounters, 0, maxWays)
	if n := testing.AllocsPerRun(100, func() { dst = a.Counters(dst[:0], 2) }); n != 0 || len(dst) == 0 {
		t.Errorf("reading %d counters allocates %v times", len(dst), n)
	}
}

// leastAllocs is AllocsPerRun where other goroutines allocate now and then.
func leastAllocs(f func()) float64 {
	least := testing.AllocsPerRun(50, f)
	for range 4 {
		if least > 0 {
			least = min(least, testing.AllocsPerRun(50, f))
		}
	}
	return least
}

type nowhere struct{}

func (nowhere) SendTo(weft.NodeID, [][]byte) error { return nil }

func FuzzWhatComesToTheSocket(f *testing.F) {
	stun := append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42}, make([]byte, 12)...)
	initiation := append([]byte{1, 0, 0, 0}, make([]byte, wireguard.InitiationSize-4)...)
	peerFrame := append([]byte{wire.Magic, wire.Version, byte(wire.KindPeer), 0}, make([]byte, 40)...)
	for _, b := range [][]byte{
		nil, {4}, transport(32, 0), transport(100, 1), stun, initiation, peerFrame,
		append(wire.AppendData(nil, 2), transport(100, 1)...),
		append(wire.AppendData(nil, 2), initiation...),
		append(wire.AppendData(nil, 2), peerFrame...),
		append(wire.AppendData(nil, 2), append(wire.AppendData(nil, 2), transport(32, 0)...)...),
		append(wire.AppendData(nil, 9), transport(100, 1)...),
		wire.AppendData(nil, 2), {wire.Magic}, {wire.Magic, 2, 2, 0, 0, 0, 0, 2, 4, 0, 0, 0},
	} {
		f.Add(b, uint8(0), uint16(0))
		f.Add(b, uint8(1), uint16(20))
		f.Add(b, uint8(2), uint16(1))
	}
	n, _ := quietNode(f)
	addrs := []netip.AddrPort{relayAddr, netip.MustParseAddrPort("192.0.2.2:2"), netip.MustParseAddrPort("[2001:db8::1]:1")}
	n.Learn(2, addrs[1])
	f.Fuzz(func(t *testing.T, b []byte, from uint8, segment uint16) {
		addr := addrs[int(from)%len(addrs)]
		before := n.Drops()
		n.receives([]host.UDPRead{{Data: append([]byte(nil), b...), Segment: int(segment), From: addr}, {Data: transport(64, 9), Segment: 64, From: addr}})
		if n.Drops() == before {
			t.Fatal("a message of no session is not counted")
		}
		if _, relayed := n.seen.take(); len(relayed) > 0 && addr != addrs[0] {
			t.Fatal("relayed by a stranger")
		}
		n.DeliverStream(8, 2, [][]byte{append([]byte(nil), b...)})
		n.seen.take()
		if len(n.tun.in) > 0 {
			t.Fatal("the device was given what nobody sealed")
		}
	})
}

// benchmarkOut is what a sender does with super-packets, to where it was sealed for, without receivers.
func BenchmarkSealAndSendASuperPacket(b *testing.B) {
	a, c := talking(b)
	sink, at := listener(b)
	sink.SetReadBuffer(1 << 12)
	a.SetRoute(c.id, weft.DirectVia(0, at))
	l := &loop{packet: super(addrOf(1), addrOf(2), 44)}
	o := newSender(a.Engine, l)
	b.SetBytes(int64(len(l.packet)))
	b.ReportAllocs()
	for b.Loop() {
		l.give = 1
		o.fill(true)
		o.send()
	}
}
