package queue

import (
	"math"
	"time"
)

// A codel is the state of RFC 8289 section 5 for one flow. The zero value is of a queue that was never long.
type codel struct {
	above    time.Time // when the sojourn time will have been above the target for an interval; zero: it is not above
	next     time.Time // drop or mark
	count    int       // of them in a row
	last     int       // count when this row began
	dropping bool
}

// dequeue takes out a flow's packet, unless CoDel drops all that are left.
func (q *Queue[T]) dequeue(now time.Time, k *class[T], f *flow) (it Item[T], ok bool) {
	c := &f.codel
	if f.head == none {
		c.above = time.Time{}
		return it, false
	}
	it = q.take(k, f)
	late := q.late(now, c, f, it)
	if c.dropping {
		if !late {
			c.dropping = false
			return it, true
		}
		for c.dropping && !now.Before(c.next) {
			c.count++
			if q.congested(&it) {
				c.next = c.control(c.next)
				return it, true
			}
			if f.head == none {
				c.above, c.dropping = time.Time{}, false
				return it, false
			}
			it = q.take(k, f)
			if late = q.late(now, c, f, it); !late {
				c.dropping = false
			} else {
				c.next = c.control(c.next)
			}
		}
		return it, true
	}
	if !late {
		return it, true
	}
	// A row that begins soon after the last one goes on about where that one was (RFC 8289 section 5.6).
	recent := c.count - c.last
	c.dropping, c.count = true, 1
	if recent > 1 && now.Sub(c.next) < 16*Interval {
		c.count = recent
	}
	c.last = c.count
	c.next = c.control(now)
	if q.congested(&it) {
		return it, true
	}
	if f.head == none {
		c.above, c.dropping = time.Time{}, false
		return it, false
	}
	it = q.take(k, f)
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

// late reports whether packets have been waiting too long for an interval. A queue with less than one full packet left
// is never too long.
func (q *Queue[T]) late(now time.Time, c *codel, f *flow, it Item[T]) bool {
	switch {
	case now.Sub(it.at) < Target || f.bytes < Quantum:
		c.above = time.Time{}
	case c.above.IsZero():
		c.above = now.Add(Interval)
	default:
		return !now.Before(c.above)
	}
	return false
}

// control is when to drop next: ever sooner, by the square root of how often it was done (RFC 8289 section 5.3).
func (c *codel) control(t time.Time) time.Time {
	return t.Add(time.Duration(float64(Interval) / math.Sqrt(float64(c.count))))
}
