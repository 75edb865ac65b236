package path

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"weft"
)

const (
	// tcpPatience is how long UDP has to itself before TCP is tried: half of the opening rounds. A way over UDP that there is
	// is found in one; and traffic does not wait, the relay has it.
	tcpPatience = 2 * time.Second
	// tcpGiveWay is how much longer the side waits that does not lead, if the other may connect to it: one connection is enough.
	tcpGiveWay = time.Second
	// tcpFirst and tcpLast are between tries that fail: the first doubles up to the last. Who drops what it does not take lets
	// each cost three packets for an address; what was opened meanwhile is noticed within minutes.
	tcpFirst = 5 * time.Second
	tcpLast  = 5 * time.Minute
	// tcpLinger is how long a connection is kept beside UDP that works: what blocked UDP once may do so again.
	tcpLinger = time.Minute
	// MaxDialed is how many addresses one Dial has at most: all that a machine has on a link, and what the world sees of it.
	MaxDialed = 8
)

// A Connection is a TCP connection to the peer that is up, and over which both sides have proved who they are.
type Connection struct {
	Via    weft.Via    // its Addr is the other end
	Far    weft.LinkID // the peer's number of its link
	Dialed bool        // by this node
}

// A Dial is a wish for a connection from a link of ours to one of the peer's, to whichever of the addresses takes it.
type Dial struct {
	Link, Far weft.LinkID
	Addrs     []netip.AddrPort // best first
}

// TCP says what TCP is used for. The zero value is nothing.
type TCP struct {
	Allowed bool
	// Instead are links that carry TCP in place of UDP: there is no direct way over UDP by them. All has all of them be so.
	Instead []weft.LinkID
	All     bool
}

func (t TCP) instead(link weft.LinkID) bool {
	return t.Allowed && (t.All || slices.Contains(t.Instead, link))
}

// connections are those to the peer, and what is done for more.
type connections struct {
	use     TCP
	up      []connection
	efforts []effort
}

type connection struct {
	Connection
	spare time.Time // since when UDP does the same; zero: it does not
	hung  bool      // the caller was asked to close it
}

// An effort is to connect one link of ours with one of the peer's.
type effort struct {
	link, far weft.LinkID
	running   bool
	wanted    bool // as of the last Poll
	tries     int
	next      time.Time
}

// SetTCP says what TCP may be used for.
func (a *Agent) SetTCP(now time.Time, use TCP) {
	c := &a.connections
	if use.Allowed == c.use.Allowed && use.All == c.use.All && slices.Equal(use.Instead, c.use.Instead) {
		return
	}
	c.use = use
	c.use.Instead = slices.Clone(use.Instead)
	a.rebuild()
	a.changed(now)
}

// SetConnections says which connections there are now.
func (a *Agent) SetConnections(now time.Time, list []Connection) {
	c := &a.connections
	old := c.up
	c.up = make([]connection, 0, len(list))
	for _, p := range a.pairs {
		if p.via.Method == weft.DirectTCP {
			p.listed = false
		}
	}
	for _, x := range list {
		x.Via = canonical(x.Via)
		p := a.find(x.Via)
		if x.Via.Method != weft.DirectTCP || p != nil && p.listed {
			continue
		}
		if p == nil {
			p = a.add(x.Via, 0)
		}
		p.listed, p.far = true, x.Far
		is := connection{Connection: x}
		if i := slices.IndexFunc(old, func(o connection) bool { return o.Connection == x }); i >= 0 {
			is = old[i]
		}
		c.up = append(c.up, is)
	}
	a.prune(func(p *pair) bool { return p.listed || p.via.Method != weft.DirectTCP })
}

// Dialed says that a Dial has ended, in a connection (of which SetConnections tells) or not.
func (a *Agent) Dialed(now time.Time, link, far weft.LinkID) {
	if e := a.effort(link, far); e != nil && e.running {
		e.running = false
		e.next = now.Add(min(tcpFirst<<min(e.tries, 10), tcpLast))
		e.tries++
	}
}

func (a *Agent) effort(link, far weft.LinkID) *effort {
	list := a.connections.efforts
	for i := range list {
		if list[i].link == link && list[i].far == far {
			return &list[i]
		}
	}
	return nil
}

// again has those that failed tried soon: something changed.
func (c *connections) again() {
	for i := range c.efforts {
		c.efforts[i].tries, c.efforts[i].next = 0, time.Time{}
		c.efforts[i].wanted = false // UDP has its time anew
	}
}

