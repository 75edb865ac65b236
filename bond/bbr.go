package bond

import "time"

// bbr is what NewBBR returns. See there.
type bbr struct {
	mode  mode
	bw    float64       // bytes/s: what the path is believed to carry
	peak  extreme       // the largest of it lately, with its sign turned
	gain  float64       // the rate is so much of it
	rtt   time.Duration // smoothed
	least time.Duration // the least round trip of lately
	short time.Duration // a queue that is no longer is none: chance makes it
	most  time.Duration // the queue that is aimed below: that, and what runs dry while the sender naps

	inFlight int           // bytes
	sent     time.Duration // when the newest was sent that arrived
	queue    time.Duration // what it waited
	excess   bool          // the queue is let drain
	trip     trip

	full  int     // rounds without growth, in startup
	best  float64 // rate before them
	known bool    // bw is what the path carries, and not only what was to be carried
	probe float64 // by how much the rate is to grow
	calm  int     // rounds that are left without

	over    time.Duration // since when the queue has not been short; 0: it was
	alien   time.Duration // since when it has not been as short as it would be by what is sent here
	aliens  int           // packets that have shown that
	jitter  time.Duration // the most meanwhile
	asks    bool          // it is let drain whole, to see whether what is left is others'
	before  extreme       // the largest rate of the last seconds, with its sign turned
	emptied time.Duration // when the queue was last empty, or emptied on purpose
	rival   cubic         // while others fill the queue
	spent   bool          // its first window has been filled: before, neither what arrives nor a loss now and then says anything of it
	until   time.Duration // of it
	patient time.Duration // how long it is
	met     time.Duration // others were met last
}

// A trip is what was seen in one round trip.
type trip struct {
	began   float64       // bytes/s: what the path was believed to carry
	rate    float64       // the largest sample
	limited bool          // one of them is a lower bound
	starved bool          // since there was nothing to be sent
	idle    bool          // and less than the least window was under way
	queue   time.Duration // the shortest
	alien   time.Duration // the shortest without what was sent here
	samples int           // of the queue; 0: it is not known
	jitter  time.Duration // the most
	drained bool          // what the path carries was measured
	came    int
	lost    int
}

type mode uint8

const (
	startup mode = iota
	steady
	compete
	look // whether others are still there
)

const (
	startupGain = 2.77 // doubles the rate in a round trip
	drainGain   = 0.3  // the least with which a queue is let drain
	probeFirst  = 0.08
	probeMost   = 1.0
	probeFaster = 2.5 // where the last probe was carried
	calmRounds  = 8
	// believed is how much less than what a path is believed to carry it has to bring while it has a queue for that to be wrong: what had been held up on its
	// way and came at once seems to be faster. A machine that sleeps allows for a long queue, so that by itself says nothing.
	believed = 1.25
	// queueLeast and queueMost bound the queue that is aimed below; between them it is a 16th of the round trip. One packet, jitter and what
	// naps take come on top; twice, since it is half as long in the mean.
	queueLeast = 2 * time.Millisecond
	queueMost  = 5 * time.Millisecond
	// peakWithin is for how long it is remembered how fast the path was, and so how long a packet takes.
	peakWithin = time.Minute
	// emptyEvery is how often a standing queue is emptied, for the least delay to be seen. It is remembered for five to ten seconds.
	emptyEvery = 4 * time.Second
	// beforeWithin is how far back the rate is looked up of before others came. CUBIC begins its slow start with half of it.
	beforeWithin = 6 * time.Second
	// yieldFor is how long a queue may stay that nothing drains until others are held to fill it: six round trips, at least this long.
	// Who met others lately knows after a third of it.
	yieldFor  = 300 * time.Millisecond
	yieldTrip = 6
	// yieldJitter is for how much jitter a packet more has to have found it: where they come unevenly, a few in a row that are late are chance.
	yieldJitter = 250 * time.Microsecond
	// lookFirst and lookMost are how long the rate is that of who competes until it is looked whether others are still there. It
	// doubles each time that they are.
	lookFirst = 5 * time.Second
	lookMost  = 40 * time.Second
)

// NewBBR returns the default congestion control.
func NewBBR() Control {
	b := &bbr{}
	b.Restart(0, 0)
	return b
}

func (b *bbr) Name() string { return "bbr" }

func (b *bbr) Restart(now, rtt time.Duration) {
	if rtt <= 0 {
		rtt = firstRTT
	}
	*b = bbr{gain: startupGain, rtt: rtt, least: rtt, short: queueLeast, most: queueLeast, probe: probeFirst, emptied: now, patient: lookFirst}
	b.bw = initialWindow / max(rtt.Seconds(), 1e-3)
}

func (b *bbr) Sent(now time.Duration, size, inFlight int) {
	b.inFlight = inFlight
	if b.mode == compete {
		b.rival.Sent(now, size, inFlight)
		b.spent = b.spent || inFlight+segment > b.rival.Window()
	}
	b.settle(now)
}

