package path

import (
	"fmt"
	"time"

	"weft"
)

const (
	// keptSwitches is how many changes are remembered for people.
	keptSwitches = 16
	// settleFor is how long a better path has to stay better before it takes over from one that works.
	settleFor = 3 * time.Second
	// settleSamples is how many answers it needs to be judged by, the last of them not older than settleFresh.
	settleSamples = 3
	settleFresh   = 10 * time.Second
	// betterBy is how much faster it has to be, in time, and betterShare as a share of the slower one's.
	betterBy    = 5 * time.Millisecond
	betterShare = 10
	// farSlower is what a direct path may take more than twice the relay's time before it loses its place: a
	// detour that people feel (tailscale#2270).
	farSlower = 50 * time.Millisecond
	// relayFresh is how old the relay's last answer may be for a direct path to be left because the relay is faster.
	relayFresh = time.Second
	// helloTries is how many pings a relayed way in use may leave unanswered, in about half a second, before a
	// lesser one that does answer takes its place.
	helloTries = 3
	// badWindows is how many windows in a row of much loss it takes.
	badWindows = 2
)

// A Switch is one change of the way in use.
type Switch struct {
	From, To weft.Via
	At       time.Time
	Reason   string // in plain words
}

// A choice is the way in use and how it came about.
type choice struct {
	pair   *pair // nil: there is none, or it is no more
	via    weft.Via
	at     time.Time // since when
	lost   string    // why the last one is no more
	reason string

	challenger *pair // works as well, and would be better
	since      time.Time

	direct   time.Duration // after both were up
	switches []Switch      // oldest first
	history  history       // of all ways
}

// orphan takes note that the pair in use is no more.
func (c *choice) orphan() {
	switch {
	case c.pair.via.Method.Relayed():
		c.lost = c.pair.via.String() + " can no longer be used"
	case c.pair.via.Method == weft.DirectTCP:
		c.lost = c.pair.via.String() + " was closed"
	default:
		c.lost = c.pair.via.String() + " went with its link"
	}
	c.pair = nil
}

// choose moves to a better way if there is one.
func (a *Agent) choose(now time.Time, out *Actions) {
	c := &a.choice
	if p := c.pair; p != nil && !a.wanted && p.via.Method == weft.Direct {
		a.due(now, p.heard.Add(StaleAfter))
	}
	best, bestScore := (*pair)(nil), Score{Class: Unusable}
	for _, p := range a.pairs {
		if s := a.score(now, p); s.Class != Unusable && (best == nil || s.Compare(bestScore) < 0) {
			best, bestScore = p, s
		}
	}
	switch {
	case best == nil:
		if c.via != (weft.Via{}) {
			a.move(now, out, nil, c.lost+", and there is no other way")
		}
	case c.pair == nil:
		reason := "the first way there is"
		if c.lost != "" {
			reason = c.lost
		}
		a.move(now, out, best, reason)
	case best != c.pair:
		if reason := a.reasonFor(now, best, bestScore); reason != "" {
			a.move(now, out, best, reason)
			return
		}
		fallthrough
	default:
		a.challenge(now, out)
	}
}

// reasonFor is why the best pair is to take over from the one in use at once; empty if it is not.
func (a *Agent) reasonFor(now time.Time, best *pair, to Score) string {
	p := a.choice.pair
	from := a.score(now, p)
	switch {
	case to.Class < from.Class && p.health.state == Valid && !p.standing.out.IsZero():
		return p.standing.why
	case to.Class < from.Class && from.Class >= Silent && to.Class >= Silent:
		return p.health.why + "; nothing else answers either"
	case from.Class == Unproven && to.Method < from.Method && p.probe.tries < helloTries:
		return "" // it may be about to answer as well
	case to.Class < from.Class && from.Class == Stale:
		return fmt.Sprintf("unused for %s: NATs may have forgotten %s", inWords(now.Sub(p.heard)), p.via)
	case to.Class < from.Class && p.health.state == Failed && best.probe.pong.Before(p.health.failedAt):
		return p.health.why
	case to.Class == from.Class && to.Class < Doubtful && to.Metric < from.Metric:
		return fmt.Sprintf("%s works, and has the lower metric: %d instead of %d", best.via, to.Metric, from.Metric)
	case to.Class < from.Class || to.Class == from.Class && to.Class < Doubtful && to.Metric == from.Metric && to.Method > from.Method:
		return answeredIn(best, p)
	}
	return ""
}

// answeredIn says that a pair works, for one that takes over because it does.
func answeredIn(best, than *pair) string {
	if best.rtt.samples == 0 {
		return best.via.String() + " can be used"
	}
	how := "answered"
	if h := &best.health; !h.returned.IsZero() {
		how = "answers again, " + inWords(h.returned.Sub(h.failedAt)) + " after it failed,"
	}
	s := fmt.Sprintf("%s path %s in %s", best.via.Method, how, inWords(best.rtt.base()))
	if than.rtt.samples > 0 {
		s += fmt.Sprintf(" (%s: %s)", than.via.Method, inWords(than.rtt.base()))
	}
	return s
}

