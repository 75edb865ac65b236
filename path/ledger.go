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
// Reports count what arrived, not which packets, and losses make the counts drift apart. So it is the growth of
// the peer's count that matters: when a report shows that something arrived, all that was sent by then counts
// as covered. It arrived, or will, or is an ordinary loss. Outstanding is what was sent since. What was sent is
// seen at intervals only; of the interval in which the report came, nobody can say which part it covers, and so
// it is all covered.
type ledger struct {
	sent    uint64      // packets
	log     [marks]mark // a ring: what had been sent by when
	entries int
	dropped mark // the last that fell out of the ring

	covered   uint64
	alive     bool // there was a report since sent was last looked at
	reported  uint64
	lower     int           // reports in a row that told less than before
	told      time.Time     // the last report that told more
	progress  time.Time     // the last that showed that the path is alive
	spread    time.Duration // within which it answered for a packet
	checked   uint64        // sent, when outstanding packets last caused a check
	witness   witness       // that the peer is there
	overdueAt time.Time     // when a failure was first seen to be due that has not been declared; zero: none is
	size      int           // bytes, of packets lately
	loss      lossMeter
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
	l.covered = max(l.covered, l.sentBy(now.Add(-writeOff)))
	if packets > 0 {
		l.sent += packets
		l.size = int(bytes / packets)
		l.enter(mark{now, l.sent})
	}
	if l.alive {
		l.covered, l.alive = l.sent, false
		l.loss.measure(l)
	}
}

func (l *ledger) enter(m mark) {
	n := l.entries
	if n >= 2 && m.at.Sub(l.mark(n-1).at) < markGap && m.at.Sub(l.mark(n-2).at) < 2*markGap {
		*l.mark(n - 1) = m
		return
	}
	if n >= marks {
		l.dropped = *l.mark(n)
	}
	*l.mark(n) = m
	l.entries++
}

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

// acknowledge takes the peer's count of what arrived by this pair. Spread is the time within which a report
// answers for a packet. It returns whether more has arrived than was known.
func (l *ledger) acknowledge(now time.Time, packets uint64, spread time.Duration) bool {
	switch {
	case packets == l.reported:
		l.lower = 0
		return false
	case packets < l.reported:
		// An old report that was overtaken; or, if it goes on, a peer that has lost count.
		if l.lower++; l.lower == 3 {
			l.rebase(packets)
		}
		return false
	}
	late := l.late(now, packets-l.reported, spread)
	l.reported, l.lower, l.told = packets, 0, now
	if !late {
		l.progress, l.spread = now, spread
		l.covered, l.alive = l.sent, true
	}
	return true
}

// late reports whether a report, which came after a pause, tells of too little to have come from a path that
// was alive through it: these packets arrived before the path died, and it is only the news that took a detour.
func (l *ledger) late(now time.Time, more uint64, spread time.Duration) bool {
	return now.Sub(l.told) > 3*ReportInterval && 2*more < l.sentBy(now.Add(-spread))-l.sentBy(l.told.Add(-spread))
}

// rebase takes the peer's count for one from another beginning.
func (l *ledger) rebase(packets uint64) {
	l.reported, l.lower = packets, 0
	l.settle()
}

// settle counts everything as covered: a path that was left, or returns, begins with nothing outstanding, and
// its loss is measured anew.
func (l *ledger) settle() {
	l.covered, l.checked = l.sent, l.sent
	l.loss.since, l.loss.bad = time.Time{}, 0
}

// A witness is an answer of the peer's, by whichever way.
type witness struct {
	asked time.Time // when the ping was sent
	at    time.Time // when the answer came
}

// hears takes an answer to a ping sent at a time: the first to one that was sent after the oldest outstanding packets is kept.
func (l *ledger) hears(now, asked time.Time) {
	if since := l.since(); !since.IsZero() && l.witness.asked.Before(since) && !asked.Before(since) {
		l.witness = witness{asked, now}
	}
}

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

// How loss is measured.
const (
	// lossWindow is how long packets are counted.
	lossWindow = 5 * time.Second
	// lossBlur is how far an observation here and one at the peer lie apart at most: one interval of each.
	lossBlur = 200 * time.Millisecond
	// lossPackets is the least number of packets that a share of makes sense.
	lossPackets = 50
	// lossUneven is the share of a window's packets by which the numbers in flight at its two ends may differ:
	// as nobody knows which of them a report covers, they have to cancel out.
	lossUneven = 0.03
	// lossLimit is the share that makes a path bad: TCP over 10 % loss is as good as stopped.
	lossLimit = 0.10
	// lossMemory is how long a measurement says something of a path that has not been in use since.
	lossMemory = 5 * time.Minute
)

// A lossMeter compares what was sent with what arrived, window by window.
type lossMeter struct {
	since time.Time
	begin edge
	rate  float64   // 0..1, of the last window that could be measured
	at    time.Time // of its end
	bad   int       // windows in a row with more than the limit, however inexact the counts
}

// An edge of a window is what had been sent and had arrived then. Of what was sent, the report covers no less
// than least, and no more than most.
type edge struct{ least, middle, most, got uint64 }

// measure takes note of the last report, now that it has been seen what was sent by then.
func (m *lossMeter) measure(l *ledger) {
	now := l.progress
	end := edge{
		least: l.sentBy(now.Add(-l.spread - lossBlur)), middle: l.sentBy(now.Add(-l.spread - lossBlur/2)), most: l.sent,
		got: l.reported,
	}
	switch {
	case m.since.IsZero() || now.Sub(m.since) > 10*lossWindow:
	case now.Sub(m.since) < lossWindow || end.middle < m.begin.middle+lossPackets:
		return
	default:
		m.close(now, end)
	}
	m.since, m.begin = now, end
}

// close measures the window that ends here, if it can be.
func (m *lossMeter) close(now time.Time, end edge) {
	sent, got := float64(end.middle-m.begin.middle), float64(end.got-m.begin.got)
	uneven := float64(end.most-end.least) - float64(m.begin.most-m.begin.least)
	if uneven > lossUneven*sent || uneven < -lossUneven*sent {
		return
	}
	m.rate, m.at = max(0, 1-got/sent), now
	if least := float64(end.least) - float64(m.begin.most); least > 0 && 1-got/least > lossLimit {
		m.bad++
	} else {
		m.bad = 0
	}
}

// fresh returns the loss if it was measured lately.
func (m *lossMeter) fresh(now time.Time) (rate float64, ok bool) {
	return m.rate, !m.at.IsZero() && now.Sub(m.at) < lossMemory
}
