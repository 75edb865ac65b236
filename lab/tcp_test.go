package lab

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft"
	"weft/lab/netns"
)

// Where UDP is blocked and one side takes TCP connections, they are made by themselves, and left when UDP works again.

// straight is ann behind a router, and bob at a public address, both up.
func (w *world) straight(flags ...string) (gw *netns.Router, a, b *Node) {
	w.t.Helper()
	gw, hostA := w.home("ann", netns.PortRestrictedCone)
	hostB := w.must(w.net.AddHost("bob"))
	return gw, w.node(hostA, flags...), w.node(hostB)
}

func TestWhereUDPIsBlockedPeersAreReachedByTCPAndUDPTakesOverWhenItIsBack(t *testing.T) {
	w := newWorld(t)
	gw, a, b := w.straight()
	if err := gw.BlockUDP(); err != nil {
		t.Fatal(err)
	}
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.RelayStream, weft.DirectTCP) // at first
	p := w.reaches(a, "bob", weft.DirectTCP)
	q := w.reaches(b, "ann", weft.DirectTCP)
	t.Logf("ann: %s, because %s; bob: %s", p.Endpoint, p.Reason, q.Endpoint)
	if want := fmt.Sprintf("%s:%d", b.Host.Addr(), w.up(b).Self.Port); p.Path != weft.PathDirect || p.Endpoint != want {
		t.Errorf("ann reaches bob by %s %s, not %s", p.Path, p.Endpoint, want)
	}
	if !strings.HasPrefix(q.Endpoint, gw.Addr().String()+":") {
		t.Errorf("bob reaches ann at %s, and her router is %s", q.Endpoint, gw.Addr())
	}
	talk := w.converse(a.Host, b.Host, addrB)
	talk.goesOn(t, 100)

	// The relay and the server are gone, for ann: nobody needs them.
	w.run(gw.Host, "ip", "route", "add", "blackhole", w.server.Host.Addr().String()+"/32")
	if silence := talk.goesOn(t, 300); silence > feltWithin {
		t.Errorf("without the relay, it was silent for %v", silence)
	}
	w.run(gw.Host, "ip", "route", "del", "blackhole", w.server.Host.Addr().String()+"/32")

	if err := gw.Unblock(); err != nil {
		t.Fatal(err)
	}
	p = w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	if silence := talk.goesOn(t, 100); silence > feltWithin {
		t.Errorf("when UDP took over, it was silent for %v", silence)
	}
	t.Logf("UDP took over: %s", p.Reason)

	// And back, while data flows.
	if err := gw.BlockUDP(); err != nil {
		t.Fatal(err)
	}
	w.reaches(a, "bob", weft.DirectTCP)
	t.Logf("when UDP was blocked again, it was silent for %v", talk.goesOn(t, 100))
}

func TestTheLinkThatLetsNoUDPThroughIsUsedByTCPBesideTheOther(t *testing.T) {
	w := newWorld(t)
	hostA, routers := w.twoUplinks()
	a, b := w.node(hostA), w.node(w.must(w.net.AddHost("bob")))
	if err := routers["eth1"].BlockUDP(); err != nil {
		t.Fatal(err)
	}
	w.up(a)
	w.up(b)
	w.byLink(a, "bob", "eth0")
	w.waits("a TCP connection by eth1", func() error {
		e, err := a.Explain(w.ctx, "bob")
		if err == nil && !slices.ContainsFunc(e.Ways, func(x weft.WayStatus) bool {
			return strings.HasPrefix(x.Way, "direct-tcp ") && strings.HasSuffix(x.Way, " by eth1") && x.State == "valid"
		}) {
			err = fmt.Errorf("ways are %+v", e.Ways)
		}
		return err
	})
	e, err := a.Explain(w.ctx, "bob")
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range e.Ways {
		if strings.HasPrefix(x.Way, "direct-tcp ") && strings.HasSuffix(x.Way, " by eth0") {
			t.Errorf("%s is there beside UDP", x.Way)
		}
	}
	if err := routers["eth0"].SetUp(false); err != nil {
		t.Fatal(err)
	}
	w.run(hostA, "ping", "-c", "20", "-i", "0.2", "-W", "5", w.up(b).Self.Addrs[0].String())
	p := w.reaches(a, "bob", weft.DirectTCP)
	if p.Link != "eth1" {
		t.Errorf("without eth0 bob is reached by %q", p.Link)
	}
}

func TestTCPIsUsedAsIsSet(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	gw, a, b := w.straight()
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.Direct)
	w.run(a.Host, w.fleet.Binary, "set", "--socket", a.Socket, "tcp=all")
	w.reaches(a, "bob", weft.DirectTCP)
	w.run(a.Host, "ping", "-c", "3", "-i", "0.2", "-W", "5", addrB.String())
	if err := gw.BlockUDP(); err != nil {
		t.Fatal(err)
	}
	w.run(b.Host, w.fleet.Binary, "set", "--socket", b.Socket, "tcp=off")
	w.reaches(a, "bob", weft.RelayStream)
	w.run(a.Host, "ping", "-c", "20", "-i", "0.5", "-W", "5", addrB.String())
	if out := w.run(b.Host, "ss", "-Htln", fmt.Sprintf("sport = :%d", w.up(b).Self.Port)); out != "" {
		t.Errorf("bob takes TCP connections all the same:\n%s", out)
	}
}
