package bond_test

import (
	"testing"
	"time"

	"weft/bond"
)

// forSeeds runs a case some times.
func forSeeds(t *testing.T, few int, f func(t *testing.T, w *world)) {
	n := max(few, *only+1)
	if *seeds > 0 {
		n = *seeds
	}
	for seed := range uint64(n) {
		if *only >= 0 && seed != uint64(*only) {
			continue
		}
		w := newWorld(t, seed)
		f(t, w)
		if t.Failed() {
			t.Fatalf("with seed %d", seed)
		}
	}
}

// twins is a tunnel over two links of the same kind, bonded and watched.
func twins(w *world, l line, n int) (a, b *node, links []*link) {
	for range n {
		links = append(links, l.link(w))
	}
	a, b = tunnel(w, true, nil, links...)
	watch(a, b)
	if *verbose {
		a.trace()
	}
	return a, b, links
}

func TestABlackHoleCostsAFewDatagramsAndAShortGap(t *testing.T) {
	for _, rtt := range []time.Duration{10 * time.Millisecond, 60 * time.Millisecond} {
		for _, oneWay := range []string{"", "out", "in"} {
			forSeeds(t, 2, func(t *testing.T, w *world) {
				a, b, links := twins(w, line{mbit: 16, rtt: rtt}, 2)
				u := startUDP(a, b, 1, 0.8*16*1200/1284, 1200)
				at := w.now + 5*time.Second + time.Duration(w.rnd.Int64N(int64(100*time.Millisecond)))
				victim := links[w.rnd.IntN(2)]
				w.at(at, func() {
					u.gap, u.last = 0, w.now
					victim.there.dead = oneWay != "in"
					victim.back.dead = oneWay != "out"
				})
				w.run(at + 3*time.Second)
				lost := u.lost(at-time.Second, at+2*time.Second)
				t.Logf("RTT %v, one way %q: gap %v, lost %d (by the queue %d), out of order %d, twice %d, %+v", rtt, oneWay, u.gap.Round(time.Millisecond), lost, a.q.Stats().Late, u.order, u.twice, b.r.Stats())
				if u.gap > 150*time.Millisecond {
					t.Errorf("RTT %v, one way %q: nothing comes for %v", rtt, oneWay, u.gap)
				}
				if lost > 5 {
					t.Errorf("RTT %v, one way %q: %d datagrams are lost", rtt, oneWay, lost)
				}
				if u.twice > 0 {
					t.Errorf("%d datagrams come twice", u.twice)
				}
			})
		}
	}
}

func TestRedundantPacketsDoNotFeelABlackHole(t *testing.T) {
	forSeeds(t, 4, func(t *testing.T, w *world) {
		a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
		a.redundant = func([]byte) bool { return true }
		u := startUDP(a, b, 1, 4, 1200)
		at := w.now + 6*time.Second + time.Duration(w.rnd.Int64N(int64(100*time.Millisecond)))
		victim := links[w.rnd.IntN(2)]
		w.at(at, func() {
			u.gap, u.last = 0, w.now
			victim.dead(true)
		})
		w.run(at + 3*time.Second)
		t.Logf("gap %v, lost %d, %+v", u.gap.Round(time.Millisecond), u.lost(0, at+2*time.Second), b.r.Stats())
		if n := u.lost(at-time.Second, at+2*time.Second); n > 0 {
			t.Errorf("%d redundant datagrams are lost", n)
		}
		if u.gap > 50*time.Millisecond {
			t.Errorf("no redundant datagram comes for %v", u.gap)
		}
	})
}

func TestALinkThatGoesDownCostsNothing(t *testing.T) {
	forSeeds(t, 4, func(t *testing.T, w *world) {
		a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
		u := startUDP(a, b, 1, 0.8*16*1200/1284, 1200)
		at := w.now + 5*time.Second + time.Duration(w.rnd.Int64N(int64(100*time.Millisecond)))
		victim := w.rnd.IntN(2)
		w.at(at, func() {
			u.gap, u.last = 0, w.now
			links[victim].dead(true) // and what waits in it is gone
			a.ways[victim].down = true
			a.setPaths()
		})
		w.run(at + 3*time.Second)
		lost := u.lost(at-time.Second, at+2*time.Second)
		t.Logf("gap %v, lost %d, %+v", u.gap.Round(time.Millisecond), lost, b.r.Stats())
		if lost > 1 {
			t.Errorf("%d datagrams are lost", lost)
		}
		if u.gap > 150*time.Millisecond {
			t.Errorf("nothing comes for %v", u.gap)
		}
	})
}

