package bond_test

import (
	"testing"
	"time"
)

// TestNoPathIsHeldToBeShorterThanItIs has what was sent again, since the machine was busy, come by its first sending. Taken for the second one a path
// seemed 4 ms shorter for ten seconds, all its packets seemed to have waited so long, and it was given two thirds of what it carries.
func TestNoPathIsHeldToBeShorterThanItIs(t *testing.T) {
	for seed := range uint64(max(6, *seeds)) {
		for _, other := range []line{{mbit: 1, rtt: 20 * time.Millisecond}, {mbit: 16, rtt: 40 * time.Millisecond, loss: 0.01}} {
			w := newWorld(t, seed)
			lines := []line{{mbit: 20, rtt: 20 * time.Millisecond}, other}
			a, b := tunnel(w, true, nil, lines[0].link(w), lines[1].link(w))
			naps(w, 5*time.Millisecond, a, b)
			if seed%2 == 1 {
				a, b = b, a
			}
			startTCP(a, b, 1, 0)
			for range 50 {
				w.run(w.now + 100*time.Millisecond)
				for i, p := range a.s.Status(nil) {
					least := lines[i].rtt/2 + lines[0].rtt/2 // feedback comes back by the shortest
					if p.MinRTT > 0 && p.MinRTT < least {
						t.Fatalf("seed %d, %+v: path %d has %v, and is held to have %v", seed, other, p.ID, least, p.MinRTT)
					}
				}
			}
		}
	}
}
