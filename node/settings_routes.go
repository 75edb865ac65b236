package node

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft"
)

// What weft set says of routers and exits: docs/routers.md.

// RouteSettings are those of Settings. The zero value advertises nothing, uses what is approved, and has no exit.
type RouteSettings struct {
	AdvertiseRoutes []netip.Prefix `json:"advertise_routes"` // networks behind this machine
	AdvertiseExit   bool           `json:"advertise_exit_node"`
	NoAcceptRoutes  bool           `json:"no_accept_routes"` // networks behind others are left alone
	NoSNAT          bool           `json:"no_snat"`          // what is passed on keeps its source
	SiteToSite      bool           `json:"site_to_site"`     // the networks advertised may begin connections into the overlay
	ExitNode        string         `json:"exit_node"`        // a node's name; "" is none
	ExitLAN         bool           `json:"exit_lan"`         // with an exit node, private networks stay as they are
}

// sameRoutes compares what is said of routers and exits.
func (s RouteSettings) sameRoutes(o RouteSettings) bool {
	return slices.Equal(s.AdvertiseRoutes, o.AdvertiseRoutes) && s.AdvertiseExit == o.AdvertiseExit && s.NoAcceptRoutes == o.NoAcceptRoutes &&
		s.NoSNAT == o.NoSNAT && s.SiteToSite == o.SiteToSite && s.ExitNode == o.ExitNode && s.ExitLAN == o.ExitLAN
}

// advertised is what the server is told.
func (s RouteSettings) advertised() []netip.Prefix {
	list := slices.Clone(s.AdvertiseRoutes)
	if s.AdvertiseExit {
		list = append(list, weft.ExitRoutes...)
	}
	return weft.SortRoutes(list)
}

// checkRoutes says what is wrong with settings of routers and exits that somebody wants, if anything is.
func (s RouteSettings) checkRoutes() error {
	bad := func(format string, args ...any) error {
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
	}
	for _, p := range s.AdvertiseRoutes {
		if err := weft.CheckRoute(p); err != nil {
			return bad("advertise-routes: %v", err)
		}
		if weft.IsExit(p) {
			return bad("advertise-routes: %s is everything: say advertise-exit-node=on", p)
		}
	}
	if n := len(s.AdvertiseRoutes); n > weft.MaxRoutes-len(weft.ExitRoutes) {
		return bad("advertise-routes has %d networks: give at most %d", n, weft.MaxRoutes-len(weft.ExitRoutes))
	}
	if s.ExitNode != "" && weft.CleanName(s.ExitNode) != s.ExitNode {
		return bad("exit-node is the name of a node or off, not %q", s.ExitNode)
	}
	if s.ExitNode != "" && s.AdvertiseExit {
		return bad("this machine is an exit node itself, and cannot use %s as one: set advertise-exit-node=off or exit-node=off", s.ExitNode)
	}
	return nil
}

// checkExit looks for an exit node that somebody wants in the map, if there is one: a name that was mistyped would cut the
// machine off.
func checkExit(name string, m *weft.NetworkMap) error {
	if name == "" || m == nil {
		return nil
	}
	n, ok := m.Find(name)
	switch {
	case !ok:
		return &weft.Error{Code: weft.CodeNotFound, Message: fmt.Sprintf("there is no peer %q in this network to be the exit node: `weft status` lists them", name)}
	case !slices.ContainsFunc(n.Routes, weft.IsExit):
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("%s is no exit node: say `weft set advertise-exit-node=on` there, and on the server `weft admin route approve %s exit`", name, name)}
	}
	return nil
}

// setRoutes takes over what settings say of routers and exits, without a new start.
func (me *mesh) setRoutes(now time.Time, s Settings) {
	me.cfg.Settings.RouteSettings = s.RouteSettings
	me.names.set(me.named(me.netmap))
	me.setPeers(now)
	me.enforce()
	me.applyRoutes()
	me.sayUpdate()
}