// TestTheLastPathThatIsLeftIsNotGivenARest has a link rest that failed again and again, when the other one goes: it is said to live, and
// there is no better.
func TestTheLastPathThatIsLeftIsNotGivenARest(t *testing.T) {
	forSeeds(t, 4, func(t *testing.T, w *world) {
		a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
		u := startUDP(a, b, 1, 0.4*16, 1200)
		start := w.now
		for i := range 6 {
			at := start + time.Second + time.Duration(i)*600*time.Millisecond
			w.at(at, func() { links[1].dead(true) })
			w.at(at+400*time.Millisecond, func() { links[1].dead(i == 5) })
		}
		w.run(start + 6*time.Second)
		for s := a.s.Status(nil)[1]; s.State != bond.Silent; s = a.s.Status(nil)[1] {
			if w.now > start+20*time.Second {
				t.Fatalf("it is not silent: %+v", s)
			}
			w.run(w.now + time.Millisecond)
		}
		links[1].dead(false)
		links[0].dead(true)
		a.ways[0].down = true
		u.gap, u.last = 0, w.now
		a.setPaths()
		w.run(w.now + 10*time.Second)
		t.Logf("gap %v, %+v", u.gap.Round(time.Millisecond), a.s.Status(nil))
		if u.gap > 250*time.Millisecond { // the other end answers by the path that fails until it has noticed; a rest is five seconds
			t.Errorf("nothing comes for %v, while the one path there is is given a rest", u.gap)
		}
	})
}

// TestAConnectionThatFilledTwoLinksGoesOnSoonByTheOneThatIsLeft has one whose window is what two links carry, when one of them fails. It has to
// learn that there is less; what tells it so is a packet that is dropped, and sent again behind all that waits by then.
func TestAConnectionThatFilledTwoLinksGoesOnSoonByTheOneThatIsLeft(t *testing.T) {
	forSeeds(t, 4, func(t *testing.T, w *world) {
		a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
		c := startTCP(a, b, 1, 0)
		at := w.now + 8*time.Second + time.Duration(w.rnd.Int64N(int64(10*time.Second)))
		window, got := 0.0, 0.0
		w.at(at, func() { links[1].dead(true) })
		w.at(at+time.Second/2, func() { window, c.recvd.stall = c.cwnd, 0 })
		w.at(at+2*time.Second, func() { got = c.goodput() })
		w.run(at + 5*time.Second)
		mbit := (c.goodput() - got) * 8 / 3e6
		t.Logf("window %.0f, longest stall %v, sent again %d, timeouts %d, %.1f Mbit/s", window, c.recvd.stall, c.retrans, c.timeouts, mbit)
		if c.recvd.stall > 200*time.Millisecond || c.timeouts > 0 {
			t.Errorf("with a window of %.0f packets nothing comes for %v, %d timeouts", window, c.recvd.stall, c.timeouts)
		}
		if mbit < 0.97*16*share {
			t.Errorf("it has %.1f of %.1f Mbit/s then", mbit, 16*share)
		}
	})
}

// TestAPathThatRepairsWhatAnotherLostIsNotTakenForSilent has a connection whose window is under way when one of two links fails: nothing new is sent, so by the
// other one only what is sent again comes, which is older than what came by it before, and waits for its turn there. The living path was taken for silent,
// all that was on its way by it was sent once more, by itself, and the connection had nothing for 650 to 820 ms.
func TestAPathThatRepairsWhatAnotherLostIsNotTakenForSilent(t *testing.T) {
	for _, seed := range []uint64{16, 251, 292} {
		w := newWorld(t, seed)
		a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
		c := startTCP(a, b, 1, 0)
		at := w.now + 3*time.Second + time.Duration(w.rnd.Int64N(int64(6*time.Second)))
		w.at(at, func() {
			links[1].dead(true)
			c.recvd.stall = 0
		})
		w.run(at + 2*time.Second)
		lost := a.s.Status(nil)[0].LostPackets
		t.Logf("seed %d: stall %v, by the living path %d lost, %d timeouts", seed, c.recvd.stall, lost, c.timeouts)
		if c.recvd.stall > 200*time.Millisecond || lost > 50 { // of 168 that are on their way
			t.Errorf("seed %d: the flow stalls for %v, and %d packets are taken for lost by the path that lives", seed, c.recvd.stall, lost)
		}
	}
}

