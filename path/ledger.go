package path

import "time"

const (
	// marks is how many observations of what was sent are kept: 3 s of traffic at one in 100 ms.
	marks = 32
	// markGap is the least time between two: callers may observe more often.
	markGap = 50 * time.Millisecond
	// writeOff is how long a packet without acknowledgement is remembered: WireGuard begins a handshake every
	// 5 s (REKEY_TIMEOUT), and three of those are to be enough to find out about a path.
	writeOff = 20 * time.Second
)

// A ledger is the account of the data sent by one pair and acknowledged by the peer's reports.
//
// Reports count what arrived, not which packets. Once a report shows that something arrived, all that was sent
// a round trip before it either arrived too or is lost for good; both count as covered. What was sent since,
// and is not in the report's number, is outstanding. Losses shift the peer's count against ours; offset holds
// the difference.
type ledger struct {
	sent    uint64      // packets
	log     [marks]mark // a ring: what had been sent by when
	entries int
	dropped mark // the last that fell out of the ring

	covered  uint64
	known    bool // there was a report
	reported uint64
	offset   int64     // of reported against sent
	lower    int       // reports in a row that told less than before
	progress time.Time // the last report that told more
	previous time.Time // the one before
	checked  uint64    // sent, when outstanding packets last caused a check
	size     int       // bytes, of packets lately
	loss     lossMeter
}

// A mark says that by a time, so much had been sent.
type mark struct {
	at   time.Time
	sent uint64
}

func (l *ledger) mark(i int) *mark { return &l.log[i%marks] }

// first is the index of the oldest mark.
func (l *ledger) first() int { return max(0, l.entries-marks) }

// add enters packets that were seen to have been sent.
func (l *ledger) add(now time.Time, packets, bytes uint64) {
	l.cover(l.sentBy(now.Add(-writeOff)))
	if packets == 0 {
		return
	}
	l.sent += packets
	l.size = int(bytes / packets)
	if n := l.entries; n >= 2 && now.Sub(l.mark(n-1).at) < markGap && now.Sub(l.mark(n-2).at) < 2*markGap {
		*l.mark(n - 1) = mark{now, l.sent}
	} else {
		if n >= marks {
			l.dropped = *l.mark(n)
		}
		*l.mark(n) = mark{now, l.sent}
		l.entries++
	}
	if !l.known {
		return
	}
	// More cannot have arrived than was sent: the peer counts from another beginning, or counts the packets of
	// two of our paths together because it cannot tell them apart behind its relay.
	if got := l.arrived(); got > int64(l.sent) {
		l.offset -= got - int64(l.sent)
	}
	l.cover(uint64(max(0, l.arrived())))
}

// arrived is the peer's count in terms of ours.
func (l *ledger) arrived() int64 { return int64(l.reported) + l.offset }

// sentBy is how much was known to have been sent at a time.
func (l *ledger) sentBy(t time.Time) uint64 {
	for i := l.entries - 1; i >= l.first(); i-- {
		if m := l.mark(i); !m.at.After(t) {
			return m.sent
		}
	}
	if !l.dropped.at.After(t) {
		return l.dropped.sent
	}
	return 0
}

func (l *ledger) cover(sent uint64) { l.covered = min(max(l.covered, sent), l.sent) }

// acknowledge takes the peer's count of what arrived by this pair. Spread is the time within which a report
// answers for a packet. It returns whether more has arrived than was known.
func (l *ledger) acknowledge(now time.Time, packets uint64, spread time.Duration) bool {
	switch {
	case !l.known:
		l.known = true
		l.reported = packets
		if packets == 0 {
			return false
		}
	case packets == l.reported:
		l.lower = 0
		return false
	case packets < l.reported:
		// An old report that was overtaken; or, if it goes on, a peer that has lost count.
		if l.lower++; l.lower < 3 {
			return false
		}
		l.rebase()
		l.known, l.reported = true, packets
		l.offset = int64(l.covered) - int64(packets)
		return false
	}
	l.lower = 0
	l.reported = packets
	l.previous, l.progress = l.progress, now
	settled := l.sentBy(now.Add(-spread))
	if gone := int64(settled) - l.arrived(); gone > 0 {
		l.offset += gone
	}
	l.cover(uint64(max(0, l.arrived())))
	l.loss.measure(now, l, spread)
	return true
}

