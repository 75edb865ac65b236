package host

import (
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
)

// Leads tells whether the routes of this network namespace lead weft's own packets to an address into an interface.
func Leads(ifname string, to netip.Addr) (bool, error) {
	i, err := net.InterfaceByName(ifname)
	if err != nil {
		return false, fmt.Errorf("look for interface %s: %w", ifname, err)
	}
	routes, err := netlink.RouteGetWithOptions(to.Unmap().AsSlice(), &netlink.RouteGetOptions{Mark: Mark})
	if err != nil {
		return false, fmt.Errorf("look for the route to %s: %w", to, err)
	}
	return len(routes) > 0 && routes[0].LinkIndex == i.Index, nil
}
