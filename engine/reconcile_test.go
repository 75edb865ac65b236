package engine

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

// configured is what packets meet: per key, its number and the prefixes that lead to it.
func configured(t testing.TB, n *node) map[string][]string {
	t.Helper()
	got := make(map[string][]string)
	for _, s := range n.States() {
		k := s.Key.Bytes()
		v := []string{fmt.Sprintf("peer:%d", s.ID)}
		for _, prefix := range s.Allowed {
			wg := n.routes.Load().Lookup(prefix.Addr())
			if wg == nil {
				t.Fatalf("nobody has %s", prefix)
			}
			if wg.Public() == s.Key.Bytes() || prefix.Bits() < prefix.Addr().BitLen() { // else a longer one has it
				v = append(v, prefix.String())
			}
		}
		slices.Sort(v)
		got[hex.EncodeToString(k[:])] = v
	}
	return got
}

func TestTheDeviceHasExactlyThePeersThatWereSetLast(t *testing.T) {
	keys := make([]key.NodePublic, 6)
	for i := range keys {
		keys[i] = key.NewPrivate[key.Node]().Public()
	}
	prefixes := []netip.Prefix{
		netip.MustParsePrefix("100.64.0.1/32"), netip.MustParsePrefix("100.64.0.2/32"), netip.MustParsePrefix("fd00::1/128"),
		netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("10.1.0.0/16"), netip.MustParsePrefix("0.0.0.0/0"),
	}
	n := start(t, 100)
	rapid.Check(t, func(rt *rapid.T) {
		for range rapid.IntRange(1, 4).Draw(rt, "steps") {
			// Each key and prefix goes to one peer or to none.
			list := make(map[weft.NodeID]*Peer)
			ids := rapid.Permutation([]weft.NodeID{1, 2, 3, 4, 5, 6}).Draw(rt, "ids")
			for i, id := range ids[:rapid.IntRange(0, 6).Draw(rt, "peers")] {
				list[id] = &Peer{ID: id, Key: keys[i]}
			}
			for _, prefix := range prefixes {
				if p := list[weft.NodeID(rapid.IntRange(0, 6).Draw(rt, "owner"))]; p != nil {
					p.Allowed = append(p.Allowed, prefix)
				}
			}
			want := make(map[string][]string)
			var peers []Peer
			for _, p := range list {
				peers = append(peers, *p)
				k := p.Key.Bytes()
				v := []string{fmt.Sprintf("peer:%d", p.ID)}
				for _, prefix := range p.Allowed {
					v = append(v, prefix.String())
				}
				slices.Sort(v)
				want[hex.EncodeToString(k[:])] = v
			}
			if err := n.SetPeers(peers); err != nil {
				rt.Fatal(err)
			}
			if diff := cmp.Diff(want, configured(t, n)); diff != "" {
				rt.Fatal(diff)
			}
		}
	})
}

func TestAnUnchangedPeerIsNotTouched(t *testing.T) {
	a, b := pair(t)
	connect(t, a, b)
	a.SetRoute(b.id, viaStream)
	b.SetRoute(a.id, viaStream)
	exchange(t, a, b, 1)
	before, handshake := a.Engine.peer(b.id), a.Handshake(b.id)
	other := Peer{ID: 3, Key: key.NewPrivate[key.Node]().Public(), Allowed: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}}
	again := b.peer()
	again.Allowed = append(again.Allowed, netip.MustParsePrefix("fd00::2/128")) // and one of its prefixes is new
	mustSetPeers(t, a, other, again)
	exchange(t, a, b, 2)
	if a.Engine.peer(b.id) != before || !a.Handshake(b.id).Equal(handshake) {
		t.Error("the peer began anew")
	}

	// With another key it does.
	again.Key = key.NewPrivate[key.Node]().Public()
	mustSetPeers(t, a, again)
	if p := a.Engine.peer(b.id); p == before || p.route.Load() != nil || len(a.Counters(nil, b.id)) != 0 {
		t.Error("the new key has the old one's route or counters")
	}
	if s := a.source(0, b.addr()); s.peer != nil {
		t.Error("the old key's address is still somebody's")
	}
}

func TestPeersThatCannotBeAreNamedAndTheRestIsSet(t *testing.T) {
	n := still(t, 9)
	k := func() key.NodePublic { return key.NewPrivate[key.Node]().Public() }
	one, two := k(), k()
	shared := netip.MustParsePrefix("100.64.0.7/32")
	err := n.SetPeers([]Peer{
		{ID: 2, Key: two, Allowed: []netip.Prefix{shared, netip.MustParsePrefix("100.64.0.9/24")}},
		{ID: 1, Key: one, Allowed: []netip.Prefix{shared, shared}},
		{ID: 1, Key: k()},
		{ID: 3, Key: one},
		{ID: 9, Key: k()},
		{ID: 4, Key: n.key.Public()},
		{ID: 5},
		{ID: 6, Key: k(), Allowed: []netip.Prefix{{}}},
	})
	for _, want := range []string{
		"peer 1 is there twice", "peers 1 and 3 have one key", "peer 9: it has no number or key of its own",
		"peer 4: it has no", "peer 5: it has no", "peer 6: invalid Prefix", "peers 1 and 2 both claim 100.64.0.7/32",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q:\n%v", want, err)
		}
	}
	got := configured(t, n)
	hexed := func(k key.NodePublic) string { b := k.Bytes(); return hex.EncodeToString(b[:]) }
	if diff := cmp.Diff([]string{"100.64.0.7/32", "peer:1"}, got[hexed(one)]); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"100.64.0.0/24", "peer:2"}, got[hexed(two)]); diff != "" {
		t.Error(diff)
	}
	if len(got) != 3 {
		t.Errorf("%d peers are set, want 1, 2 and 6", len(got))
	}
}

func TestAPeerThatIsRemovedUnderLoadLeavesNothingBehind(t *testing.T) {
	a, b := pair(t)
	connect(t, a, b)
	a.SetRoute(b.id, viaUDP)
	b.SetRoute(a.id, viaUDP)
	exchange(t, a, b, 1)
	stop, sent := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(sent)
		for seq := uint32(0); ; seq++ {
			select {
			case a.tun.out <- packet(addrOf(1), addrOf(2), seq, 500):
			case <-stop:
				return
			}
		}
	}()
	go func() {
		for {
			select {
			case <-b.tun.in:
			case <-stop:
				return
			}
		}
	}()
	for range 20 {
		mustSetPeers(t, a)
		if a.Engine.peer(b.id) != nil || len(a.sources) != 0 || len(configured(t, a)) != 0 {
			t.Fatal("something is left")
		}
		mustSetPeers(t, a, b.peer())
		a.Learn(b.id, b.addr())
		a.SetRoute(b.id, viaUDP)
	}
	close(stop)
	<-sent
}
