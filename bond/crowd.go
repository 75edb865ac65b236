package bond

import "time"

const (
	// crowdWithin is how long the shortest queue of others is remembered: bursts are over in it.
	crowdWithin = 200 * time.Millisecond
	// crowdMost is how long the least delay is kept though it cannot be seen. After that the path itself is taken to have become longer.
	crowdMost = time.Minute
)

// A crowd is what others keep standing in the queue of a path, as an ordinary TCP connection does. A line's own queue empties while nothing is sent;
// this one does not.
type crowd struct {
	least extreme       // by how much packets of lately have waited longer than for what was sent here before them
	at    time.Duration // when one was looked at last
	none  time.Duration // when there was no such queue last
}

// add takes in by how much a packet has waited longer than for what was sent here, which may be chance up to a bound; filled: the queue is kept full on
// purpose. It returns for how long the least delay could not be seen, and is not forgotten.
func (c *crowd) add(now, by, chance time.Duration, filled bool) (hidden time.Duration) {
	passed := now - c.at
	if !c.least.some { // the first
		passed, c.none = 0, now
	}
	c.at = now
	if c.least.add(now, crowdWithin, float64(max(by, 0))) <= float64(chance) && !filled {
		c.none = now
		return 0
	}
	if now-c.none > crowdMost {
		return 0
	}
	return passed
}

// wait is how long a packet waits there. What is not seen any more counts for less and less, or a path that others have left would never be
// found to be short again.
func (c *crowd) wait(now time.Duration) time.Duration {
	if !c.least.some {
		return 0
	}
	return time.Duration(c.least.lowest() / (1 + float64(max(now-c.at, 0))/float64(forgive)))
}
