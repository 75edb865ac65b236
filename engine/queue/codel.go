package queue

import "math"

// A codel is the state of RFC 8289 section 5 for one flow. The zero value is of a queue that was never long.
type codel struct {
	above    instant // when the sojourn time will have been above the target for an interval; zero: it is not
	next     instant // drop or mark
	count    int     // of them in a row
	last     int     // count when this row began
	dropping bool
}

// dequeue takes out a flow's packet, unless CoDel drops all that are left.
func (q *Queue[T]) dequeue(now instant, i int32) (it Item[T], ok bool) {
	f := &q.flows[i]
	c := &f.codel
	if f.head == none {
		c.above = 0
		return it, false
	}
	it = q.take(i)
	late := q.late(now, c, f, it)
	if c.dropping {
		if !late {
			c.dropping = false
			return it, true
		}
		for c.dropping && now >= c.next && !it.stays() {
			c.count++
			if q.congested(&it) {
				c.next = q.control(c, c.next)
				return it, true
			}
			c.next = max(q.control(c, c.next), q.cut(now, i))
			if f.head == none {
				c.above, c.dropping = 0, false
				return it, false
			}
			it = q.take(i)
			if late = q.late(now, c, f, it); !late {
				c.dropping = false
			}
		}
		return it, true
	}
	if !late || it.stays() {
		return it, true
	}
	// A row that begins soon after the last one goes on about where that one was (RFC 8289 section 5.6).
	recent := c.count - c.last
	c.dropping, c.count = true, 1
	if recent > 1 && now-c.next < 16*q.interval {
		c.count = recent
	}
	c.last = c.count
	c.next = q.control(c, now)
	if q.congested(&it) {
		return it, true
	}
	c.next = max(c.next, q.cut(now, i))
	if f.head == none {
		c.above, c.dropping = 0, false
		return it, false
	}
	it = q.take(i)
	q.late(now, c, f, it)
	return it, true
}

// congested marks a packet, or drops it: then it is false.
func (q *Queue[T]) congested(it *Item[T]) bool {
	if it.ECN {
		it.Marked = true
		return true
	}
	q.stats.Late++
	q.drop(it.Value)
	return false
}

// cutFor is for how many intervals nothing more is dropped of a connection after a cut: what it sends again takes a round trip, and then the time that the
// queue is long. A packet that is dropped twice holds everything up for both.
const cutFor = 2

// stays reports whether a packet is not to be dropped: it is sent again, and so it was dropped before, or lost. All that came meanwhile waits for it at the
// other end, and would do so for another round trip and as long as the queue is.
func (it *Item[T]) stays() bool { return it.repeat && !it.ECN }

// cut drops what else of a connection has waited for longer than SetMost says, but for its last packet and what it sends again, and tells when the next may be
// dropped. Where packets are marked nothing is sent again, and of datagrams each is missed for itself.
func (q *Queue[T]) cut(now instant, i int32) (next instant) {
	f := &q.flows[i]
	for before, n := int32(none), f.head; q.most > 0 && n != f.tail && now-q.nodes[n].item.at > q.most; {
		if it := &q.nodes[n].item; it.ECN || !it.Again || it.repeat {
			before, n = n, q.nodes[n].next
			continue
		}
		n = q.nodes[n].next
		q.stats.Late++
		q.drop(q.takeAfter(i, before).Value)
		next = now + cutFor*q.interval
	}
	return next
}

// late reports whether packets have been waiting too long for an interval. A queue with less than one full packet left
// is never too long.
func (q *Queue[T]) late(now instant, c *codel, f *flow, it Item[T]) bool {
	switch {
	case now-it.at < q.target || f.bytes < Quantum:
		c.above = 0
	case c.above == 0:
		c.above = now + q.interval
	default:
		return now >= c.above
	}
	return false
}

// control is when to drop next: ever sooner, by the square root of how often it was done (RFC 8289 section 5.3).
func (q *Queue[T]) control(c *codel, t instant) instant {
	return t + instant(float64(q.interval)/math.Sqrt(float64(c.count)))
}
