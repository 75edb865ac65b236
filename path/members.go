package path

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// A bond (package bond) sends one flow by several ways. Which ones is chosen here: the members.
//
// A member is a way that carries packets, as pings or data show, and each uses links that no other does, as far as there are
// such: of two nodes with two links each, two of the four ways and not those that meet in one link. So there are as many
// members as the side with more links has. Between the same two links one way is a member: the direct one before a relay, UDP
// before TCP, IPv4 or IPv6 whichever is faster. A relay stands in where two links have no direct way.
//
// A way leaves the members in the call that tells of it: its link went (SetLocal), the peer says that its own went, or pings are
// not answered; two in quick succession when data by it is not heard of (Silent), which the bond does not wait for. It is asked
// every eighth of a second then, as long as data flows, and is back with the first answer. Each failure soon after it was back
// makes it wait longer, by quarters of seconds and not more than two: it has to answer all that time. What answers pings and
// loses data stays a member, and rests as the bond thinks right.
//
// Nodes that have one link each have no members, and nothing is spent on them.

const (
	// resettle is how often it is looked whether other members would be better, beside every change of what there is.
	resettle = 5 * time.Second
	// returnWithin is how long a way that failed just now is waited for before others take its place that share a link, which
	// would have to go again when it is back; and how long others have to be better to take the place of members that work.
	returnWithin = 2 * time.Second
	// keepMember is by how much a way has to be faster to take a member's place: what changes costs more than it gains.
	keepMember = 10 * time.Millisecond
	// memberSamples is how many answers a member has to have given: a first ping may wait for a neighbour's address, or for a radio that
	// sleeps, and a way that seems slow would carry nothing by which it could show that it is not.
	memberSamples = settleSamples
	memberAgain   = 200 * time.Millisecond // until it is asked for the next
	// throughRelay and byStream are added to the cost of ways, in time, so that others come first.
	throughRelay = time.Hour
	byStream     = time.Minute
	// lackingFor is how long direct ways by a link are looked for before a relay may stand in: as long as the opening rounds
	// take, and a connection over TCP after them.
	lackingFor = 6 * time.Second
	// keptMembers is how many changes are remembered for people.
	keptMembers = 32
)

// A Member is a way that a bond may send by now.
type Member struct {
	Via    weft.Via
	Metric int           // one with a higher metric carries data only while none with a lower one does
	RTT    time.Duration // the least of the last answers; 0: unknown. One that is clearly less than before is told
}

// A MemberChange is one of the set of members.
type MemberChange struct {
	At     time.Time
	Via    weft.Via
	In     bool   // it is one now
	Reason string // in plain words
}

// bonding is what an Agent keeps of its members.
type bonding struct {
	on      bool
	metrics []wire.LinkMetric // of this node's links
	relays  []wire.RelayLink  // this node's
	uplinks wire.Uplinks      // the peer's

	ours, theirs bool // this node, the peer has several links
	dirty        bool // something changed that members depend on
	next         time.Time
	ways         []*pair // the members
	list         []Member
	worse        time.Time     // since when others would be better; zero: they are the best
	lacks        bool          // a link has no member, and might
	missing      []weft.LinkID // of ours, those that have none
	missed       time.Time     // since when it is these
	changes      []MemberChange
}

// SetBonding says whether ways are to be chosen to be bonded. They are not before.
func (a *Agent) SetBonding(now time.Time, on bool) {
	if a.bond.on != on {
		a.bond.on, a.bond.dirty = on, true
	}
}

// SetMetrics says what this node's links cost; one that is not named costs nothing. The peer is told.
func (a *Agent) SetMetrics(now time.Time, metrics map[weft.LinkID]int) {
	list := make([]wire.LinkMetric, 0, len(metrics))
	for id, m := range metrics {
		if m = min(max(m, 0), wire.MaxMetric); m > 0 {
			list = append(list, wire.LinkMetric{Link: id, Metric: uint16(m)})
		}
	}
	slices.SortFunc(list, func(x, y wire.LinkMetric) int { return cmp.Compare(x.Link, y.Link) })
	list = list[:min(len(list), wire.MaxLinks)]
	if slices.Equal(list, a.bond.metrics) {
		return
	}
	a.bond.metrics, a.bond.dirty = list, true
	a.exchange.announce(now)
}

