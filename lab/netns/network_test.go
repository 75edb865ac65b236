package netns

import (
	"fmt"
	"net/netip"
	"testing"
)

func TestWhoKnowsTheGatewayReachesOthersThroughItWhateverIsPluggedInOrOut(t *testing.T) {
	t.Parallel()
	l := newLab(t)
	server := must(l.AddHost("server"))(t)
	h := newHome(t, l, "campus", None)
	c, s := udp(t, h.host, "0.0.0.0:6000"), udp(t, server, "0.0.0.0:7000")
	exchange := func(when string) {
		t.Helper()
		for _, x := range []struct {
			from, to socket
			at       netip.AddrPort
		}{{s, c, at(h.host.Addr(), 6000)}, {c, s, at(server.Addr(), 7000)}} {
			x.from.send(x.at, when)
			x.to.expect(when)
		}
	}
	exchange("before")
	// Ports of hosts and routers have random MACs. One lower than all others is what the next of them may be.
	for i, n := range []*Network{l.Public(), h.Inside()} {
		port := fmt.Sprintf("low%d", i)
		if err := batch(n.gateway,
			"link add "+port+" address 02:00:00:00:00:01 type veth peer name "+port+"far",
			"link set "+port+" addrgenmode none master "+lanLink+" up"); err != nil {
			t.Fatal(err)
		}
		exchange("with " + port)
		if err := batch(n.gateway, "link del "+port); err != nil {
			t.Fatal(err)
		}
		exchange("without " + port)
	}
}
