package bond_test

import (
	"testing"
	"time"
)

// A meter is how much of a connection came in each stretch of time.
type meter struct {
	every time.Duration
	start time.Duration
	mbit  []float64
}

func measure(w *world, c *tcp, every time.Duration) *meter {
	m := &meter{every: every, start: w.now}
	last := c.goodput()
	w.every(every, func() {
		now := c.goodput()
		m.mbit = append(m.mbit, (now-last)*8/1e6/every.Seconds())
		last = now
	})
	return m
}

// mean is that from one time to another.
func (m *meter) mean(from, to time.Duration) float64 {
	sum, n := 0.0, 0
	for i, x := range m.mbit {
		if at := m.start + time.Duration(i)*m.every; at >= from && at+m.every <= to {
			sum += x
			n++
		}
	}
	return sum / float64(max(n, 1))
}

// least is the smallest mean over a stretch of time within one.
func (m *meter) least(from, to, stretch time.Duration) float64 {
	worst := 1e9
	for at := from; at+stretch <= to; at += m.every {
		worst = min(worst, m.mean(at, at+stretch))
	}
	return worst
}

// share is what of a link's rate a connection inside a tunnel can have: the rest is headers.
const share = float64(mss) / (1424 + 32 + overhead)

func TestALinkThatComesBackIsUsedAgain(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		a, b, links := twins(w, line{mbit: 16, rtt: 30 * time.Millisecond}, 2)
		c := startTCP(a, b, 1, 0)
		m := measure(w, c, 50*time.Millisecond)
		start := w.now
		w.at(start+6*time.Second, func() { links[1].dead(true) })
		w.at(start+10*time.Second, func() { links[1].dead(false) })
		w.run(start + 18*time.Second)
		full := 32 * share
		before, alone := m.mean(start+4*time.Second, start+6*time.Second), m.mean(start+8*time.Second, start+10*time.Second)
		dip := m.least(start+10*time.Second, start+13*time.Second, 500*time.Millisecond)
		after := m.mean(start+12*time.Second, start+17*time.Second)
		t.Logf("before %.1f %%, one alone %.1f %%, worst half second at its return %.1f %%, from 2 s on %.1f %%, tcp again %d timeouts %d, stall %v",
			before/full*100, alone/full*200, dip/full*200, after/full*100, c.retrans, c.timeouts, c.recvd.stall)
		if after < 0.95*before {
			t.Errorf("2 s after a link is back one flow has %.1f of %.1f Mbit/s", after, before)
		}
		if dip < 0.9*alone {
			t.Errorf("when a link comes back the flow dips from %.1f to %.1f Mbit/s", alone, dip)
		}
		if c.recvd.stall > 300*time.Millisecond {
			t.Errorf("the flow stalls for %v", c.recvd.stall)
		}
	})
}

func TestALinkWhoseCapacityMovesIsFollowedWithinASecond(t *testing.T) {
	for _, nap := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
		forSeeds(t, 2, func(t *testing.T, w *world) {
			a, b, links := twins(w, line{mbit: 16, rtt: 30 * time.Millisecond}, 2)
			if nap > 0 { // the queue that is kept for it is not to be taken for that of others when less is carried
				naps(w, nap, a, b)
			}
			c := startTCP(a, b, 1, 0)
			m := measure(w, c, 50*time.Millisecond)
			start := w.now
			w.at(start+10*time.Second, func() { links[1].set(8) })
			w.at(start+16*time.Second, func() { links[1].set(16) })
			w.run(start + 22*time.Second)
			for _, x := range []struct {
				from time.Duration
				mbit float64
			}{{8 * time.Second, 32}, {11 * time.Second, 24}, {17 * time.Second, 32}} {
				got, worst := m.mean(start+x.from, start+x.from+2*time.Second), m.least(start+x.from, start+x.from+4*time.Second, 500*time.Millisecond)
				t.Logf("naps of %v, from %v on: %.1f %% of %v Mbit/s, worst half second %.1f %%; stall %v", nap, x.from, got/x.mbit/share*100, x.mbit, worst/x.mbit/share*100, c.recvd.stall)
				if got < 0.93*x.mbit*share {
					t.Errorf("naps of %v: a second after the change one flow has %.1f Mbit/s of %.1f", nap, got, x.mbit*share)
				}
			}
		})
	}
}
