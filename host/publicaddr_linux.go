package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/mdlayher/ndp"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/ipv6"
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

// allServers6 is where clients of DHCPv6 send to (RFC 8415 section 7.1), and serverPort6 the port that servers hear at (7.2).
var allServers6 = net.IPAddr{IP: net.ParseIP("ff02::1:2")}

const serverPort6 = "[::]:547"

// ListenDHCP6 opens the port of a DHCPv6 server on one interface.
func ListenDHCP6(iface string) (net.PacketConn, error) {
	link, err := net.InterfaceByName(iface)
	if err != nil {
		return nil, fmt.Errorf("serve DHCPv6 at %s: %w", iface, err)
	}
	config := net.ListenConfig{Control: BindTo(iface, false)}
	c, err := config.ListenPacket(context.Background(), "udp6", serverPort6)
	if err != nil {
		return nil, fmt.Errorf("serve DHCPv6 at %s: %w (is there another DHCP server?)", iface, err)
	}
	if err := ipv6.NewPacketConn(c).JoinGroup(link, &allServers6); err != nil {
		c.Close()
		return nil, fmt.Errorf("serve DHCPv6 at %s: hear its clients: %w", iface, err)
	}
	return c, nil
}

// An Advertiser is this machine as the router of an interface, at PortalGateway6 (RFC 4861 section 6.2).
type Advertiser struct{ conn *ndp.Conn }

// ErrIPv6Off is of an interface without IPv6.
var ErrIPv6Off = errors.New("IPv6 is switched off there")

// ListenSolicitations opens an interface that has PortalGateway6, and tells its hardware address.
func ListenSolicitations(iface string) (*Advertiser, net.HardwareAddr, error) {
	fail := func(err error) (*Advertiser, net.HardwareAddr, error) {
		return nil, nil, fmt.Errorf("be the router at %s: %w", iface, err)
	}
	link, err := net.InterfaceByName(iface)
	if err != nil {
		return fail(err)
	}
	if readSetting(settingPath("net/ipv6/conf", iface, "disable_ipv6")) != "0" {
		return fail(ErrIPv6Off)
	}
	c, _, err := ndp.Listen(link, ndp.Addr(PortalGateway6.String()))
	if err != nil {
		return fail(err)
	}
	var only ipv6.ICMPFilter
	only.SetAll(true)
	only.Accept(ipv6.ICMPTypeRouterSolicitation)
	err = errors.Join(c.SetICMPFilter(&only), c.SetControlMessage(ipv6.FlagHopLimit, true), c.JoinGroup(netip.IPv6LinkLocalAllRouters()))
	if err != nil {
		c.Close()
		return fail(err)
	}
	return &Advertiser{c}, link.HardwareAddr, nil
}

// Solicited waits until somebody on the link asks who the router is.
func (a *Advertiser) Solicited() error {
	for {
		_, about, _, err := a.conn.ReadFrom()
		if err != nil {
			return err
		}
		if about != nil && about.HopLimit == ndp.HopLimit { // else it is from elsewhere
			return nil
		}
	}
}

// Advertise tells everybody on the link.
func (a *Advertiser) Advertise(m *ndp.RouterAdvertisement) error {
	return a.conn.WriteTo(m, nil, netip.IPv6LinkLocalAllNodes())
}

// Close has Solicited end.
func (a *Advertiser) Close() error { return a.conn.Close() }

// ListenDHCP opens the port of a DHCP server (RFC 2131) on one interface.
func ListenDHCP(iface string) (net.PacketConn, error) {
	config := net.ListenConfig{Control: BindTo(iface, false)}
	c, err := config.ListenPacket(context.Background(), "udp4", ":67")
	if err != nil {
		return nil, fmt.Errorf("serve DHCP at %s: %w (is there another DHCP server?)", iface, err)
	}
	return c, nil
}
