package storetest

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"

	"weft"
	"weft/control/store"
	"weft/key"
)

// Run runs the suite. make is called for each test and returns a function that opens, again and again, the same
// store, which is empty at first; the suite closes what it opened before it opens it again.
func Run(t *testing.T, make func(t *testing.T) (open func() store.Store)) {
	for _, c := range []struct {
		name string
		test func(*testing.T, *subject)
	}{
		{"ANewStoreIsEmpty", testEmpty},
		{"WhatWasAppliedIsThereAfterAReopen", testRoundTrip},
		{"ABatchIsAppliedInItsOrder", testOrder},
		{"ABatchThatFailsChangesNothing", testAtomic},
		{"WhatMustBeUniqueIs", testUnique},
		{"CountersNeverGoBack", testCounters},
		{"AUserWithNodesOrKeysStays", testUsers},
		{"DroppingWhatIsNotThereDoesNothing", testDropMissing},
		{"SeenTouchesNothingElse", testSeen},
		{"ANodeHasAMachineKeyOrAGateway", testGateway},
		{"AnIdentityIsOneUsers", testIdentity},
		{"ItDoesWhatTheStoreInMemoryDoes", testModel},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &subject{t: t, open: make(t)}
			s.reopen()
			defer func() { s.must(s.Close()) }()
			c.test(t, s)
		})
	}
}

type subject struct {
	t *testing.T
	store.Store
	open func() store.Store
}

func (s *subject) reopen() {
	if s.Store != nil {
		s.must(s.Close())
	}
	s.Store = s.open()
}

func (s *subject) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s *subject) apply(ops ...store.Op) {
	s.t.Helper()
	s.must(s.Apply(context.Background(), ops))
}

func (s *subject) refuses(what string, ops ...store.Op) {
	s.t.Helper()
	before := s.load()
	err := s.Apply(context.Background(), ops)
	if !errors.Is(err, store.ErrConflict) {
		s.t.Errorf("%s: error %v, want one that wraps ErrConflict", what, err)
	}
	if d := cmp.Diff(before, s.load(), compare); d != "" {
		s.t.Errorf("%s: the refused batch changed something:\n%s", what, d)
	}
}

func (s *subject) load() store.State {
	s.t.Helper()
	st, err := s.Load(context.Background())
	s.must(err)
	return st
}

var compare = cmp.Options{
	cmp.Comparer(func(a, b netip.Addr) bool { return a == b }),
	cmp.Comparer(func(a, b netip.Prefix) bool { return a == b }),
	cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b }),
	cmp.Comparer(func(a, b key.MachinePublic) bool { return a == b }),
	cmp.Comparer(func(a, b key.NodePublic) bool { return a == b }),
	cmp.Comparer(func(a, b key.RelayPublic) bool { return a == b }),
	cmpopts.EquateEmpty(),
}

var (
	day     = time.Date(2026, 3, 4, 5, 6, 7, 89e6, time.UTC)
	network = store.SetNetwork{
		Name: [8]byte{1, 2, 3}, IPv4: netip.MustParsePrefix("100.64.0.0/10"), IPv6: netip.MustParsePrefix("fd12:3456:789a::/48"),
		NextNode: 10, NextRelay: 3, NextKey: 5,
		Given: []store.Span{
			{First: netip.MustParseAddr("100.64.0.2"), Last: netip.MustParseAddr("100.64.0.9")},
			{First: netip.MustParseAddr("100.65.0.0"), Last: netip.MustParseAddr("100.65.0.0")},
		},
	}
)

func public[R key.Role](b byte) key.Public[R] {
	k, err := key.PublicFrom[R]([]byte{31: b})
	if err != nil {
		panic(err)
	}
	return k
}

func node(id byte) store.PutNode {
	return store.PutNode{
		ID: weft.NodeID(id), Machine: public[key.Machine](id), Key: public[key.Node](id), Name: "n" + string(rune('a'+id)),
		IPv4: netip.AddrFrom4([4]byte{100, 64, 0, id}), IPv6: netip.AddrFrom16([16]byte{0: 0xfd, 15: id}), Created: day,
	}
}

func relay(id byte) store.PutRelay {
	return store.PutRelay{
		Relay:   weft.Relay{ID: weft.RelayID(id), Name: "r" + string(rune('a'+id)), Key: public[key.Relay](id), URL: "https://r.example"},
		Machine: public[key.Machine](id), Created: day,
	}
}

func joinKey(id byte) store.PutKey {
	return store.PutKey{ID: uint32(id), Hash: [32]byte{id}, Created: day}
}

