package node

import (
	"fmt"
	"net/netip"
	"slices"

	"weft"
)

// narrowest is the smallest of some networks that an address is in; the zero Prefix: it is in none.
func narrowest(list []netip.Prefix, a netip.Addr) (out netip.Prefix) {
	for _, p := range list {
		if p.Contains(a) && p.Bits() > out.Bits() {
			out = p
		}
	}
	return out
}

// carrier is who passes packets of this machine on to an address that is no member's own, and whose rules they meet. Without
// anybody it is nil.
func (me *mesh) carrier(a netip.Addr) (n weft.Node, c *weft.Carrier) {
	self := me.netmap.Self
	var used netip.Prefix
	for p := range me.routing.carriers {
		if p.Contains(a) && p.Bits() > used.Bits() {
			used = p
		}
	}
	if own := narrowest(self.Routes, a); own.IsValid() && own.Bits() >= used.Bits() {
		return self, &weft.Carrier{Route: own, By: self.Name, Approved: true, InUse: true}
	}
	if used.IsValid() {
		return me.carrierOf(used, a)
	}
	var unused netip.Prefix
	for _, peer := range me.netmap.Peers {
		if p := narrowest(peer.Routes, a); p.Bits() > unused.Bits() {
			n, unused = peer, p
		}
	}
	if unused.IsValid() {
		return n, &weft.Carrier{Route: unused, By: n.Name, Approved: true, Note: me.whyUnused(n, unused)}
	}
	if offered := narrowest(me.cfg.Settings.advertised(), a); offered.IsValid() {
		return self, &weft.Carrier{Route: offered, By: self.Name,
			Note: fmt.Sprintf("nobody has approved it: say `weft admin route approve %s %s` on the server", self.Name, weft.RouteWord(offered))}
	}
	return n, nil
}

// carrierOf is the carrier of a network that is used, for an address in it.
func (me *mesh) carrierOf(route netip.Prefix, a netip.Addr) (n weft.Node, c *weft.Carrier) {
	c = &weft.Carrier{Route: route, Approved: true, InUse: true}
	c.By, c.Beside, n = me.carriedBy(route)
	if !n.Online {
		c.Note = "it is offline"
	}
	if weft.IsExit(route) && (a.IsPrivate() || a.IsLinkLocalUnicast()) {
		c.Note = "an exit node passes on to public addresses alone"
	}
	if i := slices.IndexFunc(me.routing.attached, func(p netip.Prefix) bool { return p.Contains(a) }); i >= 0 {
		c.InUse = false
		c.Note = fmt.Sprintf("this machine is in %s itself, and does not go through the overlay there", me.routing.attached[i])
	}
	return n, c
}

// carriedBy is who carries a network that is used, and who would take over.
func (me *mesh) carriedBy(route netip.Prefix) (by string, beside []string, n weft.Node) {
	for i, id := range me.routing.carriers[route] {
		peer, _ := me.netmap.Peer(id)
		v := me.routing.rivals[id]
		switch {
		case i == 0:
			by, n = peer.Name, peer
		case v != nil && v.silent:
			beside = append(beside, peer.Name+" (silent)")
		default:
			beside = append(beside, peer.Name)
		}
	}
	return by, beside, n
}

// whyUnused says why this machine does not reach an approved network through a peer.
func (me *mesh) whyUnused(n weft.Node, route netip.Prefix) string {
	switch s := me.cfg.Settings; {
	case weft.IsExit(route) && s.ExitNode == "":
		return fmt.Sprintf("this machine uses no exit node: say `weft set exit-node=%s`", n.Name)
	case weft.IsExit(route):
		return me.exitProblem()
	case s.NoAcceptRoutes:
		return "this machine leaves networks behind others alone: say `weft set accept-routes=on`"
	}
	return "this machine does not take such a route"
}
