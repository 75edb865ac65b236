package bond_test

import (
	"testing"
	"time"

	"weft/bond"
)

// disturb has things happen to links and nodes at random.
func disturb(w *world, until time.Duration, a, b *node, links []*link) {
	rates := make([][2]float64, len(links))
	for i, l := range links {
		rates[i] = [2]float64{l.there.rate, l.back.rate}
	}
	var next func()
	next = func() {
		if w.now >= until {
			for i, l := range links { // and all is well in the end
				l.dead(false)
				l.there.rate, l.back.rate = rates[i][0], rates[i][1]
			}
			return
		}
		i := w.rnd.IntN(len(links))
		l := links[i]
		long := time.Duration(w.rnd.Int64N(int64(2 * time.Second)))
		switch w.rnd.IntN(7) {
		case 0:
			l.dead(true)
			w.after(long, func() { l.dead(false) })
		case 1:
			l.there.dead = true
			w.after(long, func() { l.there.dead = false })
		case 2:
			l.back.dead = true
			w.after(long, func() { l.back.dead = false })
		case 3:
			f := 0.1 + 2*w.rnd.Float64()
			l.there.rate = rates[i][0] * f
		case 4:
			a.rekey()
			if w.rnd.IntN(2) == 0 {
				b.rekey()
			}
		case 5: // down by netlink, at one end
			x := a.ways[i]
			if w.rnd.IntN(2) == 0 {
				x = b.ways[i]
			}
			n := a
			if x == b.ways[i] {
				n = b
			}
			if !x.down {
				x.down = true
				n.setPaths()
				w.after(long, func() { x.down = false; n.setPaths() })
			}
		case 6:
			for _, n := range []*node{a, b} {
				n.ways[i].metric = 20 - n.ways[i].metric
				n.setPaths()
			}
		}
		w.after(time.Duration(w.rnd.Int64N(int64(time.Second))), next)
	}
	w.after(time.Second, next)
}

// TestWhateverHappensToTheLinksEachPacketComesOnceOrIsAccountedFor draws links, and what happens to them.
func TestWhateverHappensToTheLinksEachPacketComesOnceOrIsAccountedFor(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, w *world) {
		var links []*link
		most := 0.0
		for _, l := range drawLines(w) {
			links = append(links, l.link(w))
			most += l.mbit
		}
		a, b := tunnel(w, true, nil, links...)
		watch(a, b)
		if *verbose {
			a.trace()
		}
		if w.rnd.IntN(4) == 0 {
			a.redundant = func([]byte) bool { return true }
		}
		there := startUDP(a, b, 1, min(most, 8)*(0.1+w.rnd.Float64()), 300+w.rnd.IntN(1000))
		back := startUDP(b, a, 2, min(most, 8)*0.2*w.rnd.Float64(), 200)
		end := w.now + 6*time.Second
		disturb(w, end, a, b, links)
		w.every(time.Millisecond, func() {
			for _, n := range []*node{a, b} {
				for _, p := range n.s.Status(nil) {
					if p.InFlight < 0 || p.InFlight > max(2*p.Window, 64<<10)+bond.DefaultMemory {
						t.Errorf("%v: %d bytes are in flight in a window of %d", w.now, p.InFlight, p.Window)
					}
				}
				if st := n.r.Stats(); st.HeldBytes > bond.DefaultHold*9/8 {
					t.Errorf("%d bytes are held", st.HeldBytes)
				}
			}
		})
		w.run(end)
		there.stopped, back.stopped = true, true
		for w.run(end + 5*time.Second); a.q.Len()+b.q.Len() > 0 && w.now < end+5*time.Minute; {
			w.run(w.now + 5*time.Second)
		}
		w.run(w.now + 2*time.Second) // what is on its way arrives
		wakes := a.wakes + b.wakes
		for _, x := range []struct {
			from, to *node
			u        *udp
		}{{a, b, there}, {b, a, back}} {
			st, q := x.to.r.Stats(), x.from.q.Stats()
			lost := x.u.lost(0, w.now)
			if x.u.twice > 0 {
				t.Errorf("%d packets come twice", x.u.twice)
			}
			if x.to.delivered != len(x.u.sent)-lost || st.Delivered != uint64(x.to.delivered) {
				t.Errorf("of %d sent %d are lost, and %d delivered: %+v", len(x.u.sent), lost, x.to.delivered, st)
			}
			// What is lost was dropped by the queue in front, or by the links each time that it was sent.
			waiting := x.from.q.Len()
			if x.from.has {
				waiting++
			}
			if n := int(q.Late+q.Overrun) + waiting + x.from.sentData; n != len(x.u.sent) {
				t.Errorf("%d of %d packets are accounted for", n, len(x.u.sent))
			}
			if x.to.came != x.to.delivered {
				t.Errorf("%d packets came, and %d are delivered", x.to.came, x.to.delivered)
			}
			gone := 0
			for _, y := range x.from.ways {
				gone += y.out.lost + y.out.dropped + y.refused
			}
			if n := x.from.sentData - x.to.came; n > gone {
				t.Errorf("%d packets did not come, and the links dropped %d", n, gone)
			}
			if st.HeldBytes != 0 {
				t.Errorf("%d bytes are held for ever: %+v", st.HeldBytes, st)
			}
			if uint64(x.u.order) > st.Reordered {
				t.Errorf("%d packets are out of order, and %d known: %+v", x.u.order, st.Reordered, st)
			}
			if again := x.from.sentAgain; again > 2*(x.from.sentData+x.from.sentControl) {
				t.Errorf("%d packets are sent again of %d", again, x.from.sentData)
			}
		}
		if secs := int((w.now-end)/time.Second) + 6; wakes > secs*4000 {
			t.Errorf("timers ring %d times in %d s", wakes, secs)
		}
		if t.Failed() || *verbose {
			t.Logf("sent %d and %d, lost %d and %d, again %d and %d, out of order %d and %d, timers %d\n%+v\n%+v\n%+v", len(there.sent), len(back.sent), there.lost(0, w.now), back.lost(0, w.now),
				a.sentAgain, b.sentAgain, there.order, back.order, wakes, a.s.Status(nil), b.s.Status(nil), b.r.Stats())
		}
	})
}
