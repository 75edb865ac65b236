package path

import (
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// When attempts are made, and what they may cost.
const (
	// plainFirst is how long plain punching has to itself where the NATs may allow it: its opening rounds.
	plainFirst = OpeningRounds * RoundInterval
	// plainBriefly is the same where they do not, as far as is known: netcheck may be wrong.
	plainBriefly = 2 * RoundInterval
	// plainShortly is the same where they may because not everything is known of them yet. What is found plainly is
	// found in 0.3 s, and in 0.7 s where something is lost.
	plainShortly = time.Second
	// attemptGap is the least time between two attempts.
	attemptGap = 100 * time.Millisecond
	// attemptFor ends an attempt that does not end by itself: a spray at a fifth of the usual rate takes 20 s.
	attemptFor = 25 * time.Second
	// socketsWithin is how long the caller has to open sockets and to ask STUN, with what STUN repeats.
	socketsWithin = 5 * time.Second
	// sayAgain is when an unanswered message is repeated: above the round-trip time through most relays.
	sayAgain = 200 * time.Millisecond
	// sayTries ends it: 3 s, in which 5 % of loss each way lose all of them once in 10^14.
	sayTries = 15
	// grace is how long answers to the last probes are waited for.
	grace = time.Second
	// leaseAgain is when a lease that another peer has is asked for again.
	leaseAgain = 200 * time.Millisecond
	// busyFirst and busyLast bound the wait after the peer was busy with another: up to twice this, at random,
	// doubling.
	busyFirst, busyLast = 300 * time.Millisecond, 10 * time.Second
	// busyTries is how often in a row that does not count as a failure.
	busyTries = 12
	// passFirst is the wait before a plan that failed is gone through again. It grows fourfold; and after
	// maxPasses it is left at that until something changes.
	passFirst = 2 * time.Minute
	passGrow  = 4
	maxPasses = 4
	// Allowance is how many packets attempts with one peer may cost this node at once, whatever the peer asks for,
	// and allowanceEvery how fast that comes back: 6 packets a second to where the peer is. All that a plan has is
	// within it, whichever side this is.
	Allowance      = SprayTries * (MaxProbes + 2*MaxSockets)
	allowanceEvery = time.Second / 6
	// leastAllowance is what it takes to begin.
	leastAllowance = 2 * MaxSockets
	// maxParting bounds the words of parting that wait for Poll.
	maxParting = 4
	// keptAttempts is how many are remembered for people.
	keptAttempts = 8
	// maxTargets is how many addresses of the peer's one attempt is directed at: as many as a NAT's pool in most
	// networks.
	maxTargets = 4
)

// attempts are those that were made beside plain punching, and the one that is under way.
type attempts struct {
	run      *attempt
	number   uint32 // of the last: of ours if we lead, of those of the peer's session if it does
	of       uint32 // that session
	step     int    // of the plan, the next
	pass     int    // plans gone through in vain
	next     time.Time
	busy     int // answers in a row that the peer is
	spent    float64
	at       time.Time // spent is as of then
	attested []netip.Addr
	spares   []spare
	parting  wire.Attempt // the last End that was said
	history  []AttemptStatus
}

// A phase is how far an attempt is.
type phase uint8

const (
	opening phase = iota // sockets are asked for
	asking               // the peer is told, and has to answer
	running
	waiting // all is sent
)

// An attempt is one side's part in what two nodes try together.
type attempt struct {
	id     wire.Attempt // kind, ways and names of it; no ports
	role   role
	phase  phase
	began  time.Time
	until  time.Time // it ends; or, while opening, the sockets have to be there
	secret [16]byte  // of which the transactions are made
	packet int       // sent

	say    wire.Attempt // our last message
	again  time.Time    // it is repeated; zero: no more
	said   int
	asked  bool      // Actions.Open went out
	hits   int       // addresses by which something came through
	struck time.Time // the first of the last few

	sockets []Opened
	targets []netip.Addr
	theirs  wire.Attempt // the peer's last message: its ports

	turn  int       // of the openers, or of the predicted ports: the next
	lap   int       // of the predicted ports
	pause time.Time // nothing is sent before
	guess *guesser
}

// A role is one side's part.
type role uint8

const (
	opens role = iota
	probes
	predicts
)

var (
	roleNames = [...]string{"opener", "prober", ""}
	// costs are what a part is taken to cost before anything is sent: sockets are no packets, and not for nothing.
	costs = [...]int{opens: MaxSockets, probes: 8, predicts: 32}
)

// renew gives attempts a new beginning: something changed that they depend on.
func (t *attempts) renew() { t.step, t.pass, t.busy, t.next = 0, 0, 0, time.Time{} }

// replan begins anew because more, or something else, is known of the NATs. What is under way goes on if it is part
// of the new plan.
func (a *Agent) replan(now time.Time) {
	if run := a.attempts.run; run != nil && a.cfg.Leads && !slices.ContainsFunc(a.plans().steps, func(s step) bool {
		return s.way == run.id.Way && s.leaderOpens == run.id.LeaderOpens
	}) {
		a.abandon(now, "more has become known of the NATs")
	}
	a.attempts.renew()
}

// allowance is how many packets attempts may cost by now.
func (t *attempts) allowance(now time.Time) float64 {
	t.spent = max(0, t.spent-float64(now.Sub(t.at))/float64(allowanceEvery))
	t.at = now
	return Allowance - t.spent
}

// plans is what the two NATs leave to try.
func (a *Agent) plans() plan {
	if a.cfg.Leads {
		return planFor(a.nat, a.exchange.nat)
	}
	return planFor(a.exchange.nat, a.nat)
}

// attend carries attempts on: begins the next that is due, and does what is due of the one under way.
func (a *Agent) attend(now time.Time, out *Actions) {
	if a.attempts.run == nil && a.cfg.Leads {
		a.lead(now)
	}
	if a.attempts.run != nil {
		a.advance(now, out)
	}
	a.tidy(now)
}

// lead begins the next attempt if there is one and its time has come.
func (a *Agent) lead(now time.Time) {
	t := &a.attempts
	began := a.campaign.began
	if !a.wanted || a.onDirect() || began.IsZero() || t.pass == maxPasses || now.Sub(a.heard) > presentFor ||
		!t.next.IsZero() && !a.due(now, t.next) || !a.due(now, began.Add(plainBriefly)) {
		return
	}
	p := a.plans()
	answered := barredFor // it works, and is not used for a reason
	if p.sure {
		answered = provenFor // it worked plainly, and will again
	}
	for _, q := range a.pairs {
		if q.via.Method != weft.Direct || q.probe.pong.IsZero() {
			continue
		}
		until := q.probe.pong.Add(answered)
		if h := &q.health; !p.sure && h.state == Failed && h.answers == 0 {
			until = h.failedAt.Add(lostFirst) // it does not answer any more
		}
		if a.after(now, until) {
			return
		}
	}
	if len(p.steps) == 0 || p.plain && !a.due(now, began.Add(p.patience())) || p.sure && t.pass > 0 || a.able() != "" {
		return
	}
	if room := t.allowance(now); room < leastAllowance {
		a.wake(now.Add(time.Duration(leastAllowance-room+1) * allowanceEvery))
		return
	}
	if !a.cfg.Budget.lease(now, a) {
		a.wake(now.Add(leaseAgain))
		return
	}
	if t.step >= len(p.steps) {
		t.step = 0
	}
	s := p.steps[t.step]
	t.number++
	a.start(now, wire.Attempt{
		Way: s.way, LeaderOpens: s.leaderOpens, Session: a.cfg.Session, Other: a.exchange.session, Number: t.number,
	})
	if t.run.role != opens {
		a.propose(now)
	}
}

// start begins this side's part.
func (a *Agent) start(now time.Time, id wire.Attempt) {
	a.tidy(now) // the last one's sockets
	run := &attempt{id: id, began: now, until: now.Add(attemptFor), targets: a.targets()}
	switch {
	case id.Way == wire.Predict:
		run.role = predicts
	case id.LeaderOpens == a.cfg.Leads:
		run.role = opens
	default:
		run.role = probes
	}
	a.cfg.Rand(run.secret[:])
	a.attempts.run = run
	a.attempts.spent += float64(costs[run.role])
}

// advance does what is due of the attempt under way.
func (a *Agent) advance(now time.Time, out *Actions) {
	run := a.attempts.run
	switch {
	case a.onDirect():
		a.finish(now, wire.Found, "a direct path was found")
		return
	case a.cfg.Leads && !a.wanted:
		a.finish(now, wire.Exhausted, "nobody wants the path any more")
		return
	case a.due(now, run.until):
		a.finish(now, wire.Exhausted, run.lateness())
		return
	}
	if run.phase == opening && !run.asked {
		a.open(now, out)
	}
	if a.attempts.run == run {
		a.repeat(now, out)
	}
	if a.attempts.run != run {
		return
	}
	switch {
	case run.phase != running:
	case run.role == opens:
		a.openAll(now, out)
	case run.role == probes:
		a.probe(now, out)
	default:
		a.predict(now, out)
	}
}

// open asks for the sockets that this side needs.
func (a *Agent) open(now time.Time, out *Actions) {
	run := a.attempts.run
	n := MaxSockets - len(a.attempts.spares)
	if run.role == predicts {
		n = min(n, a.predictors())
	}
	if n <= 0 {
		a.finish(now, wire.Declined, "all sockets are in use")
		return
	}
	out.Open = Opening{Count: n, Link: a.attemptLink(), Ask: a.nat.Allocation == weft.SequentialAllocation}
	run.asked = true
	run.until = now.Add(socketsWithin)
}

// Opened answers Actions.Open: the sockets that there are now, fewer than were asked for or none if there are no
// more to be had.
func (a *Agent) Opened(now time.Time, sockets []Opened) {
	t := &a.attempts
	run := t.run
	wanted := run != nil && run.phase == opening && run.asked
	for _, s := range sockets {
		switch {
		case s.Link < FirstSpare || a.holds(s.Link):
		case !wanted || len(t.spares) >= MaxSockets:
			a.pending.close = append(a.pending.close, s.Link)
		default:
			s.Mapped = netip.AddrPortFrom(s.Mapped.Addr().Unmap(), s.Mapped.Port())
			t.spares = append(t.spares, spare{link: s.Link})
			run.sockets = append(run.sockets, s)
		}
	}
	if !wanted {
		return
	}
	if len(run.sockets) == 0 {
		a.finish(now, wire.Declined, "this machine has no sockets left")
		return
	}
	run.until = run.began.Add(attemptFor)
	if run.role == predicts {
		a.predicting(now)
		return
	}
	run.phase = running
	ports, next, step := a.hints()
	if a.cfg.Leads {
		a.tell(now, wire.Propose, ports, next, step)
	} else {
		a.tell(now, wire.Agree, ports, next, step)
	}
}

// finish ends this side's part and tells the peer how, unless it knows.
func (a *Agent) finish(now time.Time, r wire.AttemptResult, words string) {
	t := &a.attempts
	end := t.run.id
	a.record(now, words)
	if r == wire.Found {
		t.history[len(t.history)-1].Found = true
	}
	if r != wire.NoResult {
		end.Kind, end.Result = wire.End, r
		a.part(end)
	}
	switch {
	case r == wire.Found:
		t.renew()
	case a.cfg.Leads:
		t.failed(now, len(a.plans().steps))
	}
}

// failed says when the next attempt is, of so many steps.
func (t *attempts) failed(now time.Time, steps int) {
	t.next = now.Add(attemptGap)
	if t.step++; t.step < steps {
		return
	}
	wait := passFirst
	for range t.pass {
		wait *= passGrow
	}
	t.step, t.next = 0, now.Add(wait)
	t.pass = min(t.pass+1, maxPasses)
}

// record ends what is under way and remembers it.
func (a *Agent) record(now time.Time, words string) {
	t := &a.attempts
	t.history = append(t.history, t.run.status(now, words))
	if len(t.history) > keptAttempts {
		t.history = slices.Delete(t.history, 0, 1)
	}
	t.run = nil
	a.cfg.Budget.leave(a)
}

// abandon ends what is under way because of something that has nothing to do with it.
func (a *Agent) abandon(now time.Time, words string) {
	if a.attempts.run != nil {
		a.finish(now, wire.Exhausted, words)
	}
}

// Leave ends all that is under way for the peer, which the node no longer has to do with: out says what to send
// last and which sockets to close. The Agent is of no use afterwards.
func (a *Agent) Leave(now time.Time, out *Actions) {
	a.abandon(now, "the node has no more to do with the peer")
	a.cfg.Budget.leave(a)
	*out = Actions{Close: a.pending.close}
	for _, m := range a.pending.say {
		a.sayBy(out, m)
	}
	for _, s := range a.attempts.spares {
		out.Close = append(out.Close, s.link)
	}
	a.attempts.spares, a.pending.close, a.pending.say = nil, nil, nil
}
