package weft_test

import (
	stdcmp "cmp"
	"encoding/json"
	"math"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

// sameValues lets cmp compare what has unexported fields and is comparable.
var sameValues = cmp.Options{
	cmpopts.EquateComparable(netip.Addr{}, netip.AddrPort{}, netip.Prefix{}, key.NodePublic{}, key.RelayPublic{}),
}

// someID draws few numbers, so that they meet, and the largest there are, so that differences overflow.
func someID() *rapid.Generator[weft.NodeID] {
	return rapid.OneOf(rapid.Map(rapid.Uint32Range(1, 8), func(n uint32) weft.NodeID { return weft.NodeID(n) }),
		rapid.SampledFrom([]weft.NodeID{math.MaxInt32, math.MaxInt32 + 1, math.MaxUint32 - 1, math.MaxUint32}))
}

func someNode() *rapid.Generator[weft.Node] {
	return rapid.Custom(func(t *rapid.T) weft.Node {
		return weft.Node{
			ID:    someID().Draw(t, "id"),
			Name:  rapid.StringMatching(`[a-z][a-z0-9]{0,5}`).Draw(t, "name"),
			Addrs: []netip.Addr{netip.AddrFrom4([4]byte{100, 64, 0, rapid.Byte().Draw(t, "addr")})},
			Tags:  rapid.SliceOfN(rapid.StringMatching(`tag:[a-z]`), 0, 2).Draw(t, "tags"),
			Candidates: rapid.SliceOfN(rapid.Just(weft.Candidate{
				Addr: netip.MustParseAddrPort("192.0.2.1:41641"), Kind: weft.ServerReflexive, Link: 3,
			}), 0, 2).Draw(t, "candidates"),
			Online:  rapid.Bool().Draw(t, "online"),
			Gateway: weft.NodeID(rapid.Uint32Range(0, 3).Draw(t, "gateway")),
			Routes:  rapid.SliceOfN(rapid.Just(netip.MustParsePrefix("192.168.7.0/24")), 0, 1).Draw(t, "routes"),
		}
	})
}

func someRelays() *rapid.Generator[[]weft.Relay] {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) weft.Relay {
		return weft.Relay{ID: weft.RelayID(rapid.Uint16Range(1, 9).Draw(t, "relay")), URL: "https://relay.example"}
	}), 0, 3)
}

func someChange(version uint64) *rapid.Generator[weft.Change] {
	return rapid.Custom(func(t *rapid.T) weft.Change {
		c := weft.Change{Version: version}
		if rapid.Bool().Draw(t, "self changes") {
			n := someNode().Draw(t, "self")
			c.Self = &n
		}
		c.Upsert = rapid.SliceOfN(someNode(), 0, 5).Draw(t, "upsert")
		c.Remove = rapid.SliceOfN(someID(), 0, 3).Draw(t, "remove")
		if rapid.Bool().Draw(t, "relays change") {
			c.Relays = append([]weft.Relay{}, someRelays().Draw(t, "relays")...)
		}
		if rapid.Bool().Draw(t, "ticket changes") {
			c.Ticket = append([]byte{}, rapid.SliceOfN(rapid.Byte(), 0, 3).Draw(t, "ticket")...)
		}
		c.Domain = rapid.SampledFrom([]string{"", "", "home.internal"}).Draw(t, "domain")
		if rapid.Bool().Draw(t, "a policy is set or unset") {
			c.NoPolicy = new(rapid.Bool().Draw(t, "no policy"))
		}
		if rapid.Bool().Draw(t, "names change") {
			c.DNS = &weft.DNS{Search: rapid.SliceOfN(rapid.Just("corp.example"), 0, 1).Draw(t, "search")}
		}
		return c
	})
}

// model is what a map's peers are, without order and without sharing.
type model map[weft.NodeID]weft.Node

func (m model) apply(c weft.Change) {
	for _, n := range c.Upsert {
		m[n.ID] = n
	}
	for _, id := range c.Remove {
		delete(m, id)
	}
}

