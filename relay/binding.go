package relay

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
)

// Intervals of a binding, seen from the node.
const (
	// bindFirst is the wait before the second try, which doubles up to bindLast: a lost packet costs a tenth of
	// a second, and a relay that UDP does not reach is asked some times a minute.
	bindFirst = 100 * time.Millisecond
	bindLast  = 15 * time.Second
	// renewEvery keeps the NAT's mapping too: below the 30 s after which many forget one (RFC 4787 section
	// 4.3 asks for two minutes, and the field does not keep it).
	renewEvery = 15 * time.Second
	// lostAfter is how many Binds in a row go unanswered before the relay is taken for gone.
	lostAfter = 5
	// nonceLife is how long an answer to a Bind is waited for.
	nonceLife = 5 * time.Second
	// maxChallenges is how many cookies in a row are tried without delay. A second may be asked for when the
	// first ended on the way; more is a relay that cannot remember, or somebody who wants us busy.
	maxChallenges = 2
)

// UDPBindingConfig is what a binding is made of.
type UDPBindingConfig struct {
	NodeKey key.NodePrivate
	Relay   weft.Relay
	Ticket  []byte // may be empty at first: SetTicket
	Rand    func([]byte)
}

// A UDPBinding is a node's end of the exchange that binds it to a relay over UDP (see package wire). It is pure:
// the caller sends what Poll returns from the socket that shall be bound, and hands in what comes from the
// relay. One goroutine at a time may use it.
type UDPBinding struct {
	cfg    UDPBindingConfig
	box    key.Box
	cookie [16]byte

	nonce  [8]byte
	sent   time.Time // of the Bind that waits for its answer; zero: none does
	fresh  bool      // it was sent once: its answer measures the RTT
	wait   time.Duration
	next   time.Time
	misses int
	asked  int // challenges since the relay last said yes or no

	bound    bool
	until    time.Time // end of the binding
	observed netip.AddrPort
	rtt      time.Duration
	refused  wire.Refusal

	asks asks
}

// NewUDPBinding makes a binding that begins with the first Poll. It fails on a relay whose key is no key.
func NewUDPBinding(cfg UDPBindingConfig) (*UDPBinding, error) {
	box, err := wire.RelayBox(cfg.NodeKey, cfg.Relay.Key)
	if err != nil {
		return nil, fmt.Errorf("relay %s: %w", cfg.Relay.Name, err)
	}
	if cfg.Rand == nil {
		cfg.Rand = func(b []byte) { rand.Read(b) }
	}
	return &UDPBinding{cfg: cfg, box: box, wait: bindFirst}, nil
}

// Bound reports whether the relay forwards to and from this node now.
func (u *UDPBinding) Bound() bool { return u.bound }

// Observed is where the relay sees the node; it is valid after the first answer.
func (u *UDPBinding) Observed() netip.AddrPort { return u.observed }

// RTT is the last measured round trip to the relay, zero before.
func (u *UDPBinding) RTT() time.Duration { return u.rtt }

// Refused is why the relay does not admit the node.
func (u *UDPBinding) Refused() wire.Refusal { return u.refused }

// Lost reports that several Binds in a row were not answered.
func (u *UDPBinding) Lost() bool { return u.misses >= lostAfter }

// SetTicket replaces the ticket. One that was refused is followed by a Bind at once.
func (u *UDPBinding) SetTicket(ticket []byte) {
	if string(ticket) == string(u.cfg.Ticket) {
		return
	}
	u.cfg.Ticket = ticket
	if !u.bound {
		u.Recheck(time.Time{})
	}
}

// Recheck binds anew at once: the network changed, and with it perhaps the address.
func (u *UDPBinding) Recheck(now time.Time) {
	u.next, u.wait, u.misses, u.sent = now, bindFirst, 0, time.Time{}
}

// Poll returns the frame to send now, nil if there is none, and when to poll again.
func (u *UDPBinding) Poll(now time.Time) (frame []byte, next time.Time) {
	if frame, next = u.pollBind(now); frame != nil {
		return frame, next
	}
	frame, at := u.pollAsks(now)
	if next.IsZero() || !at.IsZero() && at.Before(next) {
		next = at
	}
	return frame, next
}

func (u *UDPBinding) pollBind(now time.Time) (frame []byte, next time.Time) {
	if u.bound && now.After(u.until) {
		u.bound = false
	}
	if len(u.cfg.Ticket) != wire.TicketSize {
		return nil, time.Time{}
	}
	if now.Before(u.next) {
		return nil, u.next
	}
	if !u.sent.IsZero() { // the last one was not answered
		u.misses++
		if u.Lost() {
			u.bound = false
		}
	}
	u.fresh = u.sent.IsZero() || now.Sub(u.sent) > nonceLife
	if u.fresh {
		u.cfg.Rand(u.nonce[:])
	}
	u.sent, u.next = now, now.Add(u.wait)
	u.wait = min(2*u.wait, bindLast)
	frame = wire.AppendBind(nil, wire.Bind{Nonce: u.nonce, Cookie: u.cookie, Ticket: u.cfg.Ticket}, u.box)
	return frame, u.next
}

// Handle takes a frame that came from the relay's address. It reports whether that was an answer that was waited
// for; those to Locate and Probe are then in Answers.
func (u *UDPBinding) Handle(now time.Time, b []byte) bool {
	kind, _ := wire.KindOf(b)
	switch kind {
	case wire.KindChallenge:
		c, err := wire.ParseChallenge(b)
		if err != nil || u.sent.IsZero() || c.Nonce != u.nonce {
			return false
		}
		u.cookie = c.Cookie
		if u.asked++; u.asked <= maxChallenges {
			u.sent, u.next, u.wait = time.Time{}, now, bindFirst
		}
		return true // and where it asks again and again, the next round is soon enough
	case wire.KindBound:
		answer, err := wire.ParseBound(b, u.box)
		if err != nil || u.sent.IsZero() || answer.Nonce != u.nonce {
			return false
		}
		if u.fresh {
			u.rtt = now.Sub(u.sent)
		}
		u.bound, u.refused, u.observed = true, wire.RefusedNot, answer.Observed
		u.until = now.Add(answer.Lifetime)
		u.settle(now.Add(min(renewEvery, answer.Lifetime/3)))
		return true
	case wire.KindRefused:
		nonce, why, err := wire.ParseRefused(b)
		if err != nil || u.sent.IsZero() || nonce != u.nonce {
			return false
		}
		// Not authenticated: whoever stands on the path may say so. It is tried again, less often, and a
		// binding that stands ends by its time, not by this.
		u.refused = why
		u.settle(now.Add(bindLast))
		return true
	case wire.KindLocated:
		answer, err := wire.ParseLocated(b, u.box)
		return err == nil && u.asks.answered(answer.Nonce, Answer{Node: answer.Node, Addr: answer.Addr, Outcome: Answered})
	case wire.KindProbed:
		answer, err := wire.ParseProbed(b, u.box)
		if err != nil {
			return false
		}
		outcome := Unable
		if answer.Outcome == wire.ProbeSent {
			outcome = Answered
		}
		return u.asks.answered(answer.Nonce, Answer{Addr: answer.Addr, Outcome: outcome})
	}
	return false
}

// settle notes that the relay answered.
func (u *UDPBinding) settle(next time.Time) {
	u.sent, u.next, u.wait, u.misses, u.asked = time.Time{}, next, bindFirst, 0, 0
}
