package lab

import (
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"

	"weft"
	"weft/lab/netns"
)

// mappedOutside is an address that miniupnpd takes for public. It is nobody's within the namespaces.
var mappedOutside = netip.MustParseAddr("9.0.0.9")

// mappings are the ports that a router passes on, as its rules have them.
func (w *world) mappings(r *netns.Router) string {
	w.t.Helper()
	return w.run(r.Host, "nft", "list", "chain", "inet", "miniupnpd", "prerouting_miniupnpd")
}

// Two of the hardest NATs: each gives every peer another random port, and lets in only who was written to. Nothing
// helps there but a router that passes a port on when it is asked, and one of the two is enough.
func TestOfTwoHomesBehindSymmetricNATsOneWhoseRouterMapsPortsIsEnough(t *testing.T) {
	if _, err := exec.LookPath("miniupnpd"); err != nil {
		t.Skip("miniupnpd is not installed: scripts/install-deps test")
	}
	for name, m := range map[string]netns.PortMapping{
		"UPnP": {External: mappedOutside, UPnP: true},
		"PCP":  {External: mappedOutside, NATPMP: true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			gwA, hostA := w.home("ann", netns.Symmetric)
			_, hostB := w.home("bob", netns.Symmetric)
			if _, err := gwA.MapPorts(w.ctx, m); err != nil {
				t.Fatal(err)
			}
			a, b := w.node(hostA), w.node(hostB)
			addrA, addrB := w.up(a).Self.Addrs[0], w.up(b).Self.Addrs[0]
			w.run(a.Host, "ping", "-c", "3", "-i", "0.2", "-W", "5", addrB.String())
			p := w.reaches(a, "bob", weft.Direct)
			q := w.reaches(b, "ann", weft.Direct)
			t.Logf("direct after %.0f ms and %.0f ms", p.DirectAfterMS, q.DirectAfterMS)
			if !strings.Contains(q.Endpoint, mappedOutside.String()) {
				t.Errorf("bob reaches ann at %s, not where her router passes packets on", q.Endpoint)
			}
			w.run(b.Host, "ping", "-c", "3", "-i", "0.2", "-W", "5", addrA.String())

			// The node that ends gives its port back.
			if err := a.Process.Stop(); err != nil {
				t.Error(err)
			}
			if rules := w.mappings(gwA); strings.Contains(rules, "dnat") {
				t.Errorf("the mapping stays when the node ends: %s", rules)
			}
		})
	}
}

func TestTheRouterIsLeftAloneByWhoSaysSo(t *testing.T) {
	if _, err := exec.LookPath("miniupnpd"); err != nil {
		t.Skip("miniupnpd is not installed: scripts/install-deps test")
	}
	w := newWorld(t)
	gw, host := w.home("ann", netns.Symmetric)
	if _, err := gw.MapPorts(w.ctx, netns.PortMapping{External: mappedOutside, UPnP: true, NATPMP: true}); err != nil {
		t.Fatal(err)
	}
	n := w.node(host)
	w.up(n)
	mapped := func(want bool) {
		t.Helper()
		err := netns.WaitFor(w.ctx, fmt.Sprintf("a mapping: %v", want), func() error {
			if strings.Contains(w.mappings(gw), "dnat") != want {
				return errors.New("it is the other way round")
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	mapped(true)
	w.run(n.Host, w.fleet.Binary, "--socket", n.Socket, "set", "portmap=off")
	mapped(false)
	w.run(n.Host, w.fleet.Binary, "--socket", n.Socket, "set", "portmap=on")
	mapped(true)
}
