package bond

import "time"

// A flight is one message on its way by one path, with what was known of the path when it was sent: from the difference to when it
// arrived comes the rate of delivery (draft-ietf-ccwg-bbr section 4.5.2).
type flight struct {
	seq     uint64 // the message's place in the ledger
	sent    time.Duration
	first   time.Duration // when the newest one was sent that had arrived
	at      time.Duration // when that arrived, by the receiver's clock
	bytes   uint64        // delivered until then
	wait    time.Duration // that it was expected to wait until the line takes it in
	size    int32
	load    int32 // bytes that were in flight when it was sent, it included
	state   fate
	limited bool // the path was not used as fast as it may
	starved bool // since there was nothing to be sent
	quiet   bool // it is weft's own: nobody tells at once that it came
	twin    bool // it went by another path at once: what is reported may have come by that
}

// A fate is what is known of a flight.
type fate uint8

const (
	away      fate = iota
	elsewhere      // its message came, perhaps as a copy by another path: it may be on its way by this one yet
	needless       // its message came before this flight can have, which was sent again for nothing: it is on its way yet
	arrived        // reported, by whichever way it came
	lost
	void // of no account: its message is forgotten
)

// flying reports whether a flight is in flight.
func (f fate) flying() bool { return f <= needless }

// awaited reports whether the receiver is to tell of a flight.
func (f fate) awaited() bool { return f <= elsewhere }

const (
	flightsFirst = 64
	flightsMost  = 4096 // as many as one feedback can tell of (wire.MaxFeedbackWords)
)

// flights are in the order of sending, numbered without end (modulo 2^32), in a ring that grows to its bound.
type flights struct {
	ring       []flight
	tail, head uint32
}

func (f *flights) at(i uint32) *flight { return &f.ring[i&uint32(len(f.ring)-1)] }

func (f *flights) full() bool { return f.head-f.tail == flightsMost }

// add makes room for one more. There is room when full says so.
func (f *flights) add() (i uint32, _ *flight) {
	if n := f.head - f.tail; n == uint32(len(f.ring)) {
		ring := make([]flight, max(flightsFirst, 2*len(f.ring)))
		for i := f.tail; i != f.head; i++ {
			ring[i&uint32(len(ring)-1)] = *f.at(i)
		}
		f.ring = ring
	}
	f.head++
	return f.head - 1, f.at(f.head - 1)
}

// has reports whether a flight is still remembered.
func (f *flights) has(i uint32) bool { return i-f.tail < f.head-f.tail }

// A lane is one path to the peer, with all that is known of it.
type lane struct {
	Path
	slot    uint8
	ctl     Control
	flights flights
	est     estimate
	health  health

	inFlight  int
	free      time.Duration // when pacing lets the next one go
	line      line
	assigned  assigned
	held      bool          // the window, not the application, kept it from sending
	waited    bool          // something waited for its pacing: a pause since then is ours, and not the application's
	delivered uint64        // bytes
	limit     uint64        // what is sent until this much is delivered is limited by a pause
	starve    uint64        // and until this much by one of the application
	first     time.Duration // when the newest arrived one was sent
	at        time.Duration // when it arrived
	newest    uint32        // flight after it
	needless  uint32        // no flight from it on is needless
	oldest    uint32        // no flight before it is away
	round     uint64        // a round ends when something arrives that was sent after this much was delivered

	news   news          // since the last sample
	mark   flight        // the newest that arrived
	markAt time.Duration // when, on our scale

	counts counts
}

// A line is what is known of the wire beneath a path.
type line struct {
	taken    time.Duration // until when it takes in what was sent
	heard    time.Duration // when something new was told of it last
	explored time.Duration // when it had a copy last, so that more is known of it
	tally    tally
	crowd    crowd
}

// A tally is how many packets came by a path, as the receiver counts them. Of copies it does not say which ones came.
type tally struct {
	some bool
	last uint32
	left int // that came and were not credited; below 0: that were credited and have not come
}

// tallyMost bounds what is left: packets that are late, or lost where they were counted.
const tallyMost = 256

// reported is told the receiver's count.
func (t *tally) reported(packets uint32) {
	if d := packets - t.last; t.some && d < flightsMost {
		t.left = min(t.left+int(d), tallyMost)
	} else {
		t.left = 0
	}
	t.some, t.last = true, packets
}

// news are what is to be told to congestion control.
type news struct {
	came, gone int           // bytes
	goneSent   time.Duration // when the latest of the lost was sent
	rtt        time.Duration // of the newest; 0: none is newer than before
	queue      time.Duration
	rate       float64
	drain      float64
	limited    bool
	starved    bool
	round      bool
}

