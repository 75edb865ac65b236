package lab

import (
	"fmt"
	"io"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/lab/vnet"
)

// Bonding, by the real binary: what a flow feels of two uplinks, of one that fails and of its return. Figures are for a machine that
// does other things too; what is promised of an idle one is measured by weft bench bond, and asked of lab/sim.

// uplinkRate is what each of two uplinks carries, in bit/s, and payload the share of it that one TCP connection inside a tunnel
// gets at most: 1,368 bytes of each frame of 1,494.
const (
	uplinkRate = 8e6
	payload    = 1368.0 / 1494
)

// twoEqual are ann, who has two uplinks that carry uplinkRate each, and bob, who is on the internet; both are up and bond.
func (w *world) twoEqual(flags ...string) (a, b *Node, legs map[string]*netns.Router, addrB netip.Addr) {
	w.t.Helper()
	link := func(delay time.Duration) netns.HostOption {
		return netns.WithLink(vnet.LinkConfig{Rate: uplinkRate, Delay: delay, Queue: 100_000})
	}
	legs = map[string]*netns.Router{}
	for i, name := range []string{"eth0", "eth1"} {
		r, err := w.net.AddNATRouter("gw-"+name, providers[name], netns.WithHops(5), link(time.Duration(5+10*i)*time.Millisecond))
		if err != nil {
			w.t.Fatal(err)
		}
		legs[name] = r
	}
	hostA := w.must(legs["eth0"].AddHost("ann"))
	if _, err := hostA.AddLeg(legs["eth1"].Inside(), netns.WithDefaultRoute(200)); err != nil {
		w.t.Fatal(err)
	}
	hostB := w.must(w.net.AddHost("bob"))
	a, b = w.node(hostA, flags...), w.node(hostB)
	w.up(a)
	addrB = w.up(b).Self.Addrs[0]
	w.reaches(b, "ann", weft.Direct)
	w.run(hostA, "ping", "-c", "2", "-i", "0.2", "-W", "5", addrB.String())
	return a, b, legs, addrB
}

// A flood is one TCP connection with as much in it as goes.
type flood struct {
	bytes atomic.Int64
}

// flood begins one from a host to another.
func (w *world) flood(from, to *netns.Host, addr netip.Addr) *flood {
	w.t.Helper()
	l, err := to.Listen(netip.AddrPortFrom(addr, 9))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	out, err := from.DialContext(w.ctx, "tcp", netip.AddrPortFrom(addr, 9).String())
	if err != nil {
		w.t.Fatal(err)
	}
	in, err := l.Accept()
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { out.Close(); in.Close() })
	x := &flood{}
	go func() {
		for block := make([]byte, 64<<10); ; {
			if _, err := out.Write(block); err != nil {
				return
			}
		}
	}()
	go io.Copy(x, in)
	return x
}

// Write counts.
func (x *flood) Write(b []byte) (int, error) {
	x.bytes.Add(int64(len(b)))
	return len(b), nil
}

// fills waits until the transfer has had so many of an uplink's share for a second, and says how long that took.
func (w *world) fills(x *flood, what string, uplinks float64) time.Duration {
	w.t.Helper()
	began := time.Now()
	type mark struct {
		at    time.Time
		bytes int64
	}
	var marks []mark
	if err := netns.WaitFor(w.ctx, what, func() error {
		now := mark{time.Now(), x.bytes.Load()}
		marks = append(marks, now)
		for len(marks) > 1 && now.at.Sub(marks[1].at) >= time.Second {
			marks = marks[1:]
		}
		over := now.at.Sub(marks[0].at)
		rate := float64(now.bytes-marks[0].bytes) * 8 / max(over.Seconds(), 0.001)
		if over < time.Second || rate < uplinks*uplinkRate*payload {
			return fmt.Errorf("it has %.2f Mbit/s for %v, and that would be %.2f", rate/1e6, over, uplinks*uplinkRate*payload/1e6)
		}
		return nil
	}); err != nil {
		w.t.Fatal(err)
	}
	return time.Since(began)
}

