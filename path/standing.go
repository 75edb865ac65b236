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
	// holeFirst and holeLast are the same of a way that answered pings all the time that it carried no data: it would answer
	// now as well, and each new try has data of some ten milliseconds sent twice.
	holeFirst = 500 * time.Millisecond
	holeLast  = 10 * time.Second
)

// A standing is what is known of a pair as a way that a bond sends by. The zero value is of one that carries as far as
// its health says.
type standing struct {
	in      bool      // it is a member
	joined  time.Time // since when
	carries bool      // it could be one
	seek    bool      // it is asked in quick succession whether it carries again
	out     time.Time // when it stopped carrying; zero: it has not
	why     string    // it did, in plain words
	since   time.Time // from when on it answers again, without a gap; zero: it does not
	heard   time.Time // its last answer since it is out
	missed  bool      // it was silent while it was out: pings are lost where data is
	suspect bool      // it is out because another way by one of its links is
	flaps   int       // failures, each soon after it was back
	back    time.Time
}

// fail takes note that it does not carry any more.
func (s *standing) fail(now time.Time, why string) {
	if s.in {
		s.flaps = Flaps(now, s.back, s.flaps)
	}
	s.out, s.why, s.since, s.heard, s.missed, s.suspect = now, why, time.Time{}, time.Time{}, false, false
}

// Flaps counts how often in a row something failed soon after it was back, from what it was before this failure.
func Flaps(now, back time.Time, before int) int {
	if back.IsZero() || now.Sub(back) >= relapseMember {
		return 1
	}
	return before + 1
}

// Rest is how long something that failed so often in a row has to hold still to be good again.
func Rest(flaps int) time.Duration { return growing(flaps, restFirst, restLast) }

func growing(flaps int, first, last time.Duration) time.Duration {
	if flaps < 2 {
		return 0
	}
	return min(first<<min(flaps-2, 10), last)
}

// rest is how long it has to answer without a gap to be good again.
func (s *standing) rest() time.Duration {
	switch {
	case s.missed:
		return Rest(s.flaps)
	case s.suspect:
		return 0
	}
	return growing(s.flaps, holeFirst, holeLast)
}

// answered takes an answer to a ping that was sent while it was out, with one in every, and reports whether it carries again. Two
// answers that are missing begin the count anew; one is lost now and then.
func (s *standing) answered(now time.Time, r *rtt, every time.Duration) bool {
	last, gap := s.heard, 2*every+4*r.variation+20*time.Millisecond
	if last.IsZero() {
		last, gap = s.out, gap+r.smoothed
	}
	if late := now.Sub(last) > gap; s.since.IsZero() || late {
		s.since, s.missed = now, s.missed || late
	}
	s.heard = now
	if now.Sub(s.since) < s.rest() {
		return false
	}
	s.out, s.back, s.seek = time.Time{}, now, false
	return true
}

// Silent is told that data that was sent by a member does not arrive. The way leaves the members at once, is asked whether it
// carries anything, and is back when it says so.
func (a *Agent) Silent(now time.Time, via weft.Via, reason string) {
	p := a.find(canonical(via))
	if p == nil || !a.bonds() || !p.standing.out.IsZero() {
		return
	}
	a.stops(now, p, reason)
	p.check(now, 0)
	ours, theirs, _ := a.ends(p)
	for _, q := range a.pairs {
		l, f, ok := a.ends(q)
		if q == p || !ok || q.health.state != Valid || !(a.bond.ours && l == ours || a.bond.theirs && f == theirs) {
			continue
		}
		if q.standing.in { // data says whether it is alive, and sooner
			q.check(now, 0)
			continue
		}
		if q.standing.out.IsZero() {
			a.stops(now, q, "a way by the same link is silent")
			q.standing.suspect, q.standing.flaps = true, max(q.standing.flaps, p.standing.flaps)
		}
	}
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

// vouches takes an answer to a ping that was sent at some time by a pair that had stopped carrying.
func (a *Agent) vouches(now time.Time, p *pair, sent time.Time) {
	s := &p.standing
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