// SetRelayLinks says by which link each relay is spoken to over UDP. The peer is told.
func (a *Agent) SetRelayLinks(now time.Time, links []wire.RelayLink) {
	list := slices.Clone(links[:min(len(links), wire.MaxRelayLinks)])
	slices.SortFunc(list, func(x, y wire.RelayLink) int { return cmp.Compare(x.Relay, y.Relay) })
	if slices.Equal(list, a.bond.relays) {
		return
	}
	a.bond.relays, a.bond.dirty = list, true
	if a.bond.ours {
		a.exchange.announce(now)
	}
}

// bonds reports whether there is anything to bond: bonding is wanted, and one of the two nodes has several links.
func (a *Agent) bonds() bool { return a.bond.on && (a.bond.ours || a.bond.theirs) }

// countLinks finds out which of the two nodes has several links. It is called whenever candidates changed. Who had several and
// has one left goes on as before: the others are down, and what went by them has to go by that one.
func (a *Agent) countLinks() {
	b := &a.bond
	several := func(was bool, n int) bool { return n > 1 || was && n == 1 }
	b.ours, b.theirs, b.dirty = several(b.ours, len(a.ownLinks())), several(b.theirs, len(a.peerLinks())), true
}

// ownLinks are this node's links but the one that is none in particular.
func (a *Agent) ownLinks() (ids []weft.LinkID) {
	for _, l := range a.links {
		if l.id != 0 {
			ids = append(ids, l.id)
		}
	}
	return ids
}

// peerLinks are the same of the peer.
func (a *Agent) peerLinks() (ids []weft.LinkID) {
	for _, c := range a.theirs() {
		if c.Link != 0 && !slices.Contains(ids, c.Link) {
			ids = append(ids, c.Link)
		}
	}
	return ids
}

// theirs are the peer's candidates: those that it told, or else the coordinator.
func (a *Agent) theirs() []weft.Candidate {
	if a.exchange.known {
		return a.exchange.theirs
	}
	return a.told
}

// ends tells between which links a pair leads, each 0 of a node that has one. Not every pair does between two that are known.
func (a *Agent) ends(p *pair) (ours, theirs weft.LinkID, ok bool) {
	b := &a.bond
	switch p.via.Method {
	case weft.RelayUDP:
		ours, theirs = relayLink(b.relays, p.via.Relay), relayLink(b.uplinks.Relays, p.via.Relay)
	case weft.RelayStream:
		return 0, 0, false // it leaves as the routes say, whichever link that is
	default:
		ours, theirs = a.under(p), cmp.Or(p.arrives, p.far)
		if ours == 0 && b.ours && a.neighbour(p) {
			return 0, 0, true // by an interface that is no link, to one of the peer's
		}
	}
	if ours == 0 && b.ours || theirs == 0 && b.theirs {
		return 0, 0, false
	}
	if !b.ours {
		ours = 0
	}
	if !b.theirs {
		theirs = 0
	}
	return ours, theirs, true
}

func relayLink(list []wire.RelayLink, id weft.RelayID) weft.LinkID {
	i := slices.IndexFunc(list, func(x wire.RelayLink) bool { return x.Relay == id })
	if i < 0 {
		return 0
	}
	return list[i].Link
}

// neighbour reports whether a pair of no link in particular leads to a network that an interface of this node is in that is no
// link: a cable between two machines, for one. All else leaves by one of the links, as the routes say.
func (a *Agent) neighbour(p *pair) bool {
	ip := p.via.Addr.Addr()
	bits := 64
	if ip.Is4() {
		bits = 24
	}
	return ip.IsPrivate() && slices.ContainsFunc(a.local, func(c weft.Candidate) bool {
		return c.Link == 0 && c.Kind == weft.Host && c.Addr.Addr().BitLen() == ip.BitLen() &&
			netip.PrefixFrom(c.Addr.Addr(), bits).Masked().Contains(ip)
	})
}

// metric is that of the dearer of the two links.
func (a *Agent) metric(ours, theirs weft.LinkID) int {
	of := func(list []wire.LinkMetric, id weft.LinkID) int {
		i := slices.IndexFunc(list, func(x wire.LinkMetric) bool { return x.Link == id })
		if i < 0 {
			return 0
		}
		return int(list[i].Metric)
	}
	return max(of(a.bond.metrics, ours), of(a.bond.uplinks.Metrics, theirs))
}

