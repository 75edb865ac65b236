package node

import (
	"net/netip"
	"slices"

	"weft"
	"weft/policy/filter"
)

// enforcement is the policy as this node has it.
type enforcement struct {
	config filter.Config
	policy *filter.Policy // nil: none was made yet
}

// enforce has the engine go by the rules and the members of the map, and by the peers that were set by hand. A map without rules is one
// of a server that knows no policy: everything comes in, as it always did with such a server.
func (me *mesh) enforce() {
	c := filter.Config{
		Self: me.netmap.Self, Peers: me.netmap.Peers, Rules: me.netmap.Rules, Service: me.netmap.Service, Enter: me.enter(),
	}
	me.portalFilter(&c)
	for _, p := range me.plain.static {
		c.Local = append(c.Local, weft.Node{ID: p.ID, Routes: p.Allowed})
	}
	slices.SortFunc(c.Local, func(a, b weft.Node) int { return int(b.ID) - int(a.ID) })
	old := &me.enforced
	if old.policy != nil && slices.EqualFunc(old.config.Rules, c.Rules, weft.Rule.Equal) && (old.config.Rules == nil) == (c.Rules == nil) &&
		sameSource(old.config.Self, c.Self) && old.config.Service == c.Service && slices.Equal(old.config.Enter, c.Enter) &&
		slices.EqualFunc(old.config.Peers, c.Peers, sameSource) && slices.EqualFunc(old.config.Local, c.Local, sameSource) {
		return
	}
	old.config, old.policy = c, filter.Compile(c)
	me.engine.SetPolicy(old.policy)
}

// sameSource reports whether two nodes are the same to rules.
func sameSource(a, b weft.Node) bool {
	return a.ID == b.ID && a.User == b.User && a.Gateway == b.Gateway &&
		slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Tags, b.Tags) && slices.Equal(a.Routes, b.Routes)
}

// enter lists the addresses behind this node that may begin something towards the overlay.
func (me *mesh) enter() []netip.Prefix {
	if !me.cfg.Settings.SiteToSite {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(me.netmap.Self.Routes), weft.IsExit)
}
