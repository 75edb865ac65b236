package bond

import "time"

// bbr is what NewBBR returns. See there.
type bbr struct {
	mode  mode
	bw    float64 // bytes/s: what the path is believed to carry
	gain  float64 // the rate is so much of it
	rtt   time.Duration
	least time.Duration // the least round trip
	most  time.Duration // the queue that is aimed below

	// Of this round.
	rate    float64       // the largest sample
	limited bool          // any of them is a lower bound
	queue   time.Duration // the shortest
	queued  bool          // there was one
	came    int
	lost    int

	full   int     // rounds without growth, in startup
	best   float64 // rate before them
	probe  float64 // by how much the next probe exceeds
	probed bool    // the last round was a probe
	calm   int     // rounds without probes that are left

	over    time.Duration // since when the queue has not been short; 0: it was
	before  float64       // what the rate was then
	drained time.Duration // when the queue was last emptied on purpose, or was empty
	rival   cubic         // while others fill the queue
	rested  bool
}

type mode uint8

const (
	startup mode = iota
	drain
	steady
	compete
	look // whether others are still there
)

// NewBBR returns the default congestion control.
func NewBBR() Control {
	b := &bbr{}
	b.Restart(0, 0)
	return b
}

func (b *bbr) Name() string { return "bbr" }

const (
	startupGain = 2.77 // doubles the rate in a round trip
	drainGain   = 0.5
	probeFirst  = 0.06
	probeMost   = 0.5
)

func (b *bbr) Restart(now, rtt time.Duration) {
	if rtt <= 0 {
		rtt = firstRTT
	}
	*b = bbr{gain: startupGain, rtt: rtt, least: rtt, probe: probeFirst, drained: now}
	b.bw = initialWindow / max(rtt.Seconds(), 1e-3)
	b.fresh()
}

// fresh begins a round.
func (b *bbr) fresh() {
	b.rate, b.limited, b.queued, b.came, b.lost = 0, false, false, 0, 0
}

func (b *bbr) Sent(now time.Duration, size, inFlight int) {
	if b.mode == compete {
		b.rival.Sent(now, size, inFlight)
	}
}

func (b *bbr) Sample(now time.Duration, s Sample) {
	b.came += s.Bytes
	b.lost += s.Lost
	if s.RTT > 0 {
		b.rtt += (s.RTT - b.rtt) / 8
		b.least = s.MinRTT
		b.most = min(max(b.least/16, 2*time.Millisecond), 5*time.Millisecond) + s.Jitter
		if !b.queued || s.Queue < b.queue {
			b.queue, b.queued = s.Queue, true
		}
		if s.Queue <= b.most/2 {
			b.drained = now
		}
	}
	if s.Rate > 0 {
		b.rate = max(b.rate, s.Rate)
		b.limited = b.limited || s.Limited
	}
	if b.mode == compete {
		b.rival.Sample(now, s)
	}
	switch {
	case b.mode == startup && s.Queue > b.full2() && s.Drain > 0:
		b.leave(now, s.Drain)
	case b.mode == drain && s.Drain > 0:
		b.bw = max(s.Drain, b.floor())
	case b.mode == steady && s.Drain > 0 && s.Queue > b.most:
		// Faster than rounds end.
		if b.over == 0 {
			b.over, b.before = now, b.bw
		}
		b.bw = max(s.Drain, b.floor())
		b.gain = b.drain(s.Queue)
	}
	if s.Round {
		b.round(now, s)
		b.fresh()
	}
}

// floor is the least rate: two full packets in a round trip.
func (b *bbr) floor() float64 { return leastWindow / max(b.rtt.Seconds(), 1e-3) }

// drain is the gain with which a queue is down to half of what is aimed below in about one round.
func (b *bbr) drain(queue time.Duration) float64 {
	return max(drainGain, 1-float64(queue-b.most/2)/float64(max(b.least, 5*time.Millisecond)))
}

