package engine

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/bond"
	"weft/wire"
	"weft/wireguard"
)

// fakeConnection is a TCP connection's end: what is sent by it comes out at the other node.
type fakeConnection struct {
	from, to *node
	there    weft.Via // as the other knows it
}

func (c *fakeConnection) SendTo(_ weft.NodeID, datagrams [][]byte) error {
	c.to.DeliverConnection(c.there, c.from.id, datagrams)
	return nil
}

func (c *fakeConnection) SendAhead(id weft.NodeID, b []byte) error { return c.SendTo(id, [][]byte{b}) }

// The ends of a connection, as each node knows the other's.
var (
	viaDialed   = weft.TCPVia(3, netip.MustParseAddrPort("192.0.2.2:41641"))
	viaAccepted = weft.TCPVia(0, netip.MustParseAddrPort("192.0.2.1:50000"))
)

// connectTCP has a connection be there, which a has dialed.
func connectTCP(a, b *node) {
	a.SetConnection(b.id, viaDialed, &fakeConnection{a, b, viaAccepted})
	b.SetConnection(a.id, viaAccepted, &fakeConnection{b, a, viaDialed})
}

func TestPacketsCrossByAConnection(t *testing.T) {
	a, b := pair(t)
	connectTCP(a, b)
	a.SetRoute(b.id, viaDialed)
	b.SetRoute(a.id, viaAccepted)
	for seq := range uint32(20) {
		exchange(t, a, b, seq)
		exchange(t, b, a, seq)
	}
	eventually(t, "the counters of both ends agree", func() bool {
		ab, ba := counters(a, b.id, viaDialed), counters(b, a.id, viaAccepted)
		return ab.TxPackets >= 20 && ab.TxPackets == ba.RxPackets && ab.TxBytes == ba.RxBytes &&
			ba.TxPackets >= 20 && ba.TxPackets == ab.RxPackets && ba.TxBytes == ab.RxBytes
	})
	if d, e := a.Drops(), b.Drops(); d != (Drops{}) || e != (Drops{}) {
		t.Errorf("drops are %+v, %+v", d, e)
	}
	box, err := wire.PeerBox(a.key, b.key.Public())
	if err != nil {
		t.Fatal(err)
	}
	frame := wire.AppendPeer(nil, box, a.id, wire.Ping{Path: 3})
	if err := a.Send(b.id, viaDialed, frame); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a frame comes by the connection", func() bool {
		_, relayed := b.seen.take()
		return len(relayed) == 1 && relayed[0].via == viaAccepted && relayed[0].src == a.id && relayed[0].b == string(frame)
	})
}

func TestAHandshakeWaitsForAConnection(t *testing.T) {
	a, b := pair(t)
	b.SetConnection(a.id, viaAccepted, &fakeConnection{b, a, viaDialed})
	b.SetRoute(a.id, viaAccepted)
	a.SetRoute(b.id, viaDialed) // which is not there yet
	a.tun.out <- packet(addrOf(a.id), addrOf(b.id), 1, 100)
	eventually(t, "a handshake has no way", func() bool { return a.peer2(b).wanting.Load() })
	connectTCP(a, b)
	select {
	case got := <-b.tun.in:
		if want := packet(addrOf(a.id), addrOf(b.id), 1, 100); string(got) != string(want) {
			t.Errorf("what waited comes as %x", got)
		}
	case <-time.After(patience):
		t.Fatal("what waited does not come")
	}
	exchange(t, b, a, 2)
	exchange(t, a, b, 3)
}

// peer2 is what a node has of another, behind Engine.peer.
func (n *node) peer2(o *node) *peer { return n.Engine.peer(o.id) }

func TestAConnectionThatHasEndedCarriesNothing(t *testing.T) {
	a, b := pair(t)
	connectTCP(a, b)
	a.SetRoute(b.id, viaDialed)
	b.SetRoute(a.id, viaAccepted)
	exchange(t, a, b, 1)
	a.SetConnection(b.id, viaDialed, nil)
	if err := a.Send(b.id, viaDialed, []byte{wire.Magic}); !errors.Is(err, ErrNoWay) {
		t.Errorf("sending by it gives %v", err)
	}
	if err := a.Send(b.id, viaAccepted, []byte{wire.Magic}); !errors.Is(err, ErrNoWay) {
		t.Errorf("sending by what is none gives %v", err)
	}
	a.tun.out <- packet(addrOf(a.id), addrOf(b.id), 2, 100)
	eventually(t, "a packet is dropped", func() bool { return a.Drops().NoRoute == 1 })
	a.SetConnection(9, viaDialed, nil) // of nobody
	connectTCP(a, b)
	exchange(t, a, b, 3)
}

