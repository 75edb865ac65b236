package path

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// Limits of what is kept, whatever the peer or a stranger who replays its frames sends.
const (
	// MaxDirect is how many direct pairs are made of announced candidates: all that one node announces
	// (wire.MaxCandidates) by eight links.
	MaxDirect = 8 * wire.MaxCandidates
	// MaxReflexive is how many more there are of addresses that messages came from. A symmetric NAT shows one
	// port per address of ours; eight addresses of ours by two links are more than most have.
	MaxReflexive = 16
	// MaxRelayed is how many relayed ways there are: eight relays, by UDP and stream.
	MaxRelayed = 16
	// keepReflexive is how long a pair that nobody announces is kept after the last message by it.
	keepReflexive = UnusedAfter
)

// A pair is one way to the peer and what is known of it.
type pair struct {
	via      weft.Via
	kind     weft.CandidateKind // of the peer's address; zero of a relay
	number   uint16             // in our pings, and in the peer's reports; not zero
	order    int                // of a relay: its place in the caller's list
	listed   bool               // announced, or in the caller's list
	far      weft.LinkID        // the peer's number of its link, of what it announced; 0: it has one, or did not say
	arrives  weft.LinkID        // the same, as its answers say; 0: they do not
	warm     bool               // kept so: see standBy
	standing standing           // as a member of a bond
	heard    time.Time          // any message or data
	probe    prober
	rtt      rtt
	health   health
	ledger   *ledger // nil while no data was sent by it
	counted  uint64  // packets that came by it, by the peer's last report
	grew     uint64  // by how much that was more than by the report before
	mtu      *search // nil while nobody asks how long packets may be
}

// A link is one of ours, with the families of addresses it has.
type link struct {
	id           weft.LinkID
	v4, v6, near bool // near: IPv6 beyond link-local is missing, link-local is there
	loopback     bool
}

// canonical is the via as it is compared here: no zone (the link says it already), and nothing in the fields
// that its method does not use.
func canonical(v weft.Via) weft.Via {
	switch {
	case v.Method == weft.Direct:
		return weft.DirectVia(v.Link, netip.AddrPortFrom(v.Addr.Addr().WithZone(""), v.Addr.Port()))
	case v.Method == weft.DirectTCP:
		return weft.TCPVia(v.Link, netip.AddrPortFrom(v.Addr.Addr().WithZone(""), v.Addr.Port()))
	case v.Method.Relayed():
		return weft.Via{Method: v.Method, Link: v.Link, Relay: v.Relay}
	}
	return weft.Via{}
}

// usable is the list without what cannot be sent to, without repetitions, best kind first, cut to what one node
// announces. It is a copy.
func usable(list []weft.Candidate) []weft.Candidate {
	out := make([]weft.Candidate, 0, min(len(list), wire.MaxCandidates))
	for _, c := range list {
		ip := c.Addr.Addr().Unmap().WithZone("")
		c.Addr = netip.AddrPortFrom(ip, c.Addr.Port())
		if ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && c.Addr.Port() != 0 &&
			c.Kind >= weft.Host && c.Kind <= weft.PeerReflexive {
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b weft.Candidate) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Link, b.Link), a.Addr.Compare(b.Addr))
	})
	out = slices.Compact(out)
	return out[:min(len(out), wire.MaxCandidates)]
}

// linksOf tells which links have candidates, and of which families.
func linksOf(local []weft.Candidate) []link {
	var links []link
	for _, c := range local {
		i := slices.IndexFunc(links, func(l link) bool { return l.id == c.Link })
		if i < 0 {
			i = len(links)
			links = append(links, link{id: c.Link})
		}
		l, ip := &links[i], c.Addr.Addr()
		switch {
		case ip.IsLoopback():
			l.loopback = true
		case ip.Is4():
			l.v4 = true
		case ip.IsLinkLocalUnicast():
			l.near = true
		default:
			l.v6 = true
		}
	}
	slices.SortFunc(links, func(a, b link) int { return cmp.Compare(a.id, b.id) })
	return links
}

// reaches reports whether a packet from the link could get to the address at all.
func (l link) reaches(ip netip.Addr) bool {
	switch {
	case ip.IsLoopback():
		return l.loopback // both are on this machine, as in a test
	case ip.IsLinkLocalUnicast():
		// Without a link of its own, a socket cannot tell which neighbourhood is meant.
		return l.id != 0 && (ip.Is4() && l.v4 || ip.Is6() && (l.v6 || l.near))
	case ip.Is4():
		return l.v4
	}
	return l.v6
}

// find returns the pair of a canonical via, or nil.
func (a *Agent) find(v weft.Via) *pair {
	for _, p := range a.pairs {
		if p.via == v {
			return p
		}
	}
	return nil
}

// add makes a pair. Its number is no other pair's.
func (a *Agent) add(v weft.Via, kind weft.CandidateKind) *pair {
	for taken := true; taken; {
		a.numbers++
		taken = a.numbers == 0 || slices.ContainsFunc(a.pairs, func(p *pair) bool { return p.number == a.numbers })
	}
	p := &pair{via: v, kind: kind, number: a.numbers}
	a.pairs = append(a.pairs, p)
	return p
}

// count tells how many direct pairs there are that are, or are not, announced.
func (a *Agent) count(listed bool) (n int) {
	for _, p := range a.pairs {
		if p.via.Method == weft.Direct && p.listed == listed {
			n++
		}
	}
	return n
}