// uplinked takes what the peer says of its links. It may overtake the candidates that it goes with.
func (a *Agent) uplinked(m wire.Uplinks) {
	u, e := &a.bond.uplinks, &a.exchange
	if late := m.Session == u.Session && m.Seq < u.Seq; late || slices.Contains(e.retired, m.Session) {
		return
	}
	if !slices.Equal(u.Metrics, m.Metrics) || !slices.Equal(u.Relays, m.Relays) {
		a.bond.dirty = true
	}
	*u = m
}

// assemble chooses the members anew if something changed that they depend on, and tells of it.
func (a *Agent) assemble(now time.Time, out *Actions) {
	b := &a.bond
	out.Bond, out.BondChanged, out.MemberChanges = b.list, false, out.MemberChanges[:0]
	if !a.bonds() {
		if b.lacks = false; b.dirty {
			for _, p := range a.pairs {
				p.standing = standing{in: p.standing.in}
			}
			b.dirty = false
			a.seat(now, out, nil)
		}
		return
	}
	for _, p := range a.pairs {
		c := a.carries(now, p)
		if c && !p.standing.known {
			p.standing.known = true
			c = !a.inherits(now, p)
		}
		if c != p.standing.carries {
			p.standing.carries, b.dirty = c, true
		}
	}
	if !b.dirty && now.Before(b.next) {
		return
	}
	b.dirty, b.next = false, now.Add(resettle)
	chosen := a.choices(now)
	a.seat(now, out, chosen.cells)
	a.lookFor(now, &chosen)
}

// choices are the members that there are to be. Those that are stay so as long as they carry, unless others would use more links
// for a while: what a link that just came back needs another for may be there in a moment.
func (a *Agent) choices(now time.Time) cover {
	b := &a.bond
	cells := a.cells(now)
	later := func(x cell, ours bool) bool { return a.expected(now, x, ours) }
	free := slices.Clone(cells)
	kept := match(cells, wire.MaxBondPaths, later)
	for i := range free {
		free[i].held = false
	}
	best := match(free, wire.MaxBondPaths, later)
	if best.worth(&kept) <= 0 {
		b.worse = time.Time{}
		return kept
	}
	if b.worse.IsZero() {
		b.worse = now
	}
	settled := slices.ContainsFunc(kept.cells, func(x cell) bool {
		return x.held && now.Sub(x.way.standing.joined) >= returnWithin && !kept.shares(x) &&
			!slices.ContainsFunc(best.cells, func(y cell) bool { return y.way == x.way })
	})
	if settled && !a.due(now, b.worse.Add(returnWithin)) {
		b.next = now
		return kept
	}
	b.worse = time.Time{}
	return best
}

// cells are the best ways that carry between each two links.
func (a *Agent) cells(now time.Time) (cells []cell) {
	for _, p := range a.pairs {
		ours, theirs, ok := a.ends(p)
		if !ok || !p.standing.carries || p.via.Method.Relayed() && !p.standing.in && a.early(now, ours, theirs) {
			continue
		}
		i := slices.IndexFunc(cells, func(x cell) bool { return x.ours == ours && x.theirs == theirs })
		if i < 0 {
			cells = append(cells, cell{ours: ours, theirs: theirs, way: p, metric: a.metric(ours, theirs)})
		} else if better(p, cells[i].way) {
			cells[i].way = p
		}
	}
	for i := range cells {
		p := cells[i].way
		cost := p.rtt.base()
		if cells[i].held = p.standing.in; p.standing.in {
			cost = max(0, cost*3/4-keepMember)
		}
		switch {
		case p.via.Method.Relayed():
			cost += throughRelay
		case p.via.Method != weft.Direct:
			cost += byStream
		}
		cells[i].cost = int64(cost)
	}
	return cells
}

// early reports whether a relay is not to stand in yet: a direct way by one of the links failed just now.
func (a *Agent) early(now time.Time, ours, theirs weft.LinkID) bool {
	for _, q := range a.pairs {
		l, f, ok := a.ends(q)
		if ok && !q.via.Method.Relayed() && !q.standing.out.IsZero() && q.standing.flaps > 0 &&
			(a.bond.ours && l == ours || a.bond.theirs && f == theirs) && !a.due(now, q.standing.out.Add(returnWithin)) {
			a.bond.next = now
			return true
		}
	}
	return false
}

