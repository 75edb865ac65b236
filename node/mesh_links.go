package node

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/engine/underlay"
	"weft/gather"
	"weft/host"
	"weft/path"
)

// A machine with one way out needs no telling it apart: everything leaves by link 0, as the routes say, and costs what it
// always did. With two or more (gather.Uplinks), or with those that --link names, each is a link: with sockets of its
// own, bound to the interface, with candidates, STUN and a watch of its NATs of its own. Paths are tried by each.
//
// A link has one number as long as the daemon runs, whether it goes and comes again, and what was told apart once stays
// so: a machine whose second uplink goes does not move its paths from the first to link 0.
//
// Interfaces that lead nowhere but to their own neighbours are no links. Their addresses are announced as those of link
// 0, which reaches them by the routes; unless links are named: then these are all there is.

// links are this node's. The first of list is the one with the lowest metric; there is one at least.
type links struct {
	named   []string
	numbers map[string]weft.LinkID // that were given, by the interface's name
	list    []*meshLink
	resting []*meshLink // that were in the list and are down, or came back just now: see mesh_resting.go
	fell    bool        // one is no longer in the list, and not everybody was told
	lookAt  time.Time   // when to look at resting ones again; zero: when something changes
	apart   bool        // links are told apart
	tcp     tcp
	ctx     context.Context
}

// A meshLink is one.
type meshLink struct {
	underlay.Link
	addrs     []netip.Prefix // of its interface; of link 0 nothing
	reflexive gather.Reflexive
	watch     *gather.NATWatch
	cancel    context.CancelFunc // of the watch
	nats      gather.NATs
	rested
}

// gatherLinks looks which links there are, and reports whether any came, went or has changed.
func (me *mesh) gatherLinks(now time.Time) bool {
	ifaces, err := me.interfaces()
	if err != nil {
		return false // gatherLocal says so
	}
	return me.lookAtLinks(now, ifaces)
}

