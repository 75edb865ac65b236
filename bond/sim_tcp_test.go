package bond_test

import (
	"encoding/binary"
	"math"
	"time"
)

// A tcp is one connection with all of its data in one direction, as Linux has them: CUBIC (RFC 9438) with HyStart, SACK, RACK-TLP (RFC 8985),
// PRR (RFC 6937), DSACK and undo, acknowledgements delayed. It counts in segments.
type tcp struct {
	w     *world
	id    uint16
	out   func(inner []byte)
	total uint64 // segments to send; 0: no end
	done  time.Duration
	rwnd  uint64 // segments
	reno  bool
	bbr   *tcpBBR // nil: CUBIC or New Reno

	segs           []segment // ring
	una, nxt       uint64
	flying         int // segments that are thought to be on their way
	lostCount      int // lost and not sent again
	cwnd, ssthresh float64
	srtt, rttvar   time.Duration
	minRTT         time.Duration

	fack              uint64 // one more than the largest that was delivered
	rackSent, rackRTT time.Duration
	rackEnd           uint64
	reordered         bool
	reoMult           int
	sacked            int

	recovering           bool
	recover              uint64
	undoCwnd, undoThresh float64
	undoLeft             int
	prrDelivered, prrOut int
	prrFlight            int

	wMax, k, origin, wEst float64
	epoch                 time.Duration
	roundEnd              uint64
	roundRTT, lastRound   time.Duration
	samples               int

	alarm    time.Duration
	kind     alarmKind
	backoff  int
	tlp      bool
	recvd    receiving
	retrans  int
	timeouts int
	undone   int
}

type segment struct {
	sent                time.Duration
	sacked, lost, again bool

	delivered              int // when it was sent, as BBR counts
	deliveredAt, firstSent time.Duration
}

type alarmKind int

const (
	noAlarm alarmKind = iota
	reoAlarm
	probeAlarm
	rtoAlarm
)

const (
	mss      = 1368 // of payload, in a packet of 1420
	tcpInner = 1420
	tcpRing  = 1 << 14
	never    = time.Duration(math.MaxInt64)
	minRTO   = 200 * time.Millisecond
	delayAck = 40 * time.Millisecond
)

// startTCP begins a connection from a to b inside their tunnel.
func startTCP(a, b *node, id uint16, total uint64) *tcp {
	c := newTCP(a.w, id, a.push, b.push, total)
	b.flows[id], a.flows[id] = c.data, c.ack
	a.w.after(0, c.send)
	return c
}

// startPlainTCP begins one on a link, beside the tunnels.
func startPlainTCP(w *world, l *link, id uint16) *tcp {
	var c *tcp
	c = newTCP(w, id,
		func(inner []byte) { l.there.send(len(inner), func() { c.data(inner) }) },
		func(inner []byte) { l.back.send(len(inner), func() { c.ack(inner) }) }, 0)
	w.after(0, c.send)
	return c
}

func newTCP(w *world, id uint16, out, back func([]byte), total uint64) *tcp {
	return &tcp{
		w: w, id: id, out: out, total: total, rwnd: 4096, segs: make([]segment, tcpRing), cwnd: 10, ssthresh: math.Inf(1),
		minRTT: never, reoMult: 1, recvd: receiving{back: back, quick: 16},
	}
}

func (c *tcp) seg(i uint64) *segment { return &c.segs[i%tcpRing] }

// send sends what the windows let go.
func (c *tcp) send() {
	sent := false
	for float64(c.flying) < math.Floor(c.cwnd) && (c.bbr == nil || c.bbr.may()) {
		if c.lostCount > 0 {
			i := c.una
			for s := c.seg(i); !s.lost || s.again || s.sacked; s = c.seg(i) {
				i++
			}
			c.emit(i, true)
		} else if c.nxt-c.una < c.rwnd && (c.total == 0 || c.nxt < c.total) {
			c.emit(c.nxt, false)
		} else {
			break
		}
		sent = true
	}
	if sent || c.alarm == 0 {
		c.arm()
	}
}

func (c *tcp) emit(i uint64, again bool) {
	s := c.seg(i)
	if again {
		if s.lost && !s.again {
			c.lostCount--
		} else {
			c.flying-- // a probe of what is thought to be on its way
		}
		s.again = true
		c.retrans++
		c.undoLeft++
	} else {
		*s = segment{}
		c.nxt++
	}
	if c.bbr != nil {
		c.bbr.stamp(s)
	}
	s.sent = c.w.now
	c.flying++
	c.prrOut++
	b := make([]byte, tcpInner)
	b[0], b[6] = 0x45, 1
	if again {
		b[7] = 1
	}
	binary.BigEndian.PutUint16(b[2:], tcpInner)
	binary.BigEndian.PutUint16(b[4:], c.id)
	binary.BigEndian.PutUint64(b[8:], i)
	binary.BigEndian.PutUint64(b[16:], uint64(c.w.now))
	c.out(b)
}

