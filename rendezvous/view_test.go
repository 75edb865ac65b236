package rendezvous

import (
	"bytes"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
	"weft/wire"
)

var epoch = time.UnixMilli(1790000000000)

// tell has one view take in the record that another shows.
func tell(t testing.TB, n Network, to *View, r wire.Record, whole bool) {
	t.Helper()
	sealed, err := n.Seal(r)
	if err != nil {
		t.Fatal(err)
	}
	if bad := to.Take(epoch, wire.Members{Whole: whole, Upsert: []wire.Member{{Node: r.Node, Sealed: sealed}}}); bad != 0 {
		t.Fatal("a member's record is bad")
	}
}

func node() key.NodePublic { return key.NewPrivate[key.Node]().Public() }

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// TestEveryMemberDecidesAlikeWhoseAnAddressIs lets members claim what they like, without having looked, and be told in any
// order.
func TestEveryMemberDecidesAlikeWhoseAnAddressIs(t *testing.T) {
	n := testNetwork(t, "home", 'a')
	rapid.Check(t, func(rt *rapid.T) {
		count := rapid.IntRange(2, 7).Draw(rt, "members")
		views, records := make([]*View, count), make([]wire.Record, count)
		for i := range views {
			views[i] = NewView(n, node(), nil)
			address := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(rapid.IntRange(1, 3).Draw(rt, "address"))}), rapid.SampledFrom([]int{16, 16, 24}).Draw(rt, "range"))
			at := epoch.Add(time.Duration(rapid.IntRange(0, 2).Draw(rt, "since")) * time.Second)
			records[i] = views[i].Claim(at, rapid.SampledFrom([]string{"ann", "bob"}).Draw(rt, "name"), address, wire.Update{})
		}
		for i, v := range views {
			for _, j := range rapid.Permutation(rangeOf(count)).Draw(rt, "order") {
				if i != j {
					tell(t, n, v, records[j], false)
				}
			}
		}
		// The slow and obvious rule: in order of claims, who fits.
		sorted := slices.Clone(records)
		slices.SortFunc(sorted, func(a, b wire.Record) int {
			if a.Since != b.Since {
				return int(a.Since - b.Since)
			}
			return a.Node.Compare(b.Node)
		})
		have := map[netip.Addr]wire.Record{}
		for _, r := range sorted {
			if _, taken := have[r.Address.Addr()]; !taken && r.Address.Masked() == sorted[0].Address.Masked() {
				have[r.Address.Addr()] = r
			}
		}
		var first map[weft.NodeID]string
		for i, v := range views {
			mine := have[records[i].Address.Addr()].Node == v.node
			if holder, lost := v.Lose(); lost == mine {
				rt.Fatalf("%v of %v: lost %v to %v", records[i].Address, records[i].Since, lost, holder.Address)
			}
			if !mine {
				continue
			}
			m := v.Map()
			all := map[weft.NodeID]string{m.Self.ID: m.Self.Name + " " + m.Self.Key.String()}
			for _, p := range m.Peers {
				all[p.ID] = p.Name + " " + p.Key.String()
			}
			if len(all) != len(have) {
				rt.Fatalf("%d have an address, and the map has %d", len(have), len(all))
			}
			if first == nil {
				first = all
			} else if diff := cmp.Diff(first, all); diff != "" {
				rt.Fatalf("two members see two networks: %s", diff)
			}
			names := map[string]bool{}
			for _, x := range all {
				name, _, _ := strings.Cut(x, " ")
				if names[name] {
					rt.Fatalf("two are called %s", name)
				}
				names[name] = true
			}
		}
	})
}

