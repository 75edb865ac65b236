package bond

import "time"

const (
	// burst is how long a path may be sent to without a look at the others: long enough for segmentation offload on
	// a fast one, and short against any round trip.
	burst = time.Millisecond
	// credit is how far pacing lags behind timers that come late before it counts as a pause.
	credit = 4 * time.Millisecond
	// alike are paths by which a packet arrives within it, and a 16th of the round trip: those share what there is to be sent, so that one that fails has
	// little of it, and more is known of the others.
	alike = time.Millisecond
)

// Next finds the path by which the packet at the head of the queue may go now. size is its length on the wire without
// the path's Overhead; backlog are the bytes that wait, it included. room is how many bytes may follow by the same path at
// once, at least size. When none may, ask again at Wake, or after Feedback.
func (s *Sender) Next(now time.Duration, size, backlog int) (p PathID, room int, ok bool) {
	s.now = max(s.now, now)
	s.nap.comes(now)
	p, room, ok = s.next(now, size, backlog)
	s.nap.turn = s.wake
	return p, room, ok
}

// next is Next.
func (s *Sender) next(now time.Duration, size, backlog int) (p PathID, room int, ok bool) {
	s.wake, s.assign = Never, nil
	if len(s.repeat) > 0 {
		s.wake = s.again(now)
	}
	if s.ledger.stretch() >= stretchMost {
		return 0, 0, false // until feedback has room to tell of more
	}
	s.standing.add(now, standsFor, float64(backlog))
	from := s.pool()
	var best *lane
	var soonest time.Duration
	stands := s.standing.lowest() >= float64(2*size)
	var arrives [maxLanes]time.Duration // by lane; Never: it may not send now
	closed := false                     // by its window, and it is known that this is all that it carries
	for i, l := range s.lanes {
		arrives[i] = Never
		if !l.in(from) {
			continue
		}
		if at, some := s.turns(now, l); some {
			s.wake = min(s.wake, at)
			closed = true
			continue
		}
		wait, open := s.wait(now, l, size)
		if !open {
			l.held = true
			closed = closed || !l.ctl.Seeking()
		} else if wait > 0 {
			s.wake = min(s.wake, now+wait)
			l.waited = true
		} else {
			arrives[i] = l.arrival(now, size) + l.risk(now, stands)
			if best == nil || arrives[i] < soonest {
				best, soonest = l, arrives[i]
			}
		}
	}
	if best == nil {
		return 0, 0, false
	}
	near := min(alike, best.est.rtt.smooth/16)
	for i, l := range s.lanes {
		if at := arrives[i]; at != Never && at-soonest <= near && l.takes(l.inFlight) < best.takes(best.inFlight) {
			best = l
		}
	}
	if (closed || s.wake != Never) && !s.worth(now, best, size, backlog, soonest, from, stands) {
		s.wake = min(s.wake, now+credit)
		best.waited = false
		return 0, 0, false // when another may send, this is asked again
	}
	s.wake = now
	s.last = best
	s.explore = s.unexplored(now, best, size, from, stands)
	room = max(size, int(best.ctl.Rate()*burst.Seconds()))
	return best.ID, max(size, min(room, best.window(s.remote.gap())-best.inFlight)), true
}

// A pool says which paths take new data.
type pool uint8

const (
	good   pool = iota // those that carry, and are not under suspicion
	spare              // no such is left: those on standby
	anyone             // nor of them: whatever is not silent
)

// pool is the best that has a path in it.
func (s *Sender) pool() pool {
	best := anyone
	for _, l := range s.lanes {
		if l.in(good) {
			return good
		} else if l.in(spare) {
			best = spare
		}
	}
	return best
}

// capacity is what the paths of a pool carry together, in bytes/s.
func (s *Sender) capacity(p pool) (all float64) {
	for _, l := range s.lanes {
		if l.in(p) {
			all += l.ctl.Capacity()
		}
	}
	return all
}

