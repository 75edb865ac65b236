package engine

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"weft"
	"weft/engine/underlay"
	"weft/wire"
)

// spareOf opens one spare socket at a node and returns its link and address.
func spareOf(t testing.TB, n *node) (weft.LinkID, netip.AddrPort) {
	t.Helper()
	links, ports, err := n.OpenSockets(1, false)
	if err != nil || len(links) != 1 || len(ports) != 1 {
		t.Fatalf("%v, %v, %v", links, ports, err)
	}
	return links[0], netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), ports[0])
}

// listener is a socket of a test.
func listener(t testing.TB) (*net.UDPConn, netip.AddrPort) {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c, c.LocalAddr().(*net.UDPAddr).AddrPort()
}

func TestWhatComesToASpareSocketIsHandedOverWithItsLink(t *testing.T) {
	n := start(t, 1)
	other, from := listener(t)
	links := map[weft.LinkID]netip.AddrPort{}
	for range 3 {
		link, addr := spareOf(t, n)
		if link < underlay.FirstSpare || links[link].IsValid() {
			t.Fatalf("link %#x is given twice, or is no spare one", link)
		}
		links[link] = addr
	}
	frame := append([]byte{wire.Magic, wire.Version, byte(wire.KindPeer), 0}, make([]byte, 40)...)
	stun := append([]byte{0, 1, 0, 0, 0x21, 0x12, 0xA4, 0x42}, make([]byte, 12)...)
	for link, addr := range links {
		for _, b := range [][]byte{frame, stun} {
			if _, err := other.WriteToUDPAddrPort(b, addr); err != nil {
				t.Fatal(err)
			}
			var got []recorded
			eventually(t, "a datagram at a spare socket", func() bool {
				more, _ := n.seen.take()
				got = append(got, more...)
				return len(got) > 0
			})
			if len(got) != 1 || got[0].link != link || got[0].from != from || got[0].b != string(b) || got[0].class != wire.Classify(b) {
				t.Fatalf("sent to link %#x: got %+v", link, got)
			}
		}
		// And what leaves by it, leaves from its port.
		for name, send := range map[string]func() error{
			"WriteTo": func() error { return n.WriteTo(link, from, frame) },
			"Send":    func() error { return n.Send(2, weft.DirectVia(link, from), frame) },
			"SendTTL": func() error { return n.SendTTL(2, weft.DirectVia(link, from), frame, 3) },
		} {
			if err := send(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			buf := make([]byte, 100)
			other.SetReadDeadline(time.Now().Add(patience))
			size, at, err := other.ReadFromUDPAddrPort(buf)
			if err != nil || at.Port() != addr.Port() || string(buf[:size]) != string(frame) {
				t.Fatalf("%s by link %#x: %q from %v (%v), not from %v", name, link, buf[:size], at, err, addr)
			}
		}
	}
	for link := range links {
		n.CloseSocket(link)
		n.CloseSocket(link) // which is none to close any more
		if err := n.WriteTo(link, from, frame); !errors.Is(err, ErrNoWay) {
			t.Errorf("by a closed link: %v", err)
		}
	}
	if n.Sockets() != 0 {
		t.Errorf("%d sockets are left", n.Sockets())
	}
}

// joined makes nodes 1 and 2 that know each other, with a spare socket each.
func joined(t testing.TB) (a, b *node, aLink, bLink weft.LinkID, aAddr, bAddr netip.AddrPort) {
	t.Helper()
	a, b = start(t, 1), start(t, 2)
	mustSetPeers(t, a, b.peer())
	mustSetPeers(t, b, a.peer())
	aLink, aAddr = spareOf(t, a)
	bLink, bAddr = spareOf(t, b)
	return a, b, aLink, bLink, aAddr, bAddr
}

func TestDataFlowsBetweenSpareSocketsAndIsCountedThere(t *testing.T) {
	a, b, aLink, bLink, aAddr, bAddr := joined(t)
	a.Learn(b.id, bAddr)
	b.Learn(a.id, aAddr)
	toB, toA := weft.DirectVia(aLink, bAddr), weft.DirectVia(bLink, aAddr)
	a.SetRoute(b.id, toB)
	b.SetRoute(a.id, toA)
	for seq := range uint32(20) {
		exchange(t, a, b, 2*seq)
		exchange(t, b, a, 2*seq+1)
	}
	for _, x := range []struct {
		at   *node
		peer weft.NodeID
		via  weft.Via
	}{{a, b.id, toB}, {b, a.id, toA}} {
		eventually(t, "a handshake message and 20 packets each way are counted", func() bool {
			c := counters(x.at, x.peer, x.via)
			return c.TxPackets >= 21 && c.RxPackets >= 21
		})
		for _, other := range x.at.Counters(nil, x.peer) {
			if other.Via != x.via && (other.TxPackets > 0 || other.RxPackets > 0) {
				t.Errorf("node %d counts %+v where nothing went", x.at.id, other)
			}
		}
	}
	// The shared socket still works, and the way back to it.
	a.SetRoute(b.id, weft.DirectVia(0, b.addr()))
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	b.Learn(a.id, a.addr())
	exchange(t, a, b, 100)
	a.SetRoute(b.id, toB)
	exchange(t, a, b, 101)
	b.CloseSocket(bLink)
	before := a.Drops()
	exchange(t, b, a, 102)
	if a.Drops() != before {
		t.Errorf("closing a socket of the peer's cost something: %+v", a.Drops())
	}
	a.CloseSocket(aLink)
	a.tun.out <- packet(addrOf(1), addrOf(2), 103, 200)
	eventually(t, "a packet without a socket is counted", func() bool { return a.Drops().NoRoute > before.NoRoute })
}

func TestAHandshakeFromAnUnknownAddressIsAnsweredFromTheSocketThatItCameTo(t *testing.T) {
	a, b, aLink, _, _, bAddr := joined(t)
	via := weft.DirectVia(aLink, bAddr)
	a.Learn(b.id, bAddr)
	a.SetRoute(b.id, via)
	// b knows nothing: neither a route, nor whose that address is.
	a.tun.out <- packet(addrOf(1), addrOf(2), 1, 200)
	select {
	case <-b.tun.in:
	case <-time.After(patience):
		t.Fatalf("no handshake from an unknown address: %+v, %+v", a.Drops(), b.Drops())
	}
	if bRoute := b.Engine.peer(1).route.Load(); bRoute != nil {
		t.Errorf("b has learned the route %v by itself", bRoute.via)
	}
	// What comes is counted at the end of what was read at once, and the packet that the answer let go may be quicker.
	eventually(t, "an answer from where the handshake went", func() bool { return counters(a, b.id, via).RxPackets > 0 })
}

func TestASpareSocketIsOfOneAddressFamily(t *testing.T) {
	n := start(t, 1)
	links, ports, err := n.OpenSockets(1, true)
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	_, four := listener(t)
	if err := n.WriteTo(links[0], four, []byte("x")); !errors.Is(err, syscall.EAFNOSUPPORT) {
		t.Errorf("to an IPv4 address: %v", err)
	}
	six, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	if err != nil {
		t.Skipf("no IPv6 loopback here: %v", err)
	}
	defer six.Close()
	if err := n.SendTTL(2, weft.DirectVia(links[0], six.LocalAddr().(*net.UDPAddr).AddrPort()), []byte("x"), 1); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 10)
	six.SetReadDeadline(time.Now().Add(patience))
	if _, from, err := six.ReadFromUDPAddrPort(buf); err != nil || from.Port() != ports[0] {
		t.Errorf("it came from %v (%v), not port %d", from, err, ports[0])
	}
}

