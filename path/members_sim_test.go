package path

import (
	"slices"
	"testing"
	"time"

	"weft"
)

// A bondFlow is what a host sends by its members in turn, as a bond would: what did not arrive is told by those that went by
// other ways, and goes again by one of these.
type bondFlow struct {
	until    time.Time
	every    time.Duration
	turn     int
	sent     []sending
	arrivals []time.Time            // of packets, in the order of their arrival
	idle     int                    // there was no member to send by
	rests    map[weft.Via]time.Time // until when nothing goes by what was silent
}

// A sending is one packet, and by which way it went last.
type sending struct {
	via     weft.Via
	arrived bool
	tries   int
}

// pool makes a host send by its members until a time.
func (h *host) pool(every time.Duration, until time.Time) {
	h.bonding.every, h.bonding.until, h.bonding.rests = every, until, map[weft.Via]time.Time{}
	h.share()
}

func (h *host) share() {
	w, f := h.w, &h.bonding
	if !w.now.Before(f.until) || !h.up {
		return
	}
	f.sent = append(f.sent, sending{})
	h.give(len(f.sent)-1, weft.Via{})
	w.after(f.every, h.share)
}

// give sends a packet by the member whose turn it is, or by the way in use.
func (h *host) give(n int, not weft.Via) {
	w, f := h.w, &h.bonding
	via := h.agent.Selected()
	if live := slices.DeleteFunc(slices.Clone(h.members), func(m Member) bool {
		return m.Via == not || m.Metric != h.members[0].Metric || w.now.Before(f.rests[m.Via])
	}); len(live) > 0 {
		f.turn++
		via = live[f.turn%len(live)].Via
	} else if f.idle++; via == (weft.Via{}) {
		h.agent.Want(w.now)
		h.poll()
		return
	}
	s := &f.sent[n]
	s.via, s.tries = via, s.tries+1
	session := h.session
	w.transmit(h, via, payload{seq: uint64(n), size: 1200, pooled: true})
	h.count(via, 1200, true)
	// Feedback by others comes within a round trip and some; a relay's is longer.
	w.after(2*(w.oneWay+w.jitter)+20*time.Millisecond, func() { h.missed(session, n, via) })
}

// missed looks whether a packet has arrived by now, and if others that were sent later have.
func (h *host) missed(session uint32, n int, via weft.Via) {
	f := &h.bonding
	if f.sent[n].arrived || !h.up || h.session != session {
		return
	}
	by := func(is bool) bool {
		return slices.ContainsFunc(f.sent[n+1:], func(s sending) bool { return s.arrived && (s.via == via) == is })
	}
	if by(false) && !by(true) && !h.w.now.Before(f.rests[via]) {
		f.rests[via] = h.w.now.Add(500 * time.Millisecond)
		h.agent.Silent(h.w.now, via, "what was sent by it does not arrive")
		h.poll()
	}
	if f.sent[n].tries < 3 {
		h.give(n, via)
	}
}

// pooled is the arrival of such a packet.
func (h *host) pooled(p payload) {
	f := &p.from.bonding
	if s := &f.sent[p.seq]; !s.arrived {
		s.arrived = true
		f.arrivals = append(f.arrivals, h.w.now)
	}
}

// gap is the longest time between two arrivals in a span.
func (f *bondFlow) gap(from, to time.Time) (longest time.Duration) {
	last := from
	for _, at := range f.arrivals {
		if at.After(last) && !at.After(to) {
			longest, last = max(longest, at.Sub(last)), at
		}
	}
	return max(longest, to.Sub(last))
}

// lost counts packets that never arrived, of all but the last few.
func (f *bondFlow) lost() (n int) {
	for _, s := range f.sent[:max(0, len(f.sent)-200)] {
		if !s.arrived {
			n++
		}
	}
	return n
}