// in reports whether a path takes new data.
func (l *lane) in(p pool) bool {
	h := &l.health
	switch p {
	case good:
		return (h.state == Active || h.state == Returning) && h.doubted == 0
	case spare:
		return h.state == Standby && h.doubted == 0
	}
	return h.state != Silent
}

// wait is how long pacing makes a packet wait for a path; open: the window is not what it waits for.
func (s *Sender) wait(now time.Duration, l *lane, size int) (wait time.Duration, open bool) {
	wait = max(0, l.free-now)
	over := l.inFlight + size + l.Overhead - l.window(s.remote.gap())
	if over > 0 && l.inFlight > 0 {
		return max(wait, time.Duration(float64(over)/max(l.ctl.Rate(), 1)*1e9)), false
	}
	return wait, true
}

// arrival is when a packet of size bytes arrives that is sent now, on the scale of delays.
func (l *lane) arrival(now time.Duration, size int) time.Duration {
	return now + l.delay(now) + l.takes(size+l.Overhead)
}

// repairs is how much later things are in order by a path that loses much: about as late as what is sent again, which then everything
// waits for.
func (l *lane) repairs(now time.Duration) time.Duration {
	return time.Duration(min(max((l.est.losing(now)-lossyFrom)/(lossyTo-lossyFrom), 0), 1) * float64(l.est.report.smooth))
}

// risk is how much later the end of a burst is expected by a path that may lose some of it. While a backlog stands others fill the time.
func (l *lane) risk(now time.Duration, stands bool) time.Duration {
	if stands || l.ctl.Loses() {
		return 0
	}
	again := l.est.report.smooth
	lost := l.est.losing(now) * l.ctl.Capacity() * again.Seconds() / segment // packets, until the first of them is sent again
	return time.Duration(min(lost, 1) * float64(again))
}

// From lossyFrom on a path loses more than congestion makes it, and at lossyTo some of what is on its way is always lost.
const lossyFrom, lossyTo = 0.08, 0.12

// delay is how long a packet takes now until its first byte arrives: the least that one took, what the line takes in before, and what
// others keep in its queue. What has not been measured is half of the round trip by probes.
func (l *lane) delay(now time.Duration) time.Duration {
	if d := &l.est.owd; d.some {
		return d.base() + unsteady*d.jitter + max(0, l.line.taken-now) + l.line.crowd.wait(now) + l.repairs(now)
	}
	if l.RTT > 0 {
		return l.RTT / 2
	}
	return firstRTT / 2
}

// ahead is how far copies may run ahead of a path's pacing: what is further ahead would have the path rest when the other one fails.
const ahead = 20 * time.Millisecond

// Second finds another living path than not for a copy. It is not bound by pacing, but to what may be ahead of it, and to twice the window.
func (s *Sender) Second(now time.Duration, not PathID, size int) (PathID, bool) {
	from := s.pool()
	var best *lane
	for _, l := range s.lanes {
		if l.ID == not || l.health.state == Silent || from == good && l.health.state == Standby || l.inFlight+size > 2*l.window(s.remote.gap()) || l.free > now+ahead {
			continue
		}
		if best == nil || l.better(best, now) {
			best = l
		}
	}
	if best == nil {
		return 0, false
	}
	return best.ID, true
}

// Other finds the best of the other paths, those on standby too.
func (s *Sender) Other(not PathID) (PathID, bool) {
	var best *lane
	for _, l := range s.lanes {
		if l.ID != not && (best == nil || l.better(best, s.now)) {
			best = l
		}
	}
	if best == nil {
		return 0, false
	}
	return best.ID, true
}

// better orders paths for what is single: what is not under suspicion, the lower metric, the lesser delay.
func (l *lane) better(o *lane, now time.Duration) bool {
	switch a, b := l.health.rank(), o.health.rank(); {
	case a != b:
		return a < b
	case l.Metric != o.Metric:
		return l.Metric < o.Metric
	}
	return l.delay(now) < o.delay(now)
}

// Best returns the living path with the least delay, for what is single and urgent.
func (s *Sender) Best() (PathID, bool) { return s.Other(0) }