// settle has the rate follow the queue that what is sent now will find: that which the newest packet found, and what was sent since, without
// what the path has carried since.
func (b *bbr) settle(now time.Duration) {
	if b.asks {
		if b.gain = 1; b.queue > b.short/2 {
			b.gain = drainGain
		}
		return
	}
	if !b.excess {
		return
	}
	over := b.queue + time.Duration(float64(b.inFlight)/b.bw*1e9) - (now - b.sent) - b.most/2
	b.gain = min(max(drainGain, 1-float64(over)/float64(max(b.least, queueMost))), 1)
}

func (b *bbr) Sample(now time.Duration, s Sample) {
	t := &b.trip
	t.came += s.Bytes
	t.lost += s.Lost
	b.inFlight = s.InFlight
	if s.RTT > 0 {
		b.rtt += (s.RTT - b.rtt) / 8
		b.least, b.sent, b.queue = s.MinRTT, s.Sent, s.Queue
		if b.mode == startup { // the round trip that it began with may have been too long
			b.bw = max(b.bw, initialWindow/max(b.least.Seconds(), 1e-3))
		}
		b.short = min(max(b.least/16, queueLeast), queueMost) + s.Jitter + time.Duration(segment/-b.peak.add(now, peakWithin, -b.bw)*1e9)
		b.most = b.short + 2*s.Nap
		own := time.Duration(float64(s.Load)/-b.before.add(now, beforeWithin, -b.bw)*1e9) - b.least
		if alien := s.Queue - max(own, 0); t.samples == 0 || alien < t.alien {
			t.alien = alien
		}
		if t.samples == 0 || s.Queue < t.queue {
			t.queue = s.Queue
		}
		t.samples, t.jitter = t.samples+1, max(t.jitter, s.Jitter)
		if s.Queue <= b.most/3 {
			b.emptied = now
		}
	}
	if s.Rate > 0 {
		t.rate = max(t.rate, s.Rate)
		t.limited, t.starved, t.idle = t.limited || s.Limited, t.starved || s.Starved, t.idle || s.idle()
	}
	if b.mode == compete {
		if b.spent || t.lossy() {
			b.rival.Sample(now, s)
		} else {
			b.rival.smooth(s.RTT)
		}
	}
	if s.Drain > 0 && !s.idle() {
		t.drained = true
		switch {
		case b.mode == startup && (s.Queue > b.filled() || s.Drain*believed < b.bw):
			b.leave(s.Drain)
		case b.mode == steady && s.Queue > b.most:
			b.known = true
			b.overfull(now)
			b.drains(now, s.Drain)
		case b.mode == steady && !b.known:
			b.known = true
			b.carries(s.Drain)
		case b.mode == compete || b.mode == look:
			b.drains(now, s.Drain)
		}
	}
	if s.Round {
		b.round(now, s)
		b.trip = trip{began: b.bw}
	}
	b.settle(now)
}

// idle reports whether so little was under way that nothing waited for it: for others, or for a processor. How fast it came then is how fast it was sent.
func (s *Sample) idle() bool { return s.Starved && s.Load < leastWindow }

// carries sets what the path is believed to carry: at least two full packets in a round trip.
func (b *bbr) carries(bw float64) {
	b.bw = max(bw, leastWindow/max(b.rtt.Seconds(), 1e-3))
}

// drains takes what a path's queue drained at for what it carries. It grows by no more than believed in a round trip beyond what the path carried lately: what had
// been held up comes faster than that, once.
func (b *bbr) drains(now time.Duration, bw float64) {
	b.carries(min(bw, max(b.trip.began*believed, -b.before.add(now, beforeWithin, -b.bw))))
}

// overfull has the queue drain.
func (b *bbr) overfull(now time.Duration) {
	if b.over == 0 {
		b.over = now
	}
	b.gain, b.probe, b.excess = 1, b.first(), true
}

// first is by how much the first probe exceeds. What the application has limited so far may be little of what the path carries.
func (b *bbr) first() float64 {
	if b.known {
		return probeFirst
	}
	return probeMost
}

// filled is the queue that says, while starting up, that the path is full.
func (b *bbr) filled() time.Duration { return b.most + max(b.least/8, 4*time.Millisecond) }

// leave ends startup.
func (b *bbr) leave(bw float64) {
	b.mode, b.gain, b.excess, b.known = steady, 1, true, true
	b.carries(bw)
}

// lossy reports whether so much was lost in a round that it means congestion (2 %, as BBR takes it).
func (t *trip) lossy() bool { return t.lost*50 > t.came+t.lost && t.lost >= 3*segment }

// crowded reports whether others kept a queue standing all the time, which is seen without a look where what is sent here does not fill it.
func (t *trip) crowded(short time.Duration) bool { return t.samples > 0 && t.alien > short }