func deepCopy(t *rapid.T, m weft.NetworkMap) (out weft.NetworkMap) {
	b, err := json.Marshal(m)
	if err == nil {
		err = json.Unmarshal(b, &out)
	}
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestAChangeTurnsOneMapIntoTheNextAndLeavesTheFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := weft.NetworkMap{Domain: weft.Domain, Ranges: []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10")}}
		want := model{}
		for version := range rapid.Uint64Range(1, 4).Draw(t, "changes") {
			c := someChange(version+1).Draw(t, "change")
			was, change := deepCopy(t, m), c
			next := m.Apply(c)
			want.apply(c)

			if diff := cmp.Diff(was, deepCopy(t, m), sameValues); diff != "" {
				t.Fatalf("the old map was changed: %s", diff)
			}
			if diff := cmp.Diff(change, c, sameValues); diff != "" {
				t.Fatalf("the change was changed: %s", diff)
			}
			if !slices.IsSortedFunc(next.Peers, func(a, b weft.Node) int {
				if a.ID < b.ID {
					return -1
				}
				return 1
			}) {
				t.Fatal("peers are out of order, or one is there twice")
			}
			if len(next.Peers) != len(want) {
				t.Fatalf("%d peers, want %d", len(next.Peers), len(want))
			}
			for id, n := range want {
				got, ok := next.Peer(id)
				if diff := cmp.Diff(n, got, sameValues); !ok || diff != "" {
					t.Fatalf("peer %d: found %v: %s", id, ok, diff)
				}
			}
			wantDomain, wantDNS := stdcmp.Or(c.Domain, m.Domain), m.DNS
			if c.DNS != nil {
				wantDNS = *c.DNS
			}
			wantNoPolicy := m.NoPolicy
			if c.NoPolicy != nil {
				wantNoPolicy = *c.NoPolicy
			}
			if next.NoPolicy != wantNoPolicy {
				t.Fatal("whether there is a policy is not what the change says")
			}
			if next.Domain != wantDomain || !next.DNS.Equal(wantDNS) {
				t.Fatal("domain or names are not what the change says")
			}
			if next.Version != c.Version || !slices.Equal(next.Ranges, m.Ranges) {
				t.Fatal("what a change does not speak of has changed, or the version has not")
			}
			if c.Self != nil && !next.Self.Equal(*c.Self) || c.Self == nil && !next.Self.Equal(m.Self) {
				t.Fatal("self is not what the change says")
			}
			wantRelays, wantTicket := m.Relays, m.Ticket
			if c.Relays != nil {
				wantRelays = c.Relays
			}
			if c.Ticket != nil {
				wantTicket = c.Ticket
			}
			if !slices.EqualFunc(next.Relays, wantRelays, weft.Relay.Equal) || !slices.Equal(next.Ticket, wantTicket) {
				t.Fatal("relays or ticket are not what the change says")
			}

			// What goes over the network does the same.
			var heard weft.Change
			b, err := json.Marshal(c)
			if err == nil {
				err = json.Unmarshal(b, &heard)
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(deepCopy(t, next), deepCopy(t, m.Apply(heard)), sameValues); diff != "" {
				t.Fatalf("the change does something else when it was sent: %s", diff)
			}
			if heard.Empty() != c.Empty() {
				t.Fatalf("empty %v, and %v when it was sent", c.Empty(), heard.Empty())
			}

			// Who owns the new map may write to its list without the old one noticing.
			if len(c.Upsert)+len(c.Remove) > 0 {
				for i := range next.Peers {
					next.Peers[i].Name += "!"
				}
				_ = append(next.Peers[:0], weft.Node{Name: "overwritten"})
				if diff := cmp.Diff(was, deepCopy(t, m), sameValues); diff != "" {
					t.Fatalf("the maps share their list: %s", diff)
				}
				next = m.Apply(c)
			}
			m = next
		}
	})
}

func TestAnEmptyChangeChangesTheVersionAlone(t *testing.T) {
	m := weft.NetworkMap{Version: 1, Peers: []weft.Node{{ID: 1}}, Ticket: []byte{1}, Relays: []weft.Relay{{ID: 1}}}
	c := weft.Change{Version: 9}
	if !c.Empty() {
		t.Error("a change of nothing is not empty")
	}
	want := m
	want.Version = 9
	if diff := cmp.Diff(want, m.Apply(c), sameValues); diff != "" {
		t.Error(diff)
	}
}

func TestTheLastRelayCanBeTakenAway(t *testing.T) {
	b, err := json.Marshal(weft.Change{Version: 2, Relays: []weft.Relay{}})
	if err != nil {
		t.Fatal(err)
	}
	var c weft.Change
	if err := json.Unmarshal(b, &c); err != nil {
		t.Fatal(err)
	}
	m := weft.NetworkMap{Version: 1, Relays: []weft.Relay{{ID: 1}}}
	if got := m.Apply(c).Relays; len(got) != 0 {
		t.Errorf("%s leaves %d relays", b, len(got))
	}
}

