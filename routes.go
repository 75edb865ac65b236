package weft

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
)

// MaxRoutes is how many networks one node speaks for at most: what it advertises is told to everybody.
const MaxRoutes = 128

// ExitRoutes are what an exit node advertises: everything, in IPv4 and in IPv6.
var ExitRoutes = []netip.Prefix{netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0)}

// IsExit reports whether a route is everything.
func IsExit(p netip.Prefix) bool { return p.IsValid() && p.Bits() == 0 }

// CheckRoute says why a network cannot be behind a node, if it cannot: what is not in the form that routes have, and what is
// never behind anybody but the machine that says so.
func CheckRoute(p netip.Prefix) error {
	switch a := p.Addr(); {
	case !p.IsValid() || a.Is4In6() || a.Zone() != "":
		return fmt.Errorf("%s is no network: give ADDRESS/BITS, for example 192.168.142.0/24", p)
	case p != p.Masked():
		return fmt.Errorf("%s is an address within a network: the network is %s", p, p.Masked())
	case IsExit(p):
		return nil
	case a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.Is4() && a.As4()[0] >= 240:
		return fmt.Errorf("%s cannot be behind a router: it is no network of hosts", p)
	}
	return nil
}

// ParseRoute reads a network that is to be behind a node.
func ParseRoute(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		return p, fmt.Errorf("%q is no network: give ADDRESS/BITS, for example 192.168.142.0/24", s)
	}
	return p, CheckRoute(p)
}

// RouteWord is what `weft admin route` calls a route: a network, or exit.
func RouteWord(p netip.Prefix) string {
	if IsExit(p) {
		return "exit"
	}
	return p.String()
}

// SortRoutes brings routes into the order that nodes have them in, each once.
func SortRoutes(list []netip.Prefix) []netip.Prefix {
	slices.SortFunc(list, func(a, b netip.Prefix) int {
		return cmp.Or(a.Addr().Compare(b.Addr()), cmp.Compare(a.Bits(), b.Bits()))
	})
	return slices.Compact(list)
}