func TestAConnectionIsAWayOfABondLikeAnyOther(t *testing.T) {
	for mode, least := range map[BondMode]uint64{BondAggregate: 450, BondRedundant: 900} {
		t.Run(mode.String(), func(t *testing.T) {
			a, b, d := manyWays(t, mode, 0)
			there, back := &fakeConnection{a, b, viaAccepted}, &fakeConnection{b, a, viaDialed}
			a.SetConnection(b.id, viaDialed, newLater(t, func(x [][]byte) { there.SendTo(b.id, x) }, a, b))
			b.SetConnection(a.id, viaAccepted, newLater(t, func(x [][]byte) { back.SendTo(a.id, x) }, a, b))
			a.SetBond(b.id, Bond{Mode: mode, Ways: []BondWay{{Via: weft.DirectVia(0, addrPortOf(d.c))}, {Via: viaDialed}}})
			b.SetBond(a.id, Bond{Mode: mode, Ways: []BondWay{{Via: weft.DirectVia(0, addrPortOf(d.out))}, {Via: viaAccepted}}})
			bonds(t, a, b, 1)
			const n = 1000
			before := counters(a, b.id, viaDialed).TxPackets
			inOrder(t, a, b, series(t, a, b, n, 500*time.Microsecond, func(i int) { d.cut.Store(i >= n/2) }), n)
			if c := counters(a, b.id, viaDialed); c.TxPackets-before < least {
				t.Errorf("by the connection went %d packets, though the other way was dead half of the time", c.TxPackets-before)
			}
			if c := counters(b, a.id, viaAccepted); c.RxPackets < least {
				t.Errorf("by the connection came %d packets", c.RxPackets)
			}
			exchange(t, b, a, n)
		})
	}
}

// TestAWayThatFailsAsItSaysItsNumberIsTheOnlyOneThatIsSilent: its offer goes again by the other way, which has not been used.
func TestAWayThatFailsAsItSaysItsNumberIsTheOnlyOneThatIsSilent(t *testing.T) {
	a, b, d := manyWays(t, BondAggregate, 0)
	there, back := &fakeConnection{a, b, viaAccepted}, &fakeConnection{b, a, viaDialed}
	a.SetConnection(b.id, viaDialed, newLater(t, func(x [][]byte) { there.SendTo(b.id, x) }, a, b))
	b.SetConnection(a.id, viaAccepted, newLater(t, func(x [][]byte) { back.SendTo(a.id, x) }, a, b))
	a.SetBond(b.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: weft.DirectVia(0, addrPortOf(d.c)), RTT: time.Microsecond}, {Via: viaDialed, RTT: 30 * time.Millisecond}}})
	b.SetBond(a.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: weft.DirectVia(0, addrPortOf(d.out))}, {Via: viaAccepted}}})
	bonds(t, a, b, 1)
	const n = 1000
	inOrder(t, a, b, series(t, a, b, n, 500*time.Microsecond, func(i int) {
		if i < n/2 || d.cut.Load() {
			return
		}
		d.last.Store(int32(wireguard.Padded(wire.OfferSize, 1420) + wireguard.Overhead))
		x := a.peer2(b).bond.Load()
		x.mu.Lock()
		x.ways[0].named.Store(false) // as if the peer had not shown yet that it knows it
		x.offerAt = 0
		x.mu.Unlock()
	}), n)
	if !d.cut.Load() {
		t.Error("no offer went by the way that was to fail")
	}
	s := a.BondStatus(b.id)
	for _, x := range s.Events[1:] { // the first is that it is there
		if x.Via == viaDialed && x.To == bond.Silent {
			t.Errorf("the connection lives, and is held to be silent: %+v", s.Events)
		}
	}
}

func TestAnIdleDevicesAnswerToWhatCameByAConnectionNeedsNoSender(t *testing.T) {
	a, b := talking(t)
	connectTCP(a, b)
	a.SetRoute(b.id, viaDialed)
	b.SetRoute(a.id, viaAccepted)
	answersAsleep(t, a, b)
}

func TestAStrangersDatagramsByAConnectionAreCounted(t *testing.T) {
	a, _ := pair(t)
	a.DeliverConnection(viaDialed, 9, [][]byte{{4, 0, 0, 0}})
	a.DeliverConnection(viaDialed, 2, [][]byte{{}, {9}, []byte("HTTP/1.1 400 Bad Request"), {4, 0, 0, 0, 1}, wire.AppendData(nil, 1)})
	if d := a.Drops(); d.NoPeer != 1 || d.Strange != 5 {
		t.Errorf("drops are %+v", d)
	}
}

func TestWaysThatAreConnectionsAreKept(t *testing.T) {
	n, p := quietNode(t)
	for i := range uint16(16) {
		n.SetConnection(2, weft.TCPVia(0, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 1+i)), &fakeConnection{})
	}
	for i := range uint16(3 * maxWays) {
		n.Learn(2, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 51, 100, 1}), 1000+i))
	}
	kept := 0
	for _, w := range p.ways {
		if _, err := w.stream(); err == nil {
			kept++
		}
	}
	if kept != 16 || len(p.ways) > maxWays {
		t.Errorf("of 16 connections %d are kept, and %d ways", kept, len(p.ways))
	}
}

// nowhereAhead is a connection that takes everything.
type nowhereAhead struct{ nowhere }

func (nowhereAhead) SendAhead(weft.NodeID, []byte) error { return nil }