func testEmpty(t *testing.T, s *subject) {
	if d := cmp.Diff(store.State{}, s.load(), compare); d != "" {
		t.Error(d)
	}
	s.apply() // an empty batch is one, too
}

func testRoundTrip(t *testing.T, s *subject) {
	n := node(7)
	n.User, n.Tags, n.Ephemeral, n.JoinKey = "ana@example.org", []string{"tag:robot", `a"b,c`}, true, 4
	n.Expires, n.Seen = day.Add(time.Hour), day.Add(time.Minute)
	n.Approved, n.Disabled, n.Rotation, n.Rotated = day.Add(2*time.Hour), day.Add(3*time.Hour), 7, day.Add(4*time.Hour)
	n.Advertised = []netip.Prefix{netip.MustParsePrefix("192.168.142.0/24"), netip.MustParsePrefix("2001:db8::/48"), netip.MustParsePrefix("0.0.0.0/0")}
	n.Routes = n.Advertised[:1]
	u := store.PutUser{
		Name: "ana@example.org", Created: day, Expires: day.Add(time.Hour), Disabled: day.Add(time.Minute), Issuer: "https://id.example",
		Subject: "4711", Email: "ana@example.org", Display: "Ana \"the\" Admin", Groups: []string{"admins", "c,d"},
	}
	d := store.PutDocument{Name: "policy", Text: "{\n\t// all\n}\n", Changed: day}
	k := joinKey(4)
	k.User, k.Tags, k.Reusable, k.Ephemeral, k.Relay, k.Approved = "ana@example.org", []string{"tag:robot"}, true, true, true, true
	k.NodeLifetime = 90 * 24 * time.Hour
	k.Expires, k.Used, k.Uses, k.Revoked = day.Add(1), day.Add(time.Millisecond), 3, day.Add(time.Second)
	r := relay(2)
	r.UDP = []netip.AddrPort{netip.MustParseAddrPort("192.0.2.1:3478"), netip.MustParseAddrPort("[2001:db8::1]:3478")}
	r.UDPPort, r.Fingerprint = 3478, []byte{0, 1, 255}
	last := store.PutRevocation{Node: 1<<32 - 1, Until: day}

	s.apply(network, u, n, k, r, last, d)
	s.reopen()
	k.Expires = day // to the millisecond
	want := store.State{
		Network: store.Network(network), Users: []store.User{store.User(u)},
		Keys: []store.JoinKey{store.JoinKey(k)}, Nodes: []store.Node{store.Node(n)}, Relays: []store.Relay{store.Relay(r)},
		Revoked: []store.Revocation{store.Revocation(last)}, Documents: []store.Document{store.Document(d)},
	}
	if d := cmp.Diff(want, s.load(), compare); d != "" {
		t.Error(d)
	}

	n.Name, n.User, n.Tags, n.Expires, n.Key = "renamed", "", nil, time.Time{}, public[key.Node](99)
	n.Approved, n.Disabled, n.Rotation, n.Rotated, n.Advertised, n.Routes = time.Time{}, time.Time{}, 8, day, nil, nil
	r.UDP, r.Fingerprint, r.URL = nil, nil, "http://other.example"
	k.User, k.Uses, k.Approved = "", 4, false
	s.apply(n, r, k, store.DropUser{Name: "ana@example.org"}, store.DropRevocation{Node: last.Node}, store.DropDocument{Name: "policy"})
	s.reopen()
	want.Users, want.Revoked, want.Documents = nil, nil, nil
	want.Keys[0], want.Nodes[0], want.Relays[0] = store.JoinKey(k), store.Node(n), store.Relay(r)
	if d := cmp.Diff(want, s.load(), compare); d != "" {
		t.Error(d)
	}
}

func testOrder(t *testing.T, s *subject) {
	a, b := node(2), node(1)
	a.Name, b.Name = "x", "y"
	s.apply(a, b)
	// Names change hands, against the order of the numbers, and a node is made and dropped.
	a.Name, b.Name = "z", "x"
	c := node(3)
	c.Name = "y"
	s.apply(a, b, node(4), c, store.DropNode{ID: 4})
	var names []string
	for _, n := range s.load().Nodes {
		names = append(names, n.Name)
	}
	if d := cmp.Diff([]string{"x", "z", "y"}, names); d != "" {
		t.Error(d)
	}
}

