package path

import (
	"encoding/binary"
	"slices"
	"time"

	"weft/wire"
)

// tell sends a message of the attempt, again and again until the next one or until it is heard.
func (a *Agent) tell(now time.Time, kind wire.AttemptKind, ports []uint16, next uint16, step int16) {
	run := a.attempts.run
	run.say = run.id
	run.say.Kind, run.say.Ports, run.say.Next, run.say.Step = kind, ports, next, step
	run.again, run.said = now, 0
}

// propose asks the peer to take part.
func (a *Agent) propose(now time.Time) {
	ports, next, step := a.hints()
	a.tell(now, wire.Propose, ports, next, step)
	if a.attempts.run.phase == opening && a.attempts.run.role != opens {
		a.attempts.run.phase = asking
	}
}

// repeat sends the message that is to be said.
func (a *Agent) repeat(now time.Time, out *Actions) {
	run := a.attempts.run
	if !a.due(now, run.again) {
		return
	}
	if run.said == sayTries {
		a.finish(now, wire.Exhausted, "the peer does not answer")
		return
	}
	a.sayBy(out, run.say)
	run.said++
	run.again = now.Add(sayAgain)
	if run.say.Kind == wire.Agree && run.id.Way == wire.Spray {
		run.again = time.Time{} // again when it is asked again
	}
	a.wake(run.again)
}

// sayBy sends a message of an attempt through the relays.
func (a *Agent) sayBy(out *Actions, m wire.Attempt) {
	said := 0
	for _, valid := range []bool{true, false} {
		for _, p := range a.pairs {
			if p.via.Method.Relayed() && said < 2 && (!valid || p.health.state == Valid) {
				out.Send = append(out.Send, Transmit{Via: p.via, Message: m})
				said++
			}
		}
		if said > 0 {
			return
		}
	}
}

// attempted takes the peer's message about an attempt.
func (a *Agent) attempted(now time.Time, m wire.Attempt) {
	leader, other := a.exchange.session, a.cfg.Session
	if a.cfg.Leads {
		leader, other = other, leader
	}
	if !a.exchange.known || m.Session != leader || m.Other != other {
		return
	}
	t := &a.attempts
	if run := t.run; run != nil && run.id.Number == m.Number && run.id.Way == m.Way && run.id.LeaderOpens == m.LeaderOpens {
		a.heardOf(now, m)
		return
	}
	if p := t.parting; m.Kind != wire.End && p.Number == m.Number && p.Session == m.Session && p.Other == m.Other {
		a.part(p) // which was lost
		return
	}
	if a.cfg.Leads || m.Kind != wire.Propose || t.of == m.Session && m.Number <= t.number {
		return
	}
	t.of, t.number = m.Session, m.Number
	if t.run != nil {
		a.finish(now, wire.NoResult, "the peer began another")
	}
	refusal := wire.Declined
	switch {
	case a.able() != "" || m.Way == wire.Predict && !predictable(a.nat):
	case t.allowance(now) < leastAllowance, a.onDirect(), !a.cfg.Budget.lease(now, a):
		refusal = wire.Busy
	default:
		refusal = wire.NoResult
	}
	id := wire.Attempt{Way: m.Way, LeaderOpens: m.LeaderOpens, Session: m.Session, Other: m.Other, Number: m.Number}
	if refusal != wire.NoResult {
		id.Kind, id.Result = wire.End, refusal
		a.part(id)
		return
	}
	m.Ports = slices.Clone(m.Ports)
	a.start(now, id)
	t.run.theirs = m
	if t.run.role == probes {
		_, port, _ := a.probeBy()
		a.tell(now, wire.Agree, nil, port, 0)
		a.probing()
	}
}

// heardOf takes a message of the attempt under way.
func (a *Agent) heardOf(now time.Time, m wire.Attempt) {
	run := a.attempts.run
	m.Ports = slices.Clone(m.Ports)
	switch {
	case m.Kind == wire.End:
		a.ended(now, m.Result)
	case a.cfg.Leads && m.Kind == wire.Agree:
		a.attempts.busy = 0
		if run.say.Kind == wire.Propose && run.phase != opening {
			run.again = time.Time{}
		}
		again := run.theirs.Kind == wire.Agree
		run.theirs = m
		switch {
		case run.role == probes && run.phase == asking:
			a.probing()
		case run.role == predicts && run.phase == asking:
			run.phase = opening // its ports are fresh: now for ours
			run.again = time.Time{}
		case run.role == predicts && again && run.say.Kind == wire.Begin:
			run.again = now // it has not heard that we have begun
		}
	case !a.cfg.Leads && m.Kind == wire.Propose:
		if run.say.Kind == wire.Agree && run.role != predicts {
			run.again, run.said = now, 0 // it has not heard of it
		}
	case !a.cfg.Leads && m.Kind == wire.Begin && run.role == predicts && run.phase == asking:
		run.theirs = m
		run.again = time.Time{}
		run.phase = running
	}
}

// ended takes the peer's word that it is over.
func (a *Agent) ended(now time.Time, r wire.AttemptResult) {
	t := &a.attempts
	switch r {
	case wire.Found:
		// The last answers may still be on their way.
		t.run.phase, t.run.again = waiting, time.Time{}
		t.run.until = now.Add(3 * grace)
		a.campaign.begin(now, RetryRounds)
	case wire.Busy:
		a.record(now, "the peer was busy with another")
		if t.busy++; t.busy > busyTries {
			t.busy = 0
			t.failed(now, len(a.plans().steps))
			return
		}
		wait := min(busyFirst<<(t.busy-1), busyLast)
		var b [2]byte
		a.cfg.Rand(b[:])
		t.next = now.Add(wait + wait*time.Duration(binary.BigEndian.Uint16(b[:]))/(1<<16))
	case wire.Declined:
		a.finish(now, wire.NoResult, "the peer declined")
	default:
		a.finish(now, wire.NoResult, "nothing got through")
	}
}

// part says that an attempt is over.
func (a *Agent) part(end wire.Attempt) {
	if a.attempts.parting = end; len(a.pending.say) < maxParting {
		a.pending.say = append(a.pending.say, end)
	}
}
