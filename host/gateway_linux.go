package host

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Gateways lists the routers of this network namespace's IPv4 default routes (main table), the one with the lowest
// metric first. Routes without a router, as those of point-to-point links, are left out.
func Gateways() ([]Gateway, error) {
	routes, err := dump(func() ([]netlink.Route, error) {
		return netlink.RouteListFiltered(netlink.FAMILY_V4, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
	})
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return a.Priority - b.Priority })
	ifaces, err := Interfaces()
	if err != nil {
		return nil, err
	}
	var out []Gateway
	add := func(via netip.Addr, index int) {
		i := slices.IndexFunc(ifaces, func(i Interface) bool { return i.Index == index && i.Up })
		if i < 0 || !via.Is4() {
			return
		}
		g := Gateway{Addr: via, Local: localFor(ifaces[i].Addrs, via), Interface: ifaces[i].Name, Index: index}
		if g.Local.IsValid() && !slices.Contains(out, g) {
			out = append(out, g)
		}
	}
	for _, r := range routes {
		if !isDefault(r) {
			continue
		}
		if via, ok := netip.AddrFromSlice(r.Gw); ok {
			if index, up := leavesBy(r); up {
				add(via.Unmap(), index)
			}
		}
		for _, hop := range r.MultiPath {
			if via, ok := netip.AddrFromSlice(hop.Gw); ok && hop.Flags&(unix.RTNH_F_DEAD|unix.RTNH_F_LINKDOWN) == 0 {
				add(via.Unmap(), hop.LinkIndex)
			}
		}
	}
	return out, nil
}

// localFor is the address of an interface that is in one network with a router, or else its first.
func localFor(addrs []netip.Prefix, via netip.Addr) (local netip.Addr) {
	for _, p := range addrs {
		switch {
		case !p.Addr().Is4():
		case p.Masked().Contains(via):
			return p.Addr()
		case !local.IsValid():
			local = p.Addr()
		}
	}
	return local
}
