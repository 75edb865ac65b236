package bond_test

import (
	"testing"
	"time"
)

func TestAPlainConnectionBesideTheBondGetsItsShare(t *testing.T) {
	for _, l := range []line{
		{mbit: 16, rtt: 20 * time.Millisecond, queue: 50 * time.Millisecond}, {mbit: 16, rtt: 20 * time.Millisecond},
	} {
		forSeeds(t, 2, func(t *testing.T, w *world) {
			a, b, links := twins(w, l, 2)
			c := startTCP(a, b, 1, 0)
			plain := startPlainTCP(w, links[0], 9)
			start := w.now
			w.run(start + 10*time.Second)
			before, ours := plain.goodput(), links[0].there.carried
			both := c.goodput()
			w.run(start + 30*time.Second)
			mbit := (plain.goodput() - before) * 8 / 1e6 / 20
			part := mbit / (l.mbit * mss / 1420)
			t.Logf("%v Mbit/s %v: the plain one has %.1f Mbit/s, %.0f %%; the bond %.1f; the link carried %.1f", l.mbit, l.rtt, mbit, part*100,
				(c.goodput()-both)*8/1e6/20, float64(links[0].there.carried-ours)*8/1e6/20)
			if part < 0.3 || part > 0.7 {
				t.Errorf("a plain connection beside the bond has %.0f %% of the link", part*100)
			}
		})
	}
}
