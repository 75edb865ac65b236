package host

import (
	"net/netip"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

func TestARouteLeadsIntoAnInterfaceOrAnother(t *testing.T) {
	inNetworkNamespace(t)
	for name, addrs := range map[string][]string{"t0": {"10.99.1.1/24", "fd99::1/64"}, "t1": {"192.0.2.2/24", "2001:db8::2/64"}} {
		l := newTUN(t, name)
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		for _, s := range addrs {
			a, err := netlink.ParseAddr(s)
			if err != nil {
				t.Fatal(err)
			}
			a.Flags = unix.IFA_F_NODAD
			if err := netlink.AddrAdd(l, a); err != nil {
				t.Fatal(err)
			}
		}
	}
	for to, want := range map[string]bool{
		"10.99.1.2": true, "::ffff:10.99.1.2": true, "fd99::2": true, "192.0.2.9": false, "2001:db8::9": false,
	} {
		if got, err := Leads("t0", netip.MustParseAddr(to)); got != want || err != nil {
			t.Errorf("to %s it is %v, %v", to, got, err)
		}
	}
	if got, err := Leads("t0", netip.MustParseAddr("203.0.113.1")); got || err == nil {
		t.Errorf("to an address without a route it is %v, %v", got, err)
	}
	if got, err := Leads("t7", netip.MustParseAddr("192.0.2.9")); got || err == nil {
		t.Errorf("into an interface that is not there it is %v, %v", got, err)
	}
}
