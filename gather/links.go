package gather

import (
	"cmp"
	"net/netip"
	"slices"

	"weft"
	"weft/host"
)

// Uplinks picks the interfaces that are links of their own, the one with the lowest metric first. With names, they are the
// interfaces of these names that are up, in the order of the names. Without, they are those by which the rest of the
// world can be reached: with a default route (routed has its metric by the interface's index) or with an address that
// means the same everywhere. Least, ranges and skip are as for [Hosts]. One such interface is no reason to tell
// links apart: that is for the caller to say.
func Uplinks(ifaces []host.Interface, routed map[int]int, named []string, least int, ranges []netip.Prefix, skip ...string) []host.Interface {
	var out []host.Interface
	if len(named) > 0 {
		for _, name := range named {
			i := slices.IndexFunc(ifaces, func(i host.Interface) bool { return i.Name == name && i.Up })
			if i >= 0 && !slices.ContainsFunc(out, func(i host.Interface) bool { return i.Name == name }) {
				out = append(out, ifaces[i])
			}
		}
		return out
	}
	for _, i := range ifaces {
		list := Hosts([]host.Interface{i}, 1, least, ranges, skip...)
		_, has := routed[i.Index]
		if len(list) > 0 && (has || slices.ContainsFunc(list, everywhere)) {
			out = append(out, i)
		}
	}
	slices.SortStableFunc(out, func(a, b host.Interface) int {
		x, hasX := routed[a.Index]
		y, hasY := routed[b.Index]
		return cmp.Or(b2i(hasY)-b2i(hasX), cmp.Compare(x, y), cmp.Compare(a.Index, b.Index))
	})
	return out
}

// everywhere reports whether an address means the same everywhere: it is neither private (RFC 1918, RFC 4193) nor a
// provider's inside one (RFC 6598).
func everywhere(c weft.Candidate) bool {
	a := c.Addr.Addr()
	return !a.IsPrivate() && !providers.Contains(a)
}

var providers = netip.MustParsePrefix("100.64.0.0/10")

// OnLink is a list of candidates as those of a link, with the port of its sockets.
func OnLink(id weft.LinkID, port uint16, list []weft.Candidate) []weft.Candidate {
	for i := range list {
		list[i].Link = id
		if port != 0 {
			list[i].Addr = netip.AddrPortFrom(list[i].Addr.Addr(), port)
		}
	}
	return list
}
