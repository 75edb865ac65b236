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
	return e.lowest()
}

// keep has a value live longer.
func (e *extreme) keep(by time.Duration) { e.since += by }

func (e *extreme) lowest() float64 { return min(e.now, e.before) }

func (e *extreme) value() time.Duration { return time.Duration(e.lowest()) }

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
	fated  time.Duration // when something was known last of a packet
}

// A delay is that of one way, up to a constant that is the same for all paths: the clocks' difference. A long packet takes longer than a
// short one, by the time in which a slow line takes it in, and without having waited: so the least is known for each kind.
type delay struct {
	some   bool
	long   bool // the latest was
	latest time.Duration
	waited time.Duration // in queues, the latest: how much longer it took than the least of its kind
	least  [2]extreme    // of short packets, of long ones
	when   time.Duration // of latest
	step   time.Duration // from the one before to rest
	rest   time.Duration // what is left of latest without the wait that was expected
	jitter time.Duration // of that, what is no trend: smoothed as in RFC 3550 section 6.4.1
}

const (
	// longFrom is from how many bytes on a packet is long.
	longFrom = 700
	// jitterMost bounds what one packet adds: it may be the beginning of a queue.
	jitterMost = 20 * time.Millisecond
)

func (d *delay) add(now, v, wait time.Duration, size int32) {
	rest := v - wait
	long := size >= longFrom
	if d.some && d.long == long {
		// A queue that grows or empties changes the delay evenly: only the change of the change is jitter. Its mean is about 1.7 times
		// that of a single step.
		step := rest - d.rest
		turn := step - d.step
		d.step = step
		d.jitter += (min(max(turn, -turn)*10/17, jitterMost) - d.jitter) / 16
	}
	kind := 0
	if long {
		kind = 1
	}
	d.some, d.long, d.latest, d.rest, d.when = true, long, v, rest, now
	d.waited = v - time.Duration(d.least[kind].add(now, baseWithin, float64(v)))
}

// base is the least of any packet.
func (d *delay) base() time.Duration {
	switch {
	case !d.least[0].some:
		return d.least[1].value()
	case !d.least[1].some:
		return d.least[0].value()
	}
	return min(d.least[0].value(), d.least[1].value())
}

func (d *delay) shift(by time.Duration) {
	d.latest += by
	for i := range d.least {
		d.least[i].now += float64(by)
		d.least[i].before += float64(by)
	}
}

// keep has the least delays live longer.
func (e *estimate) keep(by time.Duration) {
	e.minR.keep(by)
	for i := range e.owd.least {
		e.owd.least[i].keep(by)
	}
}

// fate takes in whether a packet was lost: the share of about the last hundred.
func (e *estimate) fate(now time.Duration, lost bool) {
	e.packet++
	e.fated = now
	w := max(1.0/128, 1/float64(e.packet+8))
	x := 0.0
	if lost {
		x = 1
	}
	e.loss += (x - e.loss) * w
}

// forgive is how long half of what a path is known to lose counts while nothing is sent by it: or one that is not used for its losses would
// never be found to lose less.
const forgive = 3 * time.Second

// losing is how much a path is taken to lose now.
func (e *estimate) losing(now time.Duration) float64 {
	return e.loss / (1 + float64(max(now-e.fated, 0))/float64(forgive))
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
	drainQueue = 2 * time.Millisecond  // is a queue, and no chance, without jitter
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
