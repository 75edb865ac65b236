package path

import (
	"fmt"
	"time"

	"weft"
)

// A State is what is known of a pair's working.
type State uint8

// The states.
const (
	Untested State = iota // it has not answered yet
	Valid                 // it has, and nothing is held against it
	Failed                // it fell silent, or lost data; it has to prove itself anew
)

var stateNames = [...]string{"untested", "valid", "failed"}

// String is the state's name.
func (s State) String() string { return stateNames[min(int(s), len(stateNames)-1)] }

// A cause is why a pair failed. How long it sits out depends on it.
type cause uint8

const (
	silent    cause = iota // nothing came back
	blackHole              // it answered pings and lost the data
	lossy                  // it lost more than the relay
	slow                   // it was much slower than the relay
)

// holds are the times that a pair sits out: the first, doubled with each relapse, and the longest. What was silent does so from
// its first answer on, and has to answer all the while: an outage that is over is over, and what flaps returns when it has held
// still for longer than it did lately.
var holds = [...]struct{ first, last time.Duration }{
	silent: {250 * time.Millisecond, 16 * time.Second},
	// Each new try costs the data of half a second, so they are made rarely.
	blackHole: {5 * time.Second, 5 * time.Minute},
	// What is bad but works is not a matter of seconds.
	lossy: {30 * time.Second, 10 * time.Minute},
	slow:  {30 * time.Second, 10 * time.Minute},
}

func (c cause) hold(streak int) time.Duration {
	return min(holds[c].first<<min(max(streak-1, 0), 10), holds[c].last)
}

const (
	// returnAnswers is how many answers in a row bring a failed pair back.
	returnAnswers = 3
	// relapse is how soon after its return a failure makes the next rest longer.
	relapse = time.Minute
	// exonerated is what is left to sit out for a pair whose data turns out to have arrived.
	exonerated = time.Second
	// barredFor is how old the last answer of a failed pair may be for it to be better than a silent one.
	barredFor = StaleAfter
)

// What makes a path fail by data that nobody acknowledged.
const (
	// dataLost is how many packets it takes. Fewer can be lost together by chance.
	dataLost = 3
	// ackFloor is the least time that they get: an observation here, one there, the interval of reports.
	ackFloor = 300 * time.Millisecond
	// ackStream is added for a stream: what is lost below it is sent again after TCP's 200 ms or more.
	ackStream = 700 * time.Millisecond
	// ackRested is added when no reports were coming just before: the peer may be looking once a second only.
	ackRested = 700 * time.Millisecond
	// ackGrace is how long after the peer, or this machine, was late the acknowledgements get, which come with what else it
	// has to say, or behind it: a report's interval.
	ackGrace = ReportInterval
	// patience is how much longer than usual a path is trusted while nothing shows that the peer is there, or this machine
	// is late again and again. There is nothing to be gained by leaving it as long as no other answers either.
	patience = 700 * time.Millisecond
	// lateBy is how late timers may be for this machine not to count as late: with several threads for each processor, a
	// turn takes some ten milliseconds.
	lateBy = 50 * time.Millisecond
	// ackFew is the time after which even a single packet causes a check: an unhurried report.
	ackFew = 200 * time.Millisecond
)

// health is what is held for and against a pair.
type health struct {
	state     State
	answers   int       // since it failed
	last      time.Time // of them
	row       int       // of them, since it was free to return
	failedAt  time.Time
	doubted   time.Time // when that began which made it fail
	heldUntil time.Time
	returned  time.Time // to Valid, from Failed
	streak    int       // failures, each soon after the last return
	cause     cause
	why       string // it failed, in plain words
}

// fail takes a pair out of use.
func (a *Agent) fail(now time.Time, p *pair, c cause, why string) {
	h := &p.health
	if !h.returned.IsZero() && now.Sub(h.returned) < max(relapse, 2*h.cause.hold(h.streak)) {
		h.streak++
	} else {
		h.streak = 1
	}
	h.state, h.cause, h.why, h.answers, h.row = Failed, c, why, 0, 0
	h.failedAt, h.doubted, h.heldUntil = now, now, now
	if c != silent {
		h.heldUntil = now.Add(c.hold(h.streak))
	}
	if c == silent || c == blackHole {
		a.dies(now, p, why)
	}
	if c == lossy || c == slow {
		h.answers = 1 // it is not dead
	}
	if p == a.choice.pair && p.via.Method == weft.Direct {
		a.campaign.lost(now)
		a.exchange.announce(now)
	}
}

// failData takes a pair out of use that lost data. Whether it is dead or answers pings while it loses data, the
// pings that were sent since show, or those that go out now.
func (a *Agent) failData(now time.Time, p *pair) {
	since := p.ledger.since()
	why := fmt.Sprintf("%d packets unacknowledged for %s on %s", p.ledger.outstanding(), inWords(now.Sub(since)), p.via)
	if p.probe.after.Before(since) {
		a.fail(now, p, silent, why)
	} else {
		a.fail(now, p, blackHole, why+answeredPings)
	}
	p.health.doubted = since
	p.check(now, 0)
}