// lookAtLinks makes the links be those that the interfaces are.
func (me *mesh) lookAtLinks(now time.Time, ifaces []host.Interface) (changed bool) {
	l := &me.links
	routed := map[int]int{}
	if len(l.named) == 0 && (l.apart || me.several(ifaces)) { // a machine that routes for others may have many to list
		var err error
		if routed, err = host.DefaultLinks(); err != nil {
			me.log.Debug("the default routes cannot be found out", "error", err)
		}
	}
	up := gather.Uplinks(ifaces, routed, l.named, underlayMTU, me.netmap.Ranges, me.cfg.Device.Name)
	if len(l.named) > 0 || len(up) > 1 {
		l.apart = true
	}
	if !l.apart {
		if len(l.list) == 0 {
			me.addLink(now, &meshLink{})
		}
		return false // whoever has one link looks at its addresses
	}
	var missing []string
	for _, name := range l.named {
		if !slices.ContainsFunc(up, func(i host.Interface) bool { return i.Name == name }) {
			missing = append(missing, name)
		}
	}
	me.problem("links named", linksMissing(missing))
	var want []*meshLink
	for _, i := range up {
		w := &meshLink{Link: underlay.Link{ID: l.number(i.Name), Device: i.Name, Index: i.Index}, addrs: i.Addrs}
		if !l.rests(now, w.Link) {
			want = append(want, w)
		}
	}
	old := slices.Concat(l.list, l.resting)
	l.resting, l.lookAt = nil, time.Time{}
	for _, o := range old {
		if !slices.ContainsFunc(want, func(w *meshLink) bool { return w.Link == o.Link }) && o.worthKeeping(now, ifaces) {
			l.rest(now, o)
		}
	}
	sockets := make([]underlay.Link, 0, len(want)+len(l.resting))
	for _, w := range slices.Concat(want, l.resting) {
		sockets = append(sockets, w.Link)
	}
	sentence := ""
	if err := me.engine.SetLinks(sockets); err != nil {
		sentence = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	me.problem("links", sentence)
	want = slices.DeleteFunc(want, func(w *meshLink) bool { return me.engine.LinkPort(w.ID) == 0 })

	was := l.list
	l.list, changed, l.fell = nil, l.fell, false
	for _, w := range want {
		i := slices.IndexFunc(old, func(o *meshLink) bool { return o.Link == w.Link })
		if i < 0 {
			me.addLink(now, w)
			changed = true
			continue
		}
		o := old[i]
		l.list = append(l.list, o)
		back := o.stands(now)
		switch same := slices.Equal(o.addrs, w.addrs); {
		case !same:
			o.addrs, changed = w.addrs, true
			o.moved(now)
		case back:
			changed = true
			o.reflexive.Recheck(now)
			o.watch.Recheck()
		}
	}
	for _, o := range old {
		if !slices.Contains(l.list, o) && !slices.Contains(l.resting, o) {
			o.cancel()
		}
	}
	changed = changed || slices.ContainsFunc(was, func(o *meshLink) bool { return !slices.Contains(l.list, o) })
	if changed {
		me.log.Info("links", "interfaces", l.names())
		me.rebindRelays(now)
		me.tellNATs(now)
		me.tellMetrics(now)
	}
	return changed
}

// several reports whether more than one interface has an address by which somebody might be reached.
func (me *mesh) several(ifaces []host.Interface) bool {
	n := 0
	for i := range ifaces {
		if len(gather.Hosts(ifaces[i:i+1], 1, underlayMTU, me.netmap.Ranges, me.cfg.Device.Name)) > 0 {
			n++
		}
	}
	return n > 1
}

func linksMissing(names []string) string {
	switch len(names) {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf("the interface %s, which --link names, is not there or not up: it is used as soon as it is", names[0])
	}
	return fmt.Sprintf("the interfaces %s, which --link names, are not there or not up: they are used as soon as they are", strings.Join(names, ", "))
}

// number is the number of a link for as long as the daemon runs.
func (l *links) number(name string) weft.LinkID {
	if l.numbers == nil {
		l.numbers = map[string]weft.LinkID{}
	}
	id, ok := l.numbers[name]
	if !ok {
		if id = weft.LinkID(len(l.numbers) + 1); id >= path.FirstSpare { // far more names than interfaces have: begin anew
			clear(l.numbers)
			id = 1
		}
		l.numbers[name] = id
	}
	return id
}

// addLink begins to look at what a link leads to.
func (me *mesh) addLink(now time.Time, l *meshLink) {
	me.links.list = append(me.links.list, l)
	l.reflexive.SetServers(now, me.stunServers())
	ctx, cancel := context.WithCancel(me.links.ctx)
	l.cancel = cancel
	l.watch = gather.WatchNAT(ctx, gather.WatchConfig{
		Surroundings: func(ctx context.Context) (s gather.Surroundings) {
			me.ask(ctx, func(time.Time) { s = me.surroundings(l.ID) })
			return s
		},
		Probe: me.probe, Device: l.Device, Logger: me.log.With("link", l.name()),
	})
	go func() {
		for n := range l.watch.Found() {
			me.post(func(now time.Time) { me.setNAT(now, l, n) })
		}
	}()
}

// moved looks at everything anew by a link whose interface has other addresses, or may have.
func (l *meshLink) moved(now time.Time) {
	l.reflexive.Recheck(now)
	l.watch.Moved()
}

// name is the link's for a person.
func (l *meshLink) name() string {
	if l.ID == 0 {
		return "any"
	}
	return l.Device
}

func (l *links) names() (list []string) {
	for _, x := range l.list {
		list = append(list, x.name())
	}
	return list
}

// find is the link of a number, or nil.
func (l *links) find(id weft.LinkID) *meshLink {
	i := slices.IndexFunc(l.list, func(x *meshLink) bool { return x.ID == id })
	if i < 0 {
		return nil
	}
	return l.list[i]
}

// next is the link to try after one; the first if that is no more.
func (l *links) next(after weft.LinkID) weft.LinkID {
	if len(l.list) == 0 {
		return 0
	}
	i := slices.IndexFunc(l.list, func(x *meshLink) bool { return x.ID == after })
	return l.list[(i+1)%len(l.list)].ID
}

// first is the link with the lowest metric; 0 while there is none.
func (l *links) first() weft.LinkID {
	if len(l.list) == 0 {
		return 0
	}
	return l.list[0].ID
}

// device is the name of the interface that a link leaves by, also of a spare socket; "" if that is for the routes to say.
func (me *mesh) device(id weft.LinkID) string {
	if l := me.links.find(me.under(id)); l != nil {
		return l.Device
	}
	return ""
}

// under is the link that a spare socket was opened on; of another link it is the link.
func (me *mesh) under(id weft.LinkID) weft.LinkID {
	if id >= path.FirstSpare {
		return me.spares.on[id]
	}
	return id
}

// hosts are the host candidates of all links.
func (me *mesh) hosts(ifaces []host.Interface) (list []weft.Candidate) {
	of := func(ifaces []host.Interface, id weft.LinkID) {
		found := gather.Hosts(ifaces, me.engine.Port(), underlayMTU, me.netmap.Ranges, me.cfg.Device.Name)
		list = append(list, gather.OnLink(id, me.engine.LinkPort(id), found)...)
	}
	if !me.links.apart {
		of(ifaces, 0)
		return list
	}
	rest := slices.Clone(ifaces)
	for _, l := range me.links.list {
		mine := func(i host.Interface) bool { return i.Index == l.Index }
		if i := slices.IndexFunc(ifaces, mine); i >= 0 {
			of(ifaces[i:i+1], l.ID)
		}
		rest = slices.DeleteFunc(rest, mine)
	}
	rest = slices.DeleteFunc(rest, func(i host.Interface) bool {
		return slices.ContainsFunc(me.links.resting, func(l *meshLink) bool { return l.Index == i.Index })
	})
	if len(me.links.named) == 0 {
		of(rest, 0)
	}
	return list
}

// reflexives are what servers and relays see of all links.
func (me *mesh) reflexives() (list []weft.Candidate) {
	for _, l := range me.links.list {
		list = append(list, gather.OnLink(l.ID, 0, l.reflexive.Candidates())...)
	}
	var observed []weft.Candidate
	for _, r := range me.relays {
		if r.observed.IsValid() {
			observed = append(observed, weft.Candidate{Addr: r.observed, Kind: weft.ServerReflexive, Link: r.link})
		}
	}
	slices.SortFunc(observed, func(a, b weft.Candidate) int { return a.Addr.Compare(b.Addr) })
	return append(list, observed...)
}

// linkOf is the link that has an address of this machine's.
func (me *mesh) linkOf(a netip.Addr) (weft.LinkID, bool) {
	if !me.links.apart {
		return 0, true
	}
	for _, l := range me.links.list {
		if slices.ContainsFunc(l.addrs, func(p netip.Prefix) bool { return p.Addr().Unmap() == a.Unmap() }) {
			return l.ID, true
		}
	}
	return 0, false
}

// relayLinkID is the link that relays see this node by: the nearest's that is bound, else the first.
func (me *mesh) relayLinkID() weft.LinkID {
	if r := me.relays[me.homeRelay()]; r != nil && r.boundTo.IsValid() {
		return r.link
	}
	return me.links.first()
}

// mapping is what the servers' answers say of the NAT of the link that relays see this node by.
func (me *mesh) mapping() weft.Mapping {
	if l := me.links.find(me.relayLinkID()); l != nil {
		return l.reflexive.Mapping()
	}
	return weft.MappingUnknown
}

// rebindRelays has relays that were bound by a link that is no more bound by another.
func (me *mesh) rebindRelays(now time.Time) {
	for _, r := range me.relays {
		if me.links.find(r.link) == nil && len(r.addrs) > 0 {
			me.bind(now, r, me.links.next(r.link))
			me.relayState(now, r)
		}
	}
}

// setNAT takes in what was found out of a link's NATs.
func (me *mesh) setNAT(now time.Time, l *meshLink, n gather.NATs) {
	if l.nats == n {
		return
	}
	l.nats = n
	me.log.Info("the NAT in front of this node", "link", l.name(), "ipv4", n.IPv4.String())
	me.tellNATs(now)
}

// tellNATs tells the agents.
func (me *mesh) tellNATs(now time.Time) {
	list := me.linkNATs()
	for _, p := range me.peers {
		p.agent.SetNATs(now, list)
		p.due = true
	}
}

// linkNATs are what is known of all links' NATs for IPv4, first the link that relays see this node by.
func (me *mesh) linkNATs() []weft.LinkNAT {
	first := me.relayLinkID()
	list := make([]weft.LinkNAT, 0, len(me.links.list))
	for _, l := range me.links.list {
		list = append(list, weft.LinkNAT{Link: l.ID, NAT: l.nats.IPv4})
	}
	slices.SortStableFunc(list, func(a, b weft.LinkNAT) int { return boolInt(b.Link == first) - boolInt(a.Link == first) })
	return list
}

// tellMetrics tells the agents what links cost.
func (me *mesh) tellMetrics(now time.Time) {
	metrics := me.linkMetrics()
	for _, p := range me.peers {
		p.agent.SetMetrics(now, metrics)
		p.due = true
	}
}

// linkStatus is what weft status tells of the links.
func (me *mesh) linkStatus() []weft.LinkStatus {
	if !me.links.apart {
		return nil
	}
	list := make([]weft.LinkStatus, 0, len(me.links.list))
	for _, l := range me.links.list {
		list = append(list, weft.LinkStatus{ID: l.ID, Interface: l.Device, Port: me.engine.LinkPort(l.ID), NAT: l.nats.IPv4})
	}
	return list
}
