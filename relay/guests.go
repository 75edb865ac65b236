package relay

import (
	"sync/atomic"
	"time"

	"weft/key"
	"weft/wire"
)

// Guests are the nodes of networks that are not the relay's own: those of a rendezvous beside it, which anybody can make.
// Their tickets are another issuer's, and what is forwarded for them is bounded. The zero value admits none.
type Guests struct {
	Issuer key.SigningPublic
	// NetworkRate and TotalRate are how many bytes a second are forwarded within one of their networks, and in all of them
	// together; 0: no bound.
	NetworkRate, TotalRate int
	// Nodes is how many of them are bound at most; 0: as many as nodes of any kind.
	Nodes int
}

// guestBurst is how much of a rate may be used at once: what TCP sends before it hears of a loss.
const guestBurst = 250 * time.Millisecond

// A rate bounds bytes in time, as pace bounds how often something is done. Its zero value has let nothing through yet. It
// may be used by many at once.
type rate struct{ until atomic.Int64 }

// take takes n bytes at a number of bytes a second, if they may go now; 0 is no bound.
func (r *rate) take(now time.Duration, n, perSecond int) bool {
	if perSecond == 0 {
		return true
	}
	cost := int64(n) * int64(time.Second) / int64(perSecond)
	for {
		until := r.until.Load()
		if until-int64(now) > int64(guestBurst) {
			return false
		}
		if r.until.CompareAndSwap(until, max(until, int64(now))+cost) {
			return true
		}
	}
}

// guestNetwork is what the nodes of one network of guests have in common.
type guestNetwork struct {
	rate  rate
	nodes int // the server's lock guards it
}

// guestBook is what a server keeps of its guests. The server's lock guards all but total.
type guestBook struct {
	Guests
	total    rate
	networks map[[8]byte]*guestNetwork
	nodes    int
}

// readTicket verifies the ticket of a node: one of the server's own, or a guest.
func (s *Server) readTicket(raw []byte) (t wire.Ticket, guest bool, why wire.Refusal) {
	now := s.clock()
	if t, why = wire.VerifyTicket(raw, *s.issuer.Load(), now); why != wire.RefusedForged || s.guests.Issuer.IsZero() {
		return t, false, why
	}
	t, why = wire.VerifyTicket(raw, s.guests.Issuer, now)
	return t, true, why
}

// enter counts a new node that is a guest. The server's lock is held.
func (b *guestBook) enter(n *node) wire.Refusal {
	if b.Nodes != 0 && b.nodes >= b.Nodes {
		return wire.RefusedFull
	}
	g := b.networks[n.name.network]
	if g == nil {
		g = &guestNetwork{}
		b.networks[n.name.network] = g
	}
	n.guest = g
	g.nodes++
	b.nodes++
	return wire.RefusedNot
}

// leave counts a guest that is forgotten. The server's lock is held.
func (b *guestBook) leave(n *node) {
	b.nodes--
	if n.guest.nodes--; n.guest.nodes == 0 {
		delete(b.networks, n.name.network)
	}
}

// limited reports that what a node sends is more than guests may have, and counts it as dropped.
func (s *Server) limited(n *node, now time.Duration, bytes, datagrams int) bool {
	if n.guest == nil {
		return false
	}
	if n.guest.rate.take(now, bytes, s.guests.NetworkRate) && s.guests.total.take(now, bytes, s.guests.TotalRate) {
		return false
	}
	s.count.drop(DropGuest, datagrams)
	return true
}
