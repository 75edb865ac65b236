package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
)

// Somebody who carries a computer from one network into another has TCP connections that should not break, and
// should not be silent for longer than it takes to notice.

const (
	// feltWithin is how long a flow is silent at most when an interface gets another address: the kernel tells.
	feltWithin = 2 * time.Second
	// missedWithin is how long when a NAT forgets and nobody tells: a black hole is left within 1.5 s, and the
	// retransmission that TCP then waits for comes within 2 s more.
	missedWithin = 4 * time.Second
)

// renumber gives a host another address in a network, in the place of the one it has.
func (w *world) renumber(h *netns.Host, from netip.Addr, to netip.Prefix, gateway netip.Addr) {
	w.t.Helper()
	w.run(h, "ip", "addr", "flush", "dev", "eth0", "scope", "global")
	w.run(h, "ip", "addr", "add", to.String(), "dev", "eth0")
	w.run(h, "ip", "route", "replace", "default", "via", gateway.String())
	if out := w.run(h, "ip", "addr", "show", "dev", "eth0"); strings.Contains(out, from.String()+"/") {
		w.t.Fatalf("the host still has its address: %s", out)
	}
}

// at is an address of a network by its last byte.
func at(p netip.Prefix, last byte) netip.Prefix {
	b := p.Addr().As4()
	b[3] = last
	return netip.PrefixFrom(netip.AddrFrom4(b), p.Bits())
}

// replug carries a host's leg from one router's network into another's, where it gets an address.
func (w *world) replug(h *netns.Host, from, to *netns.Router) {
	w.t.Helper()
	ports := strings.Fields(w.run(from.Host, "ls", "/sys/class/net/lan/brif"))
	if len(ports) != 1 {
		w.t.Fatalf("the router has %v behind it", ports)
	}
	w.run(from.Host, "ip", "link", "set", ports[0], "netns", to.Namespace())
	w.run(to.Host, "ip", "link", "set", ports[0], "master", "lan", "up")
	w.renumber(h, h.Addr(), at(to.Inside().Prefix(), 99), to.Inside().Gateway())
}

// roaming is a conversation between two homes that are direct.
func (w *world) roaming() (gwA *netns.Router, a, b *Node, talk *conversation) {
	w.t.Helper()
	gwA, _, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	talk = w.converse(a.Host, b.Host, addrB)
	talk.goesOn(w.t, 50)
	return gwA, a, b, talk
}