// seated checks what the agent says of its members.
func (h *host) seated(out *Actions) {
	w := h.w
	if !out.BondChanged {
		if len(out.MemberChanges) > 0 {
			w.failf("%s: members changed, and it does not say so", h.name)
		}
		return
	}
	for _, c := range out.MemberChanges {
		if c.Reason == "" || c.At != w.now {
			w.failf("%s: a change without sense: %+v", h.name, c)
		}
		if c.In {
			h.joins++
			delete(h.bonding.rests, c.Via)
		}
		w.note("%s: member %v %v: %s", h.name, c.Via, c.In, c.Reason)
	}
	h.members = slices.Clone(out.Bond)
	seen := map[[2]weft.LinkID]bool{}
	for _, m := range h.members {
		ours, theirs := h.bondEnds(m.Via)
		if seen[[2]weft.LinkID{ours, theirs}] {
			w.failf("%s: two members between links %d and %d: %v", h.name, ours, theirs, h.members)
		}
		seen[[2]weft.LinkID{ours, theirs}] = true
	}
	if len(h.members) > max(1, len(h.uplinks), len(w.other(h).uplinks)) {
		w.failf("%s: members %v", h.name, h.members)
	}
}

// bondEnds tells between which links a way leads in truth.
func (h *host) bondEnds(via weft.Via) (ours, theirs weft.LinkID) {
	for _, u := range h.uplinks {
		if via.Link == u.id || via.Link >= FirstSpare && u.inside.Addr() == h.spares[via.Link].Addr() {
			ours = u.id
		}
	}
	for _, u := range h.w.other(h).uplinks {
		if u.nat.Owns(via.Addr.Addr()) {
			theirs = u.id
		}
	}
	return ours, theirs
}

// full reports whether a host's members use as many links as they can, directly.
func (h *host) full() bool {
	ours, theirs := map[weft.LinkID]bool{}, map[weft.LinkID]bool{}
	for _, m := range h.members {
		if m.Via.Method != weft.Direct {
			return false
		}
		l, f := h.bondEnds(m.Via)
		ours[l], theirs[f] = true, true
	}
	return len(ours) == max(1, len(h.uplinks)) && len(theirs) == max(1, len(h.w.other(h).uplinks)) &&
		len(h.members) == max(len(ours), len(theirs))
}

func (h *host) has(link weft.LinkID) bool {
	return slices.ContainsFunc(h.members, func(m Member) bool { l, _ := h.bondEnds(m.Via); return l == link })
}

func (h *host) reaches(link weft.LinkID) bool {
	return slices.ContainsFunc(h.members, func(m Member) bool { _, f := h.bondEnds(m.Via); return f == link })
}

// pooling is a world of two hosts that bond what they send, with links as the seed says: a has two or more.
func pooling(t *testing.T, seed uint64) *world {
	w := newWorld(t, seed)
	kinds := []natKind{portRestricted, {weft.EndpointIndependentMapping, weft.AddressDependentFiltering}, fullCone}
	several := func(n int) (out []natKind) {
		for range n {
			out = append(out, kinds[w.rng.IntN(len(kinds))])
		}
		return out
	}
	w.homed(w.a, several(2+w.rng.IntN(3))...)
	if n := 1 + w.rng.IntN(3); n > 1 {
		w.homed(w.b, several(n)...)
	} else {
		w.behind(w.b, kinds[w.rng.IntN(len(kinds))].config())
	}
	w.a.bonds, w.b.bonds = true, true
	w.bootBoth()
	for _, h := range w.hosts {
		h.pool(5*time.Millisecond, w.now.Add(time.Hour))
	}
	return w
}

func (w *world) bothFull() bool { return w.a.full() && w.b.full() }

func TestAsManyLinksAsThereAreCarryABond(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := pooling(t, seed)
		w.until(4*time.Second, "both full", w.bothFull)
		joins := w.a.joins + w.b.joins
		w.run(40 * time.Second)
		if !w.bothFull() {
			w.failf("members are %v and %v", w.a.members, w.b.members)
		}
		if n := w.a.joins + w.b.joins - joins; n > 4 { // others that were validated a little later are better
			w.failf("members changed %d times while nothing happened", n)
		}
	})
}

