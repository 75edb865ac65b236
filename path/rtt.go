package path

import "time"

// Bounds of how long an answer is waited for.
const (
	// minTimeout is the shortest, in time: Linux's TCP_RTO_MIN. Peers answer at once, but machines stall.
	minTimeout = 200 * time.Millisecond
	// maxTimeout is the longest: the initial retransmission timeout of RFC 6298 section 2.1.
	maxTimeout = time.Second
	// firstTimeout holds for a pair that has not answered yet.
	firstTimeout = 500 * time.Millisecond
	// maxRTT is what an answer that came at all may have taken; older pings are not waited for.
	maxRTT = 5 * time.Second
)

// baseWindow is how many samples the base round-trip time is the least of: enough to see through the queue
// that a burst of our own makes, few enough to follow a route that changed.
const baseWindow = 8

// rtt estimates a pair's round-trip time. The zero value has no sample.
type rtt struct {
	smoothed, variation time.Duration // RFC 6298's SRTT and RTTVAR
	recent              [baseWindow]time.Duration
	samples             int
}

// add takes a sample (RFC 6298 section 2: alpha 1/8, beta 1/4).
func (r *rtt) add(d time.Duration) {
	d = max(d, 0)
	if r.samples == 0 {
		r.smoothed, r.variation = d, d/2
	} else {
		r.variation += ((r.smoothed - d).Abs() - r.variation) / 4
		r.smoothed += (d - r.smoothed) / 8
	}
	r.recent[r.samples%baseWindow] = d
	r.samples++
}

// base is the least of the recent samples: the way itself, without queues. Zero without a sample.
func (r *rtt) base() time.Duration {
	if r.samples == 0 {
		return 0
	}
	least := r.recent[0]
	for _, d := range r.recent[1:min(r.samples, baseWindow)] {
		least = min(least, d)
	}
	return least
}

// last is the latest sample. Zero without one.
func (r *rtt) last() time.Duration {
	if r.samples == 0 {
		return 0
	}
	return r.recent[(r.samples-1)%baseWindow]
}

// spread is the time within which nearly every answer comes.
func (r *rtt) spread() time.Duration { return r.smoothed + 4*r.variation }

// timeout is how long to wait for an answer before it counts as missing.
func (r *rtt) timeout() time.Duration {
	if r.samples == 0 {
		return firstTimeout
	}
	return min(max(r.spread()+20*time.Millisecond, minTimeout), maxTimeout)
}
