package bond_test

import (
	"math"
	"slices"
	"testing"
	"time"
)

// A tcpBBR is the congestion control of a connection as Linux has BBR (version 1, tcp_bbr.c): the bottleneck's rate and the least round trip of lately, and
// from them what is under way and how fast it is sent. It counts in segments and seconds.
type tcpBBR struct {
	c    *tcp
	mode tcpBBRMode

	delivered   int
	deliveredAt time.Duration
	firstSent   time.Duration // of the flight that is measured
	sample      struct {
		prior          int
		priorAt, spent time.Duration
		some           bool
	}

	bw       [bbrRounds]float64 // segments/s: the largest of each of the last rounds
	round    int
	roundEnd int // delivered, when the round ends
	started  bool
	minRTT   time.Duration
	minAt    time.Duration
	full     float64
	fullFor  int

	gain    float64 // of pacing
	phase   int
	phaseAt time.Duration
	probe   time.Duration // when ProbeRTT ends; 0: not yet known
	probed  bool          // a round of it has passed
	prior   float64       // cwnd before recovery or ProbeRTT
	next    time.Duration // segment may be sent
	waits   bool

	epoch struct { // of the aggregation of acknowledgements
		at    time.Duration
		acked float64
		extra [2]float64
		which int
		age   int
	}
	conserve   bool
	recovering bool
	lost       int // since the last acknowledgement
}

type tcpBBRMode int

const (
	bbrStartup tcpBBRMode = iota
	bbrDrain
	bbrProbeBW
	bbrProbeRTT
)

const (
	bbrHigh    = 2.885
	bbrRounds  = 10
	bbrMinFor  = 10 * time.Second
	bbrProbing = 200 * time.Millisecond
	bbrMargin  = 0.99
)

var bbrCycle = [8]float64{1.25, 0.75, 1, 1, 1, 1, 1, 1}

// useBBR has a connection that has not begun use BBR.
func (c *tcp) useBBR() *tcp {
	c.bbr = &tcpBBR{c: c, minRTT: never, gain: bbrHigh}
	return c
}

// stamp notes with a segment what the connection had delivered when it was sent.
func (b *tcpBBR) stamp(s *segment) {
	now := b.c.w.now
	if b.c.flying == 0 {
		b.firstSent, b.deliveredAt = now, now
	}
	s.delivered, s.deliveredAt, s.firstSent = b.delivered, b.deliveredAt, b.firstSent
	if rate := b.pace(); rate > 0 {
		b.next = max(b.next, now) + time.Duration(float64(time.Second)/rate)
	}
}

// pace is the rate of pacing, segments/s; 0: none yet.
func (b *tcpBBR) pace() float64 {
	if r := b.rate(); r > 0 {
		return b.gain * r * bbrMargin
	}
	if b.c.srtt > 0 {
		return bbrHigh * b.c.cwnd / b.c.srtt.Seconds()
	}
	return 0
}

// may reports whether pacing lets a segment go; if it does not, it is asked again when it does. Two go at once, as Linux has it at such rates.
func (b *tcpBBR) may() bool {
	now := b.c.w.now
	if b.pace() == 0 || b.next <= now+time.Duration(float64(time.Second)/b.pace()) {
		return true
	}
	if !b.waits {
		b.waits = true
		b.c.w.at(b.next, func() {
			b.waits = false
			b.c.send()
		})
	}
	return false
}

// arrived takes a segment in that was delivered.
func (b *tcpBBR) arrived(s *segment) {
	b.delivered++
	b.deliveredAt = b.c.w.now
	if x := &b.sample; !x.some || s.delivered > x.prior {
		x.some, x.prior, x.priorAt, x.spent = true, s.delivered, s.deliveredAt, s.sent-s.firstSent
		b.firstSent = s.sent
	}
}

// rate is the largest of the last rounds.
func (b *tcpBBR) rate() float64 { return slices.Max(b.bw[:]) }

