package node

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/dns"
	"weft/host"
	"weft/path"
	"weft/stream"
	"weft/wire"
)

// Networks behind nodes. The map says which node speaks for which network; here it is decided which of several is used, and
// the engine and the kernel are told: packets to a network go to the node that carries it, and may come from each that speaks for it. A
// node that speaks for networks itself passes packets on (host.SetRouter).
//
// Of several nodes with one network the first by number is used that is not silent: one from which, though data was sent to it and
// it was asked, nothing came for silentAfter. A node that comes back is used again when it has been heard for returnAfter. Nobody
// is asked while nothing is sent: an idle machine sleeps.

const (
	// askAfter is how long data may go unanswered before a router that has a rival is asked, askEvery how often then.
	askAfter = 300 * time.Millisecond
	askEvery = 200 * time.Millisecond
	// silentAfter is how long it may say nothing. It is asked by relays, too: that the way in use has failed is nothing
	// to leave it for. TCP sends again 0.2, 0.6, 1.4 and 3 s after the first loss (RFC 6298, Linux's least timeout): who is to go on
	// within three seconds has the other router before 1.4.
	silentAfter = 1200 * time.Millisecond
	// returnAfter is how long a router must be heard again before flows move back to it.
	returnAfter = 10 * time.Second
	// heardLately is how old a sign of life may be that still counts, of a router that is asked every second.
	heardLately = 3 * time.Second
)

// routing is what the mesh keeps of that. Its zero value is ready.
type routing struct {
	carriers map[netip.Prefix][]weft.NodeID // who speaks for what; the first carries it
	rivals   map[weft.NodeID]*rival         // those that are not the only one for some network
	attached []netip.Prefix                 // networks that this machine is in itself
	told     host.OverlayRoutes
	router   host.Router
	applied  bool // the kernel was told once
}

// A rival is a router that shares a network with another, as far as it is watched.
type rival struct {
	rx, tx  uint64    // bytes so far
	heard   time.Time // last sign of life
	waiting time.Time // since when data is unanswered; zero: it is not
	asked   time.Time
	silent  bool
	back    time.Time // of a silent one: since when it is heard again
}

// usable are the networks of a peer that this node reaches through it, by its settings.
func (me *mesh) usable(n weft.Node) (out []netip.Prefix) {
	s := me.cfg.Settings
	for _, p := range n.Routes {
		inside := func(r netip.Prefix) bool { return r.Overlaps(p) && r.Bits() <= p.Bits() }
		switch {
		case weft.CheckRoute(p) != nil || n.Plain():
		case weft.IsExit(p):
			if n.Name == s.ExitNode {
				out = append(out, p)
			}
		case s.NoAcceptRoutes || slices.ContainsFunc(me.netmap.Ranges, inside) || slices.Contains(me.netmap.Self.Routes, p):
		default:
			out = append(out, p)
		}
	}
	return out
}

// carry decides who carries what. It returns what each peer carries, and what it speaks for besides.
func (me *mesh) carry() (carried, also map[weft.NodeID][]netip.Prefix) {
	r := &me.routing
	r.carriers = map[netip.Prefix][]weft.NodeID{}
	var order []netip.Prefix
	for _, n := range me.netmap.Peers {
		for _, p := range me.usable(n) {
			if r.carriers[p] == nil {
				order = append(order, p)
			}
			r.carriers[p] = append(r.carriers[p], n.ID)
		}
	}
	rivals := map[weft.NodeID]*rival{}
	carried, also = map[weft.NodeID][]netip.Prefix{}, map[weft.NodeID][]netip.Prefix{}
	for _, p := range order {
		list := r.carriers[p]
		if len(list) > 1 {
			for _, id := range list {
				if rivals[id] = r.rivals[id]; rivals[id] == nil {
					rivals[id] = &rival{}
				}
			}
			rank := func(id weft.NodeID) int { // the best first; equals by number, as they are
				n, _ := me.netmap.Peer(id)
				switch {
				case rivals[id].silent:
					return 2
				case !n.Online:
					return 1
				}
				return 0
			}
			slices.SortStableFunc(list, func(a, b weft.NodeID) int { return rank(a) - rank(b) })
		}
		carried[list[0]] = append(carried[list[0]], p)
		for _, id := range list[1:] {
			also[id] = append(also[id], p)
		}
	}
	r.rivals = rivals
	return carried, also
}

// watchRouters finds out which routers with a rival are silent, and uses the rivals instead.
func (me *mesh) watchRouters(now time.Time) {
	changed := false
	for id, v := range me.routing.rivals {
		if p := me.peers[id]; p != nil && me.watchRouter(now, p, v) {
			changed = true
		}
	}
	if changed {
		me.setPeers(now)
		me.applyRoutes()
	}
}

