package bond_test

import (
	"testing"
	"time"

	"weft/bond"
)

// A machine on which threads wait for a processor sleeps for some milliseconds ten times a second. Its kernel goes on: what comes lies in sockets, with the
// time when it came.

// naps has nodes sleep for some milliseconds ten times a second, as threads on a busy machine do.
func naps(w *world, most time.Duration, nodes ...*node) {
	busy := true
	napsWhile(w, most, &busy, nodes...)
}

func napsWhile(w *world, most time.Duration, busy *bool, nodes ...*node) {
	const every = 100 * time.Millisecond
	for _, n := range nodes {
		var nap func()
		nap = func() {
			if !*busy {
				return
			}
			n.sleep(most/4 + time.Duration(w.rnd.Int64N(int64(most-most/4))))
			w.after(every/2+time.Duration(w.rnd.Int64N(int64(every))), nap)
		}
		w.after(time.Duration(w.rnd.Int64N(int64(every))), nap)
	}
}

func TestWhoSleepsFillsALinkAllTheSame(t *testing.T) {
	for name, sleepers := range map[string]func(a, b *node) []*node{
		"who sends":    func(a, _ *node) []*node { return []*node{a} },
		"who receives": func(_, b *node) []*node { return []*node{b} },
		"both":         func(a, b *node) []*node { return []*node{a, b} },
	} {
		forSeeds(t, 2, func(t *testing.T, w *world) {
			a, b := tunnel(w, true, nil, line{mbit: 50, rtt: 20 * time.Millisecond}.link(w))
			naps(w, 20*time.Millisecond, sleepers(a, b)...)
			c := startTCP(a, b, 1, 0)
			w.run(w.now + 4*time.Second)
			before := c.goodput()
			w.run(w.now + 8*time.Second)
			// Without a queue for it and without the kernel's times 0.89 (who sends), 0.97, and 0.89.
			if got, want := (c.goodput()-before)/8e6*8, 0.96*50*share; got < want {
				t.Errorf("where %s sleeps, one flow has %.1f of %.1f Mbit/s", name, got, 50*share)
			}
		})
	}
}

func TestWhoDoesNotSleepHasNoQueueForIt(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		a, b := tunnel(w, true, nil, line{mbit: 50, rtt: 20 * time.Millisecond}.link(w))
		busy := true
		napsWhile(w, 20*time.Millisecond, &busy, a)
		startTCP(a, b, 1, 0)
		w.run(w.now + 4*time.Second)
		asleep := a.s.Status(nil)[0].RTT
		busy = false
		w.run(w.now + 15*time.Second)
		if rtt := a.s.Status(nil)[0].RTT; rtt > 26*time.Millisecond || asleep < rtt+5*time.Millisecond {
			t.Errorf("15 s after it slept last a round trip takes %v, and %v while it did", rtt, asleep)
		}
	})
}

func TestAcknowledgementsKeepToTheSteadyLink(t *testing.T) {
	forSeeds(t, 4, func(t *testing.T, w *world) {
		a, b := tunnel(w, true, nil, line{mbit: 50, rtt: 20 * time.Millisecond}.link(w), poor["a shaky one"].link(w))
		naps(w, 20*time.Millisecond, a, b)
		startTCP(a, b, 1, 0)
		w.run(w.now + 4*time.Second)
		for range 8 {
			before := b.s.Status(nil)
			w.run(w.now + time.Second)
			after := b.s.Status(nil)
			// The least that takes is no more by the shaky one; what it takes in the mean is three times as long.
			if steady, shaky := after[0].SentPackets-before[0].SentPackets, after[1].SentPackets-before[1].SentPackets; shaky > steady/2 {
				t.Errorf("in a second before %v, %d packets went back by the steady link and %d by the shaky one", w.now, steady, shaky)
			}
		}
	})
}

func TestABusyMachineLosesNoPath(t *testing.T) {
	mean, runs := 0.0, 0.0
	forSeeds(t, 5, func(t *testing.T, w *world) {
		a, b, _ := twins(w, line{mbit: 16, rtt: 20 * time.Millisecond}, 2)
		for _, n := range []*node{a, b} {
			var nap func()
			nap = func() {
				n.sleep(time.Duration(20+w.rnd.IntN(60)) * time.Millisecond)
				w.after(time.Duration(100+w.rnd.IntN(400))*time.Millisecond, nap)
			}
			w.after(2*time.Second, nap)
		}
		c := startTCP(a, b, 1, 0)
		start := w.now
		w.run(start + 5*time.Second)
		before := c.goodput()
		w.run(start + 15*time.Second)
		mbit := (c.goodput() - before) * 8 / 1e6 / 10
		silent := 0
		for _, n := range []*node{a, b} {
			for _, e := range n.events {
				if e.To == bond.Silent {
					silent++
				}
			}
		}
		t.Logf("%.1f %% of what the links carry, %d times silent, %+v", mbit/(32*share)*100, silent, b.r.Stats())
		if silent > 0 { // one run in a hundred has one, which costs nothing
			t.Errorf("paths that are well are called silent %d times", silent)
		}
		mean, runs = mean+mbit/(32*share), runs+1
	})
	// Both ends sleep for a sixth of the time, longer than queues are kept for, and one flow waits for each: one that sleeps while it starts carries half for long.
	if mean /= runs; mean < 0.7 {
		t.Errorf("it carries %.1f %% of what the links do, in the mean", mean*100)
	}
}
