package bond

import (
	"math/bits"
	"time"

	"weft/wire"
)

// maxLanes is how many paths a bond has at most.
const maxLanes = wire.MaxBondPaths

// Feedback takes in what the receiver reports, which came now or lay unread since. What cannot be is ignored, and counted: it is authentic, but the peer
// may be broken or hostile.
func (s *Sender) Feedback(now, came time.Duration, f *wire.Feedback) {
	s.now = max(s.now, now)
	came = min(came, now)
	sr := s.ledger.latest(f.Session)
	if sr == nil || !credible(sr, f) {
		s.ignored++
		return
	}
	s.sleeps(now, came)
	s.nap.late(now, now-came)
	fresh := s.listen(now, came, f)
	for i := range f.Paths[:f.NPaths] {
		p := &f.Paths[i]
		if l := s.lane(PathID(p.ID)); l == nil {
		} else if !p.Unread {
			l.health.unread = 0
		} else if l.health.unread == 0 {
			l.health.unread = max(now, 1)
		}
		s.newest(now, came, f, p)
	}
	s.came(now, sr, f)
	for _, l := range s.lanes {
		l.expire(s.remote.clock)
		s.believe(now, l)
		l.late(now)
		l.measure(now)
		if fresh {
			s.judge(now, l, sr)
		}
	}
	for _, l := range s.lanes {
		l.tell(now, s.nap.most)
		l.trim(now)
	}
	s.past(now, sr)
	s.ledger.trim()
	s.rank(now)
	s.remote.center(s.lanes)
	s.wake = now
	s.rearm(now)
}

// credible reports whether feedback tells of nothing but what was sent.
func credible(sr *series, f *wire.Feedback) bool {
	end := sr.counter + sr.n
	if f.Base > end || f.NWords < 0 || f.NWords > len(f.Words) || f.NPaths < 0 || f.NPaths > len(f.Paths) || f.Clock > clockMost {
		return false
	}
	for i := range f.Paths[:f.NPaths] {
		if p := &f.Paths[i]; p.Newest >= end || p.At > f.Clock {
			return false
		}
	}
	for i := f.NWords - 1; i >= 0; i-- {
		if w := f.Words[i]; w != 0 {
			return f.Base+uint64(64*i+bits.Len64(w)) <= end
		}
	}
	return true
}

// newest takes in how far a path is: the times of its newest arrival.
func (s *Sender) newest(now, came time.Duration, f *wire.Feedback, p *wire.FeedbackPath) {
	seq, ok := s.ledger.seq(f.Session, p.Newest)
	var l *lane
	var i uint32
	if ok {
		l, i = s.sender(s.ledger.msg(seq), seq, f, p)
	} else if seq > 0 {
		l, i = s.copied(seq, f, p)
	}
	if l == nil {
		return
	}
	if PathID(p.ID) == l.ID {
		l.line.tally.reported(p.Packets)
	}
	if int32(i-l.newest) < 0 {
		return
	}
	if l.health.state == Silent || l.health.doubted > 0 {
		s.revive(now, l, i, s.remote.local(p.At))
	} else {
		if fl := l.flights.at(i); fl.state == lost && fl.seq < s.ledger.tail { // others have brought it, and it was only late
			fl.state = arrived
			l.credit(fl)
			l.est.fate(now, false)
			l.health.learn(now, s.remote.local(p.At)-fl.sent-l.est.owd.latest)
		}
		l.pass(now, i)
		l.health.progress(now, int(i+1-l.newest))
		l.newest = i + 1
	}
	fl := l.flights.at(i)
	age := time.Duration(f.Clock-p.At) * time.Microsecond
	rtt := came - fl.sent - age
	if !s.remote.some || rtt <= 0 || rtt > rttMost {
		return // it arrived before it was sent
	}
	at := s.remote.local(p.At)
	if again := !ok && !fl.twin || ok && s.ledger.msg(seq).again > 0; again && l.est.owd.some && (rtt < l.est.minRTT || at-fl.sent < l.est.owd.base()) {
		return // it is the sending before that came (as in Karn's algorithm): the path is no shorter than it was
	}
	l.est.rtt.add(rtt)
	l.est.minRTT = time.Duration(l.est.minR.add(now, baseWithin, float64(rtt)))
	l.est.report.add(now - fl.sent)
	l.est.owd.add(now, at-fl.sent, fl.wait, fl.size)
	l.est.keep(l.line.crowd.add(now, l.est.owd.waited-fl.wait, l.standing(), l.ctl.Loses()))
	l.news.rtt, l.mark, l.markAt = rtt, *fl, at
	l.news.queue = l.est.owd.waited
}