func TestAPeerIsFoundByWhatAPersonCallsIt(t *testing.T) {
	web := weft.Node{ID: 7, Name: "web", Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.7"), netip.MustParseAddr("fd12::7")}}
	db := weft.Node{ID: 9, Name: "db", Addrs: []netip.Addr{netip.MustParseAddr("100.64.0.9")}}
	nameless := weft.Node{ID: 11}
	m := weft.NetworkMap{Domain: weft.Domain, Peers: []weft.Node{web, db, nameless}}
	for what, want := range map[string]weft.NodeID{
		"web": 7, "WEB": 7, "web.": 7, "web.weft.internal": 7, "Web.Weft.Internal.": 7, "100.64.0.7": 7, "fd12::7": 7,
		"FD12:0::7": 7, "::ffff:100.64.0.7": 7, "db": 9, "100.64.0.9": 9,
		"": 0, ".": 0, "weft.internal": 0, ".weft.internal": 0, "we": 0, "web.other.internal": 0, "100.64.0.8": 0,
		"web.weft.internal.weft.internal": 0, "100.64.0.7:80": 0,
	} {
		got, ok := m.Find(what)
		if got.ID != want || ok != (want != 0) {
			t.Errorf("%q finds %d, %v; want %d", what, got.ID, ok, want)
		}
	}
	if _, ok := m.Peer(8); ok {
		t.Error("peer 8 was found and is not there")
	}
}

// different sets one field at a time to something else and says which.
func different(t *testing.T, value any, differs func(changed any) bool) {
	t.Helper()
	typ := reflect.TypeOf(value)
	for i := range typ.NumField() {
		changed := reflect.New(typ).Elem()
		changed.Set(reflect.ValueOf(value))
		f := changed.Field(i)
		switch v := f.Addr().Interface().(type) {
		case *key.NodePublic:
			*v = key.NewPrivate[key.Node]().Public()
		case *key.RelayPublic:
			*v = key.NewPrivate[key.Relay]().Public()
		case *time.Time:
			*v = v.Add(time.Second)
		default:
			switch f.Kind() {
			case reflect.String:
				f.SetString(f.String() + "x")
			case reflect.Bool:
				f.SetBool(!f.Bool())
			case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
				f.SetUint(f.Uint() + 1)
			case reflect.Slice:
				f.Set(reflect.Append(reflect.AppendSlice(reflect.Zero(f.Type()), f), reflect.Zero(f.Type().Elem())))
			default:
				t.Fatalf("%s.%s is a %s: teach this test to change it", typ, typ.Field(i).Name, f.Kind())
			}
		}
		if !differs(changed.Interface()) {
			t.Errorf("Equal does not look at %s.%s", typ, typ.Field(i).Name)
		}
	}
}

func TestEqualLooksAtEveryField(t *testing.T) {
	n := weft.Node{ID: 1, Name: "n", LastSeen: time.Unix(100, 0)}
	different(t, n, func(changed any) bool { return !n.Equal(changed.(weft.Node)) })
	r := weft.Relay{ID: 1, Name: "r"}
	different(t, r, func(changed any) bool { return !r.Equal(changed.(weft.Relay)) })

	elsewhere := n
	elsewhere.LastSeen = n.LastSeen.In(time.FixedZone("elsewhere", 3600))
	if !n.Equal(elsewhere) || !r.Equal(r) {
		t.Error("the same moment in another zone is another node")
	}
}

func TestCleanNameKeepsWhatANameServerTakes(t *testing.T) {
	for s, want := range map[string]string{
		"web": "web", "Web-1": "web-1", "Anna's MacBook Pro": "anna-s-macbook-pro", "web.example.com": "web",
		"--web--": "web", "": "", "-": "", ".": "", "ünï": "n", "日本": "", "a_b": "a-b", "a  b": "a-b",
		"xn--80ak6aa92e": "xn-80ak6aa92e", "7": "7", "\x00a\xffb": "a-b", "\u212Aelvin": "kelvin",
		strings.Repeat("a", 80): strings.Repeat("a", 63), strings.Repeat("a", 62) + "-b": strings.Repeat("a", 62),
		strings.Repeat("a", 63) + "-b": strings.Repeat("a", 63),
	} {
		if got := weft.CleanName(s); got != want {
			t.Errorf("CleanName(%q) = %q, want %q", s, got, want)
		}
	}
}

// isLabel says so of a label in the letters-digits-hyphen form of RFC 5890 section 2.3.1, without two hyphens
// in a row.
func isLabel(s string) bool {
	if s == "" || len(s) > weft.MaxNameLength || s[0] == '-' || s[len(s)-1] == '-' || strings.Contains(s, "--") {
		return false
	}
	return strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == ""
}

func FuzzCleanName(f *testing.F) {
	for _, s := range []string{"", "web", "Anna's MacBook Pro", "a.b", "-", "xn--a", "İstanbul", "\xff", strings.Repeat("a-", 70)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := weft.CleanName(s)
		if got != "" && !isLabel(got) {
			t.Errorf("CleanName(%q) = %q, which is no label", s, got)
		}
		if again := weft.CleanName(got); again != got {
			t.Errorf("CleanName(%q) = %q: cleaning twice is not cleaning once", got, again)
		}
	})
}

func BenchmarkApplyOneOf10000(b *testing.B) {
	m := weft.NetworkMap{}
	for i := range 10000 {
		m.Peers = append(m.Peers, weft.Node{ID: weft.NodeID(2 * i)})
	}
	c := weft.Change{Version: 1, Upsert: []weft.Node{{ID: 5001}}}
	b.ReportAllocs()
	for b.Loop() {
		if got := m.Apply(c); len(got.Peers) != 10001 {
			b.Fatal(len(got.Peers))
		}
	}
}