// bdp is the bandwidth-delay product times a gain.
func (b *tcpBBR) bdp(gain float64) float64 {
	if b.minRTT == never {
		return 10
	}
	return math.Ceil(gain * b.rate() * b.minRTT.Seconds())
}

// target is that with room for what is sent at once.
func (b *tcpBBR) target(gain float64) float64 {
	w := b.bdp(gain) + 3*2
	w += math.Mod(w, 2)
	if b.mode == bbrProbeBW && b.phase == 0 {
		w += 2
	}
	return w
}

// ack takes an acknowledgement in.
func (b *tcpBBR) ack(delivered int, rtt time.Duration) {
	now, lost := b.c.w.now, b.lost
	b.started, b.lost = false, 0
	if x := &b.sample; x.some {
		interval := max(x.spent, now-x.priorAt)
		if x.prior >= b.roundEnd {
			b.roundEnd, b.started = b.delivered, true
			b.round = (b.round + 1) % bbrRounds
			b.bw[b.round] = 0
			b.conserve = false
		}
		if interval >= b.minRTT || b.minRTT == never && interval > 0 {
			b.bw[b.round] = max(b.bw[b.round], float64(b.delivered-x.prior)/interval.Seconds())
		}
		x.some = false
	}
	b.aggregate(delivered)
	b.cycle(lost)
	b.fullPipe()
	b.least(rtt)
	switch b.mode {
	case bbrStartup:
		b.gain = bbrHigh
	case bbrDrain:
		b.gain = 1 / bbrHigh
	case bbrProbeBW:
		b.gain = bbrCycle[b.phase]
	case bbrProbeRTT:
		b.gain = 1
	}
	b.window(delivered, lost)
}

func (b *tcpBBR) aggregate(acked int) {
	e, now := &b.epoch, b.c.w.now
	if acked == 0 {
		return
	}
	if b.started {
		if e.age++; e.age >= 5 {
			e.age, e.which = 0, 1-e.which
			e.extra[e.which] = 0
		}
	}
	expected := b.rate() * (now - e.at).Seconds()
	if e.acked <= expected {
		e.at, e.acked, expected = now, 0, 0
	}
	e.acked += float64(acked)
	e.extra[e.which] = max(e.extra[e.which], min(e.acked-expected, b.c.cwnd))
}

func (b *tcpBBR) extra() float64 {
	if b.filled() {
		return min(max(b.epoch.extra[0], b.epoch.extra[1]), b.rate()*0.1)
	}
	return 0
}

func (b *tcpBBR) filled() bool { return b.fullFor >= 3 }

func (b *tcpBBR) cycle(lost int) {
	if b.mode != bbrProbeBW {
		return
	}
	long := b.c.w.now-b.phaseAt > b.minRTT
	flying := float64(b.c.flying)
	switch g := bbrCycle[b.phase]; {
	case g == 1 && !long, g > 1 && !(long && (lost > 0 || flying >= b.target(g))), g < 1 && !(long || flying <= b.target(1)):
		return
	}
	b.phase, b.phaseAt = (b.phase+1)%len(bbrCycle), b.c.w.now
}

func (b *tcpBBR) fullPipe() {
	if b.started && !b.filled() {
		if b.rate() >= b.full*1.25 {
			b.full, b.fullFor = b.rate(), 0
		} else {
			b.fullFor++
		}
	}
	if b.mode == bbrStartup && b.filled() {
		b.mode = bbrDrain
	}
	if b.mode == bbrDrain && float64(b.c.flying) <= b.target(1) {
		b.probeBW()
	}
}

// probeBW begins anywhere in the cycle but where less is sent.
func (b *tcpBBR) probeBW() {
	b.mode, b.phaseAt = bbrProbeBW, b.c.w.now
	b.phase = (len(bbrCycle) - b.c.w.rnd.IntN(len(bbrCycle)-1)) % len(bbrCycle)
}

