package path

import (
	"slices"
	"time"

	"weft"
)

// The rounds in which pairs are probed.
const (
	// RoundInterval is between rounds: RFC 8445 section 14.2 asks for at least 50 ms between checks, and a
	// round trip between continents is 200 ms. Two tries a round trip are as many as help.
	RoundInterval = 150 * time.Millisecond
	// OpeningRounds is how many there are at first: 3 s, in which both sides hear of each other's candidates
	// even if the first messages were lost.
	OpeningRounds = 20
	// RetryRounds is how many there are after a call: 1 s, as the call takes a round trip or two at most.
	RetryRounds = 7
	// SurveyRounds is how many there are when a direct path is in use and a better one is looked for.
	SurveyRounds = 3
	// ProbesPerRound bounds a round: 16 probes of 86 bytes on the wire in 150 ms are 73 kbit/s. Where there are
	// more pairs, rounds take turns.
	ProbesPerRound = 16
	// SurveyInterval is how often a better direct path is looked for while data flows. Routes change in minutes.
	SurveyInterval = time.Minute
	// goodEnough is the round-trip time below which no better one is looked for: nobody would feel it.
	goodEnough = 5 * time.Millisecond
)

// How long the wait is between attempts that find nothing: a part of the time since it began to matter, within
// bounds. So an outage of any length is noticed to be over after a part of its length.
const (
	// lostShare, lostFirst and lostLast hold for a direct path that worked: most such outages end, and the
	// NATs' filters stay open while both sides probe at intervals below 30 s.
	lostShare = 8
	lostFirst = 2 * time.Second
	lostLast  = 30 * time.Second
	// hopeShare and hopeFirst hold while none ever worked, without an end to the growth: two NATs that cannot
	// be punched through are tried some ten times in the first five minutes and some ten more in a day; and a
	// firewall that was opened is noticed before anybody restarts anything.
	hopeShare = 2
	hopeFirst = 5 * time.Second
	// surveyTries is how many pings without any answer a pair gets while another direct path is in use: what
	// did not answer while that was found has no reason to later.
	surveyTries = OpeningRounds + RetryRounds
	// provenFor is how long after its last answer a pair that worked counts as one that might again.
	provenFor = 10 * time.Minute
)

// A campaign is a run of rounds, and the next attempts if it finds nothing.
type campaign struct {
	left   int       // rounds
	last   time.Time // round
	next   time.Time // round
	cursor int       // where the next round begins among the pairs
	began  time.Time
	pings  int       // by direct ways since then, for people
	again  time.Time // next attempt, or survey
	hold   time.Time // until when packets to reflexive addresses are openers
}

// holdFor is how long packets to addresses of the peer's NAT are only openers, with a low time to live, while the peer
// has not said that it has our addresses: it then has sent to them, so that its filter lets ours in. A packet that
// comes before may spoil the mapping that it comes to (package comment). As long as the slowest relays take, one
// way to the peer and back.
const holdFor = 2 * RoundInterval

// release lets packets arrive from now on.
func (c *campaign) release(now time.Time) {
	if now.Before(c.hold) && c.left > 0 {
		c.next = now
	}
	c.hold = time.Time{}
}

// held reports whether what is sent by a pair is not to arrive yet.
func (a *Agent) held(now time.Time, p *pair) bool {
	return now.Before(a.campaign.hold) && p.via.Method == weft.Direct && p.via.Addr.Addr().Is4() &&
		(p.kind == weft.ServerReflexive || p.kind == weft.PeerReflexive) && len(a.relays) > 0 &&
		!p.proven(now) && (p.heard.IsZero() || now.Sub(p.heard) > StaleAfter)
}

// begin starts rounds, or prolongs those that run. Opening rounds begin the count of time anew.
func (c *campaign) begin(now time.Time, rounds int) {
	if c.left == 0 {
		c.hold = now.Add(holdFor)
	}
	if c.left == 0 || rounds == OpeningRounds {
		// At once, but a peer that keeps changing its mind does not set the pace.
		if at := latest(now, c.last.Add(triggeredGap)); c.left == 0 || at.Before(c.next) {
			c.next = at
		}
	}
	c.left = max(c.left, rounds)
	if rounds == OpeningRounds || c.began.IsZero() {
		c.began, c.pings = now, 0
	}
	c.again = time.Time{}
}

// hurry brings the next attempt forward: something may have changed.
func (c *campaign) hurry(now time.Time) {
	if c.left == 0 && !c.again.IsZero() {
		c.again = now
	}
}