func rangeOf(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

func TestAnAddressIsPickedThatNobodyHas(t *testing.T) {
	n := testNetwork(t, "home", 'a')
	v := NewView(n, node(), nil)
	space := pfx("10.9.8.0/28")
	for i := range 13 { // 16 less the network, the resolver and the broadcast address
		a, err := v.Choose(netip.Prefix{}, true)
		if i == 0 {
			a, err = v.Choose(pfx("10.9.8.1/28"), false)
		}
		if err != nil || a.Masked() != space {
			t.Fatalf("pick %d is %v, %v", i, a, err)
		}
		tell(t, n, v, NewView(n, node(), nil).Claim(epoch.Add(time.Duration(i)), "x", a, wire.Update{}), false)
	}
	if len(v.others) != 13 {
		t.Fatalf("%d members", len(v.others))
	}
	if have, lost := v.order(); len(have) != 13 || len(lost) != 0 {
		t.Errorf("of 13 picked addresses %d are had and %d lost", len(have), len(lost))
	}
	if a, err := v.Choose(netip.Prefix{}, true); weft.CodeOf(err) != weft.CodeExhausted {
		t.Errorf("in a full network %v was picked: %v", a, err)
	}
	for want, words := range map[string]string{"10.9.8.1/28": "10.9.8.1 is taken by x", "10.9.8.1/24": "whose range is 10.9.8.0/28 (x has"} {
		if _, err := v.Choose(pfx(want), false); weft.CodeOf(err) != weft.CodeAddressTaken || !strings.Contains(err.Error(), words) {
			t.Errorf("%s: %v", want, err)
		}
	}
	empty := NewView(n, node(), nil)
	if a, err := empty.Choose(netip.Prefix{}, true); err != nil || a.Masked() != DefaultRange {
		t.Errorf("in an empty network %v was picked: %v", a, err)
	}
}

func TestWhoIsMissingWhenTheRendezvousComesBackIsKeptAWhile(t *testing.T) {
	n := testNetwork(t, "home", 'a')
	v := NewView(n, node(), nil)
	v.Claim(epoch, "self", pfx("10.0.0.1/16"), wire.Update{})
	bob, cam := NewView(n, node(), nil), NewView(n, node(), nil)
	rb, rc := bob.Claim(epoch, "bob", pfx("10.0.0.2/16"), wire.Update{}), cam.Claim(epoch, "cam", pfx("10.0.0.3/16"), wire.Update{})
	tell(t, n, v, rb, true)
	tell(t, n, v, rc, false)
	peers := func() (names []string) {
		for _, p := range v.Map().Peers {
			names = append(names, p.Name)
		}
		return names
	}
	v.Lost()
	v.Take(epoch, wire.Members{Whole: true}) // it has started anew, and nobody is back
	if _, next := v.Forget(epoch.Add(Forget - 1)); !slices.Equal(peers(), []string{"bob", "cam"}) || next != epoch.Add(Forget) {
		t.Errorf("%v are there, until %v", peers(), next)
	}
	tell(t, n, v, rb, false) // bob is
	if forgot, next := v.Forget(epoch.Add(Forget)); !forgot || !next.IsZero() || !slices.Equal(peers(), []string{"bob"}) {
		t.Errorf("after that %v are there, until %v", peers(), next)
	}
	v.Take(epoch, wire.Members{Whole: true})
	v.Lost() // and it is away again
	if forgot, _ := v.Forget(epoch.Add(time.Hour)); forgot {
		t.Error("somebody is forgotten while the rendezvous is away")
	}
	v.Take(epoch, wire.Members{Remove: []key.NodePublic{rb.Node}})
	if len(peers()) != 0 {
		t.Errorf("who left is there: %v", peers())
	}
}

func TestANodeStartsFromItsLastMapAndItsPeersClaimsCountLast(t *testing.T) {
	n := testNetwork(t, "home", 'a')
	self := node()
	v := NewView(n, self, nil)
	v.Enter(wire.Entered{Relay: &weft.Relay{ID: 9, Name: "x", URL: "https://inside:1", UDPPort: 3478}}, "https://192.0.2.9:8443")
	v.Claim(epoch, "self", pfx("10.0.0.1/16"), wire.Update{})
	bob := NewView(n, node(), nil)
	tell(t, n, v, bob.Claim(epoch, "bob", pfx("10.0.0.2/16"), wire.Update{Candidates: []weft.Candidate{{Addr: netip.MustParseAddrPort("192.0.2.7:1"), Kind: weft.Host}}}), true)
	last := v.Map()
	if r := last.Relays[0]; r.ID != 1 || r.URL != "https://192.0.2.9:8443" || !slices.Equal(r.UDP, []netip.AddrPort{netip.MustParseAddrPort("192.0.2.9:3478")}) {
		t.Errorf("the relay is where the rendezvous says, not where it is reached: %+v", r)
	}
	again := NewView(n, self, &last)
	again.Claim(epoch, "self", pfx("10.0.0.1/16"), wire.Update{})
	now := again.Map()
	if diff := cmp.Diff(last.Peers, now.Peers, cmp.Comparer(func(a, b key.NodePublic) bool { return a == b }), cmp.Comparer(func(a, b netip.Addr) bool { return a == b }), cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" || now.Version <= last.Version {
		t.Errorf("from version %d to %d: %s", last.Version, now.Version, diff)
	}
	eve := NewView(n, node(), nil)
	tell(t, n, again, eve.Claim(epoch.Add(time.Hour), "eve", pfx("10.0.0.2/16"), wire.Update{}), false)
	if p := again.Map().Peers; len(p) != 1 || p[0].Name != "eve" {
		t.Errorf("who was there at the last run keeps the address from who is there now: %+v", p)
	}
	// Of a network with another range, nothing is taken over.
	last.Ranges = []netip.Prefix{pfx("192.168.0.0/24")}
	if other := NewView(n, self, &last); len(other.others) != 0 {
		t.Error("peers of another range are taken over")
	}
}

func TestARecordMadeEarlierDoesNotReplaceOneMadeLater(t *testing.T) {
	n := testNetwork(t, "home", 'a')
	v, bob := NewView(n, node(), nil), NewView(n, node(), nil)
	v.Claim(epoch, "self", pfx("10.0.0.1/16"), wire.Update{})
	early := bob.Claim(epoch, "bob", pfx("10.0.0.2/16"), wire.Update{})
	late := bob.Claim(epoch, "bob", pfx("10.0.0.2/16"), wire.Update{NAT: "none"}) // the clock stands still
	if late.Made <= early.Made || late.Since != early.Since {
		t.Errorf("made %d, then %d; since %d, then %d", early.Made, late.Made, early.Since, late.Since)
	}
	tell(t, n, v, late, false)
	tell(t, n, v, early, false)
	if got := v.Map().Peers[0].NAT; got != "none" {
		t.Error("an old record was shown as new, and taken")
	}
	moved := bob.Claim(epoch.Add(time.Minute), "bob", pfx("10.0.0.9/16"), wire.Update{})
	if moved.Since != moved.Made {
		t.Error("the claim to another address is as old as that to the first")
	}
}

func TestAClaimOutlivesARestartOfItsNode(t *testing.T) {
	n := testNetwork(t, "home", 'a')
	self := node()
	before := NewView(n, self, nil).Claim(epoch, "self", pfx("10.0.0.1/16"), wire.Update{})
	v := NewView(n, self, nil) // its clock has gone back meanwhile
	tell(t, n, v, before, true)
	if v.Claimed() || len(v.others) != 0 {
		t.Error("a node takes its own record for another's, or for a claim")
	}
	after := v.Claim(epoch.Add(-time.Hour), "self", pfx("10.0.0.1/16"), wire.Update{})
	if after.Since != before.Since || after.Made <= before.Made {
		t.Errorf("since %d, then %d; made %d, then %d", before.Since, after.Since, before.Made, after.Made)
	}
	other := NewView(n, self, nil)
	tell(t, n, other, before, true)
	if r := other.Claim(epoch.Add(time.Hour), "self", pfx("10.0.0.2/16"), wire.Update{}); r.Since != r.Made {
		t.Error("the claim to another address is as old as that of the last run")
	}
}

func TestWhatNoMemberSealedIsLeftOut(t *testing.T) {
	n, stranger := testNetwork(t, "home", 'a'), testNetwork(t, "home", 'b')
	v := NewView(n, node(), nil)
	v.Claim(epoch, "self", pfx("10.0.0.1/16"), wire.Update{})
	r := NewView(stranger, node(), nil).Claim(epoch, "eve", pfx("10.0.0.2/16"), wire.Update{})
	forged, err := stranger.Seal(r)
	if err != nil {
		t.Fatal(err)
	}
	good := NewView(n, node(), nil).Claim(epoch, "bob", pfx("10.0.0.3/16"), wire.Update{})
	sealed, err := n.Seal(good)
	if err != nil {
		t.Fatal(err)
	}
	cut := bytes.Clone(sealed)[:len(sealed)-1]
	bad := v.Take(epoch, wire.Members{Upsert: []wire.Member{{Node: r.Node, Sealed: forged}, {Node: r.Node, Sealed: sealed}, {Node: good.Node, Sealed: cut}, {Node: r.Node}}})
	if m := v.Map(); bad != 4 || len(m.Peers) != 0 {
		t.Errorf("%d are bad, and the peers are %v", bad, m.Peers)
	}
}

func TestWordsMakeTheSameNetworkEverywhereAndNeverShow(t *testing.T) {
	words, err := ParseWords(" home:correct horse: battery \n")
	if err != nil {
		t.Fatal(err)
	}
	n, err := words.Network()
	if err != nil {
		t.Fatal(err)
	}
	// Fixed for good: machines of two versions must derive one network.
	const known = "signingkey:6rB-Qjd21IEgbRyxn1tyo4Mgoy8G1wyWjz0tnKL1cLA"
	if n.Public.String() != known {
		t.Errorf("the words make %s, and made %s", n.Public, known)
	}
	kept, err := key.ParseShared(n.Shared.Reveal())
	if err != nil {
		t.Fatal(err)
	}
	if again, err := NewNetwork("home", kept); err != nil || again.Public != n.Public || ID(again.Public) != ID(n.Public) {
		t.Errorf("what is kept makes another network: %v", err)
	}
	words.Name = "house"
	if other, err := words.Network(); err != nil || other.Public == n.Public {
		t.Errorf("another name makes the same network: %v", err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "words", words, "network", n, "shared", n.Shared)
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		fmt.Fprintf(&log, verb+verb+verb+"\n", words, n.Shared, &words)
	}
	secret := n.Shared.Reveal()[len("sharedsecret:"):]
	for _, s := range []string{"correct", "636f7272656374", secret} {
		if strings.Contains(log.String(), s) {
			t.Errorf("%s is shown:\n%s", s, log.String())
		}
	}
}

func FuzzParseWords(f *testing.F) {
	for _, s := range []string{"", ":", "a:12345678", "home:", "Home:12345678", "a:1234567\x00", "\ufeffa:12345678"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		w, err := ParseWords(s)
		if err == nil && (w.Name != weft.CleanName(w.Name) || len(w.secret) < MinSecret || len(w.secret) > maxSecret) {
			t.Errorf("%q passes", s)
		}
		if err != nil && weft.CodeOf(err) != weft.CodeBadRequest {
			t.Errorf("%q: %v", s, err)
		}
	})
}
