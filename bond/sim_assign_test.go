package bond_test

import (
	"testing"
	"time"
)

// TestALongPathTakesNoMoreUnderWayThanItsRoundTrip has a connection fill a short path and a long one. What goes by the long one has to be sent ahead of its
// turn for that: else as much as the difference waits in front, and again at the receiver, and a connection needs twice as much under way.
func TestALongPathTakesNoMoreUnderWayThanItsRoundTrip(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		short, long := line{mbit: 16, rtt: 20 * time.Millisecond}, line{mbit: 16, rtt: 120 * time.Millisecond}
		a, b := tunnel(w, true, nil, short.link(w), long.link(w))
		c := startTCP(a, b, 1, 0)
		w.run(w.now + 15*time.Second)
		before := c.goodput()
		trips, n := time.Duration(0), 0
		for range 100 {
			w.run(w.now + 100*time.Millisecond)
			trips, n = trips+c.srtt, n+1
		}
		mbit := (c.goodput() - before) * 8 / 1e6 / 10
		if trip := trips / time.Duration(n); trip > long.rtt || mbit < 0.93*(short.mbit+long.mbit)*mss/1420 {
			t.Errorf("by paths of %v and %v a connection has %.1f Mbit/s and a round trip of %v", short.rtt, long.rtt, mbit, trip)
		}
	})
}