func (b *tcpBBR) least(rtt time.Duration) {
	now := b.c.w.now
	expired := b.minRTT != never && now > b.minAt+bbrMinFor
	if rtt > 0 && (rtt < b.minRTT || expired) {
		b.minRTT, b.minAt = rtt, now
	}
	if expired && b.mode != bbrProbeRTT {
		b.save()
		b.mode, b.probe = bbrProbeRTT, 0
	}
	if b.mode != bbrProbeRTT {
		return
	}
	switch {
	case b.probe == 0 && b.c.flying <= 4:
		b.probe, b.probed, b.roundEnd = now+bbrProbing, false, b.delivered
	case b.probe > 0:
		b.probed = b.probed || b.started
		if b.probed && now > b.probe {
			b.minAt = now
			b.c.cwnd = max(b.c.cwnd, b.prior)
			if b.filled() {
				b.probeBW()
			} else {
				b.mode = bbrStartup
			}
		}
	}
}

// save keeps the window for when a loss or a probe is over.
func (b *tcpBBR) save() {
	if b.recovering || b.mode == bbrProbeRTT {
		b.prior = max(b.prior, b.c.cwnd)
	} else {
		b.prior = b.c.cwnd
	}
}

func (b *tcpBBR) window(acked, lost int) {
	c := b.c
	gain := bbrHigh
	if b.mode == bbrProbeBW {
		gain = 2
	}
	if lost > 0 {
		c.cwnd = max(c.cwnd-float64(lost), 1)
	}
	if c.recovering && !b.recovering {
		b.recovering, b.conserve, b.roundEnd = true, true, b.delivered
		c.cwnd = float64(c.flying + acked)
	} else if !c.recovering && b.recovering {
		b.recovering, b.conserve = false, false
		c.cwnd = max(c.cwnd, b.prior)
	}
	if b.conserve {
		c.cwnd = max(c.cwnd, float64(c.flying+acked))
	} else {
		target := b.target(gain) + b.extra()
		if b.filled() {
			c.cwnd = min(c.cwnd+float64(acked), target)
		} else if c.cwnd < target || b.delivered < 10 {
			c.cwnd += float64(acked)
		}
		c.cwnd = max(c.cwnd, 4)
	}
	if b.mode == bbrProbeRTT {
		c.cwnd = min(c.cwnd, 4)
	}
}

// TestTheModelOfBBRIsBBR has connections with BBR by a link: one has all of it at a round trip of one queue's, two share it. What is under way is twice the link's
// bandwidth-delay product at most, each ten seconds hardly anything, and nothing is lost.
func TestTheModelOfBBRIsBBR(t *testing.T) {
	for n := 1; n <= 2; n++ {
		forSeeds(t, 2, func(t *testing.T, w *world) {
			l := line{mbit: 16, rtt: 20 * time.Millisecond}
			link := l.link(w)
			var flows []*tcp
			for i := range n {
				flows = append(flows, startPlainTCP(w, link, uint16(i)).useBBR())
			}
			w.run(w.now + 2*time.Second)
			before := make([]float64, n)
			for i, c := range flows {
				before[i] = c.goodput()
			}
			least := never
			for range 180 {
				w.run(w.now + 100*time.Millisecond)
				least = min(least, flows[0].srtt)
			}
			all := 0.0
			for i, c := range flows {
				mbit := (c.goodput() - before[i]) * 8 / 1e6 / 18
				if all += mbit; mbit < 0.3*l.mbit {
					t.Errorf("one of %d has %.1f Mbit/s", n, mbit)
				}
				if c.retrans > 0 {
					t.Errorf("one of %d sent %d segments again", n, c.retrans)
				}
				if c.minRTT > l.rtt+2*time.Millisecond || c.srtt > 4*l.rtt {
					t.Errorf("round trips of one of %d are from %v to %v", n, c.minRTT, c.srtt)
				}
			}
			if all < 0.95*l.mbit*mss/1420 {
				t.Errorf("%d have %.1f Mbit/s", n, all)
			}
			if least > l.rtt*5/4 {
				t.Errorf("in 18 s the round trip was %v at least: the queue was never let drain", least)
			}
		})
	}
}
