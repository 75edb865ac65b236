package path

import (
	"time"

	"weft"
	"weft/wire"
)

// The intervals of pings outside rounds.
const (
	// HeartbeatData is for the path in use while data flows and none of it is acknowledged.
	HeartbeatData = 2 * time.Second
	// HeartbeatReported is the same while reports come: it only measures the round-trip time.
	HeartbeatReported = 5 * time.Second
	// HeartbeatIdle keeps NAT mappings alive (RFC 8445 section 11: Tr is 15 s).
	HeartbeatIdle = 15 * time.Second
	// StandbyInterval is for the relayed way that would be next, while data flows.
	StandbyInterval = 30 * time.Second
	// CheckInterval and CheckPings find out quickly whether a path is alive.
	CheckInterval = 100 * time.Millisecond
	CheckPings    = 3
	// triggeredGap is the least time between pings that the peer's pings cause (RFC 8445 section 14.2: Ta).
	triggeredGap = 50 * time.Millisecond
	// refreshAfter is how old an answer may be before a ping of the peer's is taken as an occasion to ask again.
	refreshAfter = 10 * time.Second
	// helloFirst is the wait before a relayed way that never answered is asked again; it doubles.
	helloFirst = RoundInterval
	helloLast  = 30 * time.Second
	// lostBusy is the least time between pings of a relayed way that is silent, while data flows.
	lostBusy = 500 * time.Millisecond
	// relayTries ends it while no data flows: the peer is not there, or not at that relay.
	relayTries = 8
)

// reportedLately is how old an acknowledgement may be to spare heartbeats.
const reportedLately = 2 * time.Second

// A prober sends a pair's pings and remembers those under way.
type prober struct {
	out    [8]transaction // a ring: a second's worth in quick succession
	sent   int
	last   time.Time // ping
	pong   time.Time // last answer
	after  time.Time // when the ping was sent that it answered
	tries  int       // pings since the last answer, or since something changed
	asked  bool      // a ping is to go out now
	opener bool      // the last ping was one: it could not arrive
	check  check
}

type transaction struct {
	id      wire.TxID
	sent    time.Time
	padding int
}

// A check is a train of pings in quick succession. It is running from the first to the last's timeout.
type check struct {
	left    int
	next    time.Time
	first   time.Time // zero before the first is out
	until   time.Time // all are out: when to stop waiting
	ended   time.Time // when that was first seen to have passed; zero: it was not
	padding int       // bytes, of each
	row     int       // the pair's, at the beginning
}

func (c *check) running() bool { return c.left > 0 || !c.until.IsZero() }

// check begins to find out whether the pair is alive, unless that is under way.
func (p *pair) check(now time.Time, padding int) {
	if !p.probe.check.running() {
		p.probe.check = check{left: CheckPings, next: now, padding: padding, row: p.health.row}
	}
}

// ping sends all pings that are due.
func (a *Agent) ping(now time.Time, out *Actions) {
	a.standBy(now)
	for _, p := range a.pairs {
		c, padding, send := &p.probe.check, 0, p.probe.asked
		if c.left > 0 && a.due(now, c.next) {
			if c.first.IsZero() {
				c.first = now
			}
			send, padding = true, c.padding
			c.left--
			c.next = now.Add(CheckInterval)
			if c.left == 0 {
				c.until = now.Add(p.rtt.timeout())
			}
		}
		if c.left > 0 {
			a.wake(c.next)
		}
		a.wake(c.until)
		if at := a.heartbeat(now, p); !send && a.due(now, at) {
			send = true
		}
		if !send {
			continue
		}
		m := wire.Ping{Path: p.number, Padding: padding}
		a.cfg.Rand(m.Tx[:])
		p.probe.out[p.probe.sent%len(p.probe.out)] = transaction{m.Tx, now, padding}
		p.probe.sent++
		p.probe.tries++
		p.probe.last, p.probe.asked = now, false
		if p.via.Method == weft.Direct {
			a.campaign.pings++
		}
		x := Transmit{Via: p.via, Message: m}
		if p.probe.opener = a.held(now, p); p.probe.opener {
			x.TTL = OpenerTTL
		}
		out.Send = append(out.Send, x)
		a.wake(a.heartbeat(now, p))
		a.wake(p.missing())
	}
}

// missing is when a ping that was answered by nothing makes a working pair doubtful; zero if none is out.
func (p *pair) missing() time.Time {
	if p.health.state != Valid || !p.probe.last.After(p.probe.pong) || p.probe.check.running() {
		return time.Time{}
	}
	return p.probe.last.Add(p.rtt.timeout())
}

