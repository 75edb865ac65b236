package relay

import (
	"math"
	"time"
)

const (
	// tooLong is how long frames may wait for a stream all the time, and tooLongFor is for how long they have to have waited longer until
	// one of them is dropped: RFC 8289's TARGET and INTERVAL. Its 5 ms are less than what the other processes of a busy machine take between two
	// writes, and 10 ms are at the upper end of what it recommends (section 4.4: 5 to 10 % of the interval).
	tooLong    = 10 * time.Millisecond
	tooLongFor = 100 * time.Millisecond
)

// codel keeps a queue from standing (RFC 8289 section 5): a flow that fills all that it is let fill gets no further by that,
// and whatever comes behind it is late. The zero value is of a queue that was never long.
type codel struct {
	above    time.Duration // when frames will have waited too long for tooLongFor; 0: they do not
	next     time.Duration // drop
	count    int           // of drops in a row
	last     int           // count when this row began
	dropping bool
}

// shorten drops the frames at the head that CoDel has chosen.
func (q *queue) shorten(now time.Duration) {
	c := &q.codel
	if !q.stands(now) {
		c.above, c.dropping = 0, false
		return
	}
	if c.above == 0 {
		c.above = now + tooLongFor
	}
	if now < c.above {
		return
	}
	if !c.dropping {
		// A row that begins soon after the last one goes on about where that one was (RFC 8289 section 5.6).
		recent := c.count - c.last
		c.dropping, c.count = true, 1
		if recent > 1 && now-c.next < 16*tooLongFor {
			c.count = recent
		}
		c.last = c.count
		c.next = c.after(now)
		q.dropFirst(DropAge)
		return
	}
	for q.stands(now) && now >= c.next {
		q.dropFirst(DropAge)
		c.count++
		c.next = c.after(c.next)
	}
}

// stands reports that the oldest frame has waited too long. What is written at once does not stand, however long that takes on a
// slow path.
func (q *queue) stands(now time.Duration) bool {
	return q.head != nil && q.size > crowd && now-q.head.born >= tooLong
}

// after is when to drop next: ever sooner, by the square root of how often it was done (RFC 8289 section 5.3).
func (c *codel) after(t time.Duration) time.Duration {
	return t + time.Duration(float64(tooLongFor)/math.Sqrt(float64(c.count)))
}