func TestOneConnectionFillsTwoUplinksGoesOnByTheOneThatIsLeftAndFillsBothAgain(t *testing.T) {
	w := newWorld(t)
	a, b, legs, addrB := w.twoEqual()
	x := w.flood(a.Host, b.Host, addrB)
	t.Logf("it filled both after %v", w.fills(x, "one connection to have more than any uplink carries", 1.6))
	for name, r := range legs {
		if err := r.SetCut(true, true); err != nil { // nobody tells
			t.Fatal(err)
		}
		t.Logf("without %s it filled the other after %v", name, w.fills(x, "the connection to fill the uplink that is left", 0.8))
		if err := r.SetCut(false, false); err != nil {
			t.Fatal(err)
		}
		t.Logf("with %s again it filled both after %v", name, w.fills(x, "the connection to fill both again", 1.6))
	}
}

func TestWhatIsSentByTwoUplinksAtOnceLosesNothingWhenOneFails(t *testing.T) {
	w := newWorld(t)
	a, b, legs, addrB := w.twoEqual()
	for _, n := range []*Node{a, b} {
		w.run(n.Host, w.fleet.Binary, "set", "--socket", n.Socket, "bond=redundant")
	}
	call := w.call(a.Host, b.Host, addrB)
	call.goesOn(w, 500)
	before := map[string]uint64{}
	carried := func(name string) uint64 {
		out, in, err := legs[name].LinkCounts()
		if err != nil {
			t.Fatal(err)
		}
		return out.Frames + in.Frames
	}
	for name := range legs {
		before[name] = carried(name)
	}
	call.goesOn(w, 1000)
	for name := range legs {
		if n := carried(name) - before[name]; n < 1000 {
			t.Errorf("%s carried %d packets of 2,000", name, n)
		}
	}
	for name, r := range legs {
		if err := r.SetCut(true, true); err != nil {
			t.Fatal(err)
		}
		call.goesOn(w, 700)
		if err := r.SetCut(false, false); err != nil {
			t.Fatal(err)
		}
		w.worksBy(a, "bob", name)
		call.goesOn(w, 1500) // it is copied to both again
	}
	lost, sent := call.end(t)
	t.Logf("%d of %d datagrams were lost", lost, sent)
	if lost > 0 {
		t.Errorf("%d of %d datagrams were lost, though each went by an uplink that worked", lost, sent)
	}
}

func TestAnUplinkThatCostsIsIdleUntilItIsNeeded(t *testing.T) {
	w := newWorld(t)
	a, b, legs, addrB := w.twoEqual("--link", "eth0:10", "--link", "eth1:20")
	call := w.call(a.Host, b.Host, addrB)
	call.goesOn(w, 1000)
	carried := func(name string) uint64 {
		out, in, err := legs[name].LinkCounts()
		if err != nil {
			t.Fatal(err)
		}
		return out.Frames + in.Frames
	}
	cheap, dear := carried("eth0"), carried("eth1")
	call.goesOn(w, 2000)
	// Probes, and every other time what is said of what came, go by it too.
	if n, m := carried("eth0")-cheap, carried("eth1")-dear; n < 4000 || m > n/10 {
		t.Errorf("of 4,000 packets and more the cheap uplink carried %d and the dear one %d", n, m)
	}
	if err := legs["eth0"].SetCut(true, true); err != nil {
		t.Fatal(err)
	}
	dear = carried("eth1")
	call.goesOn(w, 1000)
	if n := carried("eth1") - dear; n < 2000 {
		t.Errorf("the dear uplink carried %d packets of 2,000 when the cheap one was gone", n)
	}
	lost, sent := call.end(t)
	t.Logf("%d of %d datagrams were lost", lost, sent)
	if time.Duration(lost)*callEvery > 500*time.Millisecond {
		t.Errorf("%d of %d datagrams were lost", lost, sent)
	}
}
