package lab

import (
	"encoding/json"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/lab/vnet"
)

// twoLegged is a host with eth0 and, on a segment, eth1, which are of one speed.
func (w *world) twoLegged(name string, on *netns.Network) (*netns.Host, *netns.Leg) {
	w.t.Helper()
	line := vnet.LinkConfig{Rate: 20e6, Delay: 5 * time.Millisecond}
	h := w.must(w.net.AddHost(name, netns.WithLink(line)))
	leg, err := h.AddLeg(on, netns.WithLine(line, line))
	if err != nil {
		w.t.Fatal(err)
	}
	return h, leg
}

// sendsBy waits until a node sends to a peer by just these links, and returns all that it tells of the paths.
func (w *world) sendsBy(n *Node, peer string, links ...string) (p weft.Paths) {
	w.t.Helper()
	w.waits(fmt.Sprintf("%s to send to %s by %s", n.Name, peer, links), func() (err error) {
		if p, err = n.Paths(w.ctx, peer); err != nil {
			return err
		}
		var active []string
		for _, x := range p.Paths {
			if x.State == weft.PathActive {
				active = append(active, x.Link)
			}
		}
		if slices.Sort(active); !slices.Equal(active, links) {
			return fmt.Errorf("active are %q: %s: %+v", active, p.Bond.Why, p.Paths)
		}
		return nil
	})
	return p
}

// pathTo is what is told of the direct path by a link.
func pathTo(p weft.Paths, link string) (x weft.PathStatus) {
	for _, x := range p.Paths {
		if x.Link == link && x.Method == weft.Direct {
			return x
		}
	}
	return x
}

