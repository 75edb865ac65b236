package path

import (
	"testing"
	"time"

	"weft"
	"weft/lab/vnet"
	"weft/wire"
)

// sprayedHomes is a world of two homes that need a spray, talk, and are direct by one.
func sprayedHomes(t *testing.T, seed uint64) *world {
	w := homes(t, seed, portRestricted, symmetric)
	w.bootBoth()
	w.run(200 * time.Millisecond)
	w.talkBoth(10 * time.Minute)
	w.until(30*time.Second, "both direct by a spray", w.bothDirect)
	w.run(time.Duration(2000+w.rng.IntN(3000)) * time.Millisecond)
	for _, h := range w.hosts {
		h.switches = nil
	}
	return w
}

func TestASprayCostsNoData(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, symmetric)
		w.bootBoth()
		w.run(200 * time.Millisecond)
		begin := w.now
		w.talkBoth(20 * time.Second)
		w.until(15*time.Second, "both direct by a spray", w.bothDirect)
		w.run(25 * time.Second)
		for _, h := range w.hosts {
			if f := &h.flow; f.noWay+f.strange+f.lostBetween(begin, w.now) != 0 {
				w.failf("%s lost %d of %d packets, %d of them from unknown addresses", h.name, f.lostBetween(begin, w.now), f.sent, f.strange)
			}
		}
	})
}

func TestWhereEverySocketGetsThroughNoDataGoesToOneThatIsClosed(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.jitter = 20 * time.Millisecond // so that the two ends do not hear of the same ones first
		for _, h := range w.hosts {
			c := symmetric.config()
			c.Allocation = weft.PreservingAllocation
			w.behind(h, c)
		}
		w.bootBoth()
		w.run(200 * time.Millisecond)
		begin := w.now
		for _, h := range w.hosts {
			h.talk(time.Millisecond, 1200, w.now.Add(20*time.Second))
		}
		w.until(15*time.Second, "both direct by a prediction", w.bothDirect)
		w.run(3 * time.Second)
		for _, h := range w.hosts {
			if n := h.flow.lostBetween(begin, w.now.Add(-time.Second)); n != 0 {
				w.failf("%s lost %d of %d packets", h.name, n, h.flow.sent)
			}
		}
	})
}

func TestTheSocketThatWonStaysOpenAndNoOther(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := sprayedHomes(t, seed)
		w.run(5 * time.Minute)
		for _, h := range w.hosts {
			link := h.agent.Selected().Link
			if n := len(h.spares); n > 1 || n == 1 && !h.spares[link].IsValid() || link != 0 && n == 0 {
				w.failf("%s sends by link %d and holds %v", h.name, link, h.spares)
			}
			if len(h.switches) != 0 {
				w.failf("%s did not stay", h.name)
			}
		}
		if len(w.a.spares)+len(w.b.spares) != 1 {
			w.failf("neither side or both sent by a socket of their own")
		}
		// Nobody talks any more: the socket goes with its mapping.
		w.run(UnusedAfter + 7*time.Minute)
		if n := len(w.a.spares) + len(w.b.spares); n != 0 {
			w.failf("%d sockets are held for nobody", n)
		}
	})
}

func TestASprayedPathThatIsLostIsFoundAgain(t *testing.T) {
	for _, c := range []struct {
		name string
		lose func(w *world)
	}{
		{"a NAT forgets", func(w *world) { w.hosts[w.rng.IntN(2)].nat.Forget() }},
		{"a peer begins anew", func(w *world) {
			h := w.hosts[w.rng.IntN(2)]
			h.halt()
			w.run(time.Second)
			h.boot()
		}},
		{"a node moves", func(w *world) {
			h := w.hosts[w.rng.IntN(2)]
			elsewhere := h.nat.Config()
			elsewhere.Public = nil
			elsewhere.Public = append(elsewhere.Public, addrPort(77).Addr())
			w.behind(h, elsewhere)
			h.inside = addr("172.16.9.9:41641")
			h.bound, _ = h.out(h.inside, relayAddr)
			w.other(h).agent.SetAttested(w.now, append(w.other(h).agent.attempts.attested, h.bound.Addr()))
			h.agent.SetLocal(w.now, h.candidates())
			h.agent.NetworkChanged(w.now)
			h.poll()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			forSeeds(t, 8, func(t *testing.T, seed uint64) {
				w := sprayedHomes(t, seed)
				cut := w.now
				c.lose(w)
				w.run(3 * time.Second)
				w.needOutageBelow(2500*time.Millisecond, cut, w.now.Sub(cut))
				w.until(20*time.Second, "both direct again", w.bothDirect)
				w.run(time.Minute)
				if n := len(w.a.spares) + len(w.b.spares); n > 1 || !w.bothDirect() {
					w.failf("%d sockets are held, and both are direct: %v", n, w.bothDirect())
				}
			})
		})
	}
}