func testAtomic(_ *testing.T, s *subject) {
	s.apply(network, store.PutUser{Name: "u", Created: day}, node(1), relay(1), joinKey(1), store.PutRevocation{Node: 8, Until: day})
	clash := node(2)
	clash.Name = node(1).Name
	grown := network
	grown.NextNode++
	s.refuses("a batch whose last operation fails", grown, store.PutUser{Name: "v", Created: day}, store.DropUser{Name: "u"},
		node(3), store.DropRelay{ID: 1}, joinKey(2), store.DropRevocation{Node: 8}, store.Seen{Node: 1, At: day}, clash)
	s.apply(node(2)) // and it goes on
	s.reopen()
	if n := len(s.load().Nodes); n != 2 {
		s.t.Errorf("%d nodes, want 2", n)
	}
}

func testUnique(_ *testing.T, s *subject) {
	s.apply(node(1), relay(1), joinKey(1))
	for what, change := range map[string]func(*store.PutNode){
		"machine": func(n *store.PutNode) { n.Machine = node(1).Machine },
		"key":     func(n *store.PutNode) { n.Key = node(1).Key },
		"name":    func(n *store.PutNode) { n.Name = node(1).Name },
		"IPv4":    func(n *store.PutNode) { n.IPv4 = node(1).IPv4 },
		"IPv6":    func(n *store.PutNode) { n.IPv6 = node(1).IPv6 },
	} {
		n := node(2)
		change(&n)
		s.refuses("a second node of the same "+what, n)
	}
	for what, change := range map[string]func(*store.PutRelay){
		"machine": func(r *store.PutRelay) { r.Machine = relay(1).Machine },
		"key":     func(r *store.PutRelay) { r.Key = relay(1).Key },
		"name":    func(r *store.PutRelay) { r.Name = relay(1).Name },
	} {
		r := relay(2)
		change(&r)
		s.refuses("a second relay of the same "+what, r)
	}
	k := joinKey(2)
	k.Hash = joinKey(1).Hash
	s.refuses("a second key of the same hash", k)

	s.apply(store.DropNode{ID: 1}, store.DropRelay{ID: 1})
	n, r := node(2), relay(2)
	n.Machine, n.Key, n.Name, n.IPv4, n.IPv6 = node(1).Machine, node(1).Key, node(1).Name, node(1).IPv4, node(1).IPv6
	r.Machine, r.Key, r.Name = relay(1).Machine, relay(1).Key, relay(1).Name
	s.apply(n, r)
}

func testCounters(_ *testing.T, s *subject) {
	s.apply(network)
	for what, change := range map[string]func(*store.SetNetwork){
		"nodes":  func(n *store.SetNetwork) { n.NextNode-- },
		"relays": func(n *store.SetNetwork) { n.NextRelay-- },
		"keys":   func(n *store.SetNetwork) { n.NextKey-- },
	} {
		n := network
		change(&n)
		s.refuses("the counter of "+what+" going back", n)
	}
	s.apply(network)
}

func testUsers(_ *testing.T, s *subject) {
	n, k := node(1), joinKey(1)
	n.User, k.User = "u", "u"
	s.refuses("a node of nobody", n)
	s.refuses("a key of nobody", k)
	s.apply(store.PutUser{Name: "u", Created: day}, n)
	s.refuses("dropping a user who has a node", store.DropUser{Name: "u"})
	s.apply(store.DropNode{ID: 1}, k)
	s.refuses("dropping a user who has a key", store.DropUser{Name: "u"})
	k.User = ""
	s.apply(k, store.DropUser{Name: "u"})
}

func testIdentity(t *testing.T, s *subject) {
	one := store.PutUser{Name: "u", Created: day, Issuer: "https://id.example", Subject: "1", Email: "u@example.org"}
	two, half := one, one
	two.Name, half.Name, half.Subject = "v", "w", ""
	s.apply(one, store.PutUser{Name: "x"}, store.PutUser{Name: "y"}) // many have none
	s.refuses("a second user of the same identity", two)
	s.refuses("half an identity", half)
	two.Subject = "2"
	s.apply(two) // the same e-mail address is no matter
	two.Subject = "1"
	s.refuses("a user who takes over another's identity", two)
	// A user is renamed: the identity goes over within the batch.
	bare := store.PutUser{Name: "u", Created: day}
	one.Name = "renamed"
	s.apply(bare, one, store.DropUser{Name: "u"})
	s.reopen()
	var names []string
	for _, u := range s.load().Users {
		names = append(names, u.Name+" "+u.Subject)
	}
	if d := cmp.Diff([]string{"renamed 1", "v 2", "x ", "y "}, names); d != "" {
		t.Error(d)
	}
}

