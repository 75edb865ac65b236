package path

import (
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// The size of a spray. Of 64,512 ports, each guess hits one of 256 with a chance of 1 in 252; half of all sprays
// hit within 174 guesses, 99 of 100 within 1,154, and all but one of 4,000 within 2,048.
const (
	// MaxSockets is how many sockets one peer's attempts hold open, those that won included.
	MaxSockets = 256
	// MaxProbes is how many ports are guessed in one spray.
	MaxProbes = 2048
	// OpenerTTL lets an opener pass this side's NATs, of which there are three in a row at most in practice, and a
	// router between them, and does not let it come near the other side's, which may take it badly. Two homes
	// have some ten routers between them.
	OpenerTTL = 4
	// batch is how long packets are gathered for, so that timers need not be exact.
	batch = 10 * time.Millisecond
	// maxHits is how many pairs are made of where a spray gets through. Where ports are told, all of them do, and the
	// first is as good as any.
	maxHits = 4
	// hitPause is how long no more ports are guessed after a hit: two round trips or so.
	hitPause = lapGap
	// spareFor is how long a socket is kept by whose pair the peer was heard, while that is not known to work.
	spareFor = 5 * time.Second
)

// A spare is a socket that was opened for this peer.
type spare struct{ link weft.LinkID }

func (a *Agent) holds(link weft.LinkID) bool {
	return slices.ContainsFunc(a.attempts.spares, func(s spare) bool { return s.link == link })
}

// transaction makes the transaction of a ping that is sprayed: it can be told again from where the answer comes from, so
// that none of thousands needs to be remembered, and by nobody who did not receive it.
func (run *attempt) transaction(link weft.LinkID, to netip.AddrPort) (tx wire.TxID) {
	var b [16 + 2 + 16 + 2]byte
	copy(b[:], run.secret[:])
	binary.BigEndian.PutUint16(b[16:], uint16(link))
	ip := to.Addr().As16()
	copy(b[18:], ip[:])
	binary.BigEndian.PutUint16(b[34:], to.Port())
	sum := sha256.Sum256(b[:])
	copy(tx[:], sum[:])
	return tx
}

// spend takes a packet from the node's budget and from the peer's allowance.
func (a *Agent) spend(now time.Time) bool {
	if a.attempts.allowance(now) < 1 {
		a.finish(now, wire.Exhausted, "it has cost as much as it may")
		return false
	}
	ok, next := a.cfg.Budget.take(now)
	if !ok {
		a.wake(latest(next, now.Add(batch)))
		return false
	}
	a.attempts.spent++
	a.attempts.run.packet++
	return true
}

// shoot sends one ping of the attempt.
func (a *Agent) shoot(out *Actions, link weft.LinkID, to netip.AddrPort, ttl uint8) {
	m := wire.Ping{Tx: a.attempts.run.transaction(link, to)}
	out.Send = append(out.Send, Transmit{Via: weft.DirectVia(link, to), Message: m, TTL: ttl})
}

// sprayed takes an answer to a ping that was sprayed: the pair that it came by is asked again, by itself, which shows
// whether it works and how fast it is.
func (a *Agent) sprayed(now time.Time, came weft.Via, p *pair, tx wire.TxID) {
	run := a.attempts.run
	if run == nil || p == nil || came.Method != weft.Direct || run.transaction(came.Link, came.Addr) != tx {
		return
	}
	if now.Sub(p.probe.last) >= triggeredGap {
		p.probe.asked = true
	}
}

// struck notes that something got through by a new pair. Rounds see to it that the pair is asked again if that is
// lost, and no more ports are guessed until it had time to answer.
func (a *Agent) struck(now time.Time) {
	run := a.attempts.run
	if run == nil {
		return
	}
	if run.hits++; run.hits%maxHits == 1 {
		run.struck = now
		a.campaign.begin(now, RetryRounds)
	}
	if run.role == probes {
		run.pause = now.Add(hitPause)
	}
}

// takes reports whether a pair is to be made of where a message came from. Those of a spray that gets through
// everywhere would drive each other out before they are asked.
func (run *attempt) takes(now time.Time) bool {
	return run == nil || run.hits == 0 || run.hits%maxHits != 0 || now.Sub(run.struck) > grace
}

// hints is what the peer may know of the ports that its probes or ours will meet.
func (a *Agent) hints() (ports []uint16, next uint16, step int16) {
	run := a.attempts.run
	if run.role == probes {
		_, port, _ := a.probeBy()
		return nil, port, 0
	}
	if len(run.sockets) == 0 {
		return nil, 0, 0
	}
	switch mapped := run.sockets[0].Mapped; {
	case a.nat.Allocation == weft.SequentialAllocation && mapped.IsValid() && mapped.Port() >= firstPort:
		return nil, inOrder(mapped.Port(), int(a.nat.Step), 1), a.nat.Step
	case a.nat.Allocation == weft.PreservingAllocation, a.nat.Mapping == weft.NoNAT:
		for _, s := range run.sockets[:min(len(run.sockets), wire.MaxAttemptPorts)] {
			ports = append(ports, s.Port)
		}
	}
	return ports, 0, 0
}

// aim is the port of the prober's that the opener sends to, so that its filter lets the probes in.
func (a *Agent) aim(ip netip.Addr) uint16 {
	run := a.attempts.run
	if run.theirs.Next != 0 {
		return run.theirs.Next
	}
	port := uint16(0)
	for _, list := range [][]weft.Candidate{a.exchange.theirs, a.told} {
		for _, c := range list {
			if c.Kind == weft.ServerReflexive && c.Addr.Addr() == ip {
				return c.Addr.Port()
			}
			if c.Addr.Addr().Is4() && port == 0 {
				port = c.Addr.Port()
			}
		}
	}
	return max(port, 1)
}

// openAll is the opener's part: one packet by each socket to each address of the prober's.
func (a *Agent) openAll(now time.Time, out *Actions) {
	run := a.attempts.run
	ttl := uint8(OpenerTTL)
	if a.attempts.pass%2 == 1 {
		ttl = 0 // perhaps they did not get far enough
	}
	for run.turn < len(run.sockets)*len(run.targets) {
		if !a.spend(now) {
			return
		}
		s, ip := run.sockets[run.turn/len(run.targets)], run.targets[run.turn%len(run.targets)]
		a.shoot(out, s.Link, netip.AddrPortFrom(ip, a.aim(ip)), ttl)
		run.turn++
	}
	run.phase = waiting // for probes, until the peer says that it is over
}

// probing begins the prober's part.
func (a *Agent) probing() {
	run := a.attempts.run
	run.phase = running
	run.guess = newGuesser(run.theirs.Ports, run.theirs.Next, run.theirs.Step)
}

// probe is the prober's part: a packet to one port after the other.
func (a *Agent) probe(now time.Time, out *Actions) {
	run := a.attempts.run
	link, _, ok := a.probeBy()
	if !ok {
		a.finish(now, wire.Exhausted, "this node has lost its IPv4 address")
		return
	}
	if !run.pause.IsZero() && !a.due(now, run.pause) {
		return
	}
	for run.turn < MaxProbes {
		if !a.spend(now) {
			return
		}
		port := run.guess.port(a.cfg.Rand)
		a.shoot(out, link, netip.AddrPortFrom(run.targets[run.turn%len(run.targets)], port), 0)
		run.turn++
	}
	run.phase = waiting
	run.until = now.Add(grace)
	a.wake(run.until)
}

// tidy gives back the sockets that nothing needs any more: those of an attempt that is over by which the peer was
// not heard, or that were the way for a while and are not now.
func (a *Agent) tidy(now time.Time) {
	t := &a.attempts
	if len(t.spares) == 0 || t.run != nil {
		return
	}
	kept := t.spares[:0]
	for _, s := range t.spares {
		if until := a.neededUntil(now, s.link); a.after(now, until) {
			kept = append(kept, s)
		} else {
			a.pending.close = append(a.pending.close, s.link)
		}
	}
	gone := len(kept) < len(t.spares)
	t.spares = kept
	if gone {
		a.prune(func(p *pair) bool { return p.via.Link < FirstSpare || a.holds(p.via.Link) })
	}
}

// after reports whether t is still to come, and asks to be called then.
func (a *Agent) after(now, t time.Time) bool { return !t.IsZero() && !a.due(now, t) }

// neededUntil is how long a socket is needed, as far as can be told now; zero: not at all.
func (a *Agent) neededUntil(now time.Time, link weft.LinkID) (until time.Time) {
	for _, p := range a.pairs {
		if p.via.Method != weft.Direct || p.via.Link != link || p.heard.IsZero() {
			continue
		}
		keep := spareFor
		if p.health.state != Untested {
			keep = StaleAfter
		}
		until = latest(until, p.heard.Add(keep))
		if p == a.choice.pair {
			until = latest(until, now.Add(StaleAfter))
		}
	}
	return until
}
