package path

import (
	"cmp"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// A node may have several links, each with NATs of its own (package comment). Here is what is kept of them, and
// who stands by when the one in use fails.

// SetNAT is SetNATs of a node that has one link, or sockets on none in particular.
func (a *Agent) SetNAT(now time.Time, v4 weft.NAT) { a.SetNATs(now, []weft.LinkNAT{{NAT: v4}}) }

// SetNATs says what is known of the NATs between each link of this node and the IPv4 internet; the peer is told. The
// first link is the one that attempts are made by: that by which relays see this node. What was known of a NAT with the
// same mapping behaviour and is unknown now is kept: those who find out are disturbed by attempts. The zero NAT forgets
// it.
func (a *Agent) SetNATs(now time.Time, nats []weft.LinkNAT) {
	list := slices.Clone(nats[:min(len(nats), wire.MaxLinks)])
	for i, n := range list {
		at := slices.IndexFunc(a.nats, func(o weft.LinkNAT) bool { return o.Link == n.Link })
		if at >= 0 {
			list[i].NAT = refined(a.nats[at].NAT, n.NAT)
		}
	}
	if slices.Equal(list, a.nats) {
		return
	}
	was, first := a.attemptLink(), a.nat
	a.nats, a.nat = list, weft.NAT{}
	if len(list) > 0 {
		a.nat = list[0].NAT
	}
	if a.attemptLink() != was || a.nat != first {
		a.replan(now)
	}
	a.exchange.announce(now)
}

// refined is a NAT with what was known of it before and is not known now.
func refined(was, is weft.NAT) weft.NAT {
	if is.Mapping == was.Mapping && is != (weft.NAT{}) {
		is.Filtering = cmp.Or(is.Filtering, was.Filtering)
		is.Hairpin = cmp.Or(is.Hairpin, was.Hairpin)
		if is.Allocation == weft.AllocationUnknown {
			is.Allocation, is.Step = was.Allocation, was.Step
		}
	}
	return is
}

// attemptLink is the link that attempts are made by.
func (a *Agent) attemptLink() weft.LinkID {
	if len(a.nats) > 0 {
		return a.nats[0].Link
	}
	return 0
}

// linked takes what the peer says of its links. It may overtake the candidates that it goes with.
func (e *exchange) linked(m wire.Links) {
	if late := m.Session == e.links.Session && m.Seq < e.links.Seq; !late && !slices.Contains(e.retired, m.Session) {
		e.links = m
	}
}

// peerNATs are what the peer's links do, of a peer that has several.
func (e *exchange) peerNATs() []weft.LinkNAT {
	if !e.known || e.links.Session != e.session {
		return nil
	}
	return slices.Clone(e.links.List)
}

// under is the link that a pair leaves by, of a spare socket the one that it was opened on.
func (a *Agent) under(p *pair) weft.LinkID {
	if p.via.Link >= FirstSpare {
		return a.attemptLink()
	}
	return p.via.Link
}

// stands is the number of a link as the peer is told it: 0 of a node that has one.
func (a *Agent) stands(id weft.LinkID) weft.LinkID {
	if id >= FirstSpare {
		return a.attemptLink()
	}
	return id
}

// standBy chooses the direct pairs that are kept warm beside the one in use, so that there is one to go on by in the same
// moment when a link fails under it: at each end that has several links, the best that leaves, or arrives, by another.
// Where none works that once did, one is asked from time to time whether it does again.
func (a *Agent) standBy(now time.Time) {
	for _, p := range a.pairs {
		p.warm = false
	}
	for _, p := range a.bond.ways {
		p.warm = a.inUse(now)
	}
	used := a.choice.pair
	if used == nil || used.via.Method != weft.Direct || !a.inUse(now) {
		return
	}
	if len(a.links) > 1 {
		a.warm(now, func(p *pair) bool { return a.under(p) != a.under(used) })
	}
	if used.far != 0 {
		a.warm(now, func(p *pair) bool { return p.far != 0 && p.far != used.far })
	}
}

// warm marks the best direct pair of some to be kept warm.
func (a *Agent) warm(now time.Time, of func(*pair) bool) {
	var best *pair
	var bestScore Score
	for _, p := range a.pairs {
		if p.via.Method != weft.Direct || p.health.state == Untested || p.health.state == Failed && !p.proven(now) || !of(p) {
			continue
		}
		if s := a.score(now, p); best == nil || s.Compare(bestScore) < 0 {
			best, bestScore = p, s
		}
	}
	if best != nil {
		best.warm = true
	}
}