// round is the end of one.
func (b *bbr) round(now time.Duration, s Sample) {
	if !b.queued {
		b.queue = 0
	}
	switch b.mode {
	case startup:
		b.bw = max(b.bw, b.rate)
		if b.rate >= b.best*1.25 {
			b.best, b.full = b.rate, 0
		} else if !b.limited {
			b.full++
		}
		lossy := b.lost*50 > b.came+b.lost && b.lost >= 3*segment
		if b.full >= 3 || lossy || b.queue > b.full2() {
			b.leave(now, b.rate)
		}
	case drain:
		if b.queue <= b.most || s.Queue <= b.most {
			b.mode = steady
			b.gain = 1
			b.over = 0
		} else {
			b.gain = b.drain(b.queue)
			if b.over == 0 {
				b.over, b.before = now, b.bw
			}
			b.rivals(now)
		}
	case steady:
		b.steer(now)
	case compete:
		if b.rate > 0 {
			b.bw = b.rate
		}
		if now-b.over > lookEvery {
			b.mode, b.over = look, now
		}
	case look:
		if b.queue <= b.most {
			b.mode, b.gain, b.over = steady, 1, 0
		} else if now-b.over > 2*b.rtt {
			b.mode, b.over = compete, now
		}
	}
}

// full2 is the queue that says that a path is full.
func (b *bbr) full2() time.Duration { return b.most + max(b.least/8, 4*time.Millisecond) }

// leave ends startup.
func (b *bbr) leave(now time.Duration, bw float64) {
	b.mode, b.gain, b.over = drain, drainGain, 0
	b.bw = max(bw, b.floor())
}

const lookEvery = 5 * time.Second

// steer keeps a short queue: so the path is never idle, and what is delivered is what it carries.
func (b *bbr) steer(now time.Duration) {
	if b.lost*50 > b.came+b.lost && b.lost >= 3*segment && b.calm == 0 {
		if b.rate > 0 {
			b.bw = max(min(b.bw, b.rate), b.bw/2)
		}
		b.gain, b.probe, b.probed, b.calm = 0.85, probeFirst, false, 8
		return
	}
	if b.calm > 0 {
		b.calm--
	}
	switch {
	case b.queue > b.most:
		if b.rate > 0 && (!b.limited || b.rate > b.bw) {
			b.bw = max(b.rate, b.floor())
		}
		if b.over == 0 {
			b.over, b.before = now, b.bw
		}
		b.gain, b.probe, b.probed = b.drain(b.queue), probeFirst, false
		b.rivals(now)
	case b.queue > b.most/4:
		b.over = 0
		if b.rate > 0 && !b.limited && b.gain >= 1 {
			b.bw = b.rate
		}
		b.gain, b.probe, b.probed = 1+0.5*float64(b.most/2-b.queue)/float64(max(b.least, 5*time.Millisecond)), probeFirst, false
		if now-b.drained > 4*time.Second {
			b.gain = b.drain(b.queue + 2*b.most)
			b.drained = now
		}
	default:
		b.over = 0
		grew := b.rate > b.bw*(1+b.probe/3)
		b.bw = max(b.bw, b.rate)
		if b.probed { // this round shows what the last one did
			b.probed = false
			b.gain = 1
			if grew {
				b.probe = min(2*b.probe, probeMost)
			}
		} else if !b.limited || grew {
			b.gain, b.probed = 1+b.probe, true
		} else {
			b.gain = 1
		}
	}
}

// rivals looks whether others fill the queue: it does not get shorter, whatever is done.
func (b *bbr) rivals(now time.Duration) {
	if now-b.over < max(6*b.least, 300*time.Millisecond) {
		return
	}
	b.mode, b.over = compete, now
	b.rival.Restart(now, b.rtt)
	b.rival.window = max(b.before*b.rtt.Seconds(), initialWindow)
	b.rival.threshold = b.rival.window
}

func (b *bbr) Rate() float64 {
	switch b.mode {
	case compete:
		return b.rival.Rate()
	case look:
		return b.bw * drainGain
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
