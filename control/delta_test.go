package control

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/control/store"
	"weft/wire"
)

// TestIncrementalEqualsFull lets a network live at random, and then compares what each node has put together from
// a whole map and changes with a map made anew.
func TestIncrementalEqualsFull(t *testing.T) {
	type step struct{ what, which, other, pause int }
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{
			rapid.IntRange(0, 22).Draw(rt, "what"), rapid.IntRange(0, 9).Draw(rt, "which"),
			rapid.IntRange(0, 9).Draw(rt, "other"), rapid.IntRange(0, 8).Draw(rt, "pause"),
		}
	}), 1, 60)
	rapid.Check(t, func(rt *rapid.T) {
		history := steps.Draw(rt, "steps")
		var problem error
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Relay = &weft.Relay{Name: "home"} })
			defer func() { w.stop() }()
			l := life{w: w, key: w.invite(KeyRequest{Reusable: true}), ephemeral: w.invite(KeyRequest{Reusable: true, Ephemeral: true}),
				relayKey: w.invite(KeyRequest{Reusable: true, Relay: true})}
			for i, s := range history {
				l.step(s.what, s.which, s.other)
				// Between nothing, what is less than the pace, and what is more than most timers.
				time.Sleep([]time.Duration{0, 0, 0, 30 * time.Millisecond, 120 * time.Millisecond, time.Second, 7 * time.Second, 40 * time.Second, 2 * time.Minute}[s.pause])
				synctest.Wait()
				if i%10 == 9 && problem == nil {
					problem = l.check()
				}
			}
			if problem == nil {
				problem = l.check()
			}
		})
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

type life struct {
	w                        *world
	key, ephemeral, relayKey []byte
	machines, relays         []*machine
	renames                  int
	plains                   []weft.NodeID
}

func (l *life) step(what, which, other int) {
	ctx := context.Background()
	w := l.w
	var m *machine
	if len(l.machines) > 0 {
		m = l.machines[which%len(l.machines)]
	}
	node := func() string {
		if n := len(l.plains); n > 0 && other%3 == 0 {
			return itoa(uint32(l.plains[which%n]))
		}
		return itoa(uint32(m.id()))
	}
	switch {
	case what <= 2 || m == nil:
		key := l.key
		if other == 0 {
			key = l.ephemeral
		}
		m = w.machine(key, fmt.Sprint("m", other))
		m.connect()
		l.machines = append(l.machines, m)
	case what == 3:
		m.hangUp()
	case what <= 5: // with the map it has, of which it may have missed much
		m.connect()
	case what <= 8:
		u := wire.Update{NAT: fmt.Sprint("nat", other), HomeRelay: weft.RelayID(other % 3)}
		for i := range other {
			u.Candidates = append(u.Candidates, weft.Candidate{
				Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(i)}), uint16(1000+which)), Kind: weft.Host})
			if i < len(l.plains) { // some of its own, some of others'
				u.Heard = append(u.Heard, l.plains[(i+which)%len(l.plains)])
			}
		}
		m.update(u)
	case what == 9:
		_ = w.RemoveNode(ctx, node())
	case what == 10:
		l.renames++
		_, _ = w.RenameNode(ctx, node(), fmt.Sprint("renamed", l.renames))
	case what == 11:
		_, _ = w.ExpireNode(ctx, node(), []ExpireRequest{{}, {In: time.Second}, {In: time.Minute}, {Never: true}, {Never: true}}[other%5])
	case what == 12 && (len(l.relays) == 0 || other < 5):
		r := w.relayMachine(l.relayKey, fmt.Sprint("r", other))
		r.connect()
		l.relays = append(l.relays, r)
	case what == 12:
		r := l.relays[which%len(l.relays)]
		r.hello.Relay.UDPPort++
		r.connect()
	case what == 13:
		_ = w.RemoveRelay(ctx, itoa(uint16(2+other)))
	case what == 14:
		m.hangUp()
		m.rotate()
		m.connect()
	case what == 18:
		switch other % 3 {
		case 0:
			_, _ = w.DisableNode(ctx, node())
		default:
			_, _ = w.EnableNode(ctx, node())
		}
	case what == 19:
		_, _ = w.CreateUser(ctx, "u")
		_, _ = w.MoveNode(ctx, node(), []string{"", "u"}[other%2])
		_, _ = w.TagNode(ctx, node(), []string{"x", "y"}[:other%3])
	case what == 20:
		switch other % 4 {
		case 0:
			_, _ = w.DisableUser(ctx, "u")
		case 1:
			_, _ = w.ExpireUser(ctx, "u", ExpireRequest{In: 10 * time.Second})
		default:
			_, _ = w.EnableUser(ctx, "u")
		}
	case what <= 16:
		r := PlainRequest{Key: w.machine(nil, "").hello.NodeKey, Via: itoa(uint32(m.id())), Name: "phone"}
		if other%2 == 0 {
			r.Endpoint = "gw.example.org:1"
		}
		if other == 9 {
			r.Lifetime = time.Minute
		}
		if a, err := w.CreatePlain(ctx, r); err == nil {
			l.plains = append(l.plains, a.Node.ID)
		}
	case what == 21:
		_, _ = w.SetDNS(ctx, someNames(other))
	case what == 17:
		_ = m.say(wire.NodeMessage{Logout: &wire.Logout{}})
	case what == 22 && other%4 == 0:
		_, _ = w.UnsetPolicy(ctx, PolicyRequest{})
	case what == 22:
		_, _ = w.SetPolicy(ctx, PolicyRequest{Text: fmt.Sprintf(`{"acls": [{"action": "accept", "src": ["*"], "dst": ["autogroup:member:%d", "100.64.0.%d:22"]}]}`, 1+which, other)})
	}
}

