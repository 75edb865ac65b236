package bond

import (
	"fmt"
	"time"
)

const (
	// confirmAfter is how long a path is under suspicion until it is called silent. It carries nothing new from the beginning.
	confirmAfter = 80 * time.Millisecond
	// unreadMost is how much longer a path may be late that the receiver has not read, and how long that counts: sockets may be shared.
	unreadMost = 150 * time.Millisecond
	// patienceFor is how long it is remembered how late packets of a path have come: half of it goes in this time.
	patienceFor = 10 * time.Second
	// undoWithin is how long a packet that was found lost is remembered, in case it was only late.
	undoWithin = 500 * time.Millisecond
	// reorderFew and reorderLate are what a path may reorder before that is known of it: RFC 5681's three packets, or this long.
	reorderFew  = 3
	reorderLate = 3 * time.Millisecond
	reorderMost = 50 * time.Millisecond
	// lateLeast is the least that a packet after which nothing came may be late before that means something: two feedback intervals, and
	// what a thread of the receiver waits for its turn.
	lateLeast = 12 * time.Millisecond
	lateMost  = 100 * time.Millisecond
	// stoppedFor is how late the packet after the newest may be of a path under suspicion for that to be over. The receiver says so stopAfter the newest,
	// and there may have been a pause between the two.
	stoppedFor = stopAfter / 2
	// overdueFew is how many packets in a row have to be late for silence. On a path that loses many it takes more.
	overdueFew = 3
	// proofs is how many packets have to come by a path that is back until it is trusted.
	proofs = 8
	// restFirst is how long a silent path rests that is still said to live. It doubles with each relapse up to restMost.
	restFirst = 500 * time.Millisecond
	restMost  = 8 * time.Second
	// relapseWithin is how soon after its return a path falls silent for it to be a relapse.
	relapseWithin = 10 * time.Second
	// returnWithin is how long a path without data is on its way back.
	returnWithin = 2 * time.Second
	// timerLeast is the least between sending and the conclusion that no word of it will come, whatever is measured.
	timerLeast = 30 * time.Millisecond
	// timerMargin is short, since a timer that ends too early costs a few copies.
	timerMargin = 5 * time.Millisecond
	timerMost   = 2 * time.Second
)

// A health is what a path is used for and why.
type health struct {
	state    State
	reason   string
	since    time.Duration // of state
	doubted  time.Duration // since when it is under suspicion: so much is overdue that what it had goes again by others; 0: it is not
	trusted  float64       // the share that it lost before it was
	late     time.Duration // how late the next packet is by the latest frame; 0: it is not
	next     uint32        // that packet's flight
	tuned    time.Duration // patience was learned
	unread   time.Duration // since when frames say that the receiver has more to read of the path; 0: they do not
	overdue  int           // packets found overdue since anything came
	reorder  time.Duration // how late packets came that others had overtaken
	patience time.Duration // how late came what had been taken for silence
	revived  revived
	relapses int
	rest     time.Duration // until when a silent path is left alone
	proved   int
	backoff  uint8 // timers in a row that ended without word
	due      time.Duration
}

// rank orders paths for what is single.
func (h *health) rank() int {
	switch {
	case h.state == Silent:
		return 2
	case h.doubted > 0 || h.overdue > 0 || h.state == Returning:
		return 1
	}
	return 0
}

// unreads reports whether the receiver has more to read of the path: then it is not known what has come.
func (h *health) unreads(now time.Duration) bool { return h.unread > 0 && now-h.unread < unreadMost }

// progress is told that n more packets came.
func (h *health) progress(now time.Duration, n int) {
	h.learn(now, 0)
	h.doubted, h.overdue, h.backoff = 0, 0, 0
	h.proved += n
}

// late learns from a packet that was late and came: one that is lost tells nothing, and of a copy it is not known.
func (l *lane) late(now time.Duration) {
	h := &l.health
	if h.late == 0 || !l.flights.has(h.next) {
		return
	}
	if f := l.flights.at(h.next); f.state == arrived && !f.twin {
		h.learn(now, h.late)
		h.late = 0
	}
}

// learn is told how late something came after which nothing else had come.
func (h *health) learn(now, late time.Duration) {
	if late > h.patience {
		h.patience, h.tuned = min(late, lateMost), now
	} else if now-h.tuned >= patienceFor {
		h.patience, h.tuned = h.patience/2, now
	}
}

// reordered is told how late a packet was that had been found lost.
func (h *health) reordered(late time.Duration) {
	if late > 0 {
		h.reorder = min(max(h.reorder, late+late/4), reorderMost)
	}
}

// restart forgets what was measured of a path that begins, or begins again.
func (l *lane) restart(now time.Duration) {
	l.ctl.Restart(now, l.RTT)
	l.held, l.waited = false, false
	l.limit, l.starve, l.round = 0, 0, 0
	l.free = max(l.free, now)
}