// better reports whether a pair is to be preferred to another between the same links.
func better(p, q *pair) bool {
	switch {
	case p.via.Method != q.via.Method:
		return p.via.Method > q.via.Method
	case p.standing.in != q.standing.in:
		if q.standing.in {
			return p.rtt.samples >= settleSamples && p.rtt.base()*3/2+keepMember < q.rtt.base()
		}
		return !(q.rtt.samples >= settleSamples && q.rtt.base()*3/2+keepMember < p.rtt.base())
	}
	return cmp.Or(
		cmp.Compare(band(p.rtt.base()), band(q.rtt.base())),
		cmp.Compare(reach(p), reach(q)),
		cmp.Compare(rank(p.via.Addr.Addr().Is4()), rank(q.via.Addr.Addr().Is4())),
		cmp.Compare(p.rtt.base(), q.rtt.base()),
		cmp.Compare(p.number, q.number),
	) < 0
}

// expected reports whether a way is to be left out that shares a link with a member: its other link, ours or the peer's, had a
// way just now to a third link that is there and has none now either, and that way may be back in a moment.
func (a *Agent) expected(now time.Time, x cell, mine bool) bool {
	peers := a.peerLinks()
	for _, q := range a.pairs {
		ours, theirs, ok := a.ends(q)
		if !ok || q.standing.out.IsZero() || q.standing.flaps == 0 ||
			mine && (ours != x.ours || theirs == x.theirs || !slices.Contains(peers, theirs)) || !mine && (theirs != x.theirs || ours == x.ours) {
			continue
		}
		third := !slices.ContainsFunc(a.pairs, func(p *pair) bool {
			l, f, ok := a.ends(p)
			return ok && p.standing.carries && (mine && f == theirs || !mine && l == ours)
		})
		if third && !a.due(now, q.standing.out.Add(returnWithin)) {
			a.bond.next = now // look again when that is over
			return true
		}
	}
	return false
}

// seat makes the members be these, and tells what changed.
func (a *Agent) seat(now time.Time, out *Actions, cells []cell) {
	b := &a.bond
	was := b.ways
	b.ways = nil
	list := make([]Member, 0, len(cells))
	for _, x := range cells {
		b.ways = append(b.ways, x.way)
		list = append(list, Member{Via: x.way.via, Metric: x.metric, RTT: x.way.rtt.base()})
	}
	slices.SortFunc(list, func(x, y Member) int {
		return cmp.Or(cmp.Compare(x.Metric, y.Metric), cmp.Compare(x.Via.Link, y.Via.Link), cmp.Compare(y.Via.Method, x.Via.Method),
			x.Via.Addr.Compare(y.Via.Addr), cmp.Compare(x.Via.Relay, y.Via.Relay))
	})
	same := func(x, was Member) bool {
		return x.Via == was.Via && x.Metric == was.Metric && x.RTT+keepMember > was.RTT
	}
	if slices.EqualFunc(list, b.list, same) {
		return
	}
	for _, p := range was {
		if !slices.Contains(b.ways, p) {
			p.standing.in = false
			a.tellChange(out, MemberChange{now, p.via, false, a.whyLeft(p)})
		}
	}
	for _, p := range b.ways {
		if !p.standing.in {
			p.standing.in, p.standing.joined = true, now
			a.tellChange(out, MemberChange{now, p.via, true, p.standing.whyJoined(p)})
		}
	}
	b.list = list
	out.Bond, out.BondChanged = list, true
}

func (a *Agent) tellChange(out *Actions, c MemberChange) {
	out.MemberChanges = append(out.MemberChanges, c)
	b := &a.bond
	if len(b.changes) == keptMembers {
		b.changes = slices.Delete(b.changes, 0, 1)
	}
	b.changes = append(b.changes, c)
}

func (a *Agent) whyLeft(p *pair) string {
	switch {
	case !a.bonds():
		return "there is nothing to bond"
	case !slices.Contains(a.pairs, p) && p.via.Method.Relayed():
		return "the relay can no longer be used"
	case !slices.Contains(a.pairs, p):
		return "its link or its address is no more"
	case !p.standing.out.IsZero():
		return p.standing.why
	case !p.standing.carries:
		return "nothing was heard by it for " + inWords(StaleAfter)
	}
	return "another way uses its links better"
}

func (s *standing) whyJoined(p *pair) string {
	if !s.back.IsZero() && s.why != "" {
		return "it answers again after: " + s.why
	}
	return fmt.Sprintf("it works, in %s", inWords(p.rtt.base()))
}
