package bond

import (
	"time"

	"weft/wire"
)

const (
	// clockMost keeps the receiver's clock, in us, within what a time.Duration holds: 285 years.
	clockMost = 1 << 53
	// jumpMost is how much the two clocks may differ in what passed between two frames. More, and the receiver's was set.
	jumpMost = 2 * time.Second
	// drift is how far the clocks may run apart until the difference is taken anew.
	drift = 3 * time.Millisecond
	// gapMost is the most that feedback is counted on to stay away while data flows: as late as it comes, and some jitter.
	gapMost = 30 * time.Millisecond
	gapLike = time.Second // as long the longest gap is remembered
)

// A remote is the receiver's clock, of which neither origin nor exact speed are known. It is put beside ours so that the fastest path takes half
// of its round trip one way; since that constant is the same for all paths, they can be compared.
type remote struct {
	some   bool
	origin time.Duration
	clock  time.Duration // of the latest frame, on our scale
	raw    uint64
	came   time.Duration // when that did
	at     time.Duration // when it was read
	gaps   extreme
}

// local puts a time of the receiver's on our scale.
func (r *remote) local(us uint64) time.Duration {
	return time.Duration(us)*time.Microsecond - r.origin
}

// gap is how long feedback stays away.
func (r *remote) gap() time.Duration {
	if !r.gaps.some {
		return gapMost / 2
	}
	return -r.gaps.value()
}

// listen takes in the clock of a frame. It is false if the frame is older than another that came before it, or says nothing of
// time.
func (s *Sender) listen(now, came time.Duration, f *wire.Feedback) bool {
	r := &s.remote
	if r.some {
		passed := time.Duration(f.Clock)*time.Microsecond - time.Duration(r.raw)*time.Microsecond
		if jump := passed - (came - r.came); jump > jumpMost || jump < -jumpMost {
			s.ignored++
			r.some = false
			for _, l := range s.lanes {
				l.est.owd = delay{}
			}
		} else if passed <= 0 {
			return false
		} else {
			r.gaps.add(now, gapLike, -float64(min(now-r.at, gapMost)))
		}
	}
	if !r.some {
		rtt, ok := s.firstTrip(came, f)
		if !ok {
			return false
		}
		r.some, r.origin = true, time.Duration(f.Clock)*time.Microsecond-came+rtt/2
	}
	r.raw, r.at, r.came, r.clock = f.Clock, now, came, r.local(f.Clock)
	return true
}

// firstTrip is the shortest round trip that a frame shows.
func (s *Sender) firstTrip(came time.Duration, f *wire.Feedback) (least time.Duration, ok bool) {
	for i := range f.Paths[:f.NPaths] {
		p := &f.Paths[i]
		seq, known := s.ledger.seq(f.Session, p.Newest)
		if !known {
			continue
		}
		for _, h := range s.ledger.msg(seq).hops[:s.ledger.msg(seq).n] {
			if _, fl := s.flight(h, seq); fl != nil {
				rtt := came - fl.sent - time.Duration(f.Clock-p.At)*time.Microsecond
				if rtt > 0 && rtt <= rttMost && (!ok || rtt < least) {
					least, ok = rtt, true
				}
			}
		}
	}
	return least, ok
}

// center takes the clocks' difference anew when they have run apart.
func (r *remote) center(lanes []*lane) {
	var best *lane
	for _, l := range lanes {
		if l.est.owd.some && (best == nil || l.est.minRTT < best.est.minRTT) {
			best = l
		}
	}
	if best == nil {
		return
	}
	off := best.est.owd.base() - best.est.minRTT/2
	if off < drift && off > -drift {
		return
	}
	r.origin += off
	r.clock -= off
	for _, l := range lanes {
		l.est.owd.shift(-off)
		l.at -= off
		for i := l.flights.tail; i != l.flights.head; i++ {
			l.flights.at(i).at -= off
		}
	}
}