func TestRoutesMoveBetweenSocketsWithoutLoss(t *testing.T) {
	a, b, aLink, bLink, aAddr, bAddr := joined(t)
	for _, x := range []netip.AddrPort{bAddr, b.addr()} {
		a.Learn(b.id, x)
	}
	for _, x := range []netip.AddrPort{aAddr, a.addr()} {
		b.Learn(a.id, x)
	}
	a.SetRoute(b.id, weft.DirectVia(0, b.addr()))
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	exchange(t, a, b, 0)
	vias := []weft.Via{weft.DirectVia(aLink, bAddr), weft.DirectVia(0, b.addr()), weft.DirectVia(aLink, b.addr()), weft.DirectVia(0, bAddr)}
	back := []weft.Via{weft.DirectVia(bLink, aAddr), weft.DirectVia(0, a.addr()), weft.DirectVia(0, aAddr), weft.DirectVia(bLink, a.addr())}
	const packets = 2000
	go func() {
		for seq := range uint32(packets) {
			if seq%50 == 0 {
				a.SetRoute(b.id, vias[seq/50%4])
				b.SetRoute(a.id, back[seq/50%4])
			}
			a.tun.out <- marked(packet(addrOf(1), addrOf(2), seq, 600))
		}
	}()
	seen := make([]bool, packets)
	for range packets {
		select {
		case p := <-b.tun.in:
			seen[binary.BigEndian.Uint32(p[20:])] = true
		case <-time.After(patience):
			for seq, ok := range seen {
				if !ok {
					t.Fatalf("packet %d did not arrive; drops %+v, %+v", seq, a.Drops(), b.Drops())
				}
			}
		}
	}
}