// copied finds by which path a message came that came by another before, and is off the books: the one that is named, or the only one that the
// receiver does not know and by which a copy of it is on its way. What was sent again is no copy: a path without a name
// learns nothing from that, and a living one nothing from what counts as arrived.
func (s *Sender) copied(seq uint64, f *wire.Feedback, p *wire.FeedbackPath) (l *lane, i uint32) {
	for _, o := range s.lanes {
		if p.ID != 0 && o.ID != PathID(p.ID) || p.ID == 0 && named(f, o.ID) {
			continue
		}
		at, ok := o.find(seq)
		if !ok {
			continue
		}
		living := o.health.state != Silent && o.health.doubted == 0
		if state := o.flights.at(at).state; p.ID == 0 && state != elsewhere || living && state == arrived {
			continue
		}
		if l != nil {
			return nil, 0
		}
		l, i = o, at
	}
	return l, i
}

// sender finds by which path, and by which sending, a message came. The books know if it went by one path only. Else the receiver may know
// the path's number, or one path is left when those are taken away that it knows. If a message went by the path twice, the first is meant
// unless it could not have been: what is taken for late too often is given more time, and not the other way around.
func (s *Sender) sender(m *message, seq uint64, f *wire.Feedback, p *wire.FeedbackPath) (l *lane, i uint32) {
	several := false
	for _, h := range m.hops[:m.n] {
		o, fl := s.flight(h, seq)
		several = several || fl == nil || l != nil && o != l
		l = o
	}
	if several {
		l = s.known(m, seq, f, p)
	}
	if l == nil {
		return nil, 0
	}
	some := false
	for _, h := range m.hops[:m.n] {
		o, fl := s.flight(h, seq)
		if o != l || some && (l.flights.at(i).state != lost || s.remote.some && s.remote.local(p.At)-l.flights.at(i).sent <= l.est.owd.latest+lateMost) {
			continue
		}
		if fl != nil {
			i, some = h.flight, true
		}
	}
	return l, i
}

// known is which of several paths a message came by as the receiver names them.
func (s *Sender) known(m *message, seq uint64, f *wire.Feedback, p *wire.FeedbackPath) (l *lane) {
	for _, h := range m.hops[:m.n] {
		o, fl := s.flight(h, seq)
		switch {
		case fl == nil && p.ID == 0:
			return nil // by a path that is gone, perhaps
		case fl == nil || p.ID != 0 && o.ID != PathID(p.ID) || p.ID == 0 && named(f, o.ID):
			continue
		}
		if l != nil && l != o {
			return nil
		}
		l = o
	}
	return l
}

// named reports whether the receiver knows a path's number.
func named(f *wire.Feedback, id PathID) bool {
	for i := range f.Paths[:f.NPaths] {
		if f.Paths[i].ID == uint16(id) {
			return true
		}
	}
	return false
}

// rttMost is the longest round trip that is believed.
const rttMost = 30 * time.Second

// came takes in which counters came: bits, and all below the base. Of those some may have been given up by the receiver instead. The
// Sender has found them lost before.
func (s *Sender) came(now time.Duration, sr *series, f *wire.Feedback) {
	if f.Base > sr.counter {
		for seq, end := max(s.ledger.tail, sr.seq), sr.seq+f.Base-sr.counter; seq < end; seq++ {
			s.arrived(now, seq)
		}
	}
	for i, w := range f.Words[:f.NWords] {
		c := f.Base + uint64(64*i)
		if c < sr.counter {
			if sr.counter-c >= 64 {
				continue
			}
			w >>= sr.counter - c
			c = sr.counter
		}
		seq := sr.seq + c - sr.counter
		for w = s.ledger.fresh(seq, w); w != 0; w &= w - 1 {
			s.arrived(now, seq+uint64(bits.TrailingZeros64(w)))
		}
	}
}

// past takes what is left of sessions before a frame's off the books: messages without data, of which the receiver does not tell for their own
// sake, and nothing follows them in their session. Else they would be the oldest for ever, and nothing could be sent once what came after
// them is more than feedback has room for (stretchMost).
func (s *Sender) past(now time.Duration, sr *series) {
	for s.ledger.trim(); s.ledger.tail < sr.seq; s.ledger.trim() {
		seq := s.ledger.tail
		m := s.ledger.msg(seq)
		if m.waiting {
			return
		}
		for _, h := range m.hops[:m.n] {
			if l, f := s.flight(h, seq); f != nil && f.state.flying() && (!m.quiet || now-f.sent <= l.patience()) {
				return
			}
		}
		s.drop(seq)
	}
}

// pass has copies that came by another path first count as arrived by this one, up to a flight that has: as many as the receiver has counted.
func (l *lane) pass(now time.Duration, i uint32) {
	for j := l.newest; int32(j-i) <= 0; j++ {
		switch f := l.flights.at(j); {
		case !l.flights.has(j) || f.state != elsewhere:
		case l.line.tally.some && l.line.tally.left <= 0:
			f.state = void
			l.inFlight -= int(f.size)
		default:
			l.landed(now, f)
		}
	}
}

// landed takes a flight off that has arrived.
func (l *lane) landed(now time.Duration, f *flight) {
	f.state = arrived
	l.inFlight -= int(f.size)
	l.credit(f)
	l.est.fate(now, false)
}

