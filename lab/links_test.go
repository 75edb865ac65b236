package lab

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/lab/vnet"
)

// A machine with two uplinks: two routers of two providers, that do not do the same.

// uplink gives a host another leg, behind another router, as eth1. What goes nowhere in particular goes on leaving by eth0.
func (w *world) uplink(h *netns.Host, r *netns.Router) netip.Addr {
	w.t.Helper()
	leg := at(r.Inside().Prefix(), 77)
	w.run(h, "ip", "link", "add", "eth1", "type", "veth", "peer", "name", "second", "netns", r.Namespace())
	w.run(r.Host, "ip", "link", "set", "second", "addrgenmode", "none", "master", "lan", "up")
	w.run(h, "ip", "link", "set", "eth1", "addrgenmode", "none", "up")
	w.run(h, "ip", "addr", "add", leg.String(), "dev", "eth1")
	w.run(h, "ip", "route", "add", "default", "via", r.Inside().Gateway().String(), "dev", "eth1", "metric", "200")
	return leg.Addr()
}

// twoUplinks is ann with two uplinks, the routers by the interface that is behind them.
func (w *world) twoUplinks() (hostA *netns.Host, routers map[string]*netns.Router) {
	w.t.Helper()
	routers = map[string]*netns.Router{}
	routers["eth0"], hostA = w.behind("ann", providers["eth0"])
	r, err := w.net.AddNATRouter("gw2-ann", providers["eth1"], netns.WithHops(5))
	if err != nil {
		w.t.Fatal(err)
	}
	routers["eth1"] = r
	w.uplink(hostA, r)
	return hostA, routers
}

// providers are the two NATs. A cone like bob's is passed by both plainly.
var providers = map[string]vnet.NATConfig{
	"eth0": {Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressDependentFiltering, Allocation: weft.PreservingAllocation},
	"eth1": {Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation, Hairpin: true},
}

// elsewhere starts another relay of the network.
func (w *world) elsewhere() {
	w.t.Helper()
	host := w.must(w.net.AddHost("relay"))
	token, err := w.server.Token(w.ctx, "--relay")
	if err != nil {
		w.t.Fatal(err)
	}
	cmd := host.Command(w.ctx, w.fleet.Binary, "relay", "--data", filepath.Join(w.fleet.Dir, "relay"),
		"--listen", ":443", "--stun", ":3478", "--url", "https://"+host.Addr().String(), "--name", "elsewhere")
	cmd.Env = append(cmd.Environ(), "WEFT_TOKEN="+token)
	if _, err := host.Start(cmd); err != nil {
		w.t.Fatal(err)
	}
}

// waits waits until something is so.
func (w *world) waits(what string, so func() error) {
	w.t.Helper()
	began := time.Now()
	if err := netns.WaitFor(w.ctx, what, so); err != nil {
		w.t.Fatal(err)
	}
	if took := time.Since(began); took > time.Second {
		w.t.Logf("it took %v for %s", took, what)
	}
}

// byLink waits until a node reaches a peer directly by a link, "" for any, and returns which.
func (w *world) byLink(n *Node, peer, link string) (by string) {
	w.t.Helper()
	w.waits(n.Name+" to reach "+peer+" by "+link, func() error {
		p, err := n.Peer(w.ctx, peer)
		if err == nil && (p.Method != weft.Direct || p.Link == "" || link != "" && p.Link != link) {
			err = fmt.Errorf("it does by %s %s, link %q: %s", p.Method, p.Endpoint, p.Link, p.Reason)
		}
		by = p.Link
		return err
	})
	return by
}

// worksBy waits until a node knows a way to a peer by a link that works, in use or not.
func (w *world) worksBy(n *Node, peer, link string) {
	w.t.Helper()
	w.waits("a way by "+link+" to work", func() error {
		e, err := n.Explain(w.ctx, peer)
		works := slices.ContainsFunc(e.Ways, func(x weft.WayStatus) bool {
			return strings.HasPrefix(x.Way, "direct") && strings.HasSuffix(x.Way, " by "+link) && x.State == "valid"
		})
		if err == nil && !works {
			err = fmt.Errorf("ways are %+v", e.Ways)
		}
		return err
	})
}

