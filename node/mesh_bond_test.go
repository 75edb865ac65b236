package node

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft"
	"weft/engine"
	"weft/engine/underlay"
	"weft/host"
	"weft/key"
	"weft/wire"
)

// A played is a mesh whose peer, and time, are played by the test. It has two links, on interfaces that are not there.
type played struct {
	*mesh
	t    *testing.T
	peer *peer
	now  time.Time
	dead map[weft.LinkID]bool // pings by it are not answered
}

func play(t *testing.T) *played {
	me, p := aMesh(t, stunServer(t, false))
	w := &played{mesh: me, t: t, peer: p, now: time.Now(), dead: map[weft.LinkID]bool{}}
	me.links.ctx, me.links.apart = t.Context(), true
	for i, name := range []string{"one", "two"} {
		me.links.list = append(me.links.list, &meshLink{Link: underlay.Link{ID: weft.LinkID(i + 1), Device: name, Index: 101 + i}})
		me.local = append(me.local, weft.Candidate{
			Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(i), 2}), 41641), Kind: weft.Host, Link: weft.LinkID(i + 1),
		})
	}
	p.agent.SetLocal(w.now, me.local)
	p.agent.SetOnline(w.now, true)
	p.agent.Handle(w.now, weft.DirectVia(1, netip.MustParseAddrPort("203.0.113.7:5")), wire.Candidates{Session: 9, Seq: 1, List: []weft.Candidate{
		{Addr: netip.MustParseAddrPort("203.0.113.7:5"), Kind: weft.ServerReflexive},
	}})
	w.pass(3 * time.Second)
	return w
}

// pass lets time go by, in which data flows and pings are answered.
func (w *played) pass(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.now = w.now.Add(10 * time.Millisecond) {
		w.peer.agent.Want(w.now)
		w.poll(w.now, w.peer)
		for _, x := range slices.Clone(w.peer.actions.Send) {
			if ping, ok := x.Message.(wire.Ping); ok && x.Via.Method == weft.Direct && !w.dead[x.Via.Link] && x.TTL == 0 {
				w.peer.agent.Handle(w.now, x.Via, wire.Pong{Path: ping.Path, Tx: ping.Tx})
			}
		}
		w.poll(w.now, w.peer)
	}
}

// needWays checks by which links the engine was told to bond.
func (w *played) needWays(mode engine.BondMode, links ...weft.LinkID) {
	w.t.Helper()
	var got []weft.LinkID
	for _, x := range w.peer.bonded.told.Ways {
		got = append(got, x.Via.Link)
	}
	if !slices.Equal(got, links) || w.peer.bonded.told.Mode != mode {
		w.t.Fatalf("the engine bonds links %v in mode %v, not %v in mode %v", got, w.peer.bonded.told.Mode, links, mode)
	}
}

func TestTheEngineHearsOfEachChangeOfTheWaysThatAreBonded(t *testing.T) {
	w := play(t)
	w.needWays(engine.BondAggregate, 1, 2)
	if n := len(w.engine.BondStatus(2).Ways); n != 2 {
		t.Errorf("the engine has %d ways", n)
	}
	// Data by one does not arrive, and neither do pings.
	via := w.peer.bonded.told.Ways[1].Via
	w.dead[2] = true
	w.Silent(2, via, "it is silent")
	w.Silent(99, via, "nobody")
	for range len(w.silences) {
		w.takeSilence(w.now, <-w.silences)
	}
	w.pass(300 * time.Millisecond)
	w.needWays(engine.BondAggregate, 1)
	w.dead[2] = false
	w.pass(300 * time.Millisecond)
	w.needWays(engine.BondAggregate, 1, 2)
	// Settings change while all goes on.
	w.setBonding(w.now, Settings{Bond: "redundant"})
	w.pass(20 * time.Millisecond)
	w.needWays(engine.BondRedundant, 1, 2)
	w.setBonding(w.now, Settings{BondPeers: map[string]string{"bob": "off"}})
	w.pass(20 * time.Millisecond)
	w.needWays(engine.BondOff)
	w.setBonding(w.now, Settings{Congestion: "reno", BondPeers: map[string]string{"alice": "off"}})
	w.pass(time.Second)
	w.needWays(engine.BondAggregate, 1, 2)
	if w.peer.bonded.told.Control != "reno" {
		t.Errorf("congestion control is %q", w.peer.bonded.told.Control)
	}
}

func TestMoreWordsOfSilenceThanAreWaitedForHoldNobodyUp(t *testing.T) {
	w := play(t)
	for range 2 * silencesQueued {
		w.Silent(2, weft.Via{}, "it is silent")
	}
}

