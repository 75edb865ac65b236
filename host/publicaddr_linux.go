package host

import (
	"context"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PublicAddrs are the addresses, one of each family at most, by which an interface is in the world: the first of each that is
// global and permanent, where a default route leaves by the interface.
func PublicAddrs(iface string) (v4, v6 PublicAddr, err error) {
	link, err := netlink.LinkByName(iface)
	if isLinkNotFound(err) {
		return v4, v6, fmt.Errorf("there is no interface %s", iface)
	}
	if err != nil {
		return v4, v6, fmt.Errorf("look up %s: %w", iface, err)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := dump(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_MAIN},
				netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
		})
		if err != nil {
			return v4, v6, fmt.Errorf("list the routes of %s: %w", iface, err)
		}
		addrs, err := dump(func() ([]netlink.Addr, error) { return netlink.AddrList(link, family) })
		if err != nil {
			return v4, v6, fmt.Errorf("list the addresses of %s: %w", iface, err)
		}
		into := &v4
		if family == netlink.FAMILY_V6 {
			into = &v6
		}
		for _, r := range routes {
			if !isDefault(r) {
				continue
			}
			if a, ok := firstPublic(addrs); ok {
				into.Addr = a
				if via, ok := netip.AddrFromSlice(r.Gw); ok {
					into.Gateway = via.Unmap()
				}
			}
			break
		}
	}
	return v4, v6, nil
}

func firstPublic(addrs []netlink.Addr) (netip.Prefix, bool) {
	for _, a := range addrs {
		p, ok := prefixOf(a.IPNet)
		if ok && canSendFrom(p.Addr(), a.Flags) && p.Addr().IsGlobalUnicast() && (p.Addr().Is4() || a.Flags&unix.IFA_F_TEMPORARY == 0) {
			return p, true
		}
	}
	return netip.Prefix{}, false
}

// ListenDHCP opens the port of a DHCP server (RFC 2131) on one interface.
func ListenDHCP(iface string) (net.PacketConn, error) {
	config := net.ListenConfig{Control: BindTo(iface, false)}
	c, err := config.ListenPacket(context.Background(), "udp4", ":67")
	if err != nil {
		return nil, fmt.Errorf("serve DHCP at %s: %w (is there another DHCP server?)", iface, err)
	}
	return c, nil
}
