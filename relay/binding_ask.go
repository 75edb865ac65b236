package relay

import (
	"net/netip"
	"time"

	"weft"
	"weft/wire"
)

const (
	// maxAsks is how many questions wait at most, and how many answers until they are fetched.
	maxAsks = 64
	// askTries is how often a question is sent before the relay is taken not to answer it, as one does that is
	// of an earlier version.
	askTries = 3
	// askWait is how long an answer is waited for, or three round trips where that is longer.
	askWait = 500 * time.Millisecond
	// askUnbound is how long a question waits for the binding to stand.
	askUnbound = 10 * time.Second
	// caution divides the bursts that the relay allows: what it counts is when questions arrive.
	caution = 2
)

// An Outcome is what became of a question.
type Outcome uint8

// The outcomes.
const (
	Answered Outcome = 1 + iota
	Unable           // a Probe: the relay has no STUN port that it could be sent from as was asked
	Silent           // the relay did not answer: it is of an earlier version, or out of reach
)

func (o Outcome) String() string {
	switch o {
	case Answered:
		return "answered"
	case Unable:
		return "the relay has no such port"
	case Silent:
		return "the relay did not answer"
	}
	return "?"
}

// An Answer is what became of one Locate or Probe.
type Answer struct {
	Outcome Outcome
	Node    weft.NodeID // of a Locate; zero for a Probe
	Tx      [12]byte    // of a Probe
	// Addr is where the relay sees the node, and not valid where that is not bound to it over UDP; of a Probe,
	// where the STUN message was sent.
	Addr netip.AddrPort
}

// ask is a question.
type ask struct {
	nonce     [8]byte
	node      weft.NodeID // zero: a Probe
	tx        [12]byte
	port      uint16
	alternate bool

	since time.Time
	tries int
	next  time.Time // not before
}

// asks are the questions of a binding, oldest first.
type asks struct {
	waiting         []ask
	answers         []Answer
	locates, probes time.Time // GCRA's theoretical arrival times, as in pace
}

// Locate asks where the relay sees a node of the same network, which is authenticated: the relay's word, for an
// address that the node has proved to receive at. The answer comes by Answers, always. It reports false when too
// many questions wait. To ask again what is being asked changes nothing.
func (u *UDPBinding) Locate(now time.Time, id weft.NodeID) bool {
	return id == 0 || u.ask(ask{node: id, since: now})
}

// Probe asks the relay to send one STUN success response with this transaction to a port of the IP address at
// which it sees this node, from its STUN port or its alternate one. It goes to nobody else, and it is sent once
// or, where its answer was lost, some times more. That it was sent, or not, comes by Answers, always. It reports
// false when too many questions wait.
func (u *UDPBinding) Probe(now time.Time, tx [12]byte, port uint16, alternate bool) bool {
	return port == 0 || u.ask(ask{tx: tx, port: port, alternate: alternate, since: now})
}

// Answers returns what became of questions since it was called last.
func (u *UDPBinding) Answers() []Answer {
	out := u.asks.answers
	u.asks.answers = nil
	return out
}

func (u *UDPBinding) ask(q ask) bool {
	a := &u.asks
	for _, w := range a.waiting {
		if w.node == q.node && w.tx == q.tx && w.port == q.port && w.alternate == q.alternate {
			return true
		}
	}
	if len(a.waiting)+len(a.answers) >= maxAsks {
		return false
	}
	u.cfg.Rand(q.nonce[:])
	a.waiting = append(a.waiting, q)
	return true
}

// pollAsks returns a question to send now and when to poll again.
func (u *UDPBinding) pollAsks(now time.Time) (frame []byte, next time.Time) {
	a := &u.asks
	kept := a.waiting[:0]
	for _, q := range a.waiting {
		over := q.tries >= askTries && !now.Before(q.next)
		if over || !u.bound && now.Sub(q.since) >= askUnbound {
			a.answers = append(a.answers, Answer{Outcome: Silent, Node: q.node, Tx: q.tx})
			continue
		}
		kept = append(kept, q)
	}
	clear(a.waiting[len(kept):])
	a.waiting = kept
	for i := range a.waiting {
		q := &a.waiting[i]
		at := q.next
		if !u.bound {
			at = q.since.Add(askUnbound)
		} else if q.tries < askTries {
			if free := a.free(q.node != 0); free.After(at) {
				at = free
			}
			if !now.Before(at) {
				return u.say(now, q), now
			}
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return nil, next
}

// free is when the relay may be asked next.
func (a *asks) free(locate bool) time.Time {
	if locate {
		return a.locates.Add(-locateEvery * (locateBurst/caution - 1))
	}
	return a.probes.Add(-probeEvery * (probeBurst/caution - 1))
}

// say makes a question's frame.
func (u *UDPBinding) say(now time.Time, q *ask) []byte {
	q.tries++
	q.next = now.Add(max(askWait, 3*u.rtt))
	later := func(t time.Time, every time.Duration) time.Time {
		if t.Before(now) {
			t = now
		}
		return t.Add(every)
	}
	if q.node != 0 {
		u.asks.locates = later(u.asks.locates, locateEvery)
		return wire.AppendLocate(nil, wire.Locate{Nonce: q.nonce, Node: q.node}, u.box)
	}
	u.asks.probes = later(u.asks.probes, probeEvery)
	return wire.AppendProbe(nil, wire.Probe{Nonce: q.nonce, Tx: q.tx, Port: q.port, Alternate: q.alternate}, u.box)
}

// answered takes in an answer, if its question waits.
func (a *asks) answered(nonce [8]byte, answer Answer) bool {
	for i, q := range a.waiting {
		if q.nonce != nonce || q.tries == 0 || q.node != answer.Node {
			continue
		}
		answer.Tx = q.tx
		a.answers = append(a.answers, answer)
		a.waiting = append(a.waiting[:i], a.waiting[i+1:]...)
		return true
	}
	return false
}