// judge finds what is lost of a path's flights by what a frame of a session says, and whether the path is silent.
func (s *Sender) judge(now time.Duration, l *lane, sr *series) {
	if !l.est.owd.some {
		return
	}
	clock, owd := s.remote.clock, l.est.owd.latest
	// Of what is newer than the newest that came: as long as that, or as the line needs for what goes before it.
	expected := func(f *flight) time.Duration { return max(owd, l.est.owd.base()+f.wait) }
	h := &l.health
	var first, gone, late time.Duration
	overdue, missing := 0, 0
	for i := l.skip(); int32(i-l.newest) < 0; i++ {
		f := l.flights.at(i)
		if late = clock - f.sent - owd; f.state != away || f.seq < sr.seq || f.seq >= sr.seq+sr.n {
			continue
		}
		if late > max(h.reorder, reorderLate) || late > h.reorder && l.newest-1-i >= reorderFew {
			s.lose(now, l, i)
		}
	}
	if int32(l.newest-l.flights.tail) < 0 {
		l.newest = l.flights.tail
	}
	known := h.state != Silent && h.doubted == 0 // then what was found lost counts, too: nothing has come after it
	for i := l.newest; i != l.flights.head; i++ {
		f := l.flights.at(i)
		dead := known && f.state == lost && f.sent > h.since
		if !dead && !f.state.awaited() || f.seq < sr.seq || f.seq >= sr.seq+sr.n {
			continue
		}
		if late = clock - f.sent - expected(f); late <= 0 {
			break
		}
		if dead {
			gone = max(gone, late)
			missing++
			continue
		}
		if overdue == 0 {
			first, h.next = late, i
		}
		overdue++
	}
	allowed := l.allowed()
	if h.unreads(now) {
		allowed += unreadMost
	}
	if h.late = first; max(first, gone) <= allowed {
		return
	}
	if overdue+max(h.overdue, missing) >= l.few() && s.others(l) {
		s.doubt(now, l)
		return
	}
	// A few: they may be lost alone.
	for i := l.newest; i != l.flights.head && overdue > 0; i++ {
		f := l.flights.at(i)
		if f.state.awaited() && f.seq >= sr.seq && f.seq < sr.seq+sr.n && clock-f.sent-expected(f) > l.allowed() {
			s.lose(now, l, i)
			h.overdue++
			overdue--
		}
	}
}

// packets is how long the path takes for two full ones.
func (l *lane) packets() time.Duration {
	return time.Duration(min(2*segment/max(l.est.rate, l.ctl.Rate()/3, 1), 1) * 1e9)
}

// allowed is how late the next packet of a path may be.
func (l *lane) allowed() time.Duration {
	return min(max(lateLeast, 4*l.est.owd.jitter+l.packets()+lateLeast/2, l.health.patience*3/2), lateMost+l.packets())
}

// few is how many packets late in a row mean silence: chance alone has so many once in a million.
func (l *lane) few() int {
	n, p := overdueFew, l.est.loss*l.est.loss*l.est.loss
	for p > 1e-6 && n < 20 {
		p *= l.est.loss
		n++
	}
	return n
}

// others reports whether another path lives.
func (s *Sender) others(not *lane) bool {
	for _, l := range s.lanes {
		if l != not && l.health.state != Silent {
			return true
		}
	}
	return false
}

// lose notes that a flight is lost, and has its message sent again.
func (s *Sender) lose(now time.Duration, l *lane, i uint32) {
	f := l.flights.at(i)
	f.state = lost
	l.inFlight -= int(f.size)
	l.news.gone += int(f.size)
	l.news.goneSent = max(l.news.goneSent, f.sent)
	l.est.fate(now, true)
	l.counts.lostPackets++
	s.orphan(now, f.seq)
}

// orphan has a message sent again unless it is still on its way by some path.
func (s *Sender) orphan(now time.Duration, seq uint64) {
	if seq < s.ledger.tail {
		return
	}
	m := s.ledger.msg(seq)
	if m.settled || m.waiting {
		return
	}
	for _, h := range m.hops[:m.n] {
		if _, f := s.flight(h, seq); f != nil && f.state == away {
			return
		}
	}
	if m.size == 0 || m.again == againMost || m.n == hopsMost {
		m.settled = true // given up
		return
	}
	m.waiting = true
	s.pushRepeat(seq)
}

// againMost is how often a message is sent again.
const againMost = 2

// doubt puts a path under suspicion: nothing new goes by it, and what is on its way by it is sent again by others. It is not known yet
// whether it is silent, or late, or the receiver has not looked yet.
func (s *Sender) doubt(now time.Duration, l *lane) {
	if l.health.doubted == 0 {
		l.health.trusted = l.est.loss
	}
	s.strand(now, l)
	s.ease(now)
	l.health.doubted = max(now, 1)
	if l.health.state == Returning {
		s.silence(now, l)
	}
}

