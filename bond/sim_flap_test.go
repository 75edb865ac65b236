package bond_test

import (
	"testing"
	"time"
)

// flap has a link go a hundred times in a minute, from three seconds on, each time for as long as it is there.
func flap(w *world, dead func(bool)) {
	for i := range 100 {
		at := 3*time.Second + time.Duration(i)*600*time.Millisecond
		w.after(at, func() { dead(true) })
		w.after(at+300*time.Millisecond, func() { dead(false) })
	}
}

func TestDatagramsWaitForNoMoreThanOneRepairWhenALinkFlaps(t *testing.T) {
	for _, x := range []struct {
		about string
		mbit  float64
		size  int
		back  bool
		nap   time.Duration
		most  time.Duration
	}{
		{"many", 11.76, 1200, false, 0, 100 * time.Millisecond},
		{"many, and naps of 5 ms", 11.76, 1200, false, 5 * time.Millisecond, 110 * time.Millisecond},
		{"one in 20 ms, and back", 0.08, 200, true, 0, 140 * time.Millisecond},
	} {
		forSeeds(t, 3, func(t *testing.T, w *world) {
			a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
			if x.nap > 0 {
				naps(w, x.nap, a, b)
			}
			u := startUDP(a, b, 1, x.mbit, x.size)
			if x.back {
				startUDP(b, a, 2, x.mbit, x.size)
			}
			flap(w, links[1].dead)
			w.run(w.now + 64*time.Second)
			lost := u.lost(0, w.now-time.Second)
			t.Logf("%s: longest gap %v at %v, lost %d of %d, %+v", x.about, u.gap, u.gapAt, lost, len(u.sent), b.r.Stats())
			if u.gap > x.most || lost > 0 {
				t.Errorf("%s: datagrams stop for %v, %d are lost", x.about, u.gap, lost)
			}
		})
	}
}

func TestAFlappingLinkStallsNobody(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		a, b, links := twins(w, line{mbit: 16, rtt: 30 * time.Millisecond}, 2)
		u := startUDP(a, b, 1, 6, 1200)
		c := startTCP(a, b, 2, 0)
		start := w.now
		flap(w, links[1].dead)
		w.at(start+2900*time.Millisecond, func() { u.gap, c.recvd.stall = 0, 0 })
		w.run(start + 64*time.Second)
		t.Logf("UDP: longest gap %v, lost %d of %d; TCP: longest stall %v at %v, again %d, timeouts %d", u.gap, u.lost(0, w.now-time.Second), len(u.sent), c.recvd.stall, c.recvd.stallAt-start, c.retrans, c.timeouts)
		if u.gap > 300*time.Millisecond || c.recvd.stall > 300*time.Millisecond {
			t.Errorf("while a link flaps a hundred times, datagrams stall for %v, a connection for %v", u.gap, c.recvd.stall)
		}
	})
}

// What the link had brought before it went, and is sent again by the other before that is known, would seem to have come by the other in no time.
func TestAConnectionGoesOnWhenALinkIsToldToFlap(t *testing.T) {
	for _, how := range []string{"cubic", "bbr"} {
		forSeeds(t, 2, func(t *testing.T, w *world) {
			a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
			naps(w, 5*time.Millisecond, a, b)
			c := startTCP(a, b, 2, 0)
			if how == "bbr" {
				c.useBBR()
			}
			start := w.now
			flap(w, func(dead bool) {
				links[1].dead(dead)
				a.ways[1].down = dead
				a.setPaths()
			})
			w.at(start+2900*time.Millisecond, func() { c.recvd.stall = 0 })
			w.run(start + 64*time.Second)
			t.Logf("%s: longest stall %v at %v, again %d, timeouts %d", how, c.recvd.stall, c.recvd.stallAt-start, c.retrans, c.timeouts)
			if c.recvd.stall > 300*time.Millisecond {
				t.Errorf("%s: while a link goes a hundred times, and is told to, a connection stalls for %v", how, c.recvd.stall)
			}
		})
	}
}

// Until then b sends nothing but frames of weft's own, of which many are lost.
func TestAPathThatLosesIsNotTakenForLate(t *testing.T) {
	forSeeds(t, 3, func(t *testing.T, w *world) {
		a, b, links := twins(w, line{mbit: 16, rtt: 60 * time.Millisecond}, 2)
		startUDP(a, b, 1, 11.76, 1200)
		flap(w, links[1].dead)
		w.run(w.now + 20*time.Second)
		u := startUDP(b, a, 2, 11.76, 1200)
		w.run(w.now + 20*time.Second)
		lost := u.lost(0, w.now-time.Second)
		t.Logf("longest gap %v at %v, lost %d of %d", u.gap, u.gapAt, lost, len(u.sent))
		if u.gap > 110*time.Millisecond || lost > 1 {
			t.Errorf("datagrams stop for %v, %d are lost", u.gap, lost)
		}
	})
}
