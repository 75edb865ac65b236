package gather

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/host"
)

func TestLinksAreTheInterfacesThatLeadSomewhere(t *testing.T) {
	p := netip.MustParsePrefix
	ifaces := []host.Interface{
		{Index: 1, Name: "lo", Up: true, Loopback: true, Addrs: []netip.Prefix{p("127.0.0.1/8")}},
		{Index: 2, Name: "wlan0", Up: true, Addrs: []netip.Prefix{p("192.168.1.7/24")}},
		{Index: 3, Name: "eth0", Up: true, Addrs: []netip.Prefix{p("10.0.0.7/24")}},
		{Index: 4, Name: "docker0", Up: true, Addrs: []netip.Prefix{p("172.17.0.1/16")}},
		{Index: 5, Name: "lan1", Up: true, Addrs: []netip.Prefix{p("100.100.0.1/16"), p("fd00::1/64")}},
		{Index: 6, Name: "wan1", Up: true, Addrs: []netip.Prefix{p("203.0.113.9/24")}},
		{Index: 7, Name: "wwan0", Up: false, Addrs: []netip.Prefix{p("198.51.100.7/24")}},
		{Index: 8, Name: "wg0", Up: true, PointToPoint: true, MTU: 1420, Addrs: []netip.Prefix{p("10.99.0.1/24")}},
		{Index: 9, Name: "weft0", Up: true, Addrs: []netip.Prefix{p("100.64.0.2/32")}},
		{Index: 10, Name: "six0", Up: true, Addrs: []netip.Prefix{p("2001:db8::7/64")}},
	}
	routed := map[int]int{2: 600, 3: 100, 7: 50, 8: 1, 9: 1}
	for _, c := range []struct {
		about string
		named []string
		want  []string
	}{
		{"by themselves", nil, []string{"eth0", "wlan0", "wan1", "six0"}},
		{"as named, in that order, and each once", []string{"wlan0", "docker0", "wlan0"}, []string{"wlan0", "docker0"}},
		{"those named that are there and up", []string{"wwan0", "eth9", "eth0"}, []string{"eth0"}},
	} {
		var got []string
		for _, i := range Uplinks(ifaces, routed, c.named, 1468, []netip.Prefix{p("100.64.0.0/16")}, "weft0") {
			got = append(got, i.Name)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s: %s", c.about, d)
		}
	}
}

func TestCandidatesOfALinkHaveItsNumberAndPort(t *testing.T) {
	list := []weft.Candidate{{Addr: ap("192.168.1.7:1"), Kind: weft.Host}}
	want := []weft.Candidate{{Addr: ap("192.168.1.7:41641"), Kind: weft.Host, Link: 3}}
	if d := cmp.Diff(want, OnLink(3, 41641, list), compareAddrs); d != "" {
		t.Error(d)
	}
	srflx := []weft.Candidate{{Addr: ap("203.0.113.7:40000"), Kind: weft.ServerReflexive}}
	if got := OnLink(3, 0, srflx); got[0].Addr.Port() != 40000 || got[0].Link != 3 {
		t.Errorf("%v", got)
	}
}