// deliver takes a segment off the books.
func (c *tcp) deliver(i uint64, echo time.Duration) {
	s := c.seg(i)
	if s.lost && !s.again {
		c.lostCount--
	} else {
		c.flying--
	}
	if c.bbr != nil {
		c.bbr.arrived(s)
	}
	if i+1 < c.fack && !s.again {
		c.reordered = true
	}
	c.fack = max(c.fack, i+1)
	if s.again && echo < s.sent {
		return // an acknowledgement of what was sent first
	}
	if s.sent > c.rackSent || s.sent == c.rackSent && i+1 > c.rackEnd {
		c.rackSent, c.rackEnd, c.rackRTT = s.sent, i+1, c.w.now-s.sent
	}
}

func (c *tcp) ack(b []byte) {
	if b[6] != 2 {
		return
	}
	una, echo := binary.BigEndian.Uint64(b[8:]), time.Duration(binary.BigEndian.Uint64(b[16:]))
	delivered := 0
	inFlight := c.flying
	acked := 0
	for ; c.una < una; c.una++ {
		if s := c.seg(c.una); !s.sacked {
			c.deliver(c.una, echo)
			delivered++
		} else {
			c.sacked--
		}
		acked++
	}
	for i := range int(b[24]) {
		from, to := binary.BigEndian.Uint64(b[26+16*i:]), binary.BigEndian.Uint64(b[34+16*i:])
		if i == 0 && b[25] != 0 { // DSACK
			if c.undoLeft > 0 {
				c.undoLeft--
			}
			c.reordered = true
			c.reoMult = min(c.reoMult+1, 4)
			continue
		}
		for j := max(from, c.una); j < to; j++ {
			if s := c.seg(j); !s.sacked {
				c.deliver(j, echo)
				s.sacked = true
				c.sacked++
				delivered++
			}
		}
	}
	if delivered > 0 {
		c.rtt(c.w.now - echo)
		c.backoff = 0
		c.tlp = false
	}
	if c.recovering && c.undoCwnd > 0 && c.undoLeft == 0 && b[25] != 0 {
		c.cwnd, c.ssthresh = max(c.cwnd, c.undoCwnd), c.undoThresh
		c.recovering, c.undoCwnd = false, 0
		c.undone++
	}
	c.detect()
	switch {
	case c.bbr != nil:
		c.recovering = c.recovering && c.una < c.recover
		c.bbr.ack(delivered, c.w.now-echo)
	case c.recovering && c.una >= c.recover:
		c.recovering = false
		c.cwnd = c.ssthresh
	case c.recovering:
		c.prr(delivered)
	case acked > 0 && float64(inFlight+acked) >= c.cwnd*0.9:
		c.grow(acked)
	}
	if c.total > 0 && c.una >= c.total && c.done == 0 {
		c.done = c.w.now
	}
	c.arm()
	c.send()
}

func (c *tcp) rtt(d time.Duration) {
	c.minRTT = min(c.minRTT, d)
	if c.srtt == 0 {
		c.srtt, c.rttvar = d, d/2
	} else {
		c.rttvar += ((c.srtt - d).Abs() - c.rttvar) / 4
		c.srtt += (d - c.srtt) / 8
	}
	if c.cwnd >= c.ssthresh {
		return
	}
	// HyStart: the least round-trip time of a round has grown.
	c.roundRTT = min(c.roundRTT, d)
	if c.samples++; c.samples >= 8 && c.lastRound > 0 && c.lastRound < never && c.cwnd >= 16 &&
		c.roundRTT > c.lastRound+min(max(c.minRTT/8, 4*time.Millisecond), 16*time.Millisecond) {
		c.ssthresh = c.cwnd
	}
	if c.una >= c.roundEnd {
		c.roundEnd, c.lastRound, c.roundRTT, c.samples = c.nxt, c.minRTT, never, 0
	}
}

