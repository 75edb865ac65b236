package engine

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/wireguard"
)

// far joins two nodes by a way that takes its time, and returns where each finds the other.
func far(t *testing.T, a, b *node, delay time.Duration) (atA, atB netip.AddrPort) {
	t.Helper()
	open := func() *net.UDPConn {
		c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	nearA, nearB := open(), open()
	carry := func(from, to *net.UDPConn, dst netip.AddrPort) {
		buf := make([]byte, 2048)
		for {
			n, _, err := from.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			packet := append([]byte(nil), buf[:n]...)
			time.AfterFunc(delay, func() { to.WriteToUDPAddrPort(packet, dst) })
		}
	}
	go carry(nearA, nearB, b.addr())
	go carry(nearB, nearA, a.addr())
	at := func(c *net.UDPConn) netip.AddrPort { return c.LocalAddr().(*net.UDPAddr).AddrPort() }
	return at(nearA), at(nearB)
}

func TestHandshakesThatCrossDoNotCostFiveSeconds(t *testing.T) {
	const delay = 50 * time.Millisecond // far more than the two greetings are apart
	a, b := pair(t)
	toB, toA := far(t, a, b, delay)
	a.SetRoute(b.id, weft.DirectVia(0, toB))
	b.SetRoute(a.id, weft.DirectVia(0, toA))
	a.Learn(b.id, toB)
	b.Learn(a.id, toA)
	began := time.Now()
	a.Greet(b.id)
	b.Greet(a.id)
	exchange(t, a, b, 1)
	exchange(t, b, a, 2)
	if took := time.Since(began); took >= wireguard.RekeyTimeout {
		t.Errorf("the first packets took %v", took)
	}
}

func TestAnInitiationIsTakenWhereOursWasLostBeforeThePeerKnewUs(t *testing.T) {
	a, b := pair(t)
	nobody, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer nobody.Close()
	a.SetRoute(b.id, weft.DirectVia(0, nobody.LocalAddr().(*net.UDPAddr).AddrPort()))
	a.tun.out <- packet(addrOf(a.id), addrOf(b.id), 1, 200) // begins a handshake, to nobody
	eventually(t, "the initiation is gone", func() bool { return a.Engine.peer(b.id).sent.Load() != 0 })
	a.SetRoute(b.id, weft.DirectVia(0, b.addr()))
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	a.Learn(b.id, b.addr())
	b.Learn(a.id, a.addr())
	began := time.Now()
	a.Greet(b.id) // comes to nothing: one was begun
	b.Greet(a.id)
	select {
	case <-b.tun.in: // the packet that waited
	case <-time.After(wireguard.RekeyTimeout - time.Second):
		t.Fatalf("nothing came in %v", time.Since(began))
	}
}