// check compares at a moment when nothing has changed for a second: what changed a moment ago may be on its way.
func (l *life) check() error {
	for before := uint64(0); before != l.w.now.Load().version; {
		before = l.w.now.Load().version
		settle()
	}
	for _, m := range l.machines {
		e, ok := l.w.now.Load().nodes.get(uint32(m.id()))
		if m.gone() || !m.has || !ok || e.standing != member {
			continue
		}
		if err := m.checkMap(); err != nil {
			return err
		}
	}
	return nil
}

func TestMessagesAreWhatTheEncoderOfTheStandardLibraryWouldWrite(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		a := w.join(KeyRequest{}, "a")
		b := w.join(KeyRequest{Tags: []string{"x"}}, "b")
		r := w.relayMachine(w.invite(KeyRequest{Relay: true}), "r")
		r.connect()
		b.update(wire.Update{NAT: `<"&\>`, Candidates: []weft.Candidate{{Addr: netip.MustParseAddrPort("[2001:db8::1]:1"), Kind: weft.Host}}})
		settle()
		before := w.now.Load()
		ticket := []byte{0, 250, 255}

		full := before.wholeMap(a.id())
		full.Ticket = ticket
		expect := func(what string, m wire.ServerMessage, got []byte) {
			t.Helper()
			want, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != string(want) {
				t.Errorf("%s:\n%s\nwant\n%s", what, got, want)
			}
		}
		expect("the whole map", wire.ServerMessage{Map: &full}, before.appendMap(nil, a.id(), ticket))

		_ = w.RemoveNode(ctx, "b")
		_, _ = w.RenameNode(ctx, "a", "aa")
		c, d := w.join(KeyRequest{}, "c"), w.join(KeyRequest{}, "d")
		r.hello.Relay.UDPPort = 5
		r.connect()
		settle()
		after := w.now.Load()
		changed, ok := after.since(before.version)
		if !ok || !slices.Equal(changed, []weft.NodeID{relaysChanged, a.id(), b.id(), c.id(), d.id()}) {
			t.Fatalf("changed are %v, %v", changed, ok)
		}
		whole := after.wholeMap(a.id())
		change := weft.Change{Version: after.version, Self: &whole.Self, Upsert: whole.Peers, Remove: []weft.NodeID{b.id()}, Relays: whole.Relays, Ticket: ticket}
		expect("a change", wire.ServerMessage{Change: &change}, after.appendChange(nil, a.id(), before.version, changed, ticket))
		expect("no change", wire.ServerMessage{Change: &weft.Change{Version: after.version}}, after.appendChange(nil, a.id(), after.version, nil, nil))

		if n, size := len(before.appendMap(nil, a.id(), ticket)), before.mapSize(); n > size {
			t.Errorf("the map has %d bytes, %d were reckoned with", n, size)
		}
		if n, size := len(after.appendChange(nil, a.id(), before.version, changed, ticket)), after.changeSize(changed); n > size {
			t.Errorf("the change has %d bytes, %d were reckoned with", n, size)
		}
		_ = w.RemoveRelay(ctx, "r")
		settle()
		gone := w.now.Load()
		expect("the last relay's end", wire.ServerMessage{Change: &weft.Change{Version: gone.version, Relays: []weft.Relay{}}},
			gone.appendChange(nil, a.id(), after.version, []weft.NodeID{relaysChanged}, nil))
	})
}