// heartbeat is when the pair is to be pinged outside rounds and checks; zero: not at all.
func (a *Agent) heartbeat(now time.Time, p *pair) time.Time {
	var every time.Duration
	switch {
	case !a.wanted:
		return time.Time{}
	case p.standing.seek:
		every = a.seekEvery(now, p)
	case p.standing.in && p.rtt.samples < memberSamples && p.probe.tries <= memberSamples:
		every = memberAgain
	case p.health.state == Valid && p == a.choice.pair:
		switch {
		case !a.busy(now):
			every = HeartbeatIdle
		case p.ledger != nil && now.Sub(p.ledger.progress) < reportedLately:
			every = HeartbeatReported
		default:
			every = HeartbeatData
		}
	case p.via.Method == weft.DirectTCP:
		switch p.health.state {
		case Untested:
			every = min(helloFirst<<min(max(p.probe.tries-1, 0), 10), helloLast)
		case Valid:
			every = HeartbeatIdle
		default:
			return time.Time{} // it is about to be closed
		}
	case !p.via.Method.Relayed():
		switch {
		case !p.warm:
			return time.Time{} // rounds and checks
		case p.health.state == Failed:
			every = min(max(p.probe.last.Sub(p.health.failedAt)/lostShare, lostFirst), lostLast)
		default:
			every = HeartbeatIdle
		}
	case p.health.state == Valid && p.warm:
		every = HeartbeatIdle
	case p.health.state == Valid:
		if !a.busy(now) || p != a.standby() {
			return time.Time{}
		}
		every = StandbyInterval
	case p.probe.tries >= relayTries && !a.busy(now):
		return time.Time{}
	case p.health.state == Failed:
		least := lostFirst
		if p.health.cause == silent && a.busy(now) {
			least = lostBusy
		}
		every = min(max(p.probe.last.Sub(p.health.failedAt)/lostShare, least), lostLast)
	default:
		every = min(helloFirst<<min(max(p.probe.tries-1, 0), 10), helloLast)
	}
	if p.probe.last.IsZero() {
		return now
	}
	return p.probe.last.Add(every)
}

// standby is the relayed way that would be taken next, apart from the one in use.
func (a *Agent) standby() *pair {
	var first *pair
	for _, p := range a.pairs {
		if p.via.Method.Relayed() && p.health.state == Valid && p != a.choice.pair && (first == nil || p.order < first.order) {
			first = p
		}
	}
	return first
}

// pinged answers a ping, by the way it came; and asks back if the pair is not known to be good, so that a
// filter that has just opened is used at once (RFC 8445 section 7.3.1.4).
func (a *Agent) pinged(now time.Time, via, came weft.Via, p *pair, m wire.Ping) {
	if p == nil && came.Method == weft.Direct && came.Link >= FirstSpare {
		return // the socket is about to be given back, and an answer would have the peer send there
	}
	if a.cfg.MTU > 0 && m.Padding > pingPadding(a.cfg.MTU) {
		return // packets as long as that are not for this node
	}
	if len(a.pending.send) < maxPending {
		pong := wire.Pong{Path: m.Path, Tx: m.Tx}
		if came.Method == weft.Direct {
			pong.Observed, pong.Link = came.Addr, a.stands(came.Link)
		}
		a.pending.send = append(a.pending.send, Transmit{Via: via, Message: pong})
	}
	if m.Path != 0 { // zero is a ping by hand, of no path
		a.inbound.number(now, came, m.Path)
	}
	// An opener is no question: who has sent one has yet to ask.
	if p == nil || now.Sub(p.probe.last) < triggeredGap && !p.probe.opener {
		return
	}
	fresh := p.health.state == Valid && now.Sub(p.probe.pong) < refreshAfter
	p.probe.asked = p.probe.asked || !fresh && !p.sitsOut(now)
}

// ponged takes the answer to a ping of ours.
func (a *Agent) ponged(now time.Time, came weft.Via, from *pair, m wire.Pong) {
	if m.Path == 0 {
		a.sprayed(now, came, from, m.Tx)
		return
	}
	for _, p := range a.pairs {
		if p.number != m.Path || !answers(came, p.via) {
			continue
		}
		if a.fits(now, p, m.Tx) {
			return
		}
		for i := range p.probe.out {
			t := &p.probe.out[i]
			if t.sent.IsZero() || t.id != m.Tx {
				continue
			}
			sent, padding := t.sent, t.padding
			*t = transaction{}
			if now.Sub(sent) > maxRTT {
				return
			}
			was := p.rtt.base()
			p.rtt.add(now.Sub(sent))
			a.bond.dirty = a.bond.dirty || p.standing.in && p.rtt.base()+keepMember <= was
			p.probe.pong, p.probe.after, p.heard, p.probe.tries = now, sent, now, 0
			if m.Link != 0 && p.via.Method == weft.Direct && m.Link != p.arrives {
				p.arrives, a.bond.dirty = m.Link, true
			}
			if c := a.choice.pair; c != nil && c.ledger != nil {
				c.ledger.hears(now, sent)
			}
			a.answered(now, p, sent, padding)
			a.vouches(now, p, sent)
			return
		}
	}
}

// answers reports whether what came by one way answers a ping sent by another: see the package comment.
func answers(came, asked weft.Via) bool {
	return came == asked || came.Method.Relayed() && asked.Method.Relayed() && came.Relay == asked.Relay
}
