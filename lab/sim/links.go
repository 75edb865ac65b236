package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/gather"
	"weft/host"
	"weft/lab/scenario"
	"weft/lab/vnet"
	"weft/path"
	"weft/wire"
)

// A link is a way out of a node's machine, and what is found out by it. A machine with one has link 0, whose socket is bound
// to none; the links of one with several count from 1, with a socket bound to each, as in the daemon.
type link struct {
	n         *node
	id        weft.LinkID
	index     int // of the machine's legs
	leg       *vnet.Leg
	socket    *vnet.Socket
	reflexive gather.Reflexive
	nat       natWatch
}

// name is the name that events have for it.
func (l *link) name() string { return l.n.m.spec.LegName(l.index) }

// device is the interface's name.
func (l *link) device() string { return fmt.Sprintf("eth%d", l.index) }

// up reports whether the interface has a carrier.
func (l *link) up() bool { return !l.n.w.down[l.name()] }

// listen makes one more socket that leaves by the link.
func (l *link) listen(port uint16) (*vnet.Socket, error) {
	if l.id == 0 {
		return l.n.m.host.Listen(port)
	}
	return l.leg.Listen(port)
}

// openLinks makes the node's links with their sockets.
func (n *node) openLinks() error {
	n.links = nil
	legs := n.m.host.Legs()
	for i, leg := range legs {
		l := &link{n: n, index: i, leg: leg}
		if len(legs) > 1 {
			l.id = weft.LinkID(i + 1)
		}
		l.nat = natWatch{l: l}
		var err error
		if l.socket, err = l.listen(nodePort); err != nil {
			return err
		}
		l.socket.Handle(func(now time.Time, from netip.AddrPort, b []byte) { n.receive(now, l.id, from, b) })
		n.links = append(n.links, l)
	}
	return nil
}

// link finds a link that is up; that of a spare socket is the one which attempts are made by.
func (n *node) link(id weft.LinkID) *link {
	if id >= path.FirstSpare {
		id = n.attemptLink()
	}
	for _, l := range n.links {
		if l.id == id {
			return l
		}
	}
	return n.links[0]
}

// upLinks are the links that are up.
func (n *node) upLinks() (list []*link) {
	for _, l := range n.links {
		if l.up() {
			list = append(list, l)
		}
	}
	return list
}

// attemptLink is the link that relays see this node by: the nearest's that is bound, else the first that is up.
func (n *node) attemptLink() weft.LinkID {
	if r := n.relay(n.homeRelay()); r != nil && r.boundTo.IsValid() {
		return r.link
	}
	return n.nextLink(0)
}

// nextLink is the link that is up after one, round about.
func (n *node) nextLink(after weft.LinkID) weft.LinkID {
	up := n.upLinks()
	for _, l := range up {
		if l.id > after {
			return l.id
		}
	}
	if len(up) > 0 {
		return up[0].id
	}
	return n.links[0].id
}

// tellNATs tells the agents what is known of the NATs in front of each link, first that which attempts are made by.
func (n *node) tellNATs(now time.Time) {
	list := n.linkNATs()
	for _, p := range n.peers {
		p.agent.SetNATs(now, list)
		p.due = true
	}
}

func (n *node) linkNATs() (list []weft.LinkNAT) {
	first := n.attemptLink()
	for _, l := range n.links {
		x := weft.LinkNAT{Link: l.id, NAT: l.nat.known}
		if l.id == first {
			list = slices.Insert(list, 0, x)
		} else if l.up() {
			list = append(list, x)
		}
	}
	return list
}

// metrics are what the scenario says of the links.
func (n *node) metrics() map[weft.LinkID]int {
	out := map[weft.LinkID]int{}
	for i, g := range n.m.spec.Legs() {
		if g.Metric > 0 && len(n.links) > 1 {
			out[n.links[i].id] = g.Metric
		}
	}
	return out
}