func TestWhatGoesByAnInterfaceThatGoesDownGoesByOthersInTheSameCall(t *testing.T) {
	w := play(t)
	w.takeCarrier(w.now, host.Carrier{Index: 102, Up: true})
	w.takeCarrier(w.now, host.Carrier{Index: 77})
	w.needWays(engine.BondAggregate, 1, 2)
	w.takeCarrier(w.now, host.Carrier{Index: 102})
	w.needWays(engine.BondAggregate, 1)
	if slices.ContainsFunc(w.local, func(c weft.Candidate) bool { return c.Link == 2 }) || len(w.links.list) != 1 || len(w.links.resting) != 1 || !w.links.fell {
		t.Errorf("candidates are %v, links %v, resting %v", w.local, w.links.list, w.links.resting)
	}
	told := false
	for _, x := range w.peer.actions.Send {
		m, ok := x.Message.(wire.Candidates)
		told = told || ok && x.Via.Link == 1 && len(m.List) == 1
	}
	if !told {
		t.Errorf("the peer is not told: %v", w.peer.actions.Send)
	}
	// The last one keeps what it has: there is nothing better.
	w.takeCarrier(w.now, host.Carrier{Index: 101})
	if len(w.local) != 1 {
		t.Errorf("candidates are %v", w.local)
	}
}

func TestALinkThatGoesDownAgainAndAgainHasToHoldStill(t *testing.T) {
	now := time.Now()
	o := &meshLink{Link: underlay.Link{ID: 1, Device: "eth7", Index: 7}}
	up := []host.Interface{{Index: 7, Name: "eth7", Up: true}}
	down := []host.Interface{{Index: 7, Name: "eth7"}}
	var waits []time.Duration
	for range 8 {
		var l links
		if !o.worthKeeping(now, down) {
			t.Fatal("it is given up")
		}
		l.rest(now, o)
		now = now.Add(300 * time.Millisecond)
		since := now
		for l.rests(now, o.Link) {
			if !o.worthKeeping(now, up) {
				t.Fatal("it is given up while it rests")
			}
			l = links{}
			if l.rest(now, o); l.lookAt.IsZero() || !l.lookAt.After(now) {
				t.Fatalf("it is looked at at %v", l.lookAt)
			}
			now = l.lookAt
		}
		waits = append(waits, now.Sub(since))
		if !o.stands(now) || o.stands(now) {
			t.Fatal("it is not known that it rested")
		}
		now = now.Add(time.Second)
	}
	if waits[0] != 0 || waits[1] != 250*time.Millisecond || waits[2] != 500*time.Millisecond || waits[7] != 2*time.Second {
		t.Errorf("it rests for %v", waits)
	}
	now = now.Add(time.Minute)
	var l links
	if l.rest(now, o); l.rests(now, o.Link) {
		t.Error("what was long ago is held against it")
	}
	// It is up, and no route leads there: it is not waited for for ever. Nor for an interface that is no more.
	if now = now.Add(routeWithin); o.worthKeeping(now, up) {
		t.Error("it is kept without a route")
	}
	if o.worthKeeping(now, nil) || o.worthKeeping(now, []host.Interface{{Index: 8, Name: "eth7"}}) {
		t.Error("it is kept without an interface")
	}
}

func TestRelaysAreSpreadOverTheCheapLinks(t *testing.T) {
	w := play(t)
	w.netmap.Relays = []weft.Relay{{ID: 1}, {ID: 3}, {ID: 4}}
	homes := func() (list []weft.LinkID) {
		for _, r := range w.netmap.Relays {
			list = append(list, w.home(r.ID))
		}
		return list
	}
	if got := homes(); !slices.Equal(got, []weft.LinkID{1, 2, 1}) {
		t.Errorf("relays are bound by %v", got)
	}
	w.cfg.Metrics = map[string]int{"one": 20}
	if got := homes(); !slices.Equal(got, []weft.LinkID{2, 2, 2}) {
		t.Errorf("relays are bound by %v, of which one is dear", got)
	}
	w.cfg.Metrics, w.cfg.Settings.Bond = nil, "off"
	if got := homes(); !slices.Equal(got, []weft.LinkID{1, 1, 1}) {
		t.Errorf("relays are bound by %v where nothing is bonded", got)
	}
	w.links.list = nil
	if w.home(1) != 0 {
		t.Error("a link where there is none")
	}
}

func TestARelayGoesToALinkThatAPeerHasNoWayBy(t *testing.T) {
	w := play(t)
	w.dead[2] = true
	w.pass(20 * time.Second)
	w.needWays(engine.BondAggregate, 1)
	r := w.relays[1]
	r.relay.Key = key.NewPrivate[key.Relay]().Public()
	bound := func(link weft.LinkID) {
		w.bind(w.now, r, link)
		r.boundTo = r.addrs[0]
	}
	bound(1)
	w.cfg.Metrics = map[string]int{"two": 5}
	if w.spreadRelays(w.now); r.link != 1 {
		t.Error("a dear link is used for everybody's relay")
	}
	w.cfg.Metrics = nil
	w.spread.next = time.Time{}
	if w.spreadRelays(w.now); r.link != 2 || r.boundTo.IsValid() {
		t.Fatalf("the relay is at link %d", r.link)
	}
	// It is not reached there: it goes back, and not there again soon.
	if w.elsewhere(w.now, r); r.link != 1 {
		t.Fatalf("the relay is at link %d", r.link)
	}
	bound(1)
	w.spread.next = time.Time{}
	if w.spreadRelays(w.now); r.link != 1 {
		t.Error("it is moved again to where it was not reached")
	}
	w.now = w.now.Add(spreadSpoilt)
	w.pass(10 * time.Second)
	if w.spreadRelays(w.now); r.link != 2 {
		t.Error("it is never tried again")
	}
}