// answeredPings is added to why a path failed that was not dead.
const answeredPings = ", while it answered pings"

// answered takes note of an answer to a ping that was sent at some time, and was by so much longer than it needed
// to be.
func (a *Agent) answered(now time.Time, p *pair, sent time.Time, padding int) {
	h := &p.health
	c := &p.probe.check
	switch h.state {
	case Untested:
		h.state = Valid
	case Valid:
		if c.running() && !c.first.IsZero() && !sent.Before(c.first) {
			*c = check{}
		}
	case Failed:
		if sent.Before(h.doubted) {
			return
		}
		if h.cause == silent && h.answers > 0 && now.Sub(h.last) > CheckPings*CheckInterval+p.rtt.timeout() {
			h.answers, h.row = 0, 0 // there was a gap
		}
		h.answers++
		h.last = now
		if h.cause == silent && p.lostData() && sent.Before(h.failedAt.Add(CheckInterval/2)) {
			h.cause = blackHole
			h.heldUntil = h.failedAt.Add(blackHole.hold(h.streak))
			h.why += answeredPings
		}
		if h.cause == silent && h.answers == 1 && h.row == 0 {
			h.heldUntil = latest(h.heldUntil, now.Add(silent.hold(h.streak)))
		}
		if now.Before(h.heldUntil) {
			if h.cause == silent { // does it go on answering?
				if c.left == 0 {
					*c = check{}
				}
				p.check(now, 0)
			}
			return
		}
		if padding < a.testPadding(p) {
			p.check(now, a.testPadding(p))
			return
		}
		h.row++
		switch relay := a.fastestRelay(now); {
		case h.row < returnAnswers:
			p.check(now, a.testPadding(p))
		case h.cause == slow && relay != nil && farSlowerThan(p, relay):
			h.streak++
			h.row, h.heldUntil = 0, now.Add(slow.hold(h.streak))
		default:
			a.revive(now, p)
		}
	}
}

// lostData reports whether data is what the pair failed by.
func (p *pair) lostData() bool { return p.health.doubted.Before(p.health.failedAt) }

// sitsOut reports whether there is nothing to learn by a ping now: the pair answers, but may not return yet.
func (p *pair) sitsOut(now time.Time) bool {
	return p.health.state == Failed && p.health.answers > 0 && now.Before(p.health.heldUntil)
}

// revive makes a failed pair as good as any.
func (a *Agent) revive(now time.Time, p *pair) {
	p.health.state, p.health.returned = Valid, now
	p.probe.check = check{}
	if p.ledger != nil {
		p.ledger.settle()
	}
	if p.via.Method == weft.RelayUDP {
		a.campaign.hurry(now) // if UDP gets through there, it may get through elsewhere
	}
}

// acquit shortens the rest of a pair whose data arrived after all: its reports were lost, or late.
func (a *Agent) acquit(now time.Time, p *pair) {
	h := &p.health
	if h.state != Failed || !p.lostData() {
		return
	}
	if h.cause == blackHole {
		h.cause = silent
	}
	if end := now.Add(exonerated); h.heldUntil.After(end) {
		h.heldUntil = end
	}
	h.streak = max(h.streak-1, 0)
	h.doubted = h.failedAt
}

// pardon lets a failed pair return as soon as it proves itself: what it failed by was another network, or a
// peer that was not there.
func (p *pair) pardon(now time.Time) {
	if h := &p.health; h.state == Failed {
		h.cause, h.doubted, h.streak = silent, h.failedAt, 0
		h.heldUntil = now
	}
}

// watch looks for what has been silent for too long.
func (a *Agent) watch(now time.Time) {
	for _, p := range a.pairs {
		if a.due(now, p.probe.check.until) {
			a.checked(now, p)
		}
		if a.due(now, p.missing()) {
			p.check(now, 0)
		}
		if h := &p.health; h.state == Failed && h.answers > 0 && a.wanted && a.due(now, h.heldUntil) {
			p.check(now, a.testPadding(p)) // its time is over
		}
	}
	p := a.choice.pair
	if p == nil || p.ledger == nil || p.health.state == Failed || p.ledger.outstanding() == 0 {
		return
	}
	l := p.ledger
	if a.lostFor(now, p) {
		a.failData(now, p)
		return
	}
	if l.sent > l.checked && a.due(now, l.overdue(1, p.rtt.spread()+ackFew)) {
		l.checked = l.sent
		a.crisis(now, p)
	}
}

// lostFor reports whether it is certain enough that data by the pair in use does not arrive. That nothing was acknowledged
// in time means so only if the peer is there to say it, which an answer to a later ping by whichever way shows, and if
// this machine has read what it said: whoever is short of processor time, here or there, looks like a path that is dead.
func (a *Agent) lostFor(now time.Time, p *pair) bool {
	l := p.ledger
	at := l.overdue(dataLost, a.ackTimeout(now, p))
	if at.IsZero() {
		l.overdueAt = at
		return false
	}
	if l.witness.asked.Before(l.since()) {
		at = at.Add(patience)
	} else {
		at = latest(at, l.witness.at.Add(ackGrace))
	}
	if !a.due(now, at) {
		l.overdueAt = time.Time{}
		return false
	}
	if l.overdueAt.IsZero() {
		l.overdueAt = now
	}
	return a.read(now, l.overdueAt)
}

