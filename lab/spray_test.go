package lab

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"weft"
	"weft/lab/netns"
	"weft/lab/vnet"
)

// NATs that the kernel cannot be: routers of the laboratory's own between hosts with the real binary.

var (
	// cone is endpoint-independent in its mapping and lets in only who was written to.
	cone = vnet.NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation}
	// symmetric gives every destination another port, at random, and lets in only who was written to.
	symmetric = vnet.NATConfig{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation}
)

// behind is a host behind a router with the laboratory's NAT. To its outside it has some hops, as on the internet.
func (w *world) behind(name string, nat vnet.NATConfig) (*netns.Router, *netns.Host) {
	w.t.Helper()
	r, err := w.net.AddNATRouter("gw-"+name, nat, netns.WithHops(5))
	if err != nil {
		w.t.Fatal(err)
	}
	return r, w.must(r.AddHost(name))
}

// descriptors counts a node's open files and sockets.
func (n *Node) descriptors(t testing.TB) int {
	t.Helper()
	list, err := os.ReadDir(filepath.Join("/proc", fmt.Sprint(n.Process.PID()), "fd"))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// iperf3 measures TCP from one host to an address of another, in bits per second.
func (w *world) iperf3(from, to *netns.Host, addr string, seconds int) float64 {
	w.t.Helper()
	server, err := to.Start(to.Command(w.ctx, "iperf3", "-s", "-1", "-B", addr))
	if err != nil {
		w.t.Fatal(err)
	}
	var r struct {
		Error string // with -J, that is all that tells
		End   struct {
			Received struct {
				Rate float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := netns.WaitFor(w.ctx, "iperf3 to answer", func() error {
		out, err := from.Run(w.ctx, "iperf3", "-c", addr, "-t", fmt.Sprint(seconds), "-J")
		if err == nil {
			err = json.Unmarshal([]byte(out), &r)
		}
		if err == nil && r.Error != "" {
			err = errors.New(r.Error)
			r.Error = ""
		}
		return err
	}); err != nil {
		w.t.Fatal(err)
	}
	<-server.Done()
	return r.End.Received.Rate
}

func TestAPortRestrictedConeAndASymmetricNATBecomeDirectBySpraying(t *testing.T) {
	w := newWorld(t)
	gwA, hostA := w.behind("ann", cone)
	_, hostB := w.behind("bob", symmetric)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.run(hostA, "ping", "-c", "3", "-i", "0.2", "-W", "5", addrB.String())
	before := map[*Node]int{a: a.descriptors(t), b: b.descriptors(t)}
	most := map[*Node]int{}
	if err := netns.WaitFor(w.ctx, "a direct path", func() error {
		for n := range before {
			most[n] = max(most[n], n.descriptors(t))
		}
		for n, peer := range map[*Node]string{a: "bob", b: "ann"} {
			if p, err := n.Peer(w.ctx, peer); err != nil || p.Method != weft.Direct {
				return fmt.Errorf("%s reaches %s by %s (%s, %v)", n.Name, peer, p.Method, p.Reason, err)
			}
		}
		return nil
	}); err != nil {
		t.Fatalf("%v\nann: %s\nbob: %s", err, w.explain(a, "bob"), w.explain(b, "ann"))
	}
	p, err := a.Peer(w.ctx, "bob")
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("direct after %.0f ms", p.DirectAfterMS)
	t.Logf("ann: %s\nbob: %s", w.explain(a, "bob"), w.explain(b, "ann"))
	e, err := b.Explain(w.ctx, "ann")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(e.Other.Attested, []netip.Addr{gwA.Addr()}) {
		t.Errorf("the relay is said to have seen ann at %v", e.Other.Attested)
	}
	if e.OwnSocket == 0 {
		t.Errorf("the symmetric side's path shares the node's socket, which it cannot: %+v", e)
	}
	if most[b] < before[b]+100 {
		t.Errorf("bob had %d files open at most, after %d before: no spray", most[b], before[b])
	}
	talk := w.converse(hostA, hostB, addrB)
	talk.goesOn(t, 50)
	rate := w.iperf3(hostA, hostB, addrB.String(), 2)
	back := w.iperf3(hostB, hostA, w.address(a), 2)
	t.Logf("TCP over the socket: %.0f and %.0f Mbit/s", rate/1e6, back/1e6)
	if rate < 5e6 || back < 5e6 {
		t.Errorf("iperf3 had %.1f and %.1f Mbit/s", rate/1e6, back/1e6)
	}
	talk.goesOn(t, 50)
	for n := range before {
		if err := netns.WaitFor(w.ctx, n.Name+"'s sockets to be closed", func() error {
			if now := n.descriptors(t); now > before[n]+10 {
				return fmt.Errorf("%d files are open, after %d before", now, before[n])
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
	if p, err := a.Peer(w.ctx, "bob"); err != nil || p.Method != weft.Direct {
		t.Errorf("after all that, bob is reached by %s (%v)", p.Method, err)
	}
}

func TestTwoSymmetricNATsStayOnTheRelayAndSayWhy(t *testing.T) {
	w := newWorld(t)
	_, hostA := w.behind("ann", symmetric)
	_, hostB := w.behind("bob", symmetric)
	a, b := w.node(hostA), w.node(hostB)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	w.reaches(a, "bob", weft.RelayUDP)
	before := map[*Node]int{a: a.descriptors(t), b: b.descriptors(t)}
	talk := w.converse(hostA, hostB, addrB)
	known := weft.NAT{Mapping: symmetric.Mapping, Filtering: symmetric.Filtering, Allocation: symmetric.Allocation}
	for n, peer := range map[*Node]string{a: "bob", b: "ann"} {
		if err := netns.WaitFor(w.ctx, n.Name+" to say why there is no direct path", func() error {
			e, err := n.Explain(w.ctx, peer)
			if err != nil {
				return err
			}
			for _, nat := range []weft.NAT{e.Self.NAT, e.Other.NAT} {
				if nat.Hairpin = weft.SupportUnknown; nat != known {
					return fmt.Errorf("it knows %v and %v", e.Self.NAT, e.Other.NAT)
				}
			}
			for _, x := range e.Attempts {
				if x.Running {
					return fmt.Errorf("it still tries: %s, %s", x.Way, x.Result)
				}
			}
			if e.Blocked == "" || len(e.Advice) == 0 || e.Path != weft.PathRelay {
				return fmt.Errorf("it says %+v", e)
			}
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		e, err := n.Explain(w.ctx, peer)
		if err != nil {
			t.Fatal(err)
		}
		packets := 0
		for _, x := range e.Attempts {
			packets += x.Packets
		}
		t.Logf("%s: %d packets for nothing; %s; %q", n.Name, packets, e.Blocked, e.Advice)
		if packets > 20000 {
			t.Errorf("%s sent %d packets for nothing", n.Name, packets)
		}
	}
	talk.goesOn(t, 50)
	for n := range before {
		if err := netns.WaitFor(w.ctx, n.Name+"'s sockets to be closed", func() error {
			if now := n.descriptors(t); now > before[n]+10 {
				return fmt.Errorf("%d files are open, after %d before", now, before[n])
			}
			return nil
		}); err != nil {
			t.Error(err)
		}
	}
}

// explain is what weft explain prints.
func (w *world) explain(n *Node, peer string) string {
	out, err := n.Host.Run(w.ctx, w.fleet.Binary, "--socket", n.Socket, "explain", peer)
	if err != nil {
		return err.Error()
	}
	return out
}

// address is a node's in the overlay.
func (w *world) address(n *Node) string {
	w.t.Helper()
	return w.up(n).Self.Addrs[0].String()
}

// BenchmarkTCPOverASocketOfItsOwn compares a path that spraying has given a socket of its own with one over the nodes'
// shared sockets, behind routers of the same making: towards that socket, and from it. What counts is the ratio of
// the medians, own/shared, which should not be below 0.9.
func BenchmarkTCPOverASocketOfItsOwn(b *testing.B) {
	w := newWorld(b)
	pair := func(name string, natA, natB vnet.NATConfig) (x, y *Node) {
		_, hostA := w.behind(name+"1", natA)
		_, hostB := w.behind(name+"2", natB)
		x, y = w.node(hostA), w.node(hostB)
		w.up(x)
		w.up(y)
		w.reaches(x, y.Name, weft.Direct)
		w.reaches(y, x.Name, weft.Direct)
		return x, y
	}
	sharedA, sharedB := pair("shared", cone, cone)
	ownA, ownB := pair("own", cone, symmetric)
	for peer, own := range map[[2]*Node]bool{{sharedB, sharedA}: false, {ownB, ownA}: true} {
		e, err := peer[0].Explain(w.ctx, peer[1].Name)
		if err != nil || (e.OwnSocket != 0) != own {
			b.Fatalf("%s has socket %d for %s (%v)", peer[0].Name, e.OwnSocket, peer[1].Name, err)
		}
	}
	ways := [4][2]*Node{{ownA, ownB}, {sharedA, sharedB}, {ownB, ownA}, {sharedB, sharedA}}
	var rates [len(ways)][]float64
	for b.Loop() {
		for i, way := range ways {
			rates[i] = append(rates[i], w.iperf3(way[0].Host, way[1].Host, w.address(way[1]), 1))
		}
	}
	middle := func(i int) float64 {
		slices.Sort(rates[i])
		return rates[i][len(rates[i])/2]
	}
	b.ReportMetric(middle(0)/1e6, "to-own-Mbit/s")
	b.ReportMetric(middle(0)/middle(1), "to-own/shared")
	b.ReportMetric(middle(2)/1e6, "from-own-Mbit/s")
	b.ReportMetric(middle(2)/middle(3), "from-own/shared")
	b.ReportMetric(0, "ns/op")
}
