package bond_test

import (
	"testing"
	"time"

	"weft/bond"
)

// TestTwoCopiesOfEverythingGoOnWhateverFails has datagrams at four fifths of what one link carries go by both, on machines that are more or less busy, and
// each link fall silent once. With naps of 40 ms one link, paced, carries hardly more than that.
func TestTwoCopiesOfEverythingGoOnWhateverFails(t *testing.T) {
	for _, x := range []struct {
		nap, gap time.Duration
		lost     int
	}{{0, 100 * time.Millisecond, 0}, {10 * time.Millisecond, 100 * time.Millisecond, 0}, {40 * time.Millisecond, 200 * time.Millisecond, 20}} {
		forSeeds(t, 4, func(t *testing.T, w *world) {
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

func TestTheSlowerLinkOfTwoCopiesIsNeitherFloodedNorGivenUp(t *testing.T) {
	for name, other := range map[string]line{
		"half as fast":       {mbit: 8, rtt: 20 * time.Millisecond},
		"five times as long": {mbit: 16, rtt: 100 * time.Millisecond},
	} {
		forSeeds(t, 2, func(t *testing.T, w *world) {
			slow := other.link(w)
			a, b := tunnel(w, true, nil, line{mbit: 16, rtt: 20 * time.Millisecond}.link(w), slow)
			watch(a, b)
			if *verbose {
				a.trace()
			}
			all := func([]byte) bool { return true }
			a.redundant, b.redundant = all, all
			u := startUDP(a, b, 1, 10, 1200) // more than the slow one carries
			w.run(w.now + 6*time.Second)
			u.stopped = true
			w.run(w.now + time.Second)
			t.Logf("%s: lost %d, half within %v, 99.9 %% within %v, %d copies of %d, dropped by the slow one %d", name, u.lost(0, w.now), u.late(0.5), u.late(0.999), a.sentCopies, a.sentData, slow.there.dropped)
			if n := u.lost(0, w.now); n > 0 {
				t.Errorf("%s: %d datagrams are lost", name, n)
			}
			if d := u.late(0.5); d > 15*time.Millisecond {
				t.Errorf("%s: half of them take more than %v", name, d)
			}
			for _, e := range a.events {
				if e.To == bond.Silent {
					t.Errorf("%s: path %d is taken for silent: %s", name, e.Path, e.Reason)
				}
			}
			if drops := slow.there.dropped; drops > a.sentCopies/100 {
				t.Errorf("%s: the slow link drops %d of %d copies", name, drops, a.sentCopies)
			}
		})
	}
}
