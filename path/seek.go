package path

import (
	"cmp"
	"slices"
	"time"

	"weft"
)

// Links that have no member, and news of links: what makes ways be asked.

// lookFor chooses which ways are asked in quick succession, so that links that have no member have one soon.
func (a *Agent) lookFor(now time.Time, chosen *cover) {
	b := &a.bond
	b.lacks = false
	for _, p := range a.pairs {
		p.standing.seek = false
	}
	missing := func(has, all []weft.LinkID, is func(p *pair, id weft.LinkID) bool) {
		for _, id := range all {
			if slices.Contains(has, id) {
				continue
			}
			for range seekMost {
				var best *pair
				for _, p := range a.pairs {
					if !is(p, id) {
						continue
					}
					b.lacks = b.lacks || !p.via.Method.Relayed()
					if p.proven(now) && !p.standing.carries && !p.standing.seek &&
						(best == nil || p.standing.back.After(best.standing.back)) {
						best = p
					}
				}
				if best == nil {
					break
				}
				if best.standing.seek = true; best.standing.out.IsZero() {
					best.standing.fail(now, "it was not used")
				}
			}
		}
	}
	ours, theirs := []weft.LinkID{0}, []weft.LinkID{0}
	if b.ours {
		ours = a.ownLinks()
	}
	if b.theirs {
		theirs = a.peerLinks()
	}
	var none []weft.LinkID
	for _, id := range ours {
		if !slices.Contains(chosen.ours, id) {
			none = append(none, id)
		}
	}
	if !slices.Equal(none, b.missing) {
		b.missing, b.missed = none, now
	}
	missing(chosen.ours, ours, func(p *pair, id weft.LinkID) bool {
		l, _, ok := a.ends(p)
		return ok && l == id
	})
	missing(chosen.theirs, theirs, func(p *pair, id weft.LinkID) bool {
		_, f, ok := a.ends(p)
		return ok && f == id
	})
}

// Lacking are the links of this node by which no way to the peer was found for a while, as long as data flows: a relay may be
// a way by them.
func (a *Agent) Lacking(now time.Time) []weft.LinkID {
	if b := &a.bond; a.bonds() && b.ours && a.busy(now) && len(b.ways) > 0 && now.Sub(b.missed) >= lackingFor {
		return b.missing
	}
	return nil
}

// withdrawn has ways doubted by links of the peer's that are gone, or have another address now.
func (a *Agent) withdrawn(now time.Time, was, is []weft.Candidate) {
	for _, p := range a.pairs {
		f := cmp.Or(p.arrives, p.far)
		if p.via.Method.Relayed() || !p.standing.carries || f == 0 && a.bond.theirs || !lost(was, is, f, p.via.Addr.Addr().Is4()) ||
			slices.ContainsFunc(is, func(c weft.Candidate) bool { return c.Kind == weft.Host && c.Addr == p.via.Addr }) {
			continue
		}
		why := "the peer's address on this link is another now"
		if !slices.ContainsFunc(is, func(c weft.Candidate) bool { return c.Link == f }) {
			why = "the peer says that its link is gone"
		}
		a.stops(now, p, why)
	}
}

// moved has ways doubted by links of ours that have another address now.
func (a *Agent) moved(now time.Time, was, is []weft.Candidate) {
	for _, p := range a.pairs {
		if !p.via.Method.Relayed() && p.standing.carries && lost(was, is, a.under(p), p.via.Addr.Addr().Is4()) {
			a.stops(now, p, "this node's address on the link is another now")
		}
	}
}

// lost reports whether a link had an address of its own in one list, of a family, that it has not in the other.
func lost(was, is []weft.Candidate, id weft.LinkID, v4 bool) bool {
	return slices.ContainsFunc(was, func(c weft.Candidate) bool {
		return c.Link == id && c.Kind == weft.Host && c.Addr.Addr().Is4() == v4 && !slices.Contains(is, c)
	})
}