// moved checks that the conversation went on, without more than that silence, and comes to a direct path again, at
// which bob sees ann at another address, if that is asked for.
func (w *world) moved(a, b *Node, talk *conversation, silent time.Duration, atBob func(netip.AddrPort) bool) {
	w.t.Helper()
	began := time.Now()
	silence := talk.goesOn(w.t, 100)
	if err := netns.WaitFor(w.ctx, "a direct path from where ann is now", func() error {
		p, err := b.Peer(w.ctx, "ann")
		if err != nil {
			return err
		}
		at, err := netip.ParseAddrPort(p.Endpoint)
		if p.Method != weft.Direct || err != nil || !atBob(at) {
			return fmt.Errorf("bob reaches ann by %s %s (%s)", p.Method, p.Endpoint, p.Reason)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	w.reaches(a, "bob", weft.Direct)
	direct := time.Since(began)
	silence = max(silence, talk.goesOn(w.t, 50))
	w.t.Logf("the longest silence was %v; direct again within %v", silence, direct)
	if silence > silent {
		w.t.Errorf("the connection was silent for %v", silence)
	}
}

func TestATCPConnectionSurvivesThatTheHostGetsAnotherAddress(t *testing.T) {
	w := newWorld(t)
	gwA, a, b, talk := w.roaming()
	inside := gwA.Inside()
	w.renumber(a.Host, a.Host.Addr(), at(inside.Prefix(), 99), inside.Gateway())
	w.moved(a, b, talk, feltWithin, func(p netip.AddrPort) bool { return p.Addr() == gwA.Addr() })
	s, err := a.Status(w.ctx)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Self.Candidates {
		if c.Addr.Addr() == a.Host.Addr() {
			t.Errorf("ann still says to be at %v", c.Addr)
		}
	}
}

func TestATCPConnectionSurvivesThatTheNATForgetsAndTakesOtherPorts(t *testing.T) {
	w := newWorld(t)
	gwA, a, b, talk := w.roaming()
	before, err := b.Peer(w.ctx, "ann")
	if err != nil {
		t.Fatal(err)
	}
	// Out of the range of ports that Linux gives to sockets: none can be kept.
	w.run(gwA.Host, "nft", "flush chain ip labnat postrouting; add rule ip labnat postrouting oifname wan ip protocol udp masquerade to :20000-30000; add rule ip labnat postrouting oifname wan masquerade")
	if err := gwA.Forget(); err != nil {
		t.Fatal(err)
	}
	w.moved(a, b, talk, missedWithin, func(p netip.AddrPort) bool { return p.String() != before.Endpoint })
}

func TestATCPConnectionSurvivesTheMoveToAnotherRouter(t *testing.T) {
	w := newWorld(t)
	gwA, a, b, talk := w.roaming()
	other, err := w.net.AddRouter("cafe", netns.PortRestrictedCone)
	if err != nil {
		t.Fatal(err)
	}
	w.replug(a.Host, gwA, other)
	w.moved(a, b, talk, feltWithin, func(p netip.AddrPort) bool { return p.Addr() == other.Addr() })
}

func TestATCPConnectionSurvivesThatItsInterfaceGoesAndAnotherComes(t *testing.T) {
	w := newWorld(t)
	_, a, b, talk := w.roaming()
	other, err := w.net.AddRouter("cafe", netns.PortRestrictedCone)
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Host.Move(other.Inside()); err != nil {
		t.Fatal(err)
	}
	w.moved(a, b, talk, feltWithin, func(p netip.AddrPort) bool { return p.Addr() == other.Addr() })
}

// TestASprayedPathThatItsNATMovesIsFoundAgain rebinds the mapping that the other side sprayed at: it has to learn the
// new one before it can do so again.
func TestASprayedPathThatItsNATMovesIsFoundAgain(t *testing.T) {
	w := newWorld(t)
	gwA, hostA := w.behind("ann", cone)
	_, hostB := w.behind("bob", symmetric)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	talk := w.converse(hostA, hostB, addrB)
	talk.goesOn(t, 50)
	p, err := b.Peer(w.ctx, "ann")
	if err != nil {
		t.Fatal(err)
	}
	former := p.Endpoint
	if err := gwA.Rebind(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	silence := talk.goesOn(t, 100)
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	if err := netns.WaitFor(ctx, "another direct path", func() error {
		p, err := b.Peer(ctx, "ann")
		if err != nil || p.Method != weft.Direct || p.Endpoint == former {
			return fmt.Errorf("%s %s (%s), %v", p.Method, p.Endpoint, p.Reason, err)
		}
		return nil
	}); err != nil {
		t.Fatalf("%v\nann: %s\nbob: %s", err, w.explain(a, "bob"), w.explain(b, "ann"))
	}
	w.reaches(a, "bob", weft.Direct)
	t.Logf("silent for %v, direct again within %v", silence, time.Since(began))
	if silence > missedWithin {
		t.Errorf("the connection was silent for %v", silence)
	}
	talk.goesOn(t, 50)
}

// TestANodeThatMovesDropsTheSocketsOfTheNetworkItLeft carries the side with a socket of its own into another network.
func TestANodeThatMovesDropsTheSocketsOfTheNetworkItLeft(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	_, hostA := w.behind("ann", cone)
	_, hostB := w.behind("bob", symmetric)
	other, err := w.net.AddNATRouter("cafe", symmetric, netns.WithHops(5))
	if err != nil {
		t.Fatal(err)
	}
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	before, err := b.Explain(w.ctx, "ann")
	if err != nil || before.OwnSocket == 0 {
		t.Fatalf("%+v, %v", before, err)
	}
	talk := w.converse(hostA, hostB, addrB)
	talk.goesOn(t, 50)
	if err := hostB.Move(other.Inside()); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	silence := talk.goesOn(t, 100)
	ctx, cancel := context.WithTimeout(w.ctx, patience)
	defer cancel()
	var after weft.Explanation
	if err := netns.WaitFor(ctx, "a direct path by the other network", func() (err error) {
		if after, err = b.Explain(ctx, "ann"); err != nil || after.Method != weft.Direct || after.OwnSocket == 0 {
			return fmt.Errorf("%s %s (%s), socket %d, %v", after.Method, after.Endpoint, after.Reason, after.OwnSocket, err)
		}
		p, err := a.Peer(ctx, "bob")
		if err == nil && (p.Method != weft.Direct || !strings.HasPrefix(p.Endpoint, other.Addr().String()+":")) {
			err = fmt.Errorf("ann reaches bob by %s %s (%s)", p.Method, p.Endpoint, p.Reason)
		}
		return err
	}); err != nil {
		t.Fatalf("%v\nann: %s\nbob: %s", err, w.explain(a, "bob"), w.explain(b, "ann"))
	}
	t.Logf("silent for %v, direct again within %v", silence, time.Since(began))
	if silence > missedWithin {
		t.Errorf("the connection was silent for %v", silence)
	}
	if after.OwnSocket == before.OwnSocket { // the spray is of many sockets, and that is one
		t.Log("ann guessed the port that the new router gave to the former socket, which is in use again")
	} else if err := netns.WaitFor(ctx, "the former socket to be closed", func() error {
		out, err := hostB.Run(ctx, "ss", "-uan")
		if err == nil && strings.Contains(out, fmt.Sprintf(":%d ", before.OwnSocket)) {
			err = fmt.Errorf("port %d is open", before.OwnSocket)
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	talk.goesOn(t, 50)
}