// detect finds what was lost, by RACK.
func (c *tcp) detect() {
	if c.rackRTT == 0 {
		return
	}
	window := min(time.Duration(c.reoMult)*c.minRTT/4, c.srtt)
	if !c.reordered && (c.recovering || c.sacked >= 3) {
		window = 0
	}
	found := false
	var wait time.Duration
	for i := c.una; i < c.fack; i++ {
		s := c.seg(i)
		if s.sacked || s.lost && !s.again || s.sent > c.rackSent || s.sent == c.rackSent && i+1 >= c.rackEnd {
			continue
		}
		left := s.sent + c.rackRTT + window - c.w.now
		if left > 0 {
			wait = max(wait, left)
			continue
		}
		s.lost, s.again = true, false
		c.lostCount++
		c.flying--
		if c.bbr != nil {
			c.bbr.lost++
		}
		found = true
	}
	if found && !c.recovering {
		c.reduce()
		c.recovering, c.recover = true, c.nxt
		c.prrDelivered, c.prrOut, c.prrFlight = 0, 0, max(c.flying, 1)
	}
	if wait > 0 {
		c.set(wait, reoAlarm)
	} else if c.kind == reoAlarm {
		c.alarm = 0
	}
}

// reduce is CUBIC's answer to loss. BBR has its own.
func (c *tcp) reduce() {
	if c.bbr != nil {
		c.bbr.save()
		return
	}
	c.undoCwnd, c.undoThresh, c.undoLeft = c.cwnd, c.ssthresh, 0
	beta := 0.7
	if c.reno {
		beta = 0.5
	}
	if c.cwnd < c.wMax {
		c.wMax = c.cwnd * (1 + beta) / 2
	} else {
		c.wMax = c.cwnd
	}
	c.ssthresh = max(c.cwnd*beta, 2)
	c.epoch = 0
}

func (c *tcp) prr(delivered int) {
	c.prrDelivered += delivered
	var n int
	if float64(c.flying) > c.ssthresh {
		n = int(math.Ceil(float64(c.prrDelivered)*c.ssthresh/float64(c.prrFlight))) - c.prrOut
	} else {
		n = min(int(c.ssthresh)-c.flying, max(c.prrDelivered-c.prrOut, delivered)+1)
	}
	c.cwnd = float64(c.flying + max(n, 0))
}

func (c *tcp) grow(acked int) {
	if c.cwnd < c.ssthresh {
		c.cwnd += float64(acked)
		return
	}
	if c.reno {
		c.cwnd += float64(acked) / c.cwnd
		return
	}
	if c.epoch == 0 {
		c.epoch, c.wEst = c.w.now, c.cwnd
		if c.cwnd < c.wMax {
			c.k, c.origin = math.Cbrt((c.wMax-c.cwnd)/0.4), c.wMax
		} else {
			c.k, c.origin = 0, c.cwnd
		}
	}
	t := (c.w.now - c.epoch + c.minRTT).Seconds()
	target := c.origin + 0.4*math.Pow(t-c.k, 3)
	c.wEst += float64(acked) / c.cwnd * 3 * 0.3 / 1.7
	target = max(min(target, 1.5*c.cwnd), c.wEst)
	if target > c.cwnd {
		c.cwnd += (target - c.cwnd) / c.cwnd * float64(acked)
	} else {
		c.cwnd += float64(acked) / (100 * c.cwnd)
	}
}

func (c *tcp) set(d time.Duration, k alarmKind) {
	at := c.w.now + d
	c.alarm, c.kind = at, k
	c.w.at(at, func() {
		if c.alarm == at && c.kind == k {
			c.alarm = 0
			c.fire(k)
		}
	})
}

func (c *tcp) rto() time.Duration {
	d := max(c.srtt+4*c.rttvar, minRTO)
	if c.srtt == 0 {
		d = time.Second
	}
	return d << min(c.backoff, 8)
}

func (c *tcp) arm() {
	switch {
	case c.una == c.nxt:
		c.alarm = 0
	case c.alarm != 0 && c.kind == reoAlarm:
	case !c.recovering && !c.tlp && c.backoff == 0 && c.srtt > 0 && c.sacked == 0:
		d := 2*c.srtt + 2*time.Millisecond
		if c.flying == 1 {
			d += delayAck
		}
		c.set(min(d, c.rto()), probeAlarm)
	default:
		c.set(c.rto(), rtoAlarm)
	}
}

func (c *tcp) fire(k alarmKind) {
	switch k {
	case reoAlarm:
		c.detect()
		c.send()
	case probeAlarm:
		c.tlp = true
		switch {
		case c.nxt-c.una < c.rwnd && (c.total == 0 || c.nxt < c.total):
			c.emit(c.nxt, false)
		default:
			c.emit(c.nxt-1, true)
		}
		c.set(c.rto(), rtoAlarm)
		return
	case rtoAlarm:
		c.timeouts++
		c.reduce()
		c.undoCwnd = 0
		c.cwnd = 1
		c.recovering = false
		c.flying, c.lostCount = 0, 0
		for i := c.una; i < c.nxt; i++ {
			if s := c.seg(i); !s.sacked {
				s.lost, s.again = true, false
				c.lostCount++
			}
		}
		c.backoff++
		c.send()
	}
	c.arm()
}