// watchRouter looks at one, and reports whether it fell silent or is back.
func (me *mesh) watchRouter(now time.Time, p *peer, v *rival) (changed bool) {
	var rx, tx uint64
	for _, c := range p.counters {
		rx, tx = rx+c.RxBytes, tx+c.TxBytes
	}
	if rx != v.rx || p.framed.After(v.heard) {
		v.heard, v.waiting = now, time.Time{}
	} else if tx != v.tx && v.waiting.IsZero() {
		v.waiting = now
	}
	v.rx, v.tx = rx, tx
	if v.silent {
		switch {
		case now.Sub(v.heard) > heardLately:
			v.back = time.Time{}
		case v.back.IsZero():
			v.back = now
		case now.Sub(v.back) >= returnAfter:
			v.silent, v.back, v.waiting = false, time.Time{}, time.Time{}
			me.log.Info("a router is heard again", "router", p.node.Name, "networks", p.node.Routes)
			return true
		}
		if now.Sub(v.asked) >= time.Second {
			me.askRouter(now, p, v)
		}
		return false
	}
	if v.waiting.IsZero() || now.Sub(v.waiting) < askAfter {
		return false
	}
	me.activeAt = now // the fast ticks go on until it is known
	if now.Sub(v.waiting) >= silentAfter {
		v.silent, v.back = true, time.Time{}
		me.log.Warn("a router is silent; its networks are reached through another one", "router", p.node.Name, "networks", p.node.Routes)
		return true
	}
	if now.Sub(v.asked) >= askEvery {
		me.askRouter(now, p, v)
	}
	return false
}

// askRouter asks a router for a sign of life, by the way that data takes and by relays.
func (me *mesh) askRouter(now time.Time, p *peer, v *rival) {
	v.asked = now
	vias := me.relayVias(p.node)
	if via := p.agent.Selected(); via.Method != weft.NoMethod && !slices.Contains(vias, via) {
		vias = append(vias, via)
	}
	if len(vias) == 0 {
		p.agent.Want(now)
		p.due = true
	}
	for _, via := range vias {
		var tx wire.TxID
		rand.Read(tx[:])
		_ = me.send(p, path.Transmit{Via: via, Message: wire.Ping{Path: byHand, Tx: tx}}, nil) // lost is lost: it is asked again
	}
}

// applyRoutes tells the kernel what leads into the overlay, and what this machine passes on.
func (me *mesh) applyRoutes() {
	r, s := &me.routing, me.cfg.Settings
	routes := host.OverlayRoutes{Interface: me.cfg.Device.Name, Exit: s.ExitNode != "", LAN: s.ExitLAN}
	for p := range maps.Keys(r.carriers) {
		routes.Networks = append(routes.Networks, p)
	}
	routes.Networks = weft.SortRoutes(routes.Networks)
	routes.Resolvers = slices.Concat(append(slices.Collect(maps.Values(me.netmap.DNS.Split)), me.netmap.DNS.Upstreams)...)
	me.problem("exit", me.exitProblem())
	if me.cfg.Device.stack != nil {
		sentence := ""
		switch {
		case len(me.netmap.Self.Routes) > 0 || len(s.advertised()) > 0:
			sentence = "this machine cannot pass packets on for others without a network interface: run weft node without --userspace"
		case routes.Exit:
			sentence = "an exit node takes a network interface: run weft node without --userspace"
		}
		me.problem("routes", sentence)
		return
	}
	var err error
	r.attached, err = host.SetOverlayRoutes(routes)
	me.problem("routes", sentenceOf(err))
	for _, p := range r.attached {
		if !slices.ContainsFunc(r.told.Networks, func(q netip.Prefix) bool { return q == p }) && slices.Contains(routes.Networks, p) {
			me.log.Info("this machine is in a network that another node speaks for, and reaches it itself", "network", p)
		}
	}
	r.told = routes
	me.applyRouter()
}

// applyRouter has the kernel pass on what the map lets this node speak for.
func (me *mesh) applyRouter() {
	r, s := &me.routing, me.cfg.Settings
	router := host.Router{
		Interface: me.cfg.Device.Name, Networks: me.netmap.Self.Routes, Overlay: me.netmap.Ranges,
		Masquerade: !s.NoSNAT, Enter: s.SiteToSite, Within: me.plain.within != nil,
	}
	if r.applied && sameRouter(r.router, router) {
		return
	}
	var err error
	if len(router.Networks) == 0 {
		err = host.StopRouter(router.Interface)
	} else {
		err = host.SetRouter(router)
	}
	me.problem("router", sentenceOf(err))
	was := len(r.router.Networks) > 0
	if r.router, r.applied = router, true; was != (len(router.Networks) > 0) && me.plain.within != nil {
		me.forward(me.plain.within)
	}
}

func sameRouter(a, b host.Router) bool {
	return slices.Equal(a.Networks, b.Networks) && slices.Equal(a.Overlay, b.Overlay) &&
		a.Masquerade == b.Masquerade && a.Enter == b.Enter && a.Within == b.Within
}