func testDropMissing(_ *testing.T, s *subject) {
	s.apply(store.DropDocument{Name: "policy"}, store.DropUser{Name: "u"}, store.DropNode{ID: 1}, store.DropRelay{ID: 1}, store.DropRevocation{Node: 1},
		store.Seen{Node: 1, At: day})
}

func testSeen(t *testing.T, s *subject) {
	s.apply(node(1), node(2))
	s.apply(store.Seen{Node: 2, At: day.Add(time.Hour)})
	s.reopen()
	one, two := node(1), node(2)
	two.Seen = day.Add(time.Hour)
	if d := cmp.Diff([]store.Node{store.Node(one), store.Node(two)}, s.load().Nodes, compare); d != "" {
		t.Error(d)
	}
}

func testGateway(t *testing.T, s *subject) {
	plain := func(id byte) store.PutNode {
		n := node(id)
		n.Machine, n.Gateway = key.MachinePublic{}, 1
		return n
	}
	s.apply(node(1), plain(2), plain(3)) // many have none
	neither, both := plain(4), node(4)
	neither.Gateway, both.Gateway = 0, 1
	s.refuses("a node with neither", neither)
	s.refuses("a node with both", both)
	clash := plain(4)
	clash.Key = plain(3).Key
	s.refuses("a plain node of another's key", clash)
	s.reopen()
	want := []store.Node{store.Node(node(1)), store.Node(plain(2)), store.Node(plain(3))}
	if d := cmp.Diff(want, s.load().Nodes, compare); d != "" {
		t.Error(d)
	}
}

// testModel applies random batches, many of which are refused, to the subject and to Memory.
func testModel(t *testing.T, s *subject) {
	var model Memory
	small := rapid.ByteRange(1, 5)
	op := rapid.Custom(func(rt *rapid.T) store.Op {
		id := small.Draw(rt, "id")
		other := small.Draw(rt, "other")
		user := rapid.SampledFrom([]string{"", "", "u", "v"}).Draw(rt, "user")
		switch rapid.IntRange(0, 13).Draw(rt, "op") {
		case 0:
			n := network
			n.NextNode = weft.NodeID(id)
			return n
		case 1:
			return store.PutUser{Name: "u", Created: day.Add(time.Duration(id) * time.Second)}
		case 2:
			return store.DropUser{Name: user}
		case 3:
			k := joinKey(id)
			k.Hash, k.User = joinKey(other).Hash, user
			return k
		case 4:
			n := node(id)
			n.Name, n.User = node(other).Name, user
			return n
		case 5:
			n := node(id)
			n.IPv4, n.Key = node(other).IPv4, node(other).Key
			if other < 3 {
				n.Gateway = 9
			}
			if other == 1 || other == 3 {
				n.Machine = key.MachinePublic{}
			}
			return n
		case 6:
			return store.DropNode{ID: weft.NodeID(id)}
		case 7:
			r := relay(id)
			r.Machine = relay(other).Machine
			return r
		case 8:
			return store.DropRelay{ID: weft.RelayID(id)}
		case 9:
			return store.PutRevocation{Node: weft.NodeID(id), Until: day.Add(time.Duration(other) * time.Hour)}
		case 10:
			u := store.PutUser{Name: "v", Issuer: "i", Subject: string('a' + rune(id))}
			if other < 3 {
				u.Name = "u"
			}
			return u
		case 11:
			return store.PutDocument{Name: "d" + user, Text: string('a' + rune(id)), Changed: day}
		case 12:
			return store.DropDocument{Name: "d" + user}
		default:
			return store.Seen{Node: weft.NodeID(id), At: day.Add(time.Duration(other) * time.Hour)}
		}
	})
	ctx := context.Background()
	// The states of earlier checks stay: the model has them, too.
	rapid.Check(t, func(rt *rapid.T) {
		for _, b := range rapid.SliceOfN(rapid.SliceOfN(op, 1, 6), 1, 4).Draw(rt, "batches") {
			want, got := model.Apply(ctx, b), s.Apply(ctx, b)
			if errors.Is(want, store.ErrConflict) != errors.Is(got, store.ErrConflict) || (want == nil) != (got == nil) {
				rt.Fatalf("%v: error %v, want %v", b, got, want)
			}
		}
		wantState, _ := model.Load(ctx)
		gotState, err := s.Load(ctx)
		if err != nil {
			rt.Fatal(err)
		}
		if d := cmp.Diff(wantState, gotState, compare); d != "" {
			rt.Fatal(d)
		}
	})
}