// Copies reports whether what Next has just given a path for shall go by Second, too: the path is coming back.
func (s *Sender) Copies() bool { return s.last != nil && s.last.health.state == Returning }

// Idle says that the queue is empty: what follows is limited by the application.
func (s *Sender) Idle(now time.Duration) {
	s.now = max(s.now, now)
	s.wake, s.nap.turn = Never, Never
	s.explore = nil
	s.standing.add(now, standsFor, 0)
	if len(s.repeat) > 0 {
		s.wake = s.again(now)
	}
	for _, l := range s.lanes {
		l.held, l.waited = false, false
		at, _ := s.turns(now, l)
		s.wake = min(s.wake, at)
	}
}

// Again returns what is to be sent again, before anything new. It counts as sent when given; message is valid until the
// next call of anything. Nil: path p is to say its own number first, since what follows says another's, and the receiver would take that
// for p's. What is older than the newest of its path it does not believe.
func (s *Sender) Again(now time.Duration) (p PathID, message []byte, ok bool) {
	s.now = max(s.now, now)
	for _, l := range s.lanes {
		if l.assigned.len() > 0 && !l.in(s.pool()) {
			s.unassign(l)
		}
	}
	for len(s.repeat) > 0 {
		seq := s.repeat[0]
		m := s.ledger.msg(seq)
		if seq < s.ledger.tail || m.settled || !m.waiting {
			s.popRepeat()
			continue
		}
		if m.size == 0 || m.n == hopsMost {
			m.waiting, m.settled = false, true
			s.popRepeat()
			continue
		}
		l, wait := s.repair(now, seq)
		if l == nil || wait > 0 {
			return 0, nil, false
		}
		if m.names && !m.asked && !s.said(l, m, seq) {
			m.asked = true // once: it may not be able to
			return l.ID, nil, true
		}
		s.popRepeat()
		m.waiting, m.asked = false, false
		m.again++
		l.counts.againPackets++
		s.hop(now, l, seq, m, int(m.size), m.quiet)
		return l.ID, s.ledger.bytes[m.at : m.at+m.size], true
	}
	s.ledger.trim()
	return 0, nil, false
}

// said reports whether what a message says is a path's number, or something newer goes before it by the path.
func (s *Sender) said(l *lane, m *message, seq uint64) bool {
	if o, _ := s.flight(m.hops[0], seq); o == l {
		return true
	}
	return l.flights.head != l.flights.tail && l.flights.at(l.flights.head-1).seq > seq
}

// surer is by how much more of what is sent a path may lose than the best does, for what was lost twice already.
const surer = 0.005

// repair finds the path by which a message that was lost arrives first, and how long it has to wait for it. What was lost twice goes by a
// path that loses hardly anything, if there is one: there is no third time.
func (s *Sender) repair(now time.Duration, seq uint64) (best *lane, wait time.Duration) {
	from, m := s.pool(), s.ledger.msg(seq)
	size, most := int(m.size), 1.0
	if m.again > 0 {
		for _, l := range s.lanes {
			if l.in(from) {
				most = min(most, l.est.loss+surer)
			}
		}
	}
	var soonest time.Duration
	for _, l := range s.lanes {
		if !l.in(from) || l.est.loss > most {
			continue
		}
		w, open := s.wait(now, l, size)
		if !open {
			w = max(0, l.free-now) // repairs may exceed the window: what they repair has left it
		}
		at := l.arrival(now, size) + w
		if l.ends(seq, m) {
			at += l.est.report.smooth // until it is known that it is lost again
		}
		if best == nil || at < soonest {
			best, wait, soonest = l, w, at
		}
	}
	return best, wait
}

// ends reports whether a message went by a path by which nothing has come that was sent as late: the path may have gone with it.
func (l *lane) ends(seq uint64, m *message) bool {
	for _, h := range m.hops[:m.n] {
		if h.slot == l.slot && l.flights.has(h.flight) && l.flights.at(h.flight).seq == seq && int32(h.flight-l.newest) >= 0 {
			return true
		}
	}
	return false
}

