package bond

import "weft/wire"

const (
	// logFirst and logMost are how many messages a ledger has room for, in the beginning and at most: twice what one feedback
	// can tell of (wire.MaxFeedbackWords).
	logFirst, logMost = 256, 8192
	// logBytes is the room for copies in the beginning.
	logBytes = 64 << 10
	// holesMost is how many counters in a row may be missing. More is another beginning of the session.
	holesMost = 1024
	// hopsMost is how often a message may be sent: new, a copy, and again twice.
	hopsMost = 4
	// seriesMost is how many sessions are remembered: the current one, the one before (WireGuard section 6), and one spare.
	seriesMost = 3
)

// A hop is one sending of a message: by which path (its slot), and which of its flights.
type hop struct {
	slot   uint8
	flight uint32
}

// A message is what is known of one counter.
type message struct {
	at, size int32 // where its copy is; size 0: there is none
	hops     [hopsMost]hop
	n        uint8 // hops
	again    uint8 // how often it was sent again
	settled  bool  // it came, was given up, or is a hole
	waiting  bool  // to be sent again
	quiet    bool  // it is weft's own
	names    bool  // it says its first path's number
	asked    bool  // the path that it goes by next was asked to say its own
}

// A series is the counters of one session. The message with counter c has the place c - counter + seq in the ledger.
type series struct {
	session uint32
	seq     uint64 // of its first message
	counter uint64 // of its first message
	n       uint64 // messages and holes
}

// A ledger remembers what was sent and not settled, with copies, oldest first. Places in it are numbered by seq without end, from 1:
// zero is none. It grows to its bounds as needed, and then forgets the oldest.
type ledger struct {
	ring       []message
	came       []uint64 // one bit a place: reported arrived
	tail, head uint64   // oldest, and one past the newest
	series     [seriesMost]series
	nseries    int // the latest is the last

	bytes      []byte // copies one after the other, around
	first, end int32  // where the oldest copy begins, and the newest ends
	copies     int    // how many
	copied     uint64 // no copy is older than that of this place
	memory     int32
}

func newLedger(memory int) ledger {
	return ledger{
		ring: make([]message, logFirst), came: make([]uint64, logFirst/64),
		bytes: make([]byte, min(logBytes, memory)), memory: int32(memory), tail: 1, head: 1,
	}
}

// stretchMost is over how many counters what is not settled may reach: feedback tells of no more at once.
const stretchMost = 64*wire.MaxFeedbackWords - 256

// stretch is over how many it does.
func (l *ledger) stretch() uint64 { return l.head - l.tail }

func (l *ledger) msg(seq uint64) *message { return &l.ring[seq&uint64(len(l.ring)-1)] }

// seq finds a counter's place. It is false for one that was given up, and zero besides for one that never had any.
func (l *ledger) seq(session uint32, counter uint64) (uint64, bool) {
	for i := l.nseries - 1; i >= 0; i-- {
		sp := &l.series[i]
		if sp.session == session && counter >= sp.counter && counter-sp.counter < sp.n {
			seq := sp.seq + counter - sp.counter
			return seq, seq >= l.tail
		}
	}
	return 0, false
}

// latest finds the latest beginning of a session.
func (l *ledger) latest(session uint32) *series {
	for i := l.nseries - 1; i >= 0; i-- {
		if l.series[i].session == session {
			return &l.series[i]
		}
	}
	return nil
}

// add makes a place for a counter. It is false for one that is not after all others of its session. forget is called with each
// place that has to be given up for it.
func (l *ledger) add(session uint32, counter uint64, forget func(seq uint64)) (seq uint64, ok bool) {
	sp := l.latest(session)
	if sp != nil && counter < sp.counter+sp.n {
		return 0, false
	}
	if sp == nil || sp != &l.series[l.nseries-1] || counter-(sp.counter+sp.n) > holesMost {
		if sp != nil { // feedback tells of the latest beginning of a session alone: what is older would never be settled
			for old := max(l.tail, sp.seq); old < sp.seq+sp.n; old++ {
				if !l.msg(old).settled {
					forget(old)
				}
			}
		}
		if l.nseries == seriesMost {
			copy(l.series[:], l.series[1:])
			l.nseries--
		}
		l.series[l.nseries] = series{session: session, seq: l.head, counter: counter}
		sp = &l.series[l.nseries]
		l.nseries++
	}
	for sp.counter+sp.n < counter {
		l.place(forget).settled = true
		sp.n++
	}
	l.place(forget)
	sp.n++
	return l.head - 1, true
}