func other(link string) string {
	if link == "eth0" {
		return "eth1"
	}
	return "eth0"
}

func TestEachUplinkOfAMachineIsUsedAndKnown(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.elsewhere()
	hostA, routers := w.twoUplinks()
	_, hostB := w.behind("bob", cone)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	w.up(b)
	w.byLink(a, "bob", "")
	w.reaches(b, "ann", weft.Direct)

	// Each one's NAT is found out, told to people, and told to the peer.
	w.waits("ann to know both NATs", func() error {
		s, err := a.Status(w.ctx)
		if err == nil && len(s.Self.Links) != 2 {
			err = fmt.Errorf("links are %+v", s.Self.Links)
		}
		for _, l := range s.Self.Links {
			if want := providers[l.Interface].NAT(); l.NAT != want {
				err = fmt.Errorf("the NAT of %s is %v, not %v", l.Interface, l.NAT, want)
			}
		}
		return err
	})
	w.waits("netcheck to tell both NATs", func() error {
		c, err := a.Netcheck(w.ctx)
		if err == nil && len(c.Links) != 2 {
			err = fmt.Errorf("links are %+v", c.Links)
		}
		for _, l := range c.Links {
			if want := providers[l.Interface].NAT(); l.IPv4.NAT != want || l.IPv4.Mapped.Addr() != routers[l.Interface].Addr() {
				err = fmt.Errorf("by %s: %+v, not %v", l.Interface, l.IPv4, want)
			}
		}
		return err
	})
	w.waits("bob to have been told both NATs", func() error {
		e, err := b.Explain(w.ctx, "ann")
		if err != nil {
			return err
		}
		var got []weft.NAT
		for _, l := range e.Other.Links {
			got = append(got, l.NAT)
		}
		for _, p := range providers {
			if !slices.Contains(got, p.NAT()) {
				return fmt.Errorf("it knows %+v", e.Other.Links)
			}
		}
		return nil
	})
	if text := w.run(hostA, w.fleet.Binary, "netcheck", "--socket", a.Socket); !strings.Contains(text, "link        eth0\n") || !strings.Contains(text, "link        eth1\n") {
		t.Errorf("netcheck prints\n%s", text)
	}
}

func TestWhenAnUplinkFailsTheOtherTakesOverWithinASecondAndAHalf(t *testing.T) {
	w := newWorld(t)
	hostA, routers := w.twoUplinks()
	_, hostB := w.behind("bob", cone)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(b, "ann", weft.Direct)
	talk := w.converse(hostA, hostB, addrB)
	talk.goesOn(t, 50)
	for round := range 2 {
		link := w.byLink(a, "bob", "")
		w.worksBy(a, "bob", other(link))
		call := w.call(hostA, hostB, addrB)
		call.goesOn(w, 1000)
		talk.goesOn(t, 50)
		if err := routers[link].SetUp(false); err != nil { // somewhere behind: nobody tells
			t.Fatal(err)
		}
		w.byLink(a, "bob", other(link))
		call.goesOn(w, 500)
		lost, sent := call.end(t)
		silence := talk.goesOn(t, 50)
		t.Logf("round %d: without %s %d of %d datagrams were lost, at one in %v; TCP was silent for %v", round, link, lost, sent, callEvery, silence)
		if time.Duration(lost)*callEvery > 1500*time.Millisecond {
			t.Errorf("a link that failed cost %v of datagrams", time.Duration(lost)*callEvery)
		}
		if silence > 4*missedWithin { // a retransmission that comes twice as late each time, on a machine that does other things
			t.Errorf("the connection was silent for %v", silence)
		}
		w.waits("the relay to be bound by the other link", func() error {
			s, err := a.Status(w.ctx)
			if err == nil && (len(s.Self.Relays) == 0 || !s.Self.Relays[0].UDP) {
				err = fmt.Errorf("relays are %+v", s.Self.Relays)
			}
			return err
		})
		e, err := a.Explain(w.ctx, "bob")
		if err != nil || e.Link != other(link) {
			t.Errorf("explained is the link %q (%v)", e.Link, err)
		}
		if err := routers[link].SetUp(true); err != nil {
			t.Fatal(err)
		}
		w.worksBy(a, "bob", link)
	}
}

