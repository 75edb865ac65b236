package engine

import (
	"errors"
	"net"
	"testing"

	"weft"
	"weft/engine/underlay"
)

// onLoopback gives a node the loopback interface as link 1.
func onLoopback(t *testing.T, n *node) {
	t.Helper()
	lo, err := net.InterfaceByName("lo")
	if err != nil {
		t.Skipf("no loopback interface here: %v", err)
	}
	if err := n.SetLinks([]underlay.Link{{ID: 1, Device: lo.Name, Index: lo.Index}}); err != nil {
		t.Skipf("no socket on an interface here: %v", err)
	}
}

func TestDataFlowsByALinkAndIsCountedThere(t *testing.T) {
	a, b := start(t, 1), start(t, 2)
	mustSetPeers(t, a, b.peer())
	mustSetPeers(t, b, a.peer())
	a.Learn(b.id, b.addr())
	b.Learn(a.id, a.addr())
	via := weft.DirectVia(1, b.addr())
	a.SetRoute(b.id, via)
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	if err := a.Send(b.id, via, []byte("x")); !errors.Is(err, ErrNoWay) || a.LinkPort(1) != 0 {
		t.Fatalf("by a link that is not there: %v", err)
	}
	onLoopback(t, a)
	if a.LinkPort(1) != a.Port() {
		t.Errorf("the link has port %d, the node %d", a.LinkPort(1), a.Port())
	}
	a.SetRoute(b.id, via)
	for seq := range uint32(20) {
		exchange(t, a, b, 2*seq)
		exchange(t, b, a, 2*seq+1)
	}
	eventually(t, "what came by the link is counted there, both ways", func() bool {
		c := counters(a, b.id, via)
		return c.TxPackets >= 20 && c.RxPackets >= 20
	})
	if c := counters(a, b.id, weft.DirectVia(0, b.addr())); c.TxPackets+c.RxPackets != 0 {
		t.Errorf("without a link went %+v", c)
	}
	// The link goes, and comes again: the route finds its new sockets.
	if err := a.SetLinks(nil); err != nil {
		t.Fatal(err)
	}
	a.tun.out <- packet(addrOf(1), addrOf(2), 100, 200)
	eventually(t, "a packet without a link is counted", func() bool { return a.Drops().NoRoute > 0 })
	onLoopback(t, a)
	exchange(t, a, b, 101)
	links, _, err := a.OpenSocketsOn(1, 1, false)
	if err != nil || len(links) != 1 {
		t.Fatalf("%v, %v", links, err)
	}
	a.SetRoute(b.id, weft.DirectVia(links[0], b.addr()))
	exchange(t, a, b, 102)
}

func TestARelayIsSpokenToByTheLinkThatItHasBound(t *testing.T) {
	a, b := start(t, 1), start(t, 2)
	mustSetPeers(t, a, b.peer())
	mustSetPeers(t, b, a.peer())
	r := newFakeRelay(t, a, b)
	via := weft.Via{Method: weft.RelayUDP, Relay: 5}
	a.SetRelayOn(5, 1, r.addr(), nil)
	b.SetRelay(5, r.addr(), nil)
	a.SetRoute(b.id, via)
	b.SetRoute(a.id, via)
	if err := a.Send(b.id, via, []byte("x")); !errors.Is(err, ErrNoWay) {
		t.Errorf("by a link that is not there: %v", err)
	}
	onLoopback(t, a)
	a.SetRelayOn(5, 1, r.addr(), nil)
	for seq := range uint32(5) {
		exchange(t, a, b, 2*seq)
		exchange(t, b, a, 2*seq+1)
	}
}