func TestTheSocketInUseIsKeptWhereThereIsNoOtherWay(t *testing.T) {
	forSeeds(t, 5, func(t *testing.T, seed uint64) {
		w := sprayedHomes(t, seed)
		for _, h := range w.hosts {
			h.noUDP, h.noStream, h.fault.direct = true, true, true
			h.agent.SetRelays(w.now, nil)
			h.poll()
		}
		w.run(StaleAfter + 15*time.Second)
		w.a.fault.direct, w.b.fault.direct = false, false
		cut := w.now
		w.run(40 * time.Second)
		w.needOutageBelow(30*time.Second, cut, 40*time.Second)
	})
}

// TestWhatIsLostOnTheWayDoesNotStrandAnAttempt loses most of what goes through the relay.
func TestWhatIsLostOnTheWayDoesNotStrandAnAttempt(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, symmetric)
		w.a.noStream, w.b.noStream = true, true
		w.loss, w.relayLoss = 0.1, 0.4
		w.bootBoth()
		w.talkBoth(10 * time.Minute)
		w.until(90*time.Second, "both direct though the relay loses two of three messages", w.bothDirect)
	})
}

func TestOpenersDoNotReachThePeer(t *testing.T) {
	l := newLair(t, false, randomADF, weft.NAT{}, attested)
	l.hear(proposal(1, wire.Spray, false))
	l.wait(2 * time.Second)
	if len(l.sprayed) != MaxSockets {
		t.Fatalf("%d openers", len(l.sprayed))
	}
	links := map[weft.LinkID]bool{}
	for _, x := range l.sprayed {
		if links[x.Via.Link] = true; x.TTL != OpenerTTL || x.Via.Addr.Port() != 6666 {
			t.Fatalf("%+v", x)
		}
	}
	if len(links) != MaxSockets {
		t.Errorf("by %d sockets", len(links))
	}

	// What is sent plainly does not either, until the peer is known to have sent.
	l = newLair(t, false, randomADF, weft.NAT{}, attested)
	via := direct("198.51.100.66:7777")
	for _, x := range l.all {
		if _, ok := x.Message.(wire.Ping); ok && x.Via == via && x.TTL != OpenerTTL {
			t.Errorf("the first ping has a TTL of %d", x.TTL)
		}
	}
	var ours wire.Candidates
	for _, x := range l.sent {
		if m, ok := x.Message.(wire.Candidates); ok {
			ours = m
		}
	}
	for _, c := range []struct {
		name string
		m    wire.Candidates
		ttl  uint8
	}{
		{"has heard of them", wire.Candidates{HeardSession: 7, HeardSeq: ours.Seq}, 0},
		{"has them from the coordinator", wire.Candidates{Known: wire.Digest(ours.List)}, 0},
		{"has those of an earlier session", wire.Candidates{HeardSession: 6, HeardSeq: ours.Seq}, OpenerTTL},
		{"has earlier ones", wire.Candidates{HeardSession: 7, HeardSeq: ours.Seq - 1, Known: wire.Digest(candidates(weft.ServerReflexive, "192.0.2.7:4444"))}, OpenerTTL},
		{"has none", wire.Candidates{}, OpenerTTL},
	} {
		l := newLair(t, false, randomADF, weft.NAT{}, attested)
		l.now = l.now.Add(60 * time.Millisecond)
		c.m.Session, c.m.Seq = 9, 1
		l.hear(c.m)
		l.wait(100 * time.Millisecond)
		got := []uint8{}
		for _, x := range l.all {
			if _, ok := x.Message.(wire.Ping); ok && x.Via == via {
				got = append(got, x.TTL)
			}
		}
		if len(got) != 1 || got[0] != c.ttl {
			t.Errorf("a peer that %s is pinged with a TTL of %v", c.name, got)
		}
	}
}

func TestWithoutWordOfThePeerPingsAreSentAllTheSame(t *testing.T) {
	w := homes(t, 1, portRestricted, natKind{weft.EndpointIndependentMapping, weft.EndpointIndependentFiltering})
	w.a.eager, w.b.eager = true, true
	w.bootBoth()
	w.until(time.Second, "both direct", w.bothDirect)
	for _, h := range w.hosts {
		h.noUDP, h.noStream = true, true
		h.agent.SetRelays(w.now, nil)
	}
	w.a.nat, _ = vnet.NewNAT(w.a.nat.Config()) // and it forgets
	w.run(40 * time.Second)
	if !w.bothDirect() {
		w.failf("without a relay, it is not found again")
	}
}
