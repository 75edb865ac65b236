package path

import (
	"time"

	"weft"
)

// How a way that stopped carrying data is watched, and when it is a member again.
const (
	// seekInterval is between pings of a way that does not carry, while data flows: the end of an outage is noticed within
	// this and a round trip. Two pings of 90 bytes in it are 12 kbit/s.
	seekInterval = 125 * time.Millisecond
	// seekLater is the same once it has been out for seekLong.
	seekLater = 300 * time.Millisecond
	seekLong  = time.Minute
	// seekMost is how many ways are asked so for each link that has none.
	seekMost = 2
	// relapseMember is how long a way has to have carried for its next failure to count as a first.
	relapseMember = 20 * time.Second
	// restFirst is how long a way has to answer without a gap before it is a member again, after the second failure in a row;
	// after the first, one answer is enough. It doubles, up to restLast: what flaps all the time stays out until it holds still,
	// and what held still is back at once.
	restFirst = 250 * time.Millisecond
	restLast  = 2 * time.Second
	// doubtPings is how many pings a way that data is not heard of may leave unanswered: one may be lost, or this machine may
	// have been late.
	doubtPings = 2
	// doubtMargin is how much longer than usual their answers may take: timers and threads are that late.
	doubtMargin = 20 * time.Millisecond
)

// A standing is what is known of a pair as a way that a bond sends by. The zero value is of one that carries as far as
// its health says.
type standing struct {
	in      bool      // it is a member
	joined  time.Time // since when
	carries bool      // it could be one
	known   bool      // it could have been one before
	seek    bool      // it is asked in quick succession whether it carries again
	out     time.Time // when it stopped carrying; zero: it has not
	why     string    // it did, in plain words
	doubted time.Time // data that was sent by it is not heard of; zero: it is, or it answered a ping since
	pings   int       // the prober's count at that time
	judged  time.Time // when enough of them will have been unanswered; zero: they are not out
	since   time.Time // from when on it answers again, without a gap; zero: it does not
	heard   time.Time // its last answer since it is out
	suspect bool      // it is out because another by one of its links is
	flaps   int       // failures, each soon after it was back
	back    time.Time
}

// fail takes note that it does not carry any more.
func (s *standing) fail(now time.Time, why string) {
	if s.in {
		s.flaps = Flaps(now, s.back, s.flaps)
	}
	s.out, s.why, s.doubted, s.since, s.heard, s.suspect = now, why, time.Time{}, time.Time{}, time.Time{}, false
}

// Flaps counts how often in a row something failed soon after it was back, from what it was before this failure.
func Flaps(now, back time.Time, before int) int {
	if back.IsZero() || now.Sub(back) >= relapseMember {
		return 1
	}
	return before + 1
}

// Rest is how long something that failed so often in a row has to hold still to be good again.
func Rest(flaps int) time.Duration {
	if flaps < 2 {
		return 0
	}
	return min(restFirst<<min(flaps-2, 10), restLast)
}

// answered takes an answer to a ping that was sent while it was out, with one in every, and reports whether it carries again. Two
// answers that are missing begin the count anew; one is lost now and then.
func (s *standing) answered(now time.Time, r *rtt, every time.Duration) bool {
	last, gap := s.heard, 2*every+4*r.variation+20*time.Millisecond
	if last.IsZero() {
		last, gap = s.out, gap+r.smoothed
	}
	if s.since.IsZero() || now.Sub(last) > gap {
		s.since, s.suspect = now, s.suspect && now.Sub(last) <= gap
	}
	s.heard = now
	if now.Sub(s.since) < Rest(s.flaps) && !s.suspect {
		return false
	}
	s.out, s.back, s.seek = time.Time{}, now, false
	return true
}

// Silent is told that data that was sent by a member is not heard of. The bond sends nothing by it any more and goes on by
// itself when it hears of it; here it is found out whether the way is dead: then it is no member until it answers again.
func (a *Agent) Silent(now time.Time, via weft.Via, reason string) {
	p := a.find(canonical(via))
	if p == nil || !a.bonds() || !p.standing.carries || !p.standing.doubted.IsZero() {
		return
	}
	s := &p.standing
	s.doubted, s.judged, s.why, s.pings = now, time.Time{}, reason, p.probe.sent
	p.probe.asked = true
	p.check(now, 0)
	a.doubt(now, p) // packets may have become too long for it
}