// rebuild makes the direct pairs agree with both sides' candidates and reports whether any is new. What the
// peer told itself comes before what the coordinator knows.
func (a *Agent) rebuild() (added bool) {
	for _, p := range a.pairs {
		if p.via.Method == weft.Direct {
			p.listed = false
		}
	}
	listed := 0
	for _, list := range [][]weft.Candidate{a.exchange.theirs, a.told} {
		for _, c := range list {
			for _, l := range a.links {
				if listed == MaxDirect || !l.reaches(c.Addr.Addr()) || a.isOwn(c.Addr) || a.connections.use.instead(l.id) {
					continue
				}
				v := weft.DirectVia(l.id, c.Addr)
				p := a.find(v)
				if p == nil {
					p = a.add(v, c.Kind)
					added = true
				}
				if !p.listed {
					p.listed, p.kind, p.far = true, c.Kind, c.Link
					listed++
				}
			}
		}
	}
	a.prune(func(p *pair) bool {
		if p.via.Method != weft.Direct || len(a.local) > 0 && !a.hasLink(p.via.Link) && !a.holds(p.via.Link) {
			// Sockets on no link in particular are there all the same. What goes by them until a link's own pair works
			// loses nothing.
			return p.via.Method != weft.Direct || p == a.choice.pair && p.via.Link == 0 && p.health.state == Valid
		}
		if a.connections.use.instead(p.via.Link) {
			return false
		}
		// An address that is no longer announced but works is as good as any that a message came from.
		return p.listed || p == a.choice.pair || p.health.state == Valid || !p.heard.IsZero()
	})
	for a.count(false) > MaxReflexive {
		old := a.oldestReflexive(true)
		if old == nil {
			break
		}
		a.drop(old)
	}
	return added
}

// relist makes the relayed pairs agree with the caller's list and reports whether any is new.
func (a *Agent) relist() (added bool) {
	for _, p := range a.pairs {
		if p.via.Method.Relayed() {
			p.listed = false
		}
	}
	for i, v := range a.relays {
		p := a.find(v)
		if p == nil {
			p = a.add(v, 0)
			added = true
		}
		p.listed, p.order = true, i
	}
	a.prune(func(p *pair) bool { return p.listed || !p.via.Method.Relayed() })
	return added
}

// reflexive makes a pair of where a message came from: RFC 8445 section 7.3.1.3. It returns nil when there are
// too many that all work.
func (a *Agent) reflexive(now time.Time, v weft.Via) *pair {
	if a.count(false) >= MaxReflexive {
		old := a.oldestReflexive(false)
		if old == nil {
			return nil
		}
		a.drop(old)
	}
	p := a.add(v, weft.PeerReflexive)
	p.heard = now
	return p
}

// oldestReflexive is the pair to give up for a newer one: not in use, silent for longest, and, unless working
// ones are meant as well, not working.
func (a *Agent) oldestReflexive(working bool) *pair {
	var oldest *pair
	for _, p := range a.pairs {
		if p.via.Method == weft.Direct && !p.listed && p != a.choice.pair && (working || p.health.state != Valid) &&
			(oldest == nil || p.heard.Before(oldest.heard)) {
			oldest = p
		}
	}
	return oldest
}

// sweep drops pairs that nobody announces and nobody has used for long.
func (a *Agent) sweep(now time.Time) {
	a.prune(func(p *pair) bool {
		return p.listed || p == a.choice.pair || now.Sub(latest(p.heard, p.probe.pong)) < keepReflexive
	})
}

func (a *Agent) drop(p *pair) { a.prune(func(q *pair) bool { return q != p }) }

// prune keeps the pairs that keep says, and forgets addresses that no pair has any more.
func (a *Agent) prune(keep func(*pair) bool) {
	before := len(a.pairs)
	a.pairs = slices.DeleteFunc(a.pairs, func(p *pair) bool { return !keep(p) })
	if len(a.pairs) == before {
		return
	}
	a.bond.dirty = true
	if a.choice.pair != nil && !slices.Contains(a.pairs, a.choice.pair) {
		a.choice.orphan()
	}
	if a.choice.challenger != nil && !slices.Contains(a.pairs, a.choice.challenger) {
		a.choice.challenger = nil
	}
	a.learned = slices.DeleteFunc(a.learned, func(addr netip.AddrPort) bool {
		has := slices.ContainsFunc(a.pairs, func(p *pair) bool { return p.via.Method == weft.Direct && p.via.Addr == addr })
		if !has {
			a.unlearn(addr)
		}
		return !has
	})
}

// unlearn tells the caller that an address is no longer the peer's, unless it was not told yet that it is.
func (a *Agent) unlearn(addr netip.AddrPort) {
	if i := slices.Index(a.pending.learn, addr); i >= 0 {
		a.pending.learn = slices.Delete(a.pending.learn, i, i+1)
		return
	}
	a.pending.forget = append(a.pending.forget, addr)
}

func (a *Agent) hasLink(id weft.LinkID) bool {
	return slices.ContainsFunc(a.links, func(l link) bool { return l.id == id })
}

// isOwn reports whether an address is one of this machine's own: two private networks often use the same.
func (a *Agent) isOwn(addr netip.AddrPort) bool {
	return slices.ContainsFunc(a.local, func(c weft.Candidate) bool { return c.Kind == weft.Host && c.Addr == addr })
}
