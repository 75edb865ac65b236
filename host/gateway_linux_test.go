package host

import (
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"
)

func TestGatewaysAreTheRoutersOfDefaultRoutesBestFirst(t *testing.T) {
	inNetworkNamespace(t)
	links := map[string]netlink.Link{}
	for name, addr := range map[string]string{"eth1": "192.168.1.2/24", "eth2": "192.168.2.2/24"} {
		l := newTUN(t, name)
		links[name] = l
		a, err := netlink.ParseAddr(addr)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
	}
	add := func(r *netlink.Route) {
		t.Helper()
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	index := func(name string) int { return links[name].Attrs().Index }
	gateway := func(name, addr, local string) Gateway {
		return Gateway{Addr: netip.MustParseAddr(addr), Local: netip.MustParseAddr(local), Interface: name, Index: index(name)}
	}
	expect := func(want ...Gateway) {
		t.Helper()
		if got, err := Gateways(); err != nil || !slices.Equal(got, want) {
			t.Errorf("%v, %v; want %v", got, err, want)
		}
	}
	all := netOf(netip.MustParsePrefix("0.0.0.0/0"))
	expect()
	// A route without a router, and one that is not for everything.
	add(&netlink.Route{LinkIndex: index("eth1"), Dst: all, Priority: 1, Scope: netlink.SCOPE_LINK})
	add(&netlink.Route{LinkIndex: index("eth1"), Dst: netOf(netip.MustParsePrefix("10.0.0.0/8")), Gw: net.IPv4(192, 168, 1, 9)})
	expect()
	add(&netlink.Route{LinkIndex: index("eth2"), Dst: all, Gw: net.IPv4(192, 168, 2, 1), Priority: 600})
	two := gateway("eth2", "192.168.2.1", "192.168.2.2")
	expect(two)
	add(&netlink.Route{LinkIndex: index("eth1"), Dst: all, Gw: net.IPv4(192, 168, 1, 1), Priority: 100})
	expect(gateway("eth1", "192.168.1.1", "192.168.1.2"), two)
	add(&netlink.Route{Dst: all, Priority: 50, MultiPath: []*netlink.NexthopInfo{
		{LinkIndex: index("eth2"), Gw: net.IPv4(192, 168, 2, 7)}, {LinkIndex: index("eth1"), Gw: net.IPv4(192, 168, 1, 7)},
	}})
	expect(gateway("eth2", "192.168.2.7", "192.168.2.2"), gateway("eth1", "192.168.1.7", "192.168.1.2"),
		gateway("eth1", "192.168.1.1", "192.168.1.2"), two)
	if err := netlink.LinkSetDown(links["eth1"]); err != nil {
		t.Fatal(err)
	}
	expect(gateway("eth2", "192.168.2.7", "192.168.2.2"), two)
}
