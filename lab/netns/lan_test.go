package netns

import (
	"net/netip"
	"strings"
	"testing"
)

func TestALanHasTheAddressesThatItIsGivenAndLeadsOutByItsGateway(t *testing.T) {
	l := newLab(t)
	four, six := netip.MustParsePrefix("192.168.1.0/24"), netip.MustParsePrefix("fd00:1::/64")
	lan, err := l.AddLAN("office", four, six)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"192.168.0.0/16", "203.0.113.128/25", "198.51.100.0/28", "2001:db8:7::/64"} {
		if _, err := l.AddLAN("other", netip.MustParsePrefix(p), netip.Prefix{}); err == nil || !strings.Contains(err.Error(), "is in use") {
			t.Errorf("a lan with %s: %v", p, err)
		}
	}
	desk, err := lan.AddHost("desk", WithIPv6())
	if err != nil {
		t.Fatal(err)
	}
	gate, err := l.AddHost("gate")
	if err != nil {
		t.Fatal(err)
	}
	leg, err := gate.AddLeg(lan, AsGateway(), WithIPv6())
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		got  netip.Addr
		want string
	}{{leg.Addr(), "192.168.1.1"}, {leg.Addr6(), "fd00:1::1"}, {desk.Addr(), "192.168.1.2"}, {desk.Addr6(), "fd00:1::2"}} {
		if c.got.String() != c.want {
			t.Errorf("%v was given, want %s", c.got, c.want)
		}
	}
	if _, err := gate.AddLeg(lan, AsGateway()); err == nil || !strings.Contains(err.Error(), "has a gateway already") {
		t.Errorf("a second gateway: %v", err)
	}
	if r, err := l.AddRouter("home", PortRestrictedCone); err != nil {
		t.Error(err)
	} else if r.Inside().Prefix().Overlaps(four) {
		t.Errorf("a router's inside is %v, and the lan is %v", r.Inside().Prefix(), four)
	}
	if _, err := l.AddLAN("late", netip.MustParsePrefix("192.168.77.0/24"), netip.Prefix{}); err == nil {
		t.Error("a lan is added behind routers that may have its addresses")
	}
	for _, to := range []string{"192.168.1.1", "fd00:1::1"} {
		if _, err := desk.Run(t.Context(), "ping", "-c", "1", "-W", "5", to); err != nil {
			t.Errorf("the gateway does not answer: %v", err)
		}
	}
	// Nobody passes on what it sends: the gateway is a host.
	if out, err := desk.Run(t.Context(), "ping", "-c", "1", "-W", "1", l.Public().Gateway().String()); err == nil {
		t.Errorf("the internet answers: %s", out)
	}
}
