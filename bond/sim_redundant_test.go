package bond_test

import (
	"testing"
	"time"
)

// TestTwoCopiesOfEverythingGoOnWhateverFails has datagrams at four fifths of what one link carries go by both, on machines that are more or less busy, and
// each link fall silent once. With naps of 40 ms one link, paced, carries hardly more than that.
func TestTwoCopiesOfEverythingGoOnWhateverFails(t *testing.T) {
	for _, x := range []struct {
		nap, gap time.Duration
		lost     int
	}{{0, 100 * time.Millisecond, 0}, {10 * time.Millisecond, 100 * time.Millisecond, 0}, {40 * time.Millisecond, 300 * time.Millisecond, 150}} {
		forSeeds(t, 5, func(t *testing.T, w *world) {
			a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
			all := func([]byte) bool { return true }
			a.redundant, b.redundant = all, all
			if x.nap > 0 {
				naps(w, x.nap, a, b)
			}
			start := w.now
			u := startUDP(a, b, 1, 0.8*16*1200/1284, 1200)
			for i, victim := range []*link{links[1], links[0]} {
				at := start + time.Duration(3+5*i)*time.Second
				w.at(at, func() { victim.dead(true) })
				w.at(at+2*time.Second, func() { victim.dead(false) })
			}
			w.run(start + 12*time.Second)
			u.stopped = true
			w.run(w.now + time.Second)
			lost := u.lost(0, w.now)
			t.Logf("naps of %v: lost %d of %d, gap %v at %v, half within %v, 99 %% within %v, %+v", x.nap, lost, len(u.sent),
				u.gap.Round(time.Millisecond), (u.gapAt - start).Round(time.Millisecond), u.late(0.5), u.late(0.99), b.r.Stats())
			if lost > x.lost {
				t.Errorf("naps of %v: %d datagrams are lost", x.nap, lost)
			}
			if u.gap > x.gap {
				t.Errorf("naps of %v: nothing comes for %v", x.nap, u.gap)
			}
		})
	}
}