func sentenceOf(err error) string {
	if err == nil || errors.Is(err, host.ErrNotSupported) {
		return ""
	}
	return err.Error()
}

// exitProblem says why nothing goes through the exit node that the settings name.
func (me *mesh) exitProblem() string {
	name := me.cfg.Settings.ExitNode
	if name == "" {
		return ""
	}
	n, ok := me.netmap.Find(name)
	switch {
	case !ok:
		return fmt.Sprintf("the exit node %s is not in the network, so nothing reaches the internet: say `weft set exit-node=off`, or another one's name", name)
	case !slices.ContainsFunc(n.Routes, weft.IsExit):
		return fmt.Sprintf("%s is no exit node any more, so nothing reaches the internet: say `weft set exit-node=off`, or approve it on the server (weft admin route approve %s exit)", name, name)
	case !n.Online:
		return fmt.Sprintf("the exit node %s is offline, so nothing reaches the internet: say `weft set exit-node=off` to go past it", name)
	}
	return ""
}

// named is a map as the resolver gets it: with an exit node, and no resolvers that the administrator has said, questions
// go to the exit node, since those that the machine used before may be out of reach, and would tell the local network what is asked.
func (me *mesh) named(m weft.NetworkMap) weft.NetworkMap {
	if me.cfg.Settings.ExitNode == "" || len(m.DNS.Upstreams) > 0 {
		return m
	}
	if n, ok := m.Find(me.cfg.Settings.ExitNode); ok {
		for _, a := range n.Addrs {
			if a.Is4() {
				m.DNS.Upstreams = []netip.AddrPort{netip.AddrPortFrom(a, dns.Port)}
			}
		}
	}
	return m
}

// routeStatus fills in who carries what.
func (me *mesh) routeStatus(s *weft.Status) {
	s.Self.Advertised, s.Self.Routes = me.cfg.Settings.advertised(), me.netmap.Self.Routes
	s.Self.ExitNode = me.cfg.Settings.ExitNode
	r := &me.routing
	for _, p := range weft.SortRoutes(slices.Collect(maps.Keys(r.carriers))) {
		st := weft.RouteStatus{Route: p}
		var n weft.Node
		if st.By, st.Beside, n = me.carriedBy(p); !n.Online {
			st.Note = "it is offline"
		}
		for _, a := range r.attached {
			if p.Overlaps(a) && !weft.IsExit(p) {
				st.Note = fmt.Sprintf("this machine is in %s itself, and does not go through the overlay there", a)
			}
		}
		s.Routes = append(s.Routes, st)
	}
}

// closeRoutes takes down what applyRoutes has put up. With an exit node what closes stays: whoever takes the network down says
// so to the kernel (releaseExit), and who only starts it anew leaks nothing meanwhile.
func (me *mesh) closeRoutes() {
	if me.cfg.Device.stack != nil {
		return
	}
	errs := []error{host.StopRouter(me.cfg.Device.Name)}
	if me.cfg.Settings.ExitNode == "" {
		errs = append(errs, host.ClearOverlayRoutes(me.cfg.Device.Name))
	}
	if err := errors.Join(errs...); err != nil {
		me.log.Error("routes were left behind; the next start tries again", "error", err)
	}
}

// repairRoutes undoes what an earlier run left behind, or, where an exit node is to be used, closes the way past it already now.
func (d *Daemon) repairRoutes() {
	if d.cfg.Userspace {
		return
	}
	s := d.state.Settings()
	err := errors.Join(host.StopForwarding(d.cfg.TUN), host.StopRouter(d.cfg.TUN))
	if s.ExitNode != "" && !s.Down && d.state.Identity().Joined() {
		_, closed := host.SetOverlayRoutes(host.OverlayRoutes{Interface: d.cfg.TUN, Exit: true, LAN: s.ExitLAN})
		err = errors.Join(err, closed)
	} else {
		err = errors.Join(err, host.ClearOverlayRoutes(d.cfg.TUN))
	}
	if err != nil && !errors.Is(err, host.ErrNotSupported) {
		d.log.Warn("routes of an earlier run could not be put right", "error", err)
	}
}

// releaseExit opens the way past the exit node again: the network was taken down, or has none any more.
func (d *Daemon) releaseExit() error {
	if d.cfg.Userspace {
		return nil
	}
	return host.ClearOverlayRoutes(d.cfg.TUN)
}

// dialOwn makes a connection of weft's own, which does not go into the overlay whatever that has.
func dialOwn(ctx context.Context, network, address string) (net.Conn, error) {
	d := net.Dialer{KeepAliveConfig: stream.KeepAlive, Control: host.Own, Resolver: host.OwnResolver()}
	return d.DialContext(ctx, network, address)
}
