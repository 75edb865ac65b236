package path

import (
	"net/netip"
	"slices"

	"weft"
)

// targets are the addresses at which the peer is known to be, by others' word than its own.
func (a *Agent) targets() (list []netip.Addr) {
	add := func(ip netip.Addr) {
		if ip = ip.Unmap(); ip.Is4() && ip.IsValid() && !ip.IsUnspecified() && !ip.IsLoopback() && !ip.IsMulticast() &&
			!ip.IsLinkLocalUnicast() && ip != broadcast && len(list) < maxTargets && !slices.Contains(list, ip) {
			list = append(list, ip)
		}
	}
	for _, ip := range a.attempts.attested {
		add(ip)
	}
	for _, p := range a.pairs {
		if p.via.Method == weft.Direct && !p.probe.pong.IsZero() && !p.via.Addr.Addr().IsPrivate() {
			add(p.via.Addr.Addr())
		}
	}
	return list
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// probeBy is the link that probes leave by, and the outside port that it is known to have: zero if it is not.
func (a *Agent) probeBy() (id weft.LinkID, outside uint16, ok bool) {
	for _, first := range []bool{true, false} {
		for _, c := range a.local {
			if c.Kind == weft.ServerReflexive && c.Addr.Addr().Is4() && (!first || c.Link == a.attemptLink()) {
				return c.Link, c.Addr.Port(), true
			}
		}
	}
	for _, l := range a.links {
		if l.v4 {
			port := uint16(0)
			for _, c := range a.local {
				if c.Link == l.id && c.Addr.Addr().Is4() {
					port = c.Addr.Port()
				}
			}
			return l.id, port, true
		}
	}
	return 0, 0, false
}

// able reports whether there could be an attempt at all, and why not.
func (a *Agent) able() string {
	_, _, v4 := a.probeBy()
	switch {
	case !v4:
		return "this node has no IPv4 address"
	case !a.exchange.known:
		return "the peer has not told its addresses yet"
	case len(a.targets()) == 0:
		return "no relay has seen the peer over UDP, so there is no address to send to"
	case !slices.ContainsFunc(a.pairs, func(p *pair) bool { return p.via.Method.Relayed() }):
		return "there is no relay by which to arrange anything with the peer"
	}
	return ""
}