func (l *ledger) place(forget func(seq uint64)) *message {
	if l.head-l.tail == uint64(len(l.ring)) {
		if len(l.ring) < logMost {
			l.grow()
		} else {
			forget(l.tail)
			l.drop()
		}
	}
	m := l.msg(l.head)
	*m = message{}
	l.came[l.head/64&uint64(len(l.came)-1)] &^= 1 << (l.head % 64)
	l.head++
	return m
}

func (l *ledger) grow() {
	ring, came := make([]message, 2*len(l.ring)), make([]uint64, 2*len(l.came))
	for seq := l.tail; seq < l.head; seq++ {
		ring[seq&uint64(len(ring)-1)] = *l.msg(seq)
		if l.arrived(seq) {
			came[seq/64&uint64(len(came)-1)] |= 1 << (seq % 64)
		}
	}
	l.ring, l.came = ring, came
}

// drop takes the oldest message out.
func (l *ledger) drop() {
	if m := l.msg(l.tail); m.size > 0 {
		l.uncopy(m)
	}
	l.tail++
}

// trim takes out what is settled at the old end.
func (l *ledger) trim() {
	for l.tail < l.head && l.msg(l.tail).settled {
		l.drop()
	}
}

// keep stores a message's copy. When memory is short the oldest copies go.
func (l *ledger) keep(m *message, b []byte) {
	n := int32(len(b))
	if n == 0 || n > l.memory {
		return
	}
	for {
		if at, ok := l.room(n); ok {
			copy(l.bytes[at:], b)
			m.at, m.size = at, n
			l.end = at + n
			if l.copies == 0 {
				l.first = at
			}
			l.copies++
			return
		}
		if int32(len(l.bytes)) < l.memory {
			l.growBytes()
			continue
		}
		l.uncopy(l.oldest())
	}
}

// room finds a place for n bytes in a row behind the newest copy.
func (l *ledger) room(n int32) (at int32, ok bool) {
	size := int32(len(l.bytes))
	switch {
	case l.copies == 0:
		return 0, n <= size
	case l.first < l.end: // one stretch
		if size-l.end >= n {
			return l.end, true
		}
		return 0, l.first >= n
	default: // around the end
		return l.end, l.first-l.end >= n
	}
}

func (l *ledger) growBytes() {
	old, size := l.bytes, min(max(2*int32(len(l.bytes)), 4096), l.memory)
	l.bytes = make([]byte, size)
	l.first, l.end = 0, 0
	for seq := l.tail; seq < l.head; seq++ {
		if m := l.msg(seq); m.size > 0 {
			copy(l.bytes[l.end:], old[m.at:m.at+m.size])
			m.at = l.end
			l.end += m.size
		}
	}
}

// oldest is the message whose copy is the oldest. There is one.
func (l *ledger) oldest() *message {
	for l.copied = max(l.copied, l.tail); l.msg(l.copied).size == 0; l.copied++ {
	}
	return l.msg(l.copied)
}

// uncopy forgets the oldest copy.
func (l *ledger) uncopy(m *message) {
	m.size = 0
	if l.copies--; l.copies > 0 {
		l.first = l.oldest().at
	}
}

func (l *ledger) arrived(seq uint64) bool {
	return l.came[seq/64&uint64(len(l.came)-1)]>>(seq%64)&1 != 0
}

// fresh takes in 64 bits of a bitmap that begins at seq, and returns those of them that are new: places in the ledger that had not
// been reported.
func (l *ledger) fresh(seq uint64, word uint64) uint64 {
	mask := uint64(len(l.came) - 1)
	i, shift := seq/64, seq%64
	low, high := &l.came[i&mask], &l.came[(i+1)&mask]
	known := *low >> shift
	if shift > 0 {
		known |= *high << (64 - shift)
	}
	word &^= known
	// What is not in the ledger has no place to be noted at.
	if seq < l.tail {
		if l.tail-seq >= 64 {
			return 0
		}
		word &^= 1<<(l.tail-seq) - 1
	}
	if seq+64 > l.head {
		if seq >= l.head {
			return 0
		}
		word &= 1<<(l.head-seq) - 1
	}
	*low |= word << shift
	if shift > 0 {
		*high |= word >> (64 - shift)
	}
	return word
}