func TestALinkOfHigherMetricRestsUntilItIsNeeded(t *testing.T) {
	for _, x := range []struct {
		name        string
		rate        float64 // of what the link carries
		there, back bool    // fails
		nap, gap    time.Duration
		idle, lost  int // bytes in 5 s, datagrams
	}{
		{"both ways", 0.8, true, true, 0, 100 * time.Millisecond, 0, 5},
		// Between two datagrams there is more time: what the receiver says when they have stopped is about fewer of them.
		{"both ways, at half the rate", 0.4, true, true, 0, 100 * time.Millisecond, 0, 5},
		{"both ways, at a fifth", 0.2, true, true, 0, 100 * time.Millisecond, 0, 5},
		{"outwards", 0.8, true, false, 0, 100 * time.Millisecond, 0, 5},
		{"inwards", 0.8, false, true, 0, 100 * time.Millisecond, 0, 5},
		{"both ways, on a busy machine", 0.8, true, true, 10 * time.Millisecond, 150 * time.Millisecond, 5 * 2 * 2000, 20},
		{"outwards, on a busy machine", 0.8, true, false, 10 * time.Millisecond, 150 * time.Millisecond, 5 * 2 * 2000, 20},
		{"inwards, on a busy machine", 0.8, false, true, 10 * time.Millisecond, 150 * time.Millisecond, 5 * 2 * 2000, 20},
	} {
		forSeeds(t, 4, func(t *testing.T, w *world) {
			a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
			for _, n := range []*node{a, b} {
				n.ways[1].metric = 20
				n.setPaths()
			}
			u := startUDP(a, b, 1, x.rate*16*1200/1284, 1200)
			if x.nap > 0 {
				naps(w, x.nap, a, b)
			}
			at := w.now + 5*time.Second + time.Duration(w.rnd.Int64N(int64(100*time.Millisecond)))
			idle := 0
			w.at(at, func() {
				u.gap, u.last = 0, w.now
				idle = links[1].there.carried + links[1].back.carried
				links[0].there.dead, links[0].back.dead = x.there, x.back
			})
			w.run(at + 3*time.Second)
			lost := u.lost(at-time.Second, at+2*time.Second)
			t.Logf("%s: idle %d bytes in 5 s; gap %v, lost %d", x.name, idle, u.gap, lost)
			if idle > x.idle {
				t.Errorf("%s: the idle link carries %d bytes in 5 s", x.name, idle)
			}
			if u.gap > x.gap {
				t.Errorf("%s: it takes over after %v", x.name, u.gap)
			}
			if lost > x.lost {
				t.Errorf("%s: %d datagrams are lost", x.name, lost)
			}
		})
	}
}

func TestWhoHasOnlyListenedForLongMaySpeak(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		a, b, _ := twins(w, line{mbit: 16, rtt: 20 * time.Millisecond}, 2)
		there := startUDP(a, b, 1, 4, 1200)
		w.run(w.now + 30*time.Second) // b sends thousands of frames of feedback meanwhile, and no data
		back := startUDP(b, a, 2, 1, 200)
		w.run(w.now + time.Second)
		there.stopped, back.stopped = true, true
		w.run(w.now + time.Second)
		if n := there.lost(0, w.now) + back.lost(0, w.now); n > 0 || len(back.sent) == 0 {
			t.Errorf("%d of %d datagrams there and %d back are lost", n, len(there.sent), len(back.sent))
		}
		if late := back.late(1); late > 50*time.Millisecond {
			t.Errorf("who has only listened is heard after %v", late)
		}
		a.wakes, b.wakes = 0, 0
		sent := a.sentControl + b.sentControl
		w.run(w.now + 10*time.Second)
		if n := a.sentControl + b.sentControl - sent; n > 2*2*10+10 {
			t.Errorf("two idle ends send %d frames in 10 s", n)
		}
	})
}