func TestABlackHoleIsLeftAtOnceAndItsEndIsNoticedInHalfASecond(t *testing.T) {
	forSeeds(t, 16, func(t *testing.T, seed uint64) {
		w := pooling(t, seed)
		w.until(4*time.Second, "both full", w.bothFull)
		w.run(time.Duration(2000+w.rng.IntN(30000)) * time.Millisecond)
		u := w.a.uplinks[w.rng.IntN(len(w.a.uplinks))]
		if u.inside == w.a.inside && w.rng.IntN(2) == 0 {
			w.a.noStream = true
		}
		cut := w.now
		u.cut = true
		w.note("cut link %d of a", u.id)
		rtt := 2 * (w.oneWay + w.jitter)
		w.until(2*rtt+300*time.Millisecond, "both leave it", func() bool { return !w.a.has(u.id) && !w.b.reaches(u.id) })
		w.run(time.Duration(300+w.rng.IntN(20000)) * time.Millisecond)
		for _, h := range w.hosts {
			if g := h.bonding.gap(cut, w.now); g > rtt+100*time.Millisecond {
				w.failf("%s: nothing came for %v", w.other(h).name, g)
			}
			if w.a.has(u.id) || w.b.reaches(u.id) {
				w.failf("a member by a dead link: %v, %v", w.a.members, w.b.members)
			}
			if len(h.members) == 0 {
				w.failf("%s has no members left", h.name)
			}
		}
		u.cut = false
		w.note("link %d works again", u.id)
		w.until(rtt+500*time.Millisecond, "both use it again", func() bool { return w.a.has(u.id) && w.b.reaches(u.id) })
		w.run(5 * time.Second)
		if !w.bothFull() {
			w.failf("members are %v and %v", w.a.members, w.b.members)
		}
		for _, h := range w.hosts {
			if n := h.bonding.lost(); n > 0 {
				w.failf("%d packets of %s never arrived", n, h.name)
			}
		}
	})
}

// unplug takes a link away from a host as netlink tells it; plug brings it back.
func (h *host) unplug(u *uplink) {
	u.cut = true
	h.uplinks = slices.DeleteFunc(slices.Clone(h.uplinks), func(x *uplink) bool { return x == u })
	h.inside = h.uplinks[0].inside
	h.agent.SetLocal(h.w.now, h.candidates())
	h.poll()
	h.agent.SetNATs(h.w.now, h.linkNATs())
	h.agent.NetworkChanged(h.w.now)
	h.poll()
}

func (h *host) plug(u *uplink) {
	u.cut = false
	h.uplinks = append(slices.Clone(h.uplinks), u)
	h.agent.SetLocal(h.w.now, h.candidates())
	h.agent.SetNATs(h.w.now, h.linkNATs())
	h.agent.NetworkChanged(h.w.now)
	h.poll()
}

func TestALinkThatTheSystemTakesAwayIsLeftInTheSameMomentAndBackInASecond(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := pooling(t, seed)
		w.until(4*time.Second, "both full", w.bothFull)
		w.run(time.Duration(2000+w.rng.IntN(30000)) * time.Millisecond)
		for range 3 {
			u := w.a.uplinks[w.rng.IntN(len(w.a.uplinks))]
			w.note("unplug link %d of a", u.id)
			w.a.unplug(u)
			if slices.ContainsFunc(w.a.members, func(m Member) bool { return m.Via.Link == u.id }) {
				w.failf("members are %v", w.a.members)
			}
			news := 2*w.relayLeg + w.oneWay + 3*w.jitter
			w.until(news, "b hears of it", func() bool {
				return !slices.ContainsFunc(w.b.members, func(m Member) bool { return u.nat.Owns(m.Via.Addr.Addr()) })
			})
			w.run(time.Duration(300+w.rng.IntN(5000)) * time.Millisecond)
			w.note("plug link %d of a", u.id)
			w.a.plug(u)
			w.until(time.Second, "both use it again", func() bool { return w.a.has(u.id) && w.b.reaches(u.id) })
			w.run(25 * time.Second)
			if !w.bothFull() {
				w.failf("members are %v and %v", w.a.members, w.b.members)
			}
		}
		for _, h := range w.hosts {
			if n := h.bonding.lost(); n > 0 {
				w.failf("%d packets of %s never arrived", n, h.name)
			}
		}
	})
}

