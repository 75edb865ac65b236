package bond

import (
	"slices"
	"time"
)

// assignedMost is how many messages may be assigned to a path: half of what feedback can tell of.
const assignedMost = stretchMost / 2

// An assignment is a message that has its counter and its path, and waits for its turn there.
type assignment struct {
	seq  uint64
	size int32 // on the wire, with the path's Overhead
}

// Assigned are the messages that were assigned to a path, in their order, in a ring that grows to its bound.
type assigned struct {
	ring       []assignment
	tail, head uint32 // modulo 2^32
	bytes      int
}

func (a *assigned) len() int { return int(a.head - a.tail) }

func (a *assigned) at(i uint32) *assignment { return &a.ring[i&uint32(len(a.ring)-1)] }

func (a *assigned) push(seq uint64, size int32) {
	if n := a.len(); n == len(a.ring) {
		ring := make([]assignment, max(flightsFirst, 2*n))
		for i := a.tail; i != a.head; i++ {
			ring[i&uint32(len(ring)-1)] = *a.at(i)
		}
		a.ring = ring
	}
	*a.at(a.head) = assignment{seq, size}
	a.head++
	a.bytes += int(size)
}

// take takes the first or the last one out.
func (a *assigned) take(i uint32) (seq uint64) {
	x := a.at(i)
	a.bytes -= int(x.size)
	if i == a.tail {
		a.tail++
	} else {
		a.head--
	}
	return x.seq
}

// queued is how long a path takes to send what is assigned to it.
func (l *lane) queued() time.Duration { return l.takes(l.assigned.bytes) }

// orderly reports whether what goes by a slower path may be sent ahead of its turn, so that it arrives in its turn: what comes before it gets its counters and
// waits for the quicker path. Nothing is held at the receiver then, and a connection needs no more under way than the slower path's round trip takes. It is not worth
// that wait for a path that adds little.
func (s *Sender) orderly(l, first *lane, from pool) bool {
	return from == good && l.health.state == Active && first.health.state == Active && l.est.owd.some && first.est.owd.some &&
		first.assigned.len() < assignedMost && (l.ctl.Loses() || l.ctl.Capacity() >= minor*s.capacity(from))
}

// Assign returns the path by which the packet goes that Next had no path for, if it is to get its counter now: see Assigned. Ask Next again after that.
func (s *Sender) Assign() (p PathID, ok bool) {
	l := s.assign
	if s.assign = nil; l == nil {
		return 0, false
	}
	return l.ID, true
}

// Assigned is told of a message that has its counter, and goes when Due says so. A copy of it is kept.
func (s *Sender) Assigned(now time.Duration, p PathID, session uint32, counter uint64, message []byte) {
	l := s.lane(p)
	seq, ok := s.ledger.add(session, counter, s.drop)
	if !ok {
		return
	}
	m := s.ledger.msg(seq)
	if s.ledger.keep(m, message); l == nil || m.size == 0 {
		m.settled = true
		return
	}
	m.waiting = true
	l.assigned.push(seq, m.size+int32(l.Overhead))
}

// Due returns a message that was assigned to a path and is to go now, by that or by another by which it comes sooner after all. It counts as sent. It is valid
// until the next call of anything.
func (s *Sender) Due(now time.Duration) (p PathID, message []byte, ok bool) {
	s.now = max(s.now, now)
	for _, l := range s.lanes {
		for s.tidy(l); l.assigned.len() > 0; s.tidy(l) {
			by, i := l, l.assigned.tail
			if wait, open := s.wait(now, l, int(l.assigned.at(i).size)-l.Overhead); !open || wait > 0 && (s.run != l || wait > burst) {
				if by, i = s.sooner(now, l); by == nil {
					break
				}
			}
			seq := l.assigned.take(i)
			if !s.unsent(seq) {
				continue
			}
			m := s.ledger.msg(seq)
			s.run = l
			m.waiting = false
			s.hop(now, by, seq, m, int(m.size), m.quiet)
			return by.ID, s.ledger.bytes[m.at : m.at+m.size], true
		}
		if s.run == l {
			s.run = nil
		}
	}
	return 0, nil, false
}

// unsent reports whether a message that was assigned is to be sent yet. One whose copy there was no room for is given up.
func (s *Sender) unsent(seq uint64) bool {
	m := s.ledger.msg(seq)
	if seq < s.ledger.tail || m.settled || !m.waiting {
		return false
	}
	if m.size == 0 {
		m.waiting, m.settled = false, true
	}
	return !m.settled
}

// tidy takes out what needs not be sent any more, up to the first that does.
func (s *Sender) tidy(l *lane) {
	for a := &l.assigned; a.len() > 0 && !s.unsent(a.at(a.tail).seq); {
		a.take(a.tail)
	}
}

// sooner finds what is assigned to a path, its first or its last, and another path by which that comes sooner now: the path was quicker when it was
// assigned.
func (s *Sender) sooner(now time.Duration, than *lane) (best *lane, which uint32) {
	a := &than.assigned
	first, last := a.at(a.tail), a.at(a.head-1)
	begins := now + s.ready(now, than, int(first.size)-than.Overhead) + than.delay(now) - alike
	if best = s.quicker(now, than, int(first.size), begins+than.takes(int(first.size))); best != nil {
		return best, a.tail
	}
	return s.quicker(now, than, int(last.size), begins+than.queued()), a.head - 1
}

// quicker finds another path that may send at once, and by which something arrives before a time.
func (s *Sender) quicker(now time.Duration, than *lane, size int, soonest time.Duration) (best *lane) {
	from := s.pool()
	for _, l := range s.lanes {
		if l == than || !l.in(from) || l.assigned.len() > 0 {
			continue
		}
		if wait, open := s.wait(now, l, size); !open || wait > 0 {
			continue
		}
		if at := l.arrival(now, size); at < soonest {
			best, soonest = l, at
		}
	}
	return best
}

// ready is how long it takes until a path may send. One that is closed by its window opens when feedback says so; what is overdue delays that.
func (s *Sender) ready(now time.Duration, l *lane, size int) time.Duration {
	wait, open := s.wait(now, l, size)
	if !open {
		wait += now - l.line.heard
	}
	return wait
}

// Assigns reports whether something is assigned that was not sent.
func (s *Sender) Assigns() bool {
	return slices.ContainsFunc(s.lanes, func(l *lane) bool { return l.assigned.len() > 0 })
}

// turns notes that what is assigned to a path waits for its turn, and when that is: Never if feedback has to open the window. It is false if nothing is.
func (s *Sender) turns(now time.Duration, l *lane) (at time.Duration, some bool) {
	if l.assigned.len() == 0 {
		return Never, false
	}
	wait, open := s.wait(now, l, int(l.assigned.at(l.assigned.tail).size)-l.Overhead)
	if !open {
		l.held = true
		return Never, true
	}
	l.waited = true
	return now + wait, true
}

// unassign has what is assigned to a path go by others.
func (s *Sender) unassign(l *lane) {
	for s.tidy(l); l.assigned.len() > 0; s.tidy(l) {
		s.pushRepeat(l.assigned.take(l.assigned.tail))
	}
}