// connect asks for connections where UDP does not work, and has those closed that are of no use.
func (a *Agent) connect(now time.Time, out *Actions) {
	out.Dial, out.Hang = out.Dial[:0], out.Hang[:0]
	a.hang(now, out)
	c := &a.connections
	if !c.use.Allowed || !a.wanted {
		return
	}
	for _, d := range a.dials() {
		e := a.effort(d.Link, d.Far)
		if e == nil {
			c.efforts = append(c.efforts, effort{link: d.Link, far: d.Far})
			e = &c.efforts[len(c.efforts)-1]
		}
		instead := c.use.instead(d.Link)
		switch {
		case e.running:
			continue
		case a.joined(d.Link, d.Far):
			e.wanted = false
			continue
		case !e.wanted:
			e.wanted = true
			wait := tcpPatience
			if instead {
				wait = 0
			}
			if !a.cfg.Leads && slices.ContainsFunc(a.local, func(c weft.Candidate) bool { return c.TCP }) {
				wait += tcpGiveWay
			}
			e.next = latest(e.next, now.Add(wait))
		}
		if a.due(now, e.next) && !c.trying(d.Link, d.Far) {
			e.running = true
			out.Dial = append(out.Dial, d)
		}
	}
	c.efforts = slices.DeleteFunc(c.efforts, func(e effort) bool { // of links that are no more
		return !e.running && !a.hasLink(e.link)
	})
}

// trying reports whether one of two links is being connected: when that is done, the other may have no need of it.
func (c *connections) trying(link, far weft.LinkID) bool {
	return slices.ContainsFunc(c.efforts, func(e effort) bool { return e.running && (e.link == link || e.far == far) })
}

// dials are all connections that might be: from each of our links to each of the peer's that takes them.
func (a *Agent) dials() (list []Dial) {
	theirs := slices.Concat(a.exchange.theirs, a.told)
	several := slices.ContainsFunc(theirs, func(c weft.Candidate) bool { return c.Link != 0 })
	for _, l := range a.links {
		if l.id == 0 && len(a.links) > 1 {
			continue // what leaves as the routes say leaves by one of the others
		}
		for _, c := range theirs {
			if !c.TCP || c.Link == 0 && several || !l.reaches(c.Addr.Addr()) || a.isOwn(c.Addr) {
				continue
			}
			i := slices.IndexFunc(list, func(d Dial) bool { return d.Link == l.id && d.Far == c.Link })
			if i < 0 {
				i = len(list)
				list = append(list, Dial{Link: l.id, Far: c.Link})
			}
			if d := &list[i]; len(d.Addrs) < MaxDialed && !slices.Contains(d.Addrs, c.Addr) {
				d.Addrs = append(d.Addrs, c.Addr)
			}
		}
	}
	for i := range list {
		slices.SortStableFunc(list[i].Addrs, func(x, y netip.AddrPort) int { // IPv6 has fewer NATs that let nobody in
			return cmp.Compare(rank(x.Addr().Is4()), rank(y.Addr().Is4()))
		})
	}
	return list
}

// joined reports whether there is nothing to gain by a connection between two links: each has a direct way, if to
// another. More than that would be the product of both sides' links.
func (a *Agent) joined(link, far weft.LinkID) bool {
	near, there := false, false
	for _, p := range a.pairs {
		if !a.joins(p) {
			continue
		}
		near = near || a.under(p) == link
		there = there || p.far == far || p.far == 0
	}
	return near && there
}

// joins reports whether a pair is a direct way, as far as it is known.
func (a *Agent) joins(p *pair) bool {
	switch p.via.Method {
	case weft.Direct:
		return p.health.state == Valid
	case weft.DirectTCP:
		return p.health.state != Failed
	}
	return false
}

// hang has connections closed: those over which nothing comes back any more, where a new one may do better; and, by who opened
// them, those to a peer that nobody wants to talk to, and those that UDP has long made superfluous.
func (a *Agent) hang(now time.Time, out *Actions) {
	for i := range a.connections.up {
		c := &a.connections.up[i]
		p := a.find(c.Via)
		if c.hung || p == nil {
			continue
		}
		if e := a.effort(c.Via.Link, c.Far); e != nil && p.health.state == Valid {
			e.tries = 0
		}
		switch {
		case p.health.state == Failed || c.Dialed && !a.wanted:
			c.hung = true
		case !c.Dialed || p == a.choice.pair || !a.superfluous(p):
			c.spare = time.Time{}
		case c.spare.IsZero():
			c.spare = now
			a.wake(now.Add(tcpLinger))
		case a.due(now, c.spare.Add(tcpLinger)):
			c.hung = true
		}
		if c.hung {
			out.Hang = append(out.Hang, c.Via)
		}
	}
}

// superfluous reports whether UDP works by the links of a connection.
func (a *Agent) superfluous(p *pair) bool {
	near, there := false, false
	for _, q := range a.pairs {
		if q.via.Method == weft.Direct && q.health.state == Valid {
			near = near || a.under(q) == p.via.Link
			there = there || q.far == p.far || q.far == 0
		}
	}
	return near && there
}