// arrived settles a message. Of one that went by two paths at once it is not known by which it came: each is given credit for it when something
// has come by it that was sent as late, or the slower one would be held to be as fast as the other.
func (s *Sender) arrived(now time.Duration, seq uint64) {
	m := s.ledger.msg(seq)
	if m.settled || m.waiting && m.n == 0 { // what was not sent cannot have come: the receiver has given it up, and gets it late
		return
	}
	m.settled, m.waiting = true, false
	once := m.n == 1 // it came by the sending that is looked at, or that was found lost before
	for i := int(m.n) - 1; i >= 0; i-- {
		l, f := s.flight(m.hops[i], seq)
		switch {
		case f == nil:
		case f.state == away && f.twin && int32(m.hops[i].flight-l.newest) >= 0:
			f.state = elsewhere
		case f.state == away && m.again > 0 && s.soon(l, f):
			l.spare(m.hops[i].flight)
			once = m.n == 2 && i == 1
		case f.state == away:
			l.landed(now, f)
		case f.state == lost && once && (m.n == 1 || l.passed(m.hops[i].flight)): // it was only late
			f.state = arrived
			l.credit(f)
			l.est.fate(now, false)
			l.health.reordered(s.remote.clock - f.sent - l.est.owd.latest)
		}
	}
}

// soon reports whether what is told now was told of before a flight can have arrived.
func (s *Sender) soon(l *lane, f *flight) bool {
	return s.remote.some && l.est.owd.some && s.remote.clock < f.sent+l.est.owd.base()
}

// passed reports whether something newer than a flight has come by a path that nothing is suspected of.
func (l *lane) passed(i uint32) bool {
	return l.health.state != Silent && l.health.doubted == 0 && int32(i-l.newest) < 0
}

// spare notes that a flight was needless.
func (l *lane) spare(i uint32) {
	l.flights.at(i).state = needless
	if int32(i-l.needless) >= 0 {
		l.needless = i + 1
	}
}

func (l *lane) credit(f *flight) {
	l.line.tally.left = max(l.line.tally.left-1, -tallyMost)
	l.carried(f)
}

func (l *lane) carried(f *flight) {
	l.delivered += uint64(f.size)
	l.news.came += int(f.size)
}

// expected is when a flight arrives by the receiver's clock, if nothing but what was sent before it is in its way.
func (l *lane) expected(f *flight) time.Duration { return f.sent + l.est.owd.base() + f.wait }

// expire takes off what was sent again for nothing when it should have arrived. The receiver does not count what comes twice, so that is all
// that is known of it. It was on the line: a path that got credit for it when the first sending came seems to carry what another did.
func (l *lane) expire(clock time.Duration) {
	first := l.flights.tail
	if l.needless-first > l.flights.head-first {
		l.needless = first // or it would seem to be ahead when the numbers have gone around
	}
	for i := first; i != l.needless; i++ {
		if f := l.flights.at(i); f.state == needless {
			if clock < l.expected(f) {
				return
			}
			f.state = arrived
			l.inFlight -= int(f.size)
			l.carried(f)
		}
	}
}

// measure has a rate of delivery from the newest arrival, if there is a new one.
func (l *lane) measure(now time.Duration) {
	if l.news.rtt == 0 {
		return
	}
	f := &l.mark
	if f.bytes >= l.round {
		l.news.round = true
		l.round = l.delivered
	}
	took := max(l.markAt-f.at, f.sent-f.first)
	if took > 0 && took >= l.est.minRTT/2 {
		l.news.rate = float64(l.delivered-f.bytes) / took.Seconds()
		l.news.limited, l.news.starved = f.limited, f.starved
		l.est.delivered(now, l.news.rate, f.limited)
	}
	l.first, l.at = f.sent, l.markAt
	l.news.drain = l.est.drain.add(l.markAt, l.delivered, l.news.queue > l.standing(), drainOver+8*l.est.owd.jitter)
}

// standing is the least wait that is a queue, and no chance.
func (l *lane) standing() time.Duration { return drainQueue + 2*l.est.owd.jitter }

// tell gives congestion control what is new, and how late the sender may come.
func (l *lane) tell(now, nap time.Duration) {
	n := &l.news
	if n.came > 0 || n.gone > 0 || n.rtt > 0 {
		l.ctl.Sample(now, Sample{
			Bytes: n.came, Lost: n.gone, LostSent: n.goneSent, InFlight: l.inFlight,
			RTT: n.rtt, MinRTT: l.est.minRTT, Queue: n.queue, Jitter: l.est.owd.jitter, Nap: nap,
			Rate: n.rate, Drain: n.drain, Limited: n.limited, Starved: n.starved, Sent: l.mark.sent, Load: int(l.mark.load), Round: n.round,
		})
	}
	if n.rtt > 0 {
		l.line.heard = now
		l.occupy()
	}
	l.news = news{}
}