// counts are for people.
type counts struct {
	sentPackets, sentBytes, lostPackets, againPackets uint64
	lately                                            float64 // bytes a second
	since                                             time.Duration
	bytes                                             int
}

// window is how much may be in flight: what congestion control allows, and what feedback has not told of yet.
func (l *lane) window(gap time.Duration) int {
	return l.ctl.Window() + int(l.ctl.Rate()*gap.Seconds())
}

// sent notes that a message goes by the path. Credit is how far pacing may lag behind before it counts as a pause.
func (l *lane) sent(now, credit time.Duration, seq uint64, size int, quiet bool) uint32 {
	size += l.Overhead
	if l.flights.full() {
		l.forget(l.flights.tail)
		l.flights.tail++
	}
	if l.inFlight == 0 { // nothing to measure from: as if something had arrived that says what is known now
		l.first, l.at = now, now+l.est.owd.latest-l.est.rtt.smooth
	}
	if now-l.free > credit {
		if !l.held {
			l.limit = l.delivered + uint64(l.inFlight) + 1
			if !l.waited {
				l.starve = l.limit
			}
		}
		l.free = now - credit
	}
	l.held, l.waited = false, false
	i, f := l.flights.add()
	*f = flight{
		seq: seq, sent: now, wait: max(0, l.line.taken-now), size: int32(size), bytes: l.delivered, first: l.first, at: l.at,
		limited: l.delivered < l.limit, starved: l.delivered < l.starve, quiet: quiet,
	}
	l.inFlight += size
	f.load = int32(min(l.inFlight, 1<<30))
	if r := l.ctl.Rate(); r > 0 {
		l.free += time.Duration(float64(size) / r * 1e9)
	}
	l.line.taken = max(l.line.taken, now) + l.takes(size)
	l.ctl.Sent(now, size, l.inFlight)
	l.counts.sent(now, size)
	return i
}

// takes is how long the line takes in so many bytes.
func (l *lane) takes(size int) time.Duration {
	return time.Duration(float64(size) / max(l.ctl.Capacity(), 1) * 1e9)
}

// occupy reckons anew until when the line is taken: by the newest that arrived, of which it is known how long it waited, and by what was sent
// since. While there was nothing to take in, it rested.
func (l *lane) occupy() {
	l.line.taken = l.mark.sent + l.est.owd.waited + l.takes(int(l.mark.size))
	for i := l.newest; i != l.flights.head; i++ {
		if f := l.flights.at(i); l.flights.has(i) && f.state.flying() {
			l.line.taken = max(l.line.taken, f.sent) + l.takes(int(f.size))
		}
	}
}

// forget takes a flight off the books without a judgement.
func (l *lane) forget(i uint32) {
	if f := l.flights.at(i); f.state.flying() {
		f.state = void
		l.inFlight -= int(f.size)
	}
}

// skip moves oldest on.
func (l *lane) skip() uint32 {
	if int32(l.oldest-l.flights.tail) < 0 {
		l.oldest = l.flights.tail
	}
	for l.oldest != l.flights.head && l.flights.at(l.oldest).state != away {
		l.oldest++
	}
	return l.oldest
}

// find looks among the flights that are newer than the newest that arrived, for one whose message is settled.
func (l *lane) find(seq uint64) (uint32, bool) {
	i := l.newest
	if int32(i-l.flights.tail) < 0 {
		i = l.flights.tail
	}
	for ; i != l.flights.head; i++ {
		if l.flights.at(i).seq == seq {
			return i, true
		}
	}
	return 0, false
}

// trim forgets flights that are over. Those of lately stay: what was found lost may arrive yet.
func (l *lane) trim(now time.Duration) {
	for l.flights.tail != l.flights.head {
		f := l.flights.at(l.flights.tail)
		if f.state.flying() || f.state == lost && now-f.sent < undoWithin {
			return
		}
		l.flights.tail++
	}
}

const lately = 500 * time.Millisecond // is over how long shares of paths are told

func (c *counts) sent(now time.Duration, size int) {
	c.sentPackets++
	c.sentBytes += uint64(size)
	c.bytes += size
	c.turn(now)
}

func (c *counts) turn(now time.Duration) {
	if d := now - c.since; d >= lately {
		c.lately, c.bytes, c.since = float64(c.bytes)/d.Seconds(), 0, now
	}
}