// resume sets the next attempt if none is planned.
func (c *campaign) resume(at time.Time) {
	if c.left == 0 && c.again.IsZero() {
		c.again = at
	}
}

// lost starts over for a path that has just failed.
func (c *campaign) lost(now time.Time) {
	c.began, c.pings = now, 0
	c.begin(now, RetryRounds)
}

// rest ends attempts; nobody wants them.
func (c *campaign) rest() { c.left, c.again = 0, time.Time{} }

// rounds holds the round that is due, or begins the attempt that is.
func (a *Agent) rounds(now time.Time) {
	c := &a.campaign
	if c.left == 0 && a.due(now, c.again) {
		c.again = time.Time{}
		switch {
		case !a.wanted:
		case !a.onDirect():
			a.exchange.announce(now)
			c.left, c.next, c.hold = RetryRounds, now, now.Add(holdFor)
		case a.worthSurvey(now):
			c.left, c.next = SurveyRounds, now
		default:
			c.again = a.nextSurvey(now)
		}
	}
	if c.left == 0 || !a.due(now, c.next) {
		a.wake(c.again)
		return
	}
	a.round(now)
	c.last = now
	if a.onDirect() {
		// A way was found. Better ones have a little longer to answer.
		c.left = min(c.left, RetryRounds)
	}
	c.left--
	c.next = now.Add(RoundInterval)
	switch {
	case c.left > 0:
		a.wake(c.next)
		return
	case !a.wanted:
	case a.onDirect():
		c.again = a.nextSurvey(now)
	default:
		c.again = a.nextAttempt(now)
	}
	a.wake(c.again)
}

// round marks the pairs that are to be probed now.
func (a *Agent) round(now time.Time) {
	c := &a.campaign
	n := 0
	for i := range a.pairs {
		at := (c.cursor + i) % len(a.pairs)
		if p := a.pairs[at]; a.probable(now, p) {
			if n == ProbesPerRound {
				c.cursor = at
				return
			}
			p.probe.asked = true
			n++
		}
	}
}

// probable reports whether a direct pair is worth a probe in a round.
func (a *Agent) probable(now time.Time, p *pair) bool {
	switch {
	case p.via.Method != weft.Direct:
		return false
	case p.health.state == Valid:
		return now.Sub(p.probe.last) >= 2*RoundInterval // it is known to work; this is for its round-trip time
	case a.onDirect() && p.probe.tries >= surveyTries && !a.bond.lacks:
		return false
	}
	return !p.sitsOut(now)
}

// proven reports whether the pair worked not long ago.
func (p *pair) proven(now time.Time) bool {
	return !p.probe.pong.IsZero() && now.Sub(p.probe.pong) < provenFor
}

// onDirect reports whether the path in use is direct and works.
func (a *Agent) onDirect() bool {
	p := a.choice.pair
	return p != nil && p.via.Method == weft.Direct && p.health.state == Valid
}

// nextSurvey is when to look for better direct paths again: soon, where a link has none that a bond could use.
func (a *Agent) nextSurvey(now time.Time) time.Time {
	if a.bond.lacks && a.busy(now) {
		return now.Add(min(max(now.Sub(a.campaign.began)/hopeShare, lostFirst), SurveyInterval))
	}
	return now.Add(SurveyInterval)
}

// worthSurvey reports whether there may be a better direct path, and traffic that would gain by it.
func (a *Agent) worthSurvey(now time.Time) bool {
	return a.busy(now) && (a.choice.pair.rtt.base() > goodEnough || a.bond.lacks) && slices.ContainsFunc(a.pairs, func(p *pair) bool {
		return p != a.choice.pair && a.probable(now, p)
	})
}

// nextAttempt is when to try again, or zero if there is nothing to try.
func (a *Agent) nextAttempt(now time.Time) time.Time {
	some, proven := false, false
	for _, p := range a.pairs {
		if p.via.Method == weft.Direct && !p.sitsOut(now) {
			some = true
			proven = proven || p.proven(now)
		}
	}
	if now.Sub(a.heard) > presentFor {
		proven = false // it is the peer that is lost; it calls when it is back
	}
	since := now.Sub(a.campaign.began)
	switch {
	case !some:
		return time.Time{}
	case proven:
		return now.Add(min(max(since/lostShare, lostFirst), lostLast))
	}
	return now.Add(max(since/hopeShare, hopeFirst))
}
