package control

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"

	"weft"
)

// Networks behind nodes. A node says which it offers to speak for, and the administrator, or the policy's autoApprovers, which of them it
// may: those of both are in everybody's map. What was approved stays approved while it is not offered, so that a router that
// is told to pause and go on needs nobody.

// routes are the networks that the node speaks for.
func (e *entry) routes() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range e.Advertised {
		if slices.Contains(e.Routes, p) {
			out = append(out, p)
		}
	}
	return out
}

// advertise takes over what a node offers, and reports whether that, or what it may, is something else than before.
func (t *tx) advertise(e *entry, said []netip.Prefix) (changed bool) {
	var list []netip.Prefix
	for _, p := range said {
		if t.checkRoute(p) == nil && len(list) < weft.MaxRoutes {
			list = append(list, p)
		}
	}
	if list = weft.SortRoutes(list); slices.Equal(list, e.Advertised) {
		return false
	}
	e.Advertised = list
	t.approveRoutes(e)
	return true
}

// approveRoutes approves what a node offers and the policy lets it have without an administrator, and reports whether there is such
// a network that was not approved yet. An approval stays when the policy changes, as an administrator's does.
func (t *tx) approveRoutes(e *entry) (changed bool) {
	for _, p := range e.Advertised {
		if !slices.Contains(e.Routes, p) && len(e.Routes) < weft.MaxRoutes && t.law.policy.Approves(e.node(), p) {
			e.Routes, changed = weft.SortRoutes(append(slices.Clone(e.Routes), p)), true
		}
	}
	return changed
}

// checkRoute refuses what would take the overlay's own addresses away from it, besides what is no network.
func (t *tx) checkRoute(p netip.Prefix) error {
	if err := weft.CheckRoute(p); err != nil {
		return sentence(weft.CodeBadRequest, "%v", err)
	}
	for _, r := range []netip.Prefix{t.net.IPv4, t.net.IPv6} {
		if r.Overlaps(p) && !weft.IsExit(p) {
			return sentence(weft.CodeBadRequest, "%s overlaps the overlay's own range %s and cannot be behind a node", p, r)
		}
	}
	return nil
}

// ChangeRoutes approves networks of a node, given by name or number, or withdraws what was approved.
func (s *Server) ChangeRoutes(ctx context.Context, what string, q RoutesRequest) (NodeInfo, error) {
	return s.change(ctx, what, func(t *tx, e *entry) error {
		routes := slices.Clone(e.Routes)
		for _, p := range q.Approve {
			if err := t.checkRoute(p); err != nil {
				return err
			}
			if e.Gateway != 0 {
				return sentence(weft.CodeBadRequest, "%s speaks plain WireGuard and routes for nobody", e.Name)
			}
			routes = append(routes, p)
		}
		for _, p := range q.Withdraw {
			if !slices.Contains(routes, p) {
				return sentence(weft.CodeNotFound, "%s is not approved for %s: `weft admin route list` shows what is", p, e.Name)
			}
			routes = slices.DeleteFunc(routes, func(r netip.Prefix) bool { return r == p })
		}
		if routes = weft.SortRoutes(routes); len(routes) > weft.MaxRoutes {
			return sentence(weft.CodeBadRequest, "%s would have %d networks: %d are the most", e.Name, len(routes), weft.MaxRoutes)
		}
		if e.Routes = routes; len(routes) == 0 {
			e.Routes = nil
		}
		return nil
	})
}

// Routes lists the networks that nodes offer or are approved for, by network and node.
func (s *Server) Routes() []RouteInfo {
	out := []RouteInfo{}
	for _, e := range s.now.Load().nodes.all() {
		for _, p := range weft.SortRoutes(slices.Concat(e.Advertised, e.Routes)) {
			out = append(out, RouteInfo{
				Node: e.Name, ID: e.ID, Route: p, Online: e.online,
				Advertised: slices.Contains(e.Advertised, p), Approved: slices.Contains(e.Routes, p),
			})
		}
	}
	slices.SortFunc(out, func(a, b RouteInfo) int {
		return cmp.Or(a.Route.Addr().Compare(b.Route.Addr()), cmp.Compare(a.Route.Bits(), b.Route.Bits()), cmp.Compare(a.ID, b.ID))
	})
	return out
}

// carrier finds who passes packets on to an address that is no member's own: of those that offer the narrowest network and are approved the
// first that is online; else one that would if somebody did what the note says. Without anybody it is nil.
func (t *tx) carrier(a netip.Addr) (found *entry, c *weft.Carrier) {
	for _, e := range t.nodes.all() {
		if e.standing != member {
			continue
		}
		for _, p := range weft.SortRoutes(slices.Concat(e.Advertised, e.Routes)) {
			if !p.Contains(a) {
				continue
			}
			now := carrierOf(e, p)
			switch {
			case c == nil || now.InUse && !c.InUse || now.InUse == c.InUse && p.Bits() > c.Route.Bits():
				found, c = e, &now
			case now.InUse && p == c.Route:
				c.Beside = append(c.Beside, e.Name)
			}
		}
	}
	return found, c
}

// carrierOf is a node as the carrier of a network that it offers or is approved for.
func carrierOf(e *entry, p netip.Prefix) weft.Carrier {
	offered, approved := slices.Contains(e.Advertised, p), slices.Contains(e.Routes, p)
	c := weft.Carrier{Route: p, By: e.Name, Approved: approved, InUse: offered && approved && e.online}
	switch {
	case !approved:
		c.Note = fmt.Sprintf("%s offers to speak for %s, and nobody has approved it (weft admin route approve %s %s)", e.Name, p, e.Name, weft.RouteWord(p))
	case !offered:
		c.Note = fmt.Sprintf("%s may speak for %s and does not offer to: say `weft set advertise-routes=%s` there", e.Name, p, p)
		if weft.IsExit(p) {
			c.Note = fmt.Sprintf("%s may be an exit node and does not offer to: say `weft set advertise-exit-node=on` there", e.Name)
		}
	case !e.online:
		c.Note = fmt.Sprintf("%s speaks for %s and is offline", e.Name, p)
	}
	return c
}
