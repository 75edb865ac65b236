package bond_test

import (
	"slices"
	"testing"
	"time"
)

// crowded are links by one of which a plain connection goes, too. The queue of the second is a tenth of a second long.
var crowded = []line{{mbit: 16, rtt: 20 * time.Millisecond, queue: 50 * time.Millisecond}, {mbit: 16, rtt: 20 * time.Millisecond}}

// TestAPlainConnectionBesideTheBondGetsItsShare judges as the benchmark does, by the median, and starves none. What a connection has in the first ten seconds
// hangs on where its slow start ended: the one through the bond leaves it when the plain one's fills the link, and CUBIC needs as long to come back.
func TestAPlainConnectionBesideTheBondGetsItsShare(t *testing.T) {
	for _, l := range crowded {
		var parts []float64
		forSeeds(t, 5, func(t *testing.T, w *world) {
			a, b, links := twins(w, l, 2)
			c := startTCP(a, b, 1, 0)
			plain := startPlainTCP(w, links[0], 9)
			w.run(w.now + 10*time.Second)
			before, ours, both := plain.goodput(), links[0].there.carried, c.goodput()
			w.run(w.now + 20*time.Second)
			mbit := (plain.goodput() - before) * 8 / 1e6 / 20
			part := mbit / (l.mbit * mss / 1420)
			parts = append(parts, part)
			t.Logf("queue %v: the plain one has %.1f Mbit/s, %.0f %%; the bond %.1f; the link carried %.1f", l.queue, mbit, part*100,
				(c.goodput()-both)*8/1e6/20, float64(links[0].there.carried-ours)*8/1e6/20)
			if part < 0.2 || part > 0.8 {
				t.Errorf("a plain connection beside the bond has %.0f %% of the link", part*100)
			}
		})
		slices.Sort(parts)
		if median := parts[len(parts)/2]; median < 0.3 || median > 0.7 {
			t.Errorf("queue %v: plain connections beside the bond have %.0f %% of the link", l.queue, median*100)
		}
	}
}

// TestALinkThatOthersFillTakesNothingFromAnother has a connection begin that is far from filling both links. By the one that others fill packets come
// late, and all that went by the other one waited for them: it had half of what the other link alone gives.
func TestALinkThatOthersFillTakesNothingFromAnother(t *testing.T) {
	for _, l := range crowded {
		forSeeds(t, 2, func(t *testing.T, w *world) {
			a, b, links := twins(w, l, 2)
			c := startTCP(a, b, 1, 0)
			startPlainTCP(w, links[0], 9)
			w.run(w.now + time.Second)
			before := c.goodput()
			w.run(w.now + 4*time.Second)
			if mbit := (c.goodput() - before) * 8 / 1e6 / 4; mbit < 0.9*l.mbit*mss/1420 {
				t.Errorf("queue %v: with a link of %v Mbit/s for itself and one that others fill a connection has %.1f", l.queue, l.mbit, mbit)
			}
		})
	}
}

func TestAPathIsNotHeldToBeLongerSinceOthersFillIt(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, w *world) {
		l := crowded[1]
		a, b, links := twins(w, l, 2)
		startTCP(a, b, 1, 0)
		w.run(w.now + 3*time.Second)
		startPlainTCP(w, links[0], 9)
		for range 40 {
			w.run(w.now + time.Second)
			if p := a.s.Status(nil)[0]; p.MinRTT > l.rtt+10*time.Millisecond {
				t.Fatalf("%v after they met a path of %v is held to have %v", w.now, l.rtt, p.MinRTT)
			}
		}
	})
}

// TestBBRBesideBBRGetsItsShare has BBR inside, which has twice the bandwidth-delay product of its least round trip under way, and what acknowledgements come in: by a
// link that others fill that is hardly enough for both links.
func TestBBRBesideBBRGetsItsShare(t *testing.T) {
	var shares []float64
	forSeeds(t, 5, func(t *testing.T, w *world) {
		l := line{mbit: 16, rtt: 20 * time.Millisecond}
		a, b, links := twins(w, l, 2)
		c := startTCP(a, b, 1, 0).useBBR()
		plain := startPlainTCP(w, links[0], 9).useBBR()
		w.run(w.now + 5*time.Second)
		before := plain.goodput()
		w.run(w.now + 15*time.Second)
		share := 1 - (plain.goodput()-before)*8/1e6/15/(l.mbit*mss/1420)
		shares = append(shares, share)
		t.Logf("the bond has %.2f of the link, %d of %d packets late", share, c.recvd.disorder, c.recvd.came)
		if share < 0.25 || share > 0.75 {
			t.Errorf("beside the plain one the bond has %.2f of the link", share)
		}
		if c.recvd.disorder*200 > c.recvd.came {
			t.Errorf("%d of %d packets are late", c.recvd.disorder, c.recvd.came)
		}
	})
	slices.Sort(shares)
	if len(shares) > 0 && (shares[len(shares)/2] < 0.33 || shares[len(shares)/2] > 0.7) {
		t.Errorf("beside the plain one the bond has %.2f of the link", shares[len(shares)/2])
	}
}
