package engine

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"weft/wireguard"
)

// routingOf routes prefixes to peers by turns.
func routingOf(number uint64, peers []*peer, prefixes ...netip.Prefix) *routing {
	r := &routing{number: number}
	for i, p := range prefixes {
		r.Insert(p, peers[i%len(peers)].wg)
	}
	return r
}

func somePeers(n int) (peers []*peer) {
	for range n {
		p := &peer{wg: new(wireguard.Peer)}
		p.wg.Owner = p
		peers = append(peers, p)
	}
	return peers
}

func someAddr(random *rand.Rand) netip.Addr {
	if random.IntN(2) == 0 {
		return netip.AddrFrom4([4]byte{100, 64, byte(random.IntN(8)), byte(random.Uint32())})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(random.IntN(8)), 15: byte(random.Uint32())})
}

func TestASenderRemembersWhatTheRoutesSay(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	peers := somePeers(7)
	var m memory
	for number := range uint64(5) {
		var prefixes []netip.Prefix
		for range 1000 {
			a := someAddr(random)
			prefixes = append(prefixes, netip.PrefixFrom(a, a.BitLen()-random.IntN(3)))
		}
		r := routingOf(number, peers, prefixes...)
		for range 10_000 {
			a := someAddr(random)
			var want *peer
			if wg := r.Lookup(a); wg != nil {
				want = wg.Owner.(*peer)
			}
			if got := m.lookup(r, a); got != want {
				t.Fatalf("%s is %p's, remembered as %p's", a, want, got)
			}
		}
	}
}

// A memory that holds fewer peers than it has room for would be none.
func TestPeersInARowHavePlacesOfTheirOwnInASendersMemory(t *testing.T) {
	var m memory
	r := routingOf(1, somePeers(1), netip.MustParsePrefix("100.64.0.0/10"))
	for i := range 100 {
		m.lookup(r, netip.AddrFrom4([4]byte{100, 64, byte(i >> 4), byte(i * 3)}))
	}
	kept := 0
	for _, x := range m.found {
		if x.peer != nil {
			kept++
		}
	}
	if kept < 75 { // of 256 places drawn at random 100 would take 83
		t.Errorf("of 100 peers %d are remembered", kept)
	}
}

func TestASessionForgetsAnAddressThatIsNoLongerItsPeers(t *testing.T) {
	peers := somePeers(2)
	a, prefix := netip.MustParseAddr("100.64.0.9"), netip.MustParsePrefix("100.64.0.9/32")
	s := &session{Session: &wireguard.Session{Peer: peers[0].wg}, peer: peers[0]}
	o := &opener{routes: routingOf(1, peers[:1], prefix)}
	if !o.belongs(a, s) || !o.belongs(a, s) {
		t.Fatal("the peer's address is not the peer's")
	}
	if o.belongs(netip.MustParseAddr("100.64.0.8"), s) {
		t.Error("an address of nobody is the peer's")
	}
	o.routes = routingOf(2, peers[1:], prefix)
	if o.belongs(a, s) {
		t.Error("the address has become another's, and is still taken from the peer")
	}
}

func BenchmarkASenderFindsOneOfFifty(b *testing.B) {
	peers := somePeers(1000)
	var prefixes []netip.Prefix
	for i := range peers {
		prefixes = append(prefixes, netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64, byte(i >> 8), byte(i)}), 32))
	}
	r := routingOf(1, peers, prefixes...)
	var m memory
	for i := 0; b.Loop(); i++ {
		if m.lookup(r, prefixes[i%50].Addr()) == nil {
			b.Fatal("it is nobody's")
		}
	}
}
