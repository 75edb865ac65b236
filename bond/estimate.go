package bond

import "time"

// baseWithin is how long the least delay of a path is remembered: half of it, to all of it. BBR has 10 s (draft-ietf-ccwg-bbr section 2.13.1).
const baseWithin = 10 * time.Second

// An extreme is the least, or with the sign turned the largest, of what came lately, in two halves.
type extreme struct {
	some        bool
	now, before float64
	since       time.Duration
}

// add takes in a value, and returns the least of lately.
func (e *extreme) add(now time.Duration, within time.Duration, v float64) float64 {
	switch age := now - e.since; {
	case !e.some || age >= within:
		*e = extreme{some: true, now: v, before: v, since: now}
	case age >= within/2:
		e.before, e.now, e.since = e.now, v, now
	default:
		e.now = min(e.now, v)
	}
	return min(e.now, e.before)
}

// A mean is smoothed as RFC 6298 section 2 smooths round-trip times.
type mean struct {
	some        bool
	smooth, dev time.Duration
}

func (m *mean) add(v time.Duration) {
	if !m.some {
		m.some, m.smooth, m.dev = true, v, v/2
		return
	}
	d := v - m.smooth
	m.smooth += d / 8
	m.dev += (max(d, -d) - m.dev) / 4
}

// An estimate is what is measured of a path.
type estimate struct {
	rtt    mean
	report mean // from sending until told of, with the time that the receiver kept it
	minRTT time.Duration
	minR   extreme

	owd    delay
	drain  drainage
	rate   float64 // bytes/s: the largest of lately
	maxR   extreme
	loss   float64 // smoothed, per packet
	packet uint64
}

// A delay is that of one way, up to a constant that is the same for all paths: the clocks' difference.
type delay struct {
	some   bool
	latest time.Duration
	base   time.Duration // the least of lately
	min    extreme
	when   time.Duration // of latest
	step   time.Duration // from the one before to latest
	jitter time.Duration // what is no trend: smoothed as in RFC 3550 section 6.4.1
}

// jitterMost bounds what one packet adds: it may be the beginning of a queue.
const jitterMost = 20 * time.Millisecond

func (d *delay) add(now, v time.Duration) {
	if d.some {
		// A queue that grows or empties changes the delay evenly: only the change of the change is jitter. Its mean is about 1.7 times
		// that of a single step.
		step := v - d.latest
		turn := step - d.step
		d.step = step
		d.jitter += (min(max(turn, -turn)*10/17, jitterMost) - d.jitter) / 16
	}
	d.some, d.latest, d.when = true, v, now
	d.base = time.Duration(d.min.add(now, baseWithin, float64(v)))
}

// queue is what the latest packet waited in queues.
func (d *delay) queue() time.Duration { return d.latest - d.base }

// guess is how long a packet would take now: queues empty themselves while nothing is sent.
func (d *delay) guess(now time.Duration) time.Duration {
	return d.base + max(0, d.queue()-max(0, now-d.when-50*time.Millisecond))
}

// fate takes in whether a packet was lost: the share of about the last hundred.
func (e *estimate) fate(lost bool) {
	e.packet++
	w := max(1.0/128, 1/float64(e.packet+8))
	x := 0.0
	if lost {
		x = 1
	}
	e.loss += (x - e.loss) * w
}

// delivered takes in a rate of delivery.
func (e *estimate) delivered(now time.Duration, rate float64, limited bool) {
	if limited && rate < e.rate {
		return
	}
	e.rate = -e.maxR.add(now, max(time.Second, 10*e.rtt.smooth), -rate)
}

// A drainage is how fast a queue empties: as long as there is one, what arrives in a stretch of time is what the path carries.
type drainage struct {
	some     bool
	at, next time.Duration // where the stretch began, and where the next one will have
	bytes    uint64        // delivered until then
	later    uint64
}

const (
	drainQueue = 2 * time.Millisecond  // is a queue, and no chance
	drainOver  = 10 * time.Millisecond // is long enough: both ends are arrivals, so whole packets are counted
)

// add takes in an arrival, until which so much was delivered, and returns the rate in bytes/s if it is known.
func (d *drainage) add(at time.Duration, bytes uint64, queue bool, over time.Duration) float64 {
	if !queue || at < d.next {
		d.some = false
	}
	if !d.some {
		*d = drainage{some: queue, at: at, next: at, bytes: bytes, later: bytes}
		return 0
	}
	took := at - d.at
	if took < over {
		if at-d.next >= over/2 && d.next == d.at {
			d.next, d.later = at, bytes
		}
		return 0
	}
	rate := float64(bytes-d.bytes) / took.Seconds()
	if d.next > d.at {
		d.at, d.bytes = d.next, d.later
	}
	d.next, d.later = at, bytes
	return rate
}
