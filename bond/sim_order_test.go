package bond_test

import (
	"testing"
	"time"

	"weft/bond"
)

// poor are links that are worth little beside a good one, as the benchmark adds them.
var poor = map[string]line{
	"a slow one":       {mbit: 2, rtt: 40 * time.Millisecond},
	"a slow, long one": {mbit: 1, rtt: 200 * time.Millisecond},
	"a long one":       {mbit: 5, rtt: 600 * time.Millisecond},
	"a shaky one":      {mbit: 4, rtt: 60 * time.Millisecond, jitter: 40 * time.Millisecond},
}

func TestAPoorLinkBesideAGoodOneTakesNothingAway(t *testing.T) {
	good := line{mbit: 50, rtt: 20 * time.Millisecond}
	for name, other := range poor {
		for _, nap := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
			forSeeds(t, 3, func(t *testing.T, w *world) {
				seed := w.rnd.Uint64()
				had := func(lines ...line) float64 {
					w := newWorld(t, seed)
					var links []*link
					for _, l := range lines {
						links = append(links, l.link(w))
					}
					a, b := tunnel(w, true, nil, links...)
					if nap > 0 {
						naps(w, nap, a, b)
					}
					c := startTCP(a, b, 1, 0)
					w.run(w.now + 4*time.Second)
					before := c.goodput()
					w.run(w.now + 8*time.Second)
					if st := b.r.Stats(); st.Reordered*1000 > st.Delivered {
						t.Errorf("%s: %d of %d packets come out of order", name, st.Reordered, st.Delivered)
					}
					return c.goodput() - before
				}
				least := 0.98
				if nap > 10*time.Millisecond {
					least = 0.96 // the connection itself takes longer to find its rate
				}
				if alone, all := had(good), had(good, other); all < least*alone {
					t.Errorf("%s, on machines that sleep up to %v: %.1f %% of the good one alone", name, nap, all/alone*100)
				}
			})
		}
	}
}

func TestCopiesFindOutWhatALinkCarriesBeforeAnythingWaitsForIt(t *testing.T) {
	for name, other := range poor {
		forSeeds(t, 2, func(t *testing.T, w *world) {
			a, b := tunnel(w, true, nil, line{mbit: 50, rtt: 20 * time.Millisecond}.link(w), other.link(w))
			startTCP(a, b, 1, 0)
			w.run(w.now + 6*time.Second)
			st := a.s.Status(nil)[1]
			steady := other.jitter < 10*time.Millisecond // or packets come in lumps, and of some copies it takes longer
			if rate := st.Rate * 8 / 1e6; steady && (rate < 0.7*other.mbit || rate > 1.4*other.mbit) {
				t.Errorf("%s of %v Mbit/s is taken for one of %.2f", name, other.mbit, rate)
			}
			if a.sentCopies*25 > a.sentData {
				t.Errorf("%s has %d copies of %d packets", name, a.sentCopies, a.sentData)
			}
		})
	}
}

func TestNobodyExploresForTheSakeOfALittle(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		a, b, _ := twins(w, line{mbit: 50, rtt: 20 * time.Millisecond}, 2)
		w.run(w.now + time.Second)
		before := a.sentCopies
		startUDP(a, b, 1, 1, 1200)
		w.run(w.now + 10*time.Second)
		if n := a.sentCopies - before; n > 0 {
			t.Errorf("%d copies of a call of 1 Mbit/s", n)
		}
	})
}

func TestALinkThatSeemedSlowIsUsedOnceItIsKnownThatItIsNot(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		var links []*link
		for range 4 {
			links = append(links, line{mbit: 32, rtt: 20 * time.Millisecond}.link(w))
		}
		a, b := tunnel(w, true, nil, links...)
		// The first ping by it waited for a radio.
		a.way(4).rtt = 500 * time.Millisecond
		a.way(4).down = true
		a.setPaths()
		a.way(4).down = false
		a.setPaths()
		c := startTCP(a, b, 1, 0)
		m := measure(w, c, 50*time.Millisecond)
		start := w.now
		w.at(start+time.Second, func() {
			a.way(4).rtt = 20 * time.Millisecond
			a.setPaths()
		})
		w.run(start + 6*time.Second)
		if got, want := m.mean(start+3*time.Second, start+6*time.Second), 0.95*4*32*share; got < want {
			t.Errorf("one flow has %.1f Mbit/s, want %.1f", got, want)
		}
	})
}

// A rivalry counts how often a path's congestion control takes others to fill its queue.
type rivalry struct {
	bond.Control
	met int
}

func (r *rivalry) Sample(now time.Duration, s bond.Sample) {
	before := r.Loses()
	if r.Control.Sample(now, s); r.Loses() && !before {
		r.met++
	}
}

func TestALinkThatIsUnsteadyIsNotTakenForOneThatOthersFill(t *testing.T) {
	forSeeds(t, 8, func(t *testing.T, w *world) {
		var all []*rivalry
		control := func() bond.Control {
			all = append(all, &rivalry{Control: bond.NewBBR()})
			return all[len(all)-1]
		}
		a, b := tunnel(w, true, control, line{mbit: 50, rtt: 20 * time.Millisecond}.link(w), poor["a shaky one"].link(w))
		naps(w, 4*time.Millisecond, a, b)
		startTCP(a, b, 1, 0)
		w.run(w.now + 30*time.Second)
		for _, r := range all {
			if r.met > 0 {
				t.Errorf("a path gives way to others %d times, and there are none", r.met)
			}
		}
	})
}