// verdict ends the doubt about a way that leaves pings unanswered.
func (a *Agent) verdict(now time.Time, p *pair) {
	s := &p.standing
	if s.doubted.IsZero() || p.probe.sent-s.pings < doubtPings {
		return
	}
	if s.judged.IsZero() {
		s.judged = p.probe.last.Add(p.rtt.spread() + doubtMargin)
	}
	if a.due(now, s.judged) {
		a.dies(now, p, s.why)
	}
}

// dies takes note that a pair is silent, and has others doubted that use a link of its: most outages are of links.
func (a *Agent) dies(now time.Time, p *pair, why string) {
	if !a.bonds() || !p.standing.out.IsZero() {
		return
	}
	a.stops(now, p, why)
	ours, theirs, _ := a.ends(p)
	for _, q := range a.pairs {
		l, f, ok := a.ends(q)
		switch {
		case q == p || !ok || !q.standing.carries || !(a.bond.ours && l == ours || a.bond.theirs && f == theirs):
		case q.standing.in: // data says whether it is alive, and sooner
			q.check(now, 0)
		default:
			a.stops(now, q, "a way by the same link is silent")
			q.standing.suspect, q.standing.flaps = true, max(q.standing.flaps, p.standing.flaps)
		}
	}
}

// inherits has a pair that works for the first time hold still as long as another has to between the same links: what was found anew by a link that
// fails again and again fails with it.
func (a *Agent) inherits(now time.Time, p *pair) bool {
	flaps := 0
	ours, theirs, ok := a.ends(p)
	for _, q := range a.pairs {
		if l, f, known := a.ends(q); ok && known && q != p && l == ours && f == theirs && !q.standing.out.IsZero() {
			flaps = max(flaps, q.standing.flaps)
		}
	}
	if Rest(flaps) == 0 {
		return false
	}
	a.stops(now, p, "a way by the same link is silent")
	p.standing.flaps = flaps
	return true
}

// stops takes note that a pair does not carry data any more, as far as bonds are concerned, and asks it.
func (a *Agent) stops(now time.Time, p *pair, why string) {
	if !p.standing.out.IsZero() || !a.bonds() {
		return
	}
	p.standing.fail(now, why)
	p.probe.asked = true
	a.bond.dirty = true
}

// vouches takes an answer to a ping that was sent at some time by a pair that was doubted, or had stopped carrying.
func (a *Agent) vouches(now time.Time, p *pair, sent time.Time) {
	s := &p.standing
	if !s.doubted.IsZero() && !sent.Before(s.doubted) {
		s.doubted = time.Time{}
	}
	if s.out.IsZero() || sent.Before(s.out) || !s.answered(now, &p.rtt, a.seekEvery(now, p)) {
		return
	}
	a.bond.dirty = true
	if p.health.state == Failed && p.health.cause == silent {
		a.revive(now, p)
	}
}

// seekEvery is how often a pair is asked whether it carries again.
func (a *Agent) seekEvery(now time.Time, p *pair) time.Duration {
	gone := now.Sub(p.standing.out)
	switch {
	case !a.busy(now):
		return min(max(gone/lostShare, lostFirst), lostLast)
	case gone < seekLong:
		return seekInterval
	}
	return seekLater
}

// carries reports whether data can be expected to arrive by a pair.
func (a *Agent) carries(now time.Time, p *pair) bool {
	a.verdict(now, p)
	h, s := &p.health, &p.standing
	dead := h.state == Failed && (h.cause == silent || h.cause == blackHole)
	if dead && s.out.IsZero() && s.back.Before(h.failedAt) {
		s.fail(h.failedAt, h.why)
	}
	if !s.out.IsZero() || h.state == Untested || p.via.Method.Relayed() && h.state != Valid {
		return false
	}
	sign := latest(p.heard, p.probe.pong)
	if p.ledger != nil {
		sign = latest(sign, p.ledger.progress)
	}
	return !a.due(now, sign.Add(StaleAfter))
}