func TestALinkThatGoesOrComesIsFeltAtOnce(t *testing.T) {
	w := newWorld(t)
	hostA, routers := w.twoUplinks()
	_, hostB := w.behind("bob", cone)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(b, "ann", weft.Direct)
	talk := w.converse(hostA, hostB, addrB)
	link := w.byLink(a, "bob", "")
	talk.goesOn(t, 100)
	w.run(hostA, "ip", "link", "set", link, "down")
	w.byLink(a, "bob", other(link))
	silence := talk.goesOn(t, 100)
	t.Logf("%s went: the longest silence was %v", link, silence)
	if silence > feltWithin {
		t.Errorf("the connection was silent for %v", silence)
	}
	s, err := a.Status(w.ctx)
	if err != nil || len(s.Self.Links) != 1 || s.Self.Links[0].Interface != other(link) {
		t.Errorf("links are %+v (%v)", s.Self.Links, err)
	}
	number := func(name string) weft.LinkID {
		s, err := a.Status(w.ctx)
		i := slices.IndexFunc(s.Self.Links, func(l weft.LinkStatus) bool { return l.Interface == name })
		if err != nil || i < 0 {
			return 0
		}
		return s.Self.Links[i].ID
	}
	stays := number(other(link))
	w.run(hostA, "ip", "link", "set", link, "up")
	w.run(hostA, "ip", "route", "add", "default", "via", routers[link].Inside().Gateway().String(), "dev", link, "metric", "300") // went with it
	w.waits("the link to be one again", func() error {
		if number(link) == 0 || number(other(link)) != stays {
			return fmt.Errorf("links are numbered %d and %d", number(link), number(other(link)))
		}
		return nil
	})
	if silence := talk.goesOn(t, 100); silence > feltWithin {
		t.Errorf("the connection was silent for %v", silence)
	}
}

func TestAnInterfaceThatIsNamedIsTheOnlyOneThatIsUsed(t *testing.T) {
	w := newWorld(t)
	hostA, routers := w.twoUplinks()
	_, hostB := w.behind("bob", symmetric) // which takes a spray, from the named interface too
	a, b := w.node(hostA, "--link", "eth1", "--link", "wlan7:5"), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-W", "5", addrB.String())
	w.byLink(a, "bob", "eth1")
	w.waits("bob to reach ann where eth1 leads", func() error {
		p, err := b.Peer(w.ctx, "ann")
		if at, parseErr := netip.ParseAddrPort(p.Endpoint); err == nil && (parseErr != nil || p.Method != weft.Direct || at.Addr() != routers["eth1"].Addr()) {
			err = fmt.Errorf("bob reaches ann by %s %s", p.Method, p.Endpoint)
		}
		return err
	})
	s, err := a.Status(w.ctx)
	if err != nil || len(s.Self.Links) != 1 || s.Self.Links[0].Interface != "eth1" {
		t.Errorf("links are %+v (%v)", s.Self.Links, err)
	}
	for _, c := range s.Self.Candidates {
		if c.Addr.Addr() == hostA.Addr() || c.Addr.Addr() == routers["eth0"].Addr() {
			t.Errorf("ann says to be at %v, of the other interface", c.Addr)
		}
	}
	if !slices.ContainsFunc(s.Problems, func(p string) bool { return strings.Contains(p, "wlan7") }) {
		t.Errorf("problems are %q", s.Problems)
	}
}

func TestAMachineWithOneUplinkHasNoLinks(t *testing.T) {
	w := newWorld(t)
	_, host := w.behind("ann", cone)
	a := w.node(host)
	if s := w.up(a); len(s.Self.Links) != 0 {
		t.Errorf("links are %+v", s.Self.Links)
	}
	if out := w.run(host, "ss", "-Hulpn"); strings.Contains(out, "%eth0") {
		t.Errorf("sockets are bound to the interface:\n%s", out)
	}
}
