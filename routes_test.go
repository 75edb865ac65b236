package weft

import (
	"net/netip"
	"slices"
	"testing"
)

func TestARouteIsANetworkThatCanBeBehindSomebody(t *testing.T) {
	for s, good := range map[string]bool{
		"192.168.142.0/24": true, "10.0.0.0/8": true, "0.0.0.0/0": true, "::/0": true, "2001:db8:142::/64": true, "192.168.142.7/32": true,
		"192.168.142.1/24": false, "127.0.0.0/8": false, "::1/128": false, "fe80::/64": false, "ff00::/8": false, "224.0.0.0/4": false,
		"169.254.0.0/16": false, "240.0.0.0/4": false, "::ffff:10.0.0.0/104": false, "0.0.0.0/32": false, "192.168.142.0": false, "": false, "x/24": false,
	} {
		p, err := ParseRoute(s)
		if (err == nil) != good {
			t.Errorf("%q: %v", s, err)
		}
		if err == nil && CheckRoute(p) != nil {
			t.Errorf("%q is read and then refused", s)
		}
	}
	if CheckRoute(netip.Prefix{}) == nil {
		t.Error("no prefix is a route")
	}
}

func TestRoutesAreSortedAndEachIsThereOnce(t *testing.T) {
	p := netip.MustParsePrefix
	got := SortRoutes([]netip.Prefix{p("::/0"), p("10.0.0.0/16"), p("0.0.0.0/0"), p("10.0.0.0/8"), p("10.0.0.0/16")})
	want := []netip.Prefix{p("0.0.0.0/0"), p("10.0.0.0/8"), p("10.0.0.0/16"), p("::/0")}
	if !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

func FuzzParseRoute(f *testing.F) {
	for _, s := range []string{"192.168.142.0/24", "::/0", "0.0.0.0/0", "fe80::%eth0/64", "10.0.0.0/33", "::ffff:1.2.3.4/128"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := ParseRoute(s)
		if err != nil {
			return
		}
		if again, err := ParseRoute(p.String()); err != nil || again != p {
			t.Errorf("%q is %v, and that is %v, %v", s, p, again, err)
		}
	})
}