// silence is the end of doubt.
func (s *Sender) silence(now time.Duration, l *lane) {
	h := &l.health
	if h.state == Active && now-h.since > relapseWithin {
		h.relapses = 0
	}
	h.rest = now + min(restFirst<<min(h.relapses, 8), restMost)
	h.relapses++
	s.less = max(now, 1)
	since := now - l.first
	s.turn(now, l, Silent, fmt.Sprintf("nothing has come by it of what was sent in the last %v", since.Round(time.Millisecond)))
}

// easeFor is how long the queue in front may be longer than it should after a path has gone: what it had is sent again
// before anything new.
const easeFor = time.Second

// easeAgain is how long after that it may be so again: where paths fall silent all the time, the queue has to be short for them, too.
const easeAgain = 2 * time.Second

func (s *Sender) ease(now time.Duration) {
	if s.eased == 0 || now >= s.eased+easeAgain {
		s.eased = now + easeFor
	}
}

// strand has all flights of a path sent again by others.
func (s *Sender) strand(now time.Duration, l *lane) {
	for i := l.flights.tail; i != l.flights.head; i++ {
		if l.flights.at(i).state.flying() {
			s.lose(now, l, i)
		}
	}
	l.news = news{}
}

// abandon is strand for a path that is no longer among the lanes.
func (s *Sender) abandon(now time.Duration, l *lane) {
	s.unassign(l)
	for i := l.flights.tail; i != l.flights.head; i++ {
		if f := l.flights.at(i); f.state == away {
			f.state = lost
			s.orphan(now, f.seq)
		}
	}
	if l.health.state == Active || l.health.state == Returning {
		s.less = max(now, 1)
	}
	s.ease(now)
}

// revive takes back a suspicion: what was sent before it came after all, up to a flight. It is not over before believe has looked.
func (s *Sender) revive(now time.Duration, l *lane, i uint32, at time.Duration) {
	h := &l.health
	h.learn(now, at-l.flights.at(i).sent-l.est.owd.latest) // and not by when that is known, which may be old news
	for j := l.newest; int32(j-i) <= 0; j++ {
		if f := l.flights.at(j); f.state == lost && f.seq < s.ledger.tail {
			f.state = arrived
			l.credit(f)
		}
	}
	l.pass(now, i)
	h.revived = revived{true, h.doubted, at}
	h.progress(now, int(i+1-l.newest))
	l.newest = i + 1
	l.est.drain.some = false
}

// revived is a path of which something came after all: it was under suspicion since then, and its newest came at that time.
type revived struct {
	some        bool
	doubted, at time.Duration
}

// believe ends what revive began, when all that a frame tells is known.
func (s *Sender) believe(now time.Duration, l *lane) {
	h := &l.health
	r := h.revived
	h.revived = revived{}
	for i := l.newest; r.some && i != l.flights.head && !h.unreads(now); i++ {
		f := l.flights.at(i)
		if f.state == arrived || f.state == void || f.state == needless {
			continue
		}
		if next := max(r.at, f.sent+l.est.owd.base()) + l.takes(int(f.size)); s.remote.clock-next > stoppedFor {
			h.doubted = r.doubted // that is old news: what was sent after it has not come
			return
		}
		break
	}
	if r.some {
		l.est.loss = min(l.est.loss, h.trusted) // what was taken for lost was late
	}
	if r.some && h.state == Silent {
		h.relapses = max(h.relapses-1, 0)
		s.turn(now, l, Active, "what was taken for lost came late")
	}
}

// turn changes a path's state.
func (s *Sender) turn(now time.Duration, l *lane, to State, reason string) {
	from := l.health.state
	l.health.state, l.health.reason, l.health.since = to, reason, now
	if from != to {
		s.event(now, l, from, to)
	}
}

// back begins a silent path's return.
func (s *Sender) back(now time.Duration, l *lane, reason string) {
	l.restart(now)
	h := &l.health
	h.proved, h.doubted, h.overdue, h.backoff = 0, 0, 0, 0
	s.turn(now, l, Returning, reason)
}

// rank says which of the living paths carry data: those with the lowest metric. Where none lives no path rests: it is said to live, and there is nothing better.
func (s *Sender) rank(now time.Duration) {
	if !s.others(nil) {
		for _, l := range s.lanes {
			s.back(now, l, "it has not rested, and there is no other")
		}
	}
	lowest, some := 0, false
	for _, l := range s.lanes {
		h := &l.health
		if h.state == Returning && (h.proved >= proofs || now-h.since >= returnWithin) {
			s.turn(now, l, Active, "what was sent by it came")
		}
		if (h.state == Active || h.state == Standby) && (!some || l.Metric < lowest) {
			lowest, some = l.Metric, true
		}
	}
	for _, l := range s.lanes {
		h := &l.health
		switch {
		case h.state == Returning && !some:
			s.turn(now, l, Active, "no other path lives")
		case h.state == Active && l.Metric > lowest:
			s.turn(now, l, Standby, "one with a lower metric lives")
		case h.state == Standby && l.Metric == lowest:
			s.turn(now, l, Active, "none with a lower metric lives")
		}
	}
}
