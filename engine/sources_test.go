package engine

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"weft"
	"weft/engine/underlay"
)

// Whatever changes about addresses and ways, an opener takes a packet's for what the engine would.
func TestAnOpenerRemembersWhereFromPeersSend(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	e := &Engine{peers: map[weft.NodeID]*peer{}, sources: map[netip.AddrPort]source{}, sockets: new(underlay.Sockets)}
	for _, p := range somePeers(5) {
		p.id = weft.NodeID(len(e.peers) + 1)
		e.peers[p.id] = p
	}
	some := func() netip.AddrPort { return netip.AddrPortFrom(someAddr(random), uint16(1+random.IntN(3))) }
	lately := make([]netip.AddrPort, 40) // so that what is learned and forgotten is what is remembered
	for i := range lately {
		lately[i] = some()
	}
	var m sourceMemory
	known := 0
	for range 200_000 {
		at, id := lately[random.IntN(len(lately))], weft.NodeID(1+random.IntN(6))
		switch random.IntN(200) {
		case 0:
			e.Learn(id, at)
		case 1:
			e.Forget(at)
		case 2:
			if p := e.peers[id]; p != nil {
				e.roam(p, weft.DirectVia(1, at)) // a link that is none has no socket to carry it
			}
		case 3:
			if p := e.peers[id]; p != nil {
				e.forget([]*peer{p})
				p = somePeers(1)[0]
				p.id = id
				e.peers[id] = p
			}
		case 4:
			if p := e.peers[id]; p != nil { // more ways than are kept
				e.mu.Lock()
				for range 10 {
					e.way(p, weft.DirectVia(weft.LinkID(random.IntN(3)), some()))
				}
				e.mu.Unlock()
			}
		}
		link := weft.LinkID(random.IntN(3))
		got, want := m.source(e, link, at), e.source(link, at)
		if got != want {
			t.Fatalf("what comes from %s by link %d is taken for %v's, and is %v's", at, link, got, want)
		}
		if want.peer != nil {
			known++
		}
	}
	if known < 10_000 {
		t.Errorf("only %d packets were anybody's", known)
	}
}

func BenchmarkAnOpenerFindsOneOfFifty(b *testing.B) {
	e := &Engine{peers: map[weft.NodeID]*peer{}, sources: map[netip.AddrPort]source{}}
	var all []netip.AddrPort
	for i, p := range somePeers(1000) {
		p.id = weft.NodeID(i + 1)
		e.peers[p.id] = p
		all = append(all, netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 41641))
		e.Learn(p.id, all[i])
	}
	var m sourceMemory
	for name, find := range map[string]func(netip.AddrPort) source{
		"remembered": func(a netip.AddrPort) source { return m.source(e, 0, a) },
		"anew":       func(a netip.AddrPort) source { return e.source(0, a) },
	} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if find(all[i%50]).peer == nil {
					b.Fatal("it is nobody's")
				}
			}
		})
	}
}
