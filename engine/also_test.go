package engine

import (
	"net/netip"
	"testing"

	"weft/wireguard"
)

func TestOfTwoRoutersOfANetworkBothMaySendFromItAndNothingElse(t *testing.T) {
	prefix := netip.MustParsePrefix
	one, two, three := &peer{wg: new(wireguard.Peer)}, &peer{wg: new(wireguard.Peer)}, &peer{wg: new(wireguard.Peer)}
	var routes routing
	routes.Insert(prefix("192.168.142.0/24"), one.wg)
	routes.Insert(prefix("192.168.142.7/32"), three.wg) // a more specific network of somebody else's
	routes.Insert(prefix("10.0.0.0/8"), one.wg)
	routes.Insert(prefix("0.0.0.0/0"), three.wg)
	two.also.Store(&[]netip.Prefix{prefix("192.168.142.0/24"), prefix("172.16.0.0/12")})
	for _, c := range []struct {
		from string
		of   *peer
		want bool
	}{
		{"192.168.142.9", one, true}, {"192.168.142.9", two, true}, {"192.168.142.9", three, false},
		{"192.168.142.7", two, false}, {"192.168.142.7", one, false}, {"192.168.142.7", three, true},
		{"10.1.2.3", two, false}, {"172.16.5.5", two, true}, {"9.9.9.9", two, false}, {"2001:db8::1", two, false},
	} {
		o := &opener{routes: &routes}
		if got := o.belongs(netip.MustParseAddr(c.from), &session{Session: &wireguard.Session{Peer: c.of.wg}, peer: c.of}); got != c.want {
			t.Errorf("%s from peer %p: %v, want %v", c.from, c.of, got, c.want)
		}
	}
}
