package bond

import (
	"testing"
	"time"

	"weft/wire"
)

// TestAPathThatHasGotSlowerIsNotTakenForOneThatLoses has a path carry little, one packet at a time, and its delay grow: each packet is taken for
// lost, comes by the other path, and then by its own. From that it has to be seen that nothing is lost.
func TestAPathThatHasGotSlowerIsNotTakenForOneThatLoses(t *testing.T) {
	type arrival struct {
		at      time.Duration
		path    PathID
		counter uint64
	}
	type frame struct {
		at time.Duration
		f  wire.Feedback
	}
	s := two(nil)
	delays := map[PathID]time.Duration{1: 10 * tick, 2: 15 * tick}
	var counter, base uint64
	var under []arrival
	var frames []frame
	came, last := map[uint64]bool{}, map[PathID]wire.FeedbackPath{}
	send := func(now time.Duration, p PathID) {
		s.Sent(now, p, 7, counter, make([]byte, 1200))
		under = append(under, arrival{now + delays[p], p, counter})
		counter++
	}
	var before uint64
	const start, slower, seen, end = time.Second, 3 * time.Second, 3300 * tick, 8 * time.Second
	for now := start; now < end; now += tick {
		if now == slower {
			delays[1] = 70 * tick
			s.lanes[0].est.loss, s.lanes[0].est.packet = 0.3, 1000 // so that it takes many to doubt it
		}
		if now == seen {
			before = s.Status(nil)[0].LostPackets
		}
		for i := 0; i < len(under); i++ {
			if x := under[i]; x.at <= now {
				came[x.counter] = true
				if l, ok := last[x.path]; !ok || x.counter > l.Newest {
					last[x.path] = wire.FeedbackPath{ID: uint16(x.path), Newest: x.counter, At: uint64(x.at / time.Microsecond)}
				}
				under = append(under[:i], under[i+1:]...)
				i--
			}
		}
		for len(frames) > 0 && frames[0].at <= now {
			s.Feedback(now, now, &frames[0].f)
			frames = frames[1:]
		}
		if now >= s.Wake() {
			s.Tick(now)
		}
		for p, m, ok := s.Again(now); ok; p, m, ok = s.Again(now) {
			c := uint64(0)
			for q := s.ledger.tail; q < s.ledger.head; q++ {
				if l := s.ledger.msg(q); l.size > 0 && &s.ledger.bytes[l.at] == &m[0] {
					c = q // counters begin with zero, as places do
				}
			}
			under = append(under, arrival{now + delays[p], p, c})
		}
		if now%(50*tick) == 0 {
			send(now, 1)
		}
		if now%(5*tick) != 0 {
			continue
		}
		send(now, 2)
		for came[base] {
			base++
		}
		f := wire.Feedback{Session: 7, Clock: uint64(now / time.Microsecond), Base: base, NWords: 2}
		for c := base; c < base+128; c++ {
			if came[c] {
				f.Words[(c-base)/64] |= 1 << ((c - base) % 64)
			}
		}
		for p := PathID(1); p <= 2; p++ {
			if l, ok := last[p]; ok {
				f.Paths[f.NPaths] = l
				f.NPaths++
			}
		}
		frames = append(frames, frame{now + 10*tick, f})
	}
	st := s.Status(nil)[0]
	if n := st.LostPackets - before; n > 4 {
		t.Errorf("%d of %d packets are taken for lost that were only late; round trip %v, %v", n, (end-seen)/(50*tick), st.RTT, st.State)
	}
	if st.RTT < 60*tick {
		t.Errorf("a round trip of 80 ms is measured as %v", st.RTT)
	}
}