// challenge moves to a pair of the same kind as the one in use that has been clearly better for a while.
func (a *Agent) challenge(now time.Time, out *Actions) {
	c := &a.choice
	var best *pair
	var bestScore Score
	for _, p := range a.pairs {
		if p == c.pair || p.via.Method != c.pair.via.Method || a.cost(p) != a.cost(c.pair) || !overtakes(now, p, c.pair) || a.class(now, p) != Working {
			continue
		}
		if s := a.score(now, p); best == nil || s.Compare(bestScore) < 0 {
			best, bestScore = p, s
		}
	}
	if best != c.challenger {
		c.challenger, c.since = best, now
	}
	if best == nil || !a.due(now, c.since.Add(settleFor)) {
		return
	}
	was, is := c.pair.rtt.base(), best.rtt.base()
	reason := fmt.Sprintf("%s is faster: %s instead of %s", best.via, inWords(is), inWords(was))
	if is+margin(was) > was {
		reason = fmt.Sprintf("%s is nearer and as fast: %s", best.via, inWords(is))
	}
	a.move(now, out, best, reason)
}

// overtakes reports whether a pair would be better than the one in use: clearly faster, or nearer (or IPv6)
// and hardly slower. Half the margin for the second keeps the two rules from undoing each other.
func overtakes(now time.Time, p, used *pair) bool {
	if p.health.state != Valid || used.health.state != Valid || used.rtt.samples == 0 ||
		p.rtt.samples < settleSamples || now.Sub(p.probe.pong) > settleFresh {
		return false
	}
	was, is := used.rtt.base(), p.rtt.base()
	if is+margin(was) <= was {
		return true
	}
	if p.via.Method != weft.Direct || is > was+margin(was)/2 {
		return false
	}
	r, u := reach(p), reach(used)
	return r < u || r == u && p.via.Addr.Addr().Is6() && used.via.Addr.Addr().Is4()
}

func margin(d time.Duration) time.Duration { return max(betterBy, d/betterShare) }

// judge takes a direct path out of use that works, but much worse than the relay would.
func (a *Agent) judge(now time.Time) {
	p := a.choice.pair
	if p == nil || p.health.state != Valid || p.via.Method != weft.Direct {
		return // the time that a connection takes is its queue's, and what it loses was dropped there
	}
	relay := a.fastestRelay(now)
	if relay == nil {
		return
	}
	if p.rtt.samples >= baseWindow && farSlowerThan(p, relay) {
		if now.Sub(relay.probe.pong) > relayFresh {
			relay.check(now, 0) // it may have become slow as well: both leave by the same link
		} else if p.rtt.base() > 2*relay.rtt.last()+farSlower {
			a.fail(now, p, slow, fmt.Sprintf("%s takes %s, the relay %s", p.via, inWords(p.rtt.base()), inWords(relay.rtt.last())))
			return
		}
	}
	if p.ledger == nil || p.ledger.loss.bad < badWindows {
		return
	}
	rate := p.ledger.loss.rate
	for _, q := range a.pairs {
		if q.via.Method.Relayed() && q.ledger != nil {
			if known, ok := q.ledger.loss.fresh(now); ok && known > rate/2 {
				return // no better
			}
		}
	}
	a.fail(now, p, lossy, fmt.Sprintf("%s loses %.0f %% of the packets", p.via, 100*rate))
	p.ledger.loss.bad = 0
}

// fastestRelay is the relayed way that would do best in place of a direct path; nil if none works.
func (a *Agent) fastestRelay(now time.Time) *pair {
	var relay *pair
	for _, p := range a.pairs {
		if p.via.Method.Relayed() && p.rtt.samples > 0 && a.class(now, p) == Working &&
			(relay == nil || p.rtt.base() < relay.rtt.base()) {
			relay = p
		}
	}
	return relay
}

func farSlowerThan(p, relay *pair) bool { return p.rtt.base() > 2*relay.rtt.base()+farSlower }

// move changes the way in use.
func (a *Agent) move(now time.Time, out *Actions, to *pair, reason string) {
	c := &a.choice
	s := Switch{From: c.via, At: now, Reason: reason}
	if to != nil {
		s.To = to.via
	}
	c.pair, c.via, c.at, c.reason = to, s.To, now, reason
	c.lost, c.challenger = "", nil
	if to != nil && to.ledger != nil {
		to.ledger.settle()
	}
	if s.To.Method == weft.Direct && c.direct == 0 {
		c.direct = max(now.Sub(a.met), 1)
	}
	if len(c.switches) == keptSwitches {
		copy(c.switches, c.switches[1:])
		c.switches = c.switches[:keptSwitches-1]
	}
	c.switches = append(c.switches, s)
	if out != nil {
		out.Switches = append(out.Switches, s)
	}
}