// round is the end of a round trip.
func (b *bbr) round(now time.Duration, s Sample) {
	t := &b.trip
	switch b.mode {
	case startup:
		b.bw = max(b.bw, t.rate)
		if t.rate >= b.best*1.25 {
			b.best, b.full = t.rate, 0
		} else if !t.limited {
			b.full++
		}
		if t.lossy() || b.full >= 3 || t.queue > b.filled() && !t.idle {
			b.leave(t.rate)
			b.known = !t.limited
		}
	case steady:
		b.steer(now)
	case compete:
		if now >= b.until && !t.crowded(b.short) {
			b.mode, b.until = look, now+2*b.rtt
		}
	case look:
		switch {
		case t.samples > 0 && t.queue <= b.short:
			b.mode, b.gain, b.over, b.excess = steady, 1, 0, false
		case now >= b.until:
			b.patient = min(2*b.patient, lookMost)
			b.mode, b.until = compete, now+b.patient
		}
	}
}

// steer keeps a short queue: so the path is never idle, and what it delivers is what it carries. Without a queue it may carry
// more.
func (b *bbr) steer(now time.Duration) {
	t := &b.trip
	if b.rivals(now) {
		return
	}
	if b.calm > 0 {
		b.calm--
	} else if t.lossy() {
		if t.rate > 0 {
			b.carries(max(min(b.bw, t.rate), b.bw/2))
		}
		b.gain, b.probe, b.calm = 0.85, probeFirst, calmRounds
		return
	}
	switch {
	case t.samples == 0:
		b.gain = 1
	case t.queue > b.most:
		again := b.over != 0
		b.overfull(now)
		if again && !t.drained && !t.limited && t.rate > 0 && t.rate < b.bw {
			b.carries(t.rate)
		}
	case t.queue > b.most/3:
		b.over, b.excess, b.probe = 0, true, b.first()
		if now-b.emptied > emptyEvery {
			b.excess, b.emptied = false, now
			b.gain = max(drainGain, 1-2*float64(b.most)/float64(max(b.least, queueMost)))
		}
	default:
		b.over, b.excess = 0, false
		grew := t.rate > b.bw*(1+b.probe/4)
		b.bw = max(b.bw, t.rate)
		switch {
		case t.starved && !grew || b.calm > 0:
			b.gain = 1
		case grew && b.gain > 1:
			b.probe = min(probeFaster*b.probe, probeMost)
			fallthrough
		default:
			b.gain = 1 + b.probe
		}
	}
}

// rivals looks whether others fill the queue: it does not get shorter, whatever is done. Then the rate becomes that of CUBIC, which gets its
// share beside others that fill queues; and now and then it is looked whether they have gone.
func (b *bbr) rivals(now time.Duration) bool {
	if !b.trip.crowded(b.short) {
		if b.asks && b.trip.queue <= b.short { // nobody's: the path carries less than it did
			b.before = extreme{}
		}
		b.alien, b.asks = 0, false
		return false
	}
	if b.alien == 0 {
		b.alien, b.aliens, b.jitter = now, 0, 0
	}
	b.aliens, b.jitter = b.aliens+b.trip.samples, max(b.jitter, b.trip.jitter)
	wait := max(yieldTrip*b.least, yieldFor)
	lately := b.met > 0 && now-b.met < b.patient*2
	if lately {
		wait /= 3
	}
	if now-b.alien < wait || b.aliens < int(b.jitter/yieldJitter) {
		b.asks = now-b.alien >= wait/2
		return false
	}
	if lately { // they had not gone
		b.patient = min(2*b.patient, lookMost)
		b.rival.again(-b.before.add(now, beforeWithin, -b.bw), b.rtt)
	} else {
		b.patient = lookFirst
		b.rival.Restart(now, b.rtt)
		b.rival.window = max(-b.before.add(now, beforeWithin, -b.bw)*b.rtt.Seconds()/2, initialWindow)
		b.spent = false
	}
	b.mode, b.met, b.until = compete, now, now+b.patient
	b.alien, b.asks = 0, false
	return true
}

func (b *bbr) Capacity() float64 {
	if b.mode >= compete {
		return b.rival.Capacity()
	}
	if b.mode == startup {
		return b.bw * b.gain
	}
	return b.bw
}

func (b *bbr) Loses() bool { return b.mode >= compete }

func (b *bbr) Seeking() bool { return b.mode == startup || b.mode == steady && !b.known }

func (b *bbr) Rate() float64 {
	switch {
	case b.mode == compete:
		return b.rival.Rate()
	case b.mode == look:
		return b.bw / 2
	}
	return b.bw * b.gain
}

func (b *bbr) Window() int {
	bdp := b.bw * b.least.Seconds()
	switch b.mode {
	case startup:
		return max(int(2.2*bdp), initialWindow)
	case compete:
		return b.rival.Window()
	case look:
		return max(int(bdp/2), leastWindow)
	}
	return max(int(bdp*1.1+b.bw*2*b.most.Seconds())+2*segment, leastWindow)
}