func TestAnOperatorSeesAndSetsHowLinksAreBonded(t *testing.T) {
	w := newWorld(t)
	segment, err := w.net.AddSegment("second")
	if err != nil {
		t.Fatal(err)
	}
	hostA, leg := w.twoLegged("ann", segment)
	hostB, _ := w.twoLegged("bob", segment)
	links := []string{"--link", "eth0", "--link", "eth1"}
	a, b := w.node(hostA, links...), w.node(hostB, links...)
	w.up(a)
	addrB := w.up(b).Self.Addrs[0]
	talk := w.converse(hostA, hostB, addrB)
	talk.goesOn(t, 50)

	p := w.sendsBy(a, "bob", "eth0", "eth1")
	if !p.Bond.On || p.Bond.Mode != "aggregate" || p.Bond.Why != "" || len(p.Events) == 0 {
		t.Errorf("the bond is %+v, with %d events", p.Bond, len(p.Events))
	}
	for _, link := range []string{"eth0", "eth1"} {
		x := pathTo(p, link)
		if x.RTTms < 20 || x.RTTms > 500 || !x.Local.IsValid() || x.Load.TxBytes == 0 || x.MTU == 0 || x.Kind != "host" {
			t.Errorf("by %s: %+v", link, x)
		}
	}
	if at := pathTo(p, "eth1").Local.Addr(); at != leg.Addr() {
		t.Errorf("eth1's path is from %v, not %v", at, leg.Addr())
	}
	s, err := a.Peer(w.ctx, "bob")
	if slices.Sort(s.Carriers); err != nil || s.Bond != "aggregate" || !slices.Equal(s.Carriers, []string{"eth0", "eth1"}) {
		t.Errorf("status says %q by %q (%v)", s.Bond, s.Carriers, err)
	}

	// The same for people, and watched: in place on a terminal, which script(1) is for it.
	paths := []string{"--socket", a.Socket, "paths", "bob"}
	if text := w.run(hostA, w.fleet.Binary, paths...); !strings.Contains(text, "several paths at once, aggregate") || strings.Count(text, " active ") < 2 {
		t.Errorf("weft paths prints\n%s", text)
	}
	brief := []string{"--preserve-status", "--signal=INT", "2.5", w.fleet.Binary}
	watch := w.run(hostA, "timeout", slices.Concat(brief, paths, []string{"-w"})...)
	if n := strings.Count(watch, " direct "); strings.Contains(watch, "\x1b") || n < 4 {
		t.Errorf("into a pipe, weft paths -w prints\n%s", watch)
	}
	if _, err := exec.LookPath("script"); err == nil {
		line := w.fleet.Binary + " " + strings.Join(paths, " ") + " --watch"
		drawn := w.run(hostA, "script", "-qec", "timeout --foreground --preserve-status --signal=INT 2.5 "+line, "/dev/null")
		if strings.Count(drawn, "\x1b[2J") != 1 || strings.Count(drawn, "\x1b[H") < 2 || !strings.Contains(drawn, "\x1b[K") {
			t.Errorf("on a terminal, weft paths --watch prints\n%q", drawn)
		}
	}

	// A link that goes is told with the time and the reason, and so is its return.
	if err := leg.SetCut(true, true); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	w.sendsBy(a, "bob", "eth0")
	talk.goesOn(t, 50)
	p, err = a.Paths(w.ctx, "bob")
	why := slices.IndexFunc(p.Events, func(e weft.PathEvent) bool {
		return e.At.After(before.Add(-time.Second)) && strings.HasSuffix(e.Path, " by eth1") && e.Reason != "" &&
			(e.To == weft.PathSilent || e.From == weft.PathBonded)
	})
	if err != nil || why < 0 {
		t.Errorf("what became of eth1 is not told: %+v (%v)", p.Events, err)
	}
	if err := leg.SetCut(false, false); err != nil {
		t.Fatal(err)
	}
	w.sendsBy(a, "bob", "eth0", "eth1")

	// What is set takes effect without a new start.
	set := func(list ...string) {
		t.Helper()
		w.run(hostA, w.fleet.Binary, append([]string{"--socket", a.Socket, "set"}, list...)...)
	}
	handshake := s.LastHandshake
	set("bond.bob=off")
	w.waits("the bond to end", func() error {
		p, err := a.Paths(w.ctx, "bob")
		if err == nil && (p.Bond.On || p.Bond.Why != "bond is off for it") {
			err = fmt.Errorf("it is %+v", p.Bond)
		}
		return err
	})
	talk.goesOn(t, 50)
	set("bond.bob=redundant", "redundant=dscp:ef", "congestion=cubic")
	p = w.sendsBy(a, "bob", "eth0", "eth1")
	if p.Bond.Mode != "redundant" || p.Bond.Congestion != "cubic" || !slices.Equal(p.Bond.Redundant, []string{"dscp:ef"}) {
		t.Errorf("the bond is %+v", p.Bond)
	}
	sent := func() (n [2]uint64) {
		p, err := a.Paths(w.ctx, "bob")
		if err != nil {
			t.Fatal(err)
		}
		return [2]uint64{pathTo(p, "eth0").Load.TxPackets, pathTo(p, "eth1").Load.TxPackets}
	}
	was := sent()
	talk.goesOn(t, 100)
	if now := sent(); now[0] < was[0]+90 || now[1] < was[1]+90 {
		t.Errorf("in redundant mode 100 messages went as %d and %d packets", now[0]-was[0], now[1]-was[1])
	}
	if s, err := a.Peer(w.ctx, "bob"); err != nil || s.LastHandshake != handshake || s.Bond != "redundant" {
		t.Errorf("after the settings were changed the session is another: %v, and was of %v (%v)", s.LastHandshake, handshake, err)
	}

	var doc weft.Metrics
	if err := json.Unmarshal([]byte(w.run(hostA, w.fleet.Binary, "--socket", a.Socket, "metrics", "--json")), &doc); err != nil {
		t.Fatal(err)
	}
	carrying := 0
	for _, f := range doc.Families {
		for _, x := range f.Samples {
			if f.Name == "weft_path_carries" && x.Labels["peer"] == "bob" && x.Value == 1 {
				carrying++
			}
		}
	}
	if carrying != 2 {
		t.Errorf("metrics say that %d paths carry data", carrying)
	}
	if text := w.run(hostB, w.fleet.Binary, "--socket", b.Socket, "metrics"); !strings.Contains(text, "weft_bond_received_packets_total{peer=\"ann\"} ") {
		t.Errorf("bob's metrics are\n%s", text)
	}
}