func TestAShortTransferIsNoSlowerThanByTheBestLink(t *testing.T) {
	lines := []line{{mbit: 20, rtt: 20 * time.Millisecond}, {mbit: 50, rtt: 200 * time.Millisecond}}
	for _, segments := range []uint64{10, 70, 300, 700} {
		forSeeds(t, 3, func(t *testing.T, w *world) {
			took := func(bonded bool) time.Duration {
				w := newWorld(t, uint64(w.rnd.Int64()))
				links := []*link{lines[0].link(w), lines[1].link(w)}
				if !bonded {
					links = links[:1]
				}
				a, b := tunnel(w, bonded, nil, links...)
				w.run(w.now + time.Second)
				c := startTCP(a, b, 1, segments)
				start := w.now
				w.run(start + 20*time.Second)
				if c.done == 0 {
					t.Fatal("it does not end")
				}
				if bonded {
					t.Logf("queue %+v, sent again by tcp %d, receiver %+v", a.q.Stats(), c.retrans, b.r.Stats())
				}
				return c.done - start
			}
			alone, all := took(false), took(true)
			t.Logf("%d segments: %v by the best link, %v by all", segments, alone.Round(time.Millisecond), all.Round(time.Millisecond))
			if all > alone+alone/20+5*time.Millisecond {
				t.Errorf("%d segments take %v, and %v by the best link alone", segments, all, alone)
			}
		})
	}
}

func TestRedundantCallsBesideABulkFlowStayQuick(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		a, b, links := twins(w, line{mbit: 16, rtt: 30 * time.Millisecond, loss: 0.002}, 2)
		call := func(inner []byte) bool { return inner[5] == 7 }
		for _, n := range []*node{a, b} {
			n.redundant, n.urgent = call, call
		}
		c := startTCP(a, b, 1, 0)
		w.run(w.now + 3*time.Second)
		u := startUDP(a, b, 7, 0.5, 200)
		at := w.now + 3*time.Second
		w.at(at, func() { links[0].dead(true) })
		w.run(at + 3*time.Second)
		u.stopped = true
		w.run(w.now + time.Second)
		t.Logf("lost %d of %d, half within %v, 99 %% within %v; bulk stall %v", u.lost(0, w.now), len(u.sent), u.late(0.5), u.late(0.99), c.recvd.stall)
		if n := u.lost(0, w.now); n > 1 {
			t.Errorf("%d of %d packets of a redundant call are lost", n, len(u.sent))
		}
		if d := u.late(0.99); d > 60*time.Millisecond {
			t.Errorf("one of a hundred takes more than %v", d)
		}
	})
}

// TestAnOfferThatABlackHoleTakesNamesNoOtherPath has a path fail just as it says its number: that goes again by another, which has carried nothing
// yet. The receiver is not to take that for the one that failed, or what comes by the living path would count for the dead one.
func TestAnOfferThatABlackHoleTakesNamesNoOtherPath(t *testing.T) {
	for _, n := range []int{2, 3} {
		forSeeds(t, 8, func(t *testing.T, w *world) {
			links := []*link{line{mbit: 100, rtt: time.Millisecond}.link(w)}
			for range n - 1 {
				links = append(links, line{mbit: 100, rtt: 2 * time.Millisecond}.link(w))
			}
			a, b := tunnel(w, true, nil, links...)
			for _, x := range a.ways[1:] {
				x.down = true
			}
			a.setPaths()
			u := startUDP(a, b, 1, 8, 1200)
			at := w.now + 5*time.Second + time.Duration(w.rnd.Int64N(int64(100*time.Millisecond)))
			w.at(at-50*time.Millisecond, func() {
				for _, x := range a.ways {
					x.down = false
				}
				a.setPaths()
			})
			w.at(at, func() {
				u.gap, u.last = 0, w.now
				links[0].dead(true)
				a.say(a.ways[0])
			})
			w.run(at + 3*time.Second)
			lost := u.lost(at-time.Second, at+2*time.Second)
			t.Logf("%d links: gap %v, lost %d, %+v", n, u.gap.Round(time.Millisecond), lost, b.r.Stats())
			if u.gap > 150*time.Millisecond || lost > 5 {
				t.Errorf("of %d links: nothing comes for %v, and %d datagrams are lost", n, u.gap, lost)
			}
			for _, e := range a.events {
				if e.At > at && e.Path != a.ways[0].id && e.To == bond.Silent {
					t.Errorf("of %d links: path %d lives, and falls silent: %s", n, e.Path, e.Reason)
				}
			}
		})
	}
}