// read reports whether what has come until now has been read, as far as can be told: this machine was not late just now, or
// it has been late ever since a time, and for too long.
func (a *Agent) read(now, since time.Time) bool {
	return now.Sub(since) >= patience || a.behind.IsZero() || a.due(now, a.behind.Add(ackGrace))
}

// spoken is when a check that has ended without an answer counts: when the peer has answered another way since it began, and
// could have answered this one, too; or has been waited for.
func (a *Agent) spoken(c check, p *pair) time.Time {
	end := c.ended.Add(patience)
	for _, q := range a.pairs {
		if at := q.probe.pong.Add(ackGrace); q != p && !q.probe.after.Before(c.first) && at.Before(end) {
			end = at
		}
	}
	return end
}

// checked ends a check: all of its answers that count have come.
func (a *Agent) checked(now time.Time, p *pair) {
	c, h := p.probe.check, &p.health
	answered := !c.first.After(p.probe.pong)
	if !answered && h.state != Failed {
		if c.ended.IsZero() {
			p.probe.check.ended, c.ended = now, now
			if p == a.choice.pair {
				a.askOthers(now, p)
			}
		}
		// It may be this machine that is late, or the peer; which of those that are not in use is not worth waiting for.
		if !a.read(now, c.ended) || p == a.choice.pair && !a.due(now, a.spoken(c, p)) {
			return
		}
	}
	p.probe.check = check{}
	switch {
	case h.state != Failed:
		if answered || p.ledger != nil && !c.first.After(p.ledger.progress) {
			return // the pings may be lost where data is not
		}
		why := fmt.Sprintf("no answer to %d pings within %s on %s", CheckPings, inWords(now.Sub(c.first)), p.via)
		a.fail(now, p, silent, why)
		if p != a.choice.pair {
			h.row, h.heldUntil = returnAnswers-1, now // nothing was lost by it: one answer is enough
		}
	case !answered:
		h.answers, h.row = 0, 0
		if p.via.Method == weft.Direct {
			a.campaign.resume(a.nextAttempt(now))
		}
	case h.row == c.row && !c.first.Before(h.heldUntil):
		// Short pings were answered, and those as long as the data were not.
		h.streak++
		h.row, h.heldUntil = 0, now.Add(h.cause.hold(h.streak))
	}
}

// crisis asks the path in use whether it is alive, and those that may take its place as well, so that the answers
// are there when it turns out not to be.
func (a *Agent) crisis(now time.Time, p *pair) {
	p.check(now, 0)
	a.doubt(now, p)
	a.askOthers(now, p)
}

// askOthers asks what may take the place of a pair.
func (a *Agent) askOthers(now time.Time, p *pair) {
	for _, other := range a.pairs {
		first := other == a.firstRelayed(other.via.Method, p)
		if first || !other.via.Method.Relayed() && other != p && a.class(now, other) == Working {
			other.check(now, 0)
		}
	}
}

// firstRelayed is the first way of a relayed method that has not failed, apart from one.
func (a *Agent) firstRelayed(m weft.Method, not *pair) *pair {
	var first *pair
	for _, p := range a.pairs {
		if m.Relayed() && p.via.Method == m && p != not && p.health.state != Failed && (first == nil || p.order < first.order) {
			first = p
		}
	}
	return first
}

// ackTimeout is how long packets may go without acknowledgement on this pair: as long as a report takes and as
// many reports as may be lost in a row, which is more the more is lost.
func (a *Agent) ackTimeout(now time.Time, p *pair) time.Duration {
	reports := 2
	if rate, ok := p.ledger.loss.fresh(now); ok {
		reports += min(5, int(rate*40+0.5)) // 5 in a row of every 20 are lost once in 10^4 windows
	}
	t := max(ackFloor, p.rtt.spread()+time.Duration(1+reports)*ReportInterval)
	if p.rtt.samples == 0 {
		t += firstTimeout
	}
	if p.via.Method.Streamed() {
		t += ackStream
	}
	if !a.reports.brisk(p.ledger.since()) {
		t += ackRested
	}
	return t
}

// frameOverhead is what surrounds a ping's padding in a peer frame: header, sender, seal, and the ping itself.
const frameOverhead = 4 + 4 + 28 + 12

// maxPadding keeps a ping within an Ethernet packet: 1,500 bytes less IPv6, UDP, a relay's prefix and the frame.
const maxPadding = 1500 - 40 - 8 - 8 - frameOverhead

// testPadding makes a ping to a pair that swallowed data as long as the data was: long packets may be all that
// it does not carry.
func (a *Agent) testPadding(p *pair) int {
	if p.health.state != Failed || p.health.cause != blackHole || p.ledger == nil {
		return 0
	}
	most := maxPadding
	if a.cfg.MTU > 0 {
		most = pingPadding(a.effective(p))
	}
	return min(max(p.ledger.size-frameOverhead, 0), most)
}

// inWords is a duration as a person reads it: three digits at most.
func inWords(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
