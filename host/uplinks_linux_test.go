package host

import (
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestEveryInterfaceWithADefaultRouteInAnyTableIsFound(t *testing.T) {
	inNetworkNamespace(t)
	index := map[string]int{}
	for i, name := range []string{"up0", "up1", "lan0"} {
		if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "x"}); err != nil {
			t.Fatal(err)
		}
		for _, end := range []string{name, name + "x"} {
			l, err := netlink.LinkByName(end)
			if err == nil {
				err = netlink.LinkSetUp(l)
			}
			if err != nil {
				t.Fatal(err)
			}
			if end == name {
				index[name] = l.Attrs().Index
				a := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(10, byte(i), 0, 1), Mask: net.CIDRMask(24, 32)}}
				if err := netlink.AddrAdd(l, a); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	route := func(dev string, gw byte, table, metric int) {
		t.Helper()
		r := &netlink.Route{LinkIndex: index[dev], Gw: net.IPv4(10, gw, 0, 2), Table: table, Priority: metric,
			Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
		if err := netlink.RouteAdd(r); err != nil {
			t.Fatal(err)
		}
	}
	route("up0", 0, unix.RT_TABLE_MAIN, 200)
	route("up0", 0, unix.RT_TABLE_MAIN, 100)
	route("up1", 1, 1001, 300)
	got, err := DefaultLinks()
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(map[int]int{index["up0"]: 100, index["up1"]: 300}, got); d != "" {
		t.Error(d)
	}
}