func TestALinkThatFlapsIsLeftAloneUntilItHoldsStill(t *testing.T) {
	forSeeds(t, 3, func(t *testing.T, seed uint64) {
		w := pooling(t, seed)
		w.until(4*time.Second, "both full", w.bothFull)
		w.run(5 * time.Second)
		u := w.a.uplinks[w.rng.IntN(len(w.a.uplinks))]
		if u.inside == w.a.inside {
			w.a.noStream = true
		}
		for _, h := range w.hosts {
			h.joins = 0
		}
		began, rtt := w.now, 2*(w.oneWay+w.jitter)
		for range 100 { // in a minute
			u.cut = true
			down := time.Duration(100+w.rng.IntN(400)) * time.Millisecond
			w.run(down)
			u.cut = false
			w.run(600*time.Millisecond - down)
		}
		w.note("it holds still")
		for _, h := range w.hosts {
			if g := h.bonding.gap(began, w.now); g > rtt+100*time.Millisecond {
				w.failf("nothing of %s came for %v", h.name, g)
			}
			if h.joins > 30 {
				w.failf("members of %s came %d times", h.name, h.joins)
			}
		}
		w.until(3*time.Second, "both use it again", func() bool { return w.a.has(u.id) && w.b.reaches(u.id) })
		w.run(5 * time.Second)
		if !w.bothFull() {
			w.failf("members are %v and %v", w.a.members, w.b.members)
		}
	})
}

func TestAnAddressThatChangesOnALinkIsFollowed(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := pooling(t, seed)
		w.until(4*time.Second, "both full", w.bothFull)
		w.run(5 * time.Second)
		u := w.a.uplinks[w.rng.IntN(len(w.a.uplinks))]
		w.note("link %d of a has another address", u.id)
		at := slices.Index(w.a.uplinks, u)
		moved := *u
		ip := u.inside.Addr().As4()
		ip[3] = 99
		first := w.a.inside == u.inside
		moved.inside = addrOf(ip, u.inside.Port())
		w.a.uplinks = slices.Clone(w.a.uplinks)
		w.a.uplinks[at] = &moved
		if first {
			w.a.inside = moved.inside
			w.a.bound, _ = w.a.out(w.a.inside, relayAddr)
		}
		began := w.now
		w.a.agent.SetLocal(w.now, w.a.candidates())
		w.a.agent.NetworkChanged(w.now)
		w.a.poll()
		w.until(time.Second, "both use it again", func() bool { return w.a.has(u.id) && w.b.reaches(u.id) })
		w.run(20 * time.Second)
		if !w.bothFull() {
			w.failf("members are %v and %v", w.a.members, w.b.members)
		}
		for _, h := range w.hosts {
			if g := h.bonding.gap(began, w.now); g > 2*(w.oneWay+w.jitter)+100*time.Millisecond {
				w.failf("nothing of %s came for %v", h.name, g)
			}
		}
	})
}

func TestWithOneLinkEachBondingCostsNothing(t *testing.T) {
	forSeeds(t, 3, func(t *testing.T, seed uint64) {
		story := func(bonds bool) []string {
			w := homes(t, seed, portRestricted, portRestricted)
			w.a.bonds, w.b.bonds = bonds, bonds
			w.bootBoth()
			w.talkBoth(time.Minute)
			w.run(20 * time.Second)
			w.a.fault.direct = true
			w.run(20 * time.Second)
			w.a.fault.direct = false
			w.run(time.Minute)
			w.note("%d %d %d %d", w.a.sent, w.b.sent, w.a.polls, w.b.polls)
			return w.trace
		}
		if one, two := story(false), story(true); !slices.Equal(one, two) {
			t.Errorf("without:\n%v\nand with:\n%v", one, two)
		}
	})
}
