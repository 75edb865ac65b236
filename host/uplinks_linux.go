package host

import (
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DefaultLinks are the interfaces, by their index, that have a default route of either family in any table, each with
// the lowest metric that it has one with. Machines with several uplinks often have a table for each.
func DefaultLinks() (map[int]int, error) {
	out := map[int]int{}
	add := func(index, metric int) {
		if was, ok := out[index]; index != 0 && (!ok || metric < was) {
			out[index] = metric
		}
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return nil, fmt.Errorf("list routes: %w", err)
		}
		for _, r := range routes {
			if !isDefault(r) {
				continue
			}
			add(r.LinkIndex, r.Priority)
			for _, hop := range r.MultiPath {
				add(hop.LinkIndex, r.Priority)
			}
		}
	}
	return out, nil
}
