package path

import (
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// How candidates are announced until the peer is heard to have them.
const (
	// announceFirst is the wait before an announcement is repeated; it doubles. Above the round-trip time
	// through a relay on another continent.
	announceFirst = 300 * time.Millisecond
	announceLast  = 30 * time.Second
	// announceTries ends it: a peer that answers none in a minute is not there, and calls when it comes.
	announceTries = 8
	// announceVias bounds the copies of one announcement. Relays drop what they cannot deliver.
	announceVias = 4
	// retiredSessions is how many of the peer's earlier sessions are remembered, so that an old frame that
	// somebody replays does not bring one back.
	retiredSessions = 8
)

// An exchange keeps both sides' candidates up to date: ours with the peer, the peer's here.
type exchange struct {
	seq     uint32
	pending bool // the peer has not been heard to know
	tries   int
	next    time.Time
	sent    time.Time  // the last announcement
	replies []weft.Via // that asked for ours

	theirs  []weft.Candidate
	nat     weft.NAT // the peer's
	links   wire.Links
	session uint32
	last    uint32 // sequence
	known   bool
	retired []uint32
}

// announce begins to tell the peer our candidates, as something new.
func (e *exchange) announce(now time.Time) {
	e.seq++
	e.pending, e.tries, e.next = true, 0, now
}

// soon has a pending announcement repeated at once: there is a new way to send it.
func (e *exchange) soon(now time.Time) {
	if e.pending || !e.known {
		e.pending, e.tries, e.next = true, 0, now
	}
}

func (e *exchange) rest() { e.pending = false }

// call sends announcements and replies that are due.
func (a *Agent) call(now time.Time, out *Actions) {
	e := &a.exchange
	if len(e.replies) == 0 && !e.pending {
		return
	}
	m := wire.Candidates{
		Session: a.cfg.Session, Seq: e.seq, List: a.local, HeardSession: e.session, HeardSeq: e.last, NAT: a.nat,
		Known: wire.Digest(a.told),
	}
	if e.known {
		m.Known = wire.Digest(e.theirs)
	}
	for _, v := range e.replies {
		a.tellBy(out, v, m)
	}
	e.replies = e.replies[:0]
	if !e.pending || !a.wanted || !a.due(now, e.next) {
		return
	}
	vias := a.announceBy(now)
	if len(vias) == 0 {
		e.next = time.Time{} // until soon
		return
	}
	m.WantReply = true
	for _, v := range vias {
		a.tellBy(out, v, m)
	}
	e.sent = now
	if e.tries++; e.tries == announceTries {
		e.pending = false
		return
	}
	e.next = now.Add(min(announceFirst<<(e.tries-1), announceLast))
	a.wake(e.next)
}

// tellBy sends an announcement by one way, and what the NATs of several links do.
func (a *Agent) tellBy(out *Actions, v weft.Via, m wire.Candidates) {
	out.Send = append(out.Send, Transmit{Via: v, Message: m})
	if len(a.nats) > 1 {
		out.Send = append(out.Send, Transmit{Via: v, Message: wire.Links{Session: m.Session, Seq: m.Seq, List: a.nats}})
	}
	if b := &a.bond; b.ours && len(b.metrics)+len(b.relays) > 0 {
		u := wire.Uplinks{Session: m.Session, Seq: m.Seq, Metrics: b.metrics, Relays: b.relays}
		out.Send = append(out.Send, Transmit{Via: v, Message: u})
	}
}

// announceBy picks the ways by which the peer is told: those relays that answered lately, or all while none
// has; and the direct path in use, which may be all that is left.
func (a *Agent) announceBy(now time.Time) []weft.Via {
	vias := make([]weft.Via, 0, announceVias)
	for _, proven := range []bool{true, false} {
		for _, p := range a.pairs {
			if p.via.Method.Relayed() && len(vias) < announceVias && (!proven || p.health.state == Valid && a.exchange.tries == 0) {
				vias = append(vias, p.via)
			}
		}
		if len(vias) > 0 {
			break
		}
	}
	if p := a.choice.pair; p != nil && !p.via.Method.Relayed() && p.health.state == Valid {
		vias = append(vias, p.via)
	}
	for _, p := range a.bond.ways { // what is lost is lost by one link; and news of links is urgent
		if !p.via.Method.Relayed() && !slices.Contains(vias, p.via) && len(vias) <= announceVias {
			vias = append(vias, p.via)
		}
	}
	return vias
}

// candidates takes the peer's candidates.
func (a *Agent) candidates(now time.Time, via weft.Via, m wire.Candidates) {
	e := &a.exchange
	if slices.Contains(e.retired, m.Session) {
		return
	}
	restarted := e.known && m.Session != e.session
	if e.known && !restarted && m.Seq < e.last {
		return
	}
	called := e.pending && !m.WantReply
	if m.WantReply || called {
		a.reply(via) // or says that its reply has come, and we are sending to its addresses now
	}
	// Who asks gets ours in reply. An answer that came sooner than the way takes was to an earlier announcement.
	if p := a.find(canonical(via)); m.WantReply || p == nil || now.Sub(e.sent) >= p.rtt.base() {
		e.pending = false
	}
	known := e.known && !restarted && m.Seq == e.last
	if restarted {
		a.restarted(now)
		a.bond.theirs = false // until it tells of its links
	}
	e.session, e.last, e.known = m.Session, m.Seq, true
	if m.HeardSession == a.cfg.Session && m.HeardSeq == e.seq || m.Known != 0 && m.Known == wire.Digest(a.local) {
		a.campaign.release(now)
	}
	if known {
		return
	}
	list := usable(m.List)
	was := e.theirs
	changed := !slices.Equal(list, was)
	e.theirs = list
	if changed || restarted {
		a.countLinks()
	}
	if changed {
		if !restarted {
			a.withdrawn(now, was, list)
		}
		a.rebuild()
	}
	if changed || m.NAT != e.nat {
		e.nat = m.NAT
		a.replan(now)
	}
	a.sweep(now)
	if changed || restarted {
		a.campaign.begin(now, OpeningRounds)
	} else {
		a.campaign.begin(now, RetryRounds) // it calls: it probes now, and so do we
	}
}

// reply has our candidates sent by the way that the peer asked by. They are longer than a question without any,
// so what came from an address that has not shown that the peer receives there is answered by the way in use: it
// may be an old frame that a stranger sends again, from wherever he says that he is.
func (a *Agent) reply(via weft.Via) {
	e := &a.exchange
	if p := a.find(canonical(via)); via.Method == weft.Direct && (p == nil || p.probe.pong.IsZero()) {
		via = a.choice.via
	}
	if via.Method != weft.NoMethod && !slices.Contains(e.replies, via) && len(e.replies) < announceVias {
		e.replies = append(e.replies, via)
	}
}

// restarted forgets what the peer no longer knows: it has begun anew, with paths numbered anew and nothing
// counted.
func (a *Agent) restarted(now time.Time) {
	e := &a.exchange
	if e.retired = append(e.retired, e.session); len(e.retired) > retiredSessions {
		e.retired = slices.Delete(e.retired, 0, 1)
	}
	a.inbound.arrivals = a.inbound.arrivals[:0]
	a.forgetSizes()
	a.abandon(now, "the peer has begun anew")
	a.attempts.renew()
	a.again()
	for _, p := range a.pairs {
		if p.ledger != nil {
			p.ledger.rebase(0)
		}
		if p.health.state == Valid {
			p.check(now, 0)
		}
		p.pardon(now)
	}
}