func TestWhoIsFurtherBehindThanTheLogReachesGetsAWholeMap(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		a.hangUp()
		settle()
		for i := range 3 * logLength {
			err := w.do(context.Background(), func(t *tx) error {
				e, err := t.nodeNamed("b")
				e.nat = fmt.Sprint(i)
				t.putNode(e, false)
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if n := len(w.now.Load().log); n < logLength || n > 2*logLength {
			t.Errorf("the log has %d entries", n)
		}
		maps := a.maps
		a.connect()
		b.connect()
		settle()
		if a.maps != maps+1 {
			t.Error("no whole map")
		}
		for _, m := range []*machine{a, b} {
			if err := m.checkMap(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestTheLogKnowsExactlyWhatItKnows(t *testing.T) {
	w := newWorld(t)
	defer w.stop()
	tx := w.begin()
	want := map[uint64]weft.NodeID{}
	for i := range 5 * logLength {
		id := weft.NodeID(1 + i%7)
		tx.touch(id)
		want[tx.version] = id
	}
	for version := tx.logFrom - 3; version <= tx.version+1; version++ {
		if version > tx.logFrom+3 && version < tx.version-20 && version%89 != 0 {
			continue // the edges, and some in between
		}
		changed, ok := tx.since(version)
		if reaches := version >= tx.logFrom && version <= tx.version; ok != reaches {
			t.Fatalf("version %d of %d..%d: %v", version, tx.logFrom, tx.version, ok)
		}
		if !ok {
			continue
		}
		last := max(version, tx.version-8) // seven nodes change in turn
		var expected []weft.NodeID
		for v := last + 1; v <= tx.version; v++ {
			expected = append(expected, want[v])
		}
		slices.Sort(expected)
		if expected = slices.Compact(expected); !slices.Equal(changed, expected) {
			t.Fatalf("since %d of %d: %v, want %v", version, tx.version, changed, expected)
		}
	}
}

func TestAChangeThatFailsLeavesNoTrace(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		before, changes := *w.now.Load(), a.changes
		failed := fmt.Errorf("no")
		err := w.do(context.Background(), func(t *tx) error {
			e, _ := t.nodeNamed("a")
			e.Name = "b"
			t.putNode(e, true)
			t.setLive(e.ID, nil)
			t.addSecret(store.JoinKey{Hash: [32]byte{1}, ID: 99})
			t.setRelayMachine(e.Machine, 9)
			t.dropNode(&e)
			return failed
		})
		settle()
		after := *w.now.Load()
		if err != failed || after.version != before.version || after.revision != before.revision || a.changes != changes || after.revoked.len() != 0 {
			t.Errorf("%v: version %d, was %d", err, after.version, before.version)
		}
		if w.index.names.taken["a"] != a.id() || w.index.live[a.id()] == nil || len(w.index.secrets) != 1 || len(w.index.relays) != 0 ||
			w.index.machines[a.machine] != a.id() || w.index.keys[a.hello.NodeKey] != a.id() || len(w.index.names.taken) != 1 {
			t.Errorf("the index is %+v", w.index)
		}
	})
}

func TestALargeNetworkIsToldAtAPaceThatItCanBear(t *testing.T) {
	for nodes, want := range map[int]time.Duration{1: 100 * time.Millisecond, 2000: 100 * time.Millisecond, 4000: 200 * time.Millisecond, 100_000: 500 * time.Millisecond} {
		if got := pace(nodes); got != want {
			t.Errorf("%d nodes are told every %v, want %v", nodes, got, want)
		}
	}
}

func TestWholeMapsWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newGate(2 * bulkLeast)
		leave, err := g.enter(t.Context(), 100*bulkLeast) // larger than there is room: alone, then
		if err != nil {
			t.Fatal(err)
		}
		if small, err := g.enter(t.Context(), bulkLeast-1); err != nil {
			t.Fatal(err)
		} else {
			small()
		}
		in := false
		go func() {
			leave, err := g.enter(t.Context(), bulkLeast)
			if err == nil {
				in = true
				leave()
			}
		}()
		synctest.Wait()
		if in {
			t.Error("no room, and in")
		}
		leave()
		synctest.Wait()
		if !in {
			t.Error("room, and not in")
		}
	})
}