// relayLinks tells by which link each relay is spoken to over UDP.
func (n *node) relayLinks() (list []wire.RelayLink) {
	for _, r := range n.relays {
		if r.boundTo.IsValid() && len(n.links) > 1 {
			list = append(list, wire.RelayLink{Relay: r.server.id, Link: r.link})
		}
	}
	return list
}

// candidates are where the node may be reached by its links, of itself and as servers see it.
func (n *node) candidates() []weft.Candidate {
	var hosts, seen, observed []weft.Candidate
	for _, l := range n.links {
		iface := host.Interface{Index: l.index + 1, Name: l.device(), MTU: maxFrame, Up: l.up()}
		if !iface.Up && l.id != 0 {
			continue
		}
		for _, a := range l.addrs() {
			iface.Addrs = append(iface.Addrs, netip.PrefixFrom(a, a.BitLen()))
		}
		hosts = append(hosts, gather.OnLink(l.id, 0, gather.Hosts([]host.Interface{iface}, nodePort, maxFrame, nil))...)
		seen = append(seen, gather.OnLink(l.id, 0, l.reflexive.Candidates())...)
	}
	for _, r := range n.relays {
		if r.observed.IsValid() {
			observed = append(observed, weft.Candidate{Addr: r.observed, Kind: weft.ServerReflexive, Link: r.link})
		}
	}
	slices.SortFunc(observed, func(a, b weft.Candidate) int { return a.Addr.Compare(b.Addr) })
	return gather.Merge(wire.MaxCandidates, hosts, seen, observed)
}

// addrs are the machine's own addresses on the link.
func (l *link) addrs() (list []netip.Addr) {
	for _, a := range []netip.Addr{l.leg.Addr6(), l.leg.Addr()} {
		if a.IsValid() {
			list = append(list, a)
		}
	}
	return list
}

// cuts are the directions of a link, out and in, that a cut event cuts.
func cuts(e scenario.Event) (out, in bool) {
	return len(e.Args) < 2 || e.Args[1] == "out", len(e.Args) < 2 || e.Args[1] == "in"
}

// impaired is what links of routers and hosts have in common.
type impaired interface {
	SetUp(up bool)
	SetCut(out, in bool)
	SetLinks(out, in vnet.LinkConfig) error
}

// letLink lets an event happen to a link.
func (w *world) letLink(e scenario.Event, name string, l impaired) error {
	switch e.Verb {
	case scenario.Down, scenario.Up:
		w.down[name] = e.Verb == scenario.Down
		l.SetUp(e.Verb == scenario.Up)
	case scenario.Cut, scenario.Mend:
		out, in := cuts(e)
		out, in = out && e.Verb == scenario.Cut, in && e.Verb == scenario.Cut
		w.cut[name] = out || in
		l.SetCut(out, in)
	case scenario.Set:
		return l.SetLinks(e.Link.Out, e.Link.In)
	}
	return nil
}

// letLinks lets an event happen to a router's link, or to one or all of a host's. A machine sees its own go down or up.
func (w *world) letLinks(now time.Time, e scenario.Event) error {
	name := e.Args[0]
	if r := w.routers[name]; r != nil {
		return w.letLink(e, name, r)
	}
	h, index, all := w.s.Leg(name)
	if h == nil {
		return fmt.Errorf("there is no link %s", name)
	}
	m := w.machine(h.Name)
	for i, leg := range m.host.Legs() {
		if i == index || all {
			if err := w.letLink(e, h.LegName(i), leg); err != nil {
				return err
			}
		}
	}
	if m.node != nil && (e.Verb == scenario.Down || e.Verb == scenario.Up) {
		m.node.networkChanged(now)
	}
	return nil
}

// carried is how many bytes a link has carried so far, both directions together.
func (w *world) carried(name string) uint64 {
	if r := w.routers[name]; r != nil {
		out, in := r.Carried()
		return out + in
	}
	h, index, _ := w.s.Leg(name)
	out, in := w.machine(h.Name).host.Legs()[index].Carried()
	return out + in
}