// again is when Again may have something.
func (s *Sender) again(now time.Duration) time.Duration {
	if l, wait := s.repair(now, s.repeat[0]); l != nil {
		return now + wait
	}
	return Never
}

// pushRepeat has a message sent again: the oldest goes first, since the receiver waits for it.
func (s *Sender) pushRepeat(seq uint64) {
	h := append(s.repeat, seq)
	for i := len(h) - 1; i > 0 && h[(i-1)/2] > h[i]; i = (i - 1) / 2 {
		h[i], h[(i-1)/2] = h[(i-1)/2], h[i]
	}
	s.repeat = h
}

func (s *Sender) popRepeat() {
	h := s.repeat
	n := len(h) - 1
	h[0] = h[n]
	h = h[:n]
	for i := 0; ; {
		c := 2*i + 1
		if c+1 < n && h[c+1] < h[c] {
			c++
		}
		if c >= n || h[i] <= h[c] {
			break
		}
		h[i], h[c] = h[c], h[i]
		i = c
	}
	s.repeat = h
}

// Wake returns when Next, Again or Tick may have something; Never.
func (s *Sender) Wake() time.Duration { return min(s.wake, s.due) }

const (
	targetLeast = 10 * time.Millisecond
	targetMost  = 120 * time.Millisecond
	targetEased = 150 * time.Millisecond
	// minor is the part of all capacity below which a path has no say in it: what it adds is not worth a longer queue. Of one that competes with
	// others it is not known how much that will be.
	minor = 1.0 / 16
)

// leftOf is the least part of the longest round trip that may stand in the queue in front, whatever is assigned: what CUBIC takes back after a loss
// (RFC 9438 section 4.6), so that all paths are full yet.
const leftOf = (1 - cubicBeta) / cubicBeta

// intervalTrips is how many of the longest round trips CoDel's interval is at least: a connection needs as long to take back what it has under way.
const intervalTrips = 4

// Target returns CoDel's target for the queue in front, and the least interval. See the package's comment on queues. What waits for its turn at a path has
// its wait before it.
func (s *Sender) Target() (target, interval time.Duration) {
	if s.now < s.eased {
		return targetEased, intervalTrips * targetEased
	}
	longest, queued := s.longest(good, (*lane).smooth), time.Duration(0)
	for _, l := range s.lanes {
		if l.assigned.len() > 0 {
			queued = max(queued, l.queued())
		}
	}
	return max(longest-queued, time.Duration(float64(longest)*leftOf), targetLeast), intervalTrips * longest
}

// lessFor is how long after a path has gone a connection may not have learned that there is less: a drop each interval of CoDel, the first
// of them when the queue is no longer eased.
const lessFor = 5 * time.Second

// Most is how long what waits in front may have waited when CoDel drops some of it; the rest goes at once (queue.Queue.SetMost). Zero: any time. A
// connection that has filled two paths has twice under way what one of them carries, and it all waits in front when the other is
// gone. A packet that is dropped then is sent again by the connection behind what is left, and nothing goes on until it comes: so half a round trip of it is.
// The connection goes on sending for the round trip until it knows, so no path runs dry. It is the least round trip: what a path just takes in of
// what another had makes it longer for a while.
func (s *Sender) Most() time.Duration {
	if s.less == 0 || s.now >= s.less+lessFor {
		return 0
	}
	return s.longest(s.pool(), (*lane).least) / 2
}

// longest is the longest round trip, smoothed or the least, of those paths of a pool that carry a good part of what it does, within bounds.
func (s *Sender) longest(from pool, trip func(*lane) time.Duration) time.Duration {
	longest, least := time.Duration(0), minor*s.capacity(from)
	for _, l := range s.lanes {
		if l.in(from) && (l.ctl.Capacity() >= least || l.ctl.Loses()) {
			rtt := trip(l)
			if rtt == 0 {
				rtt = l.RTT
			}
			longest = max(longest, rtt)
		}
	}
	return min(max(longest, targetLeast), targetMost)
}

func (l *lane) smooth() time.Duration { return l.est.rtt.smooth }

func (l *lane) least() time.Duration { return l.est.minRTT }