// rebase forgets what the peer told: it counts anew from somewhere.
func (l *ledger) rebase() {
	l.known, l.reported, l.offset, l.lower = false, 0, int64(l.sent), 0
	l.loss.since = time.Time{}
	l.settle()
}

// settle counts everything as covered: a path that was left, or returns, begins with nothing outstanding.
func (l *ledger) settle() { l.covered, l.checked = l.sent, l.sent }

func (l *ledger) outstanding() uint64 { return l.sent - l.covered }

// since is when the oldest outstanding packets were seen to have been sent; zero if there are none.
func (l *ledger) since() time.Time { return l.nth(1) }

// nth is when so many outstanding packets had been seen; zero if there are not so many.
func (l *ledger) nth(n uint64) time.Time {
	if l.outstanding() < n {
		return time.Time{}
	}
	for i := l.first(); i < l.entries; i++ {
		if m := l.mark(i); m.sent >= l.covered+n {
			return m.at
		}
	}
	return time.Time{}
}

// overdue is when n packets will have been outstanding for a time in which nothing was acknowledged; zero if
// there are not so many.
func (l *ledger) overdue(n uint64, wait time.Duration) time.Time {
	t := l.nth(n)
	if t.IsZero() {
		return t
	}
	return latest(t, l.progress).Add(wait)
}

// brisk reports whether reports have been coming in quick succession until just now.
func (l *ledger) brisk(now time.Time) bool {
	return now.Sub(l.progress) < time.Second && l.progress.Sub(l.previous) <= 3*ReportInterval
}

// How loss is measured.
const (
	// lossWindow is how long packets are counted. The counts at both ends of it are inexact by the packets of
	// lossBlur, which is 4 % of it.
	lossWindow = 5 * time.Second
	// lossBlur is how far an observation here and one at the peer lie apart at most: one interval of each.
	lossBlur = 200 * time.Millisecond
	// lossPackets is the least number of packets that a share of makes sense.
	lossPackets = 50
	// lossLimit is the share that makes a path bad: TCP over 10 % loss is as good as stopped.
	lossLimit = 0.10
	// lossMemory is how long a measurement says something of a path that has not been in use since.
	lossMemory = 5 * time.Minute
)

// A lossMeter compares what was sent with what arrived, window by window.
type lossMeter struct {
	since        time.Time
	middle, high uint64 // sent at the window's begin: best guess, and at most
	got          uint64
	rate         float64   // 0..1, of the last whole window
	at           time.Time // of its end
	bad          int       // windows in a row with more than the limit, however inexact the counts
}

func (m *lossMeter) measure(now time.Time, l *ledger, spread time.Duration) {
	middle := l.sentBy(now.Add(-spread - lossBlur/2))
	if m.since.IsZero() || now.Sub(m.since) > 10*lossWindow {
		m.since, m.middle, m.high, m.got = now, middle, l.sent, l.reported
		return
	}
	if now.Sub(m.since) < lossWindow || middle < m.middle+lossPackets {
		return
	}
	got := float64(l.reported - m.got)
	m.rate = max(0, 1-got/float64(middle-m.middle))
	m.at = now
	least := int64(l.sentBy(now.Add(-spread-lossBlur))) - int64(m.high)
	if least > 0 && 1-got/float64(least) > lossLimit {
		m.bad++
	} else {
		m.bad = 0
	}
	m.since, m.middle, m.high, m.got = now, middle, l.sent, l.reported
}

// fresh returns the loss if it was measured lately.
func (m *lossMeter) fresh(now time.Time) (rate float64, ok bool) {
	return m.rate, !m.at.IsZero() && now.Sub(m.at) < lossMemory
}
