package netns

import (
	"encoding/binary"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"weft"
	"weft/lab/vnet"
)

// What links say of themselves is compared with what the kernel's clock says of packets at both ends. On a machine that does other
// things a look may be spoiled, never improved: one of several has to be right.

// A gauge is a link between two hosts, and ears where it begins and ends.
type gauge struct {
	t         *testing.T
	near, far *Host
	to        netip.AddrPort
	out, in   stamps
	set       func(vnet.LinkConfig) error
	next      uint64
}

// gauges are one link of each kind: a leg's line, whose rate is tbf's, and a router's way outside, whose rate is the wire's own, with a
// switch behind the router or with one host only.
func gauges(t *testing.T) map[string]*gauge {
	a, b, legs := offices(t, vnet.LinkConfig{})
	near, far := legs[0][0], legs[0][1]
	r := must(a.lab.AddNATRouter("gw", vnet.NATConfig{Mapping: weft.NoNAT}, WithLink(vnet.LinkConfig{})))(t)
	pc := must(r.AddHost("pc"))(t)
	r1 := must(a.lab.AddNATRouter("gw1", vnet.NATConfig{Mapping: weft.NoNAT}, WithLink(vnet.LinkConfig{})))(t)
	alone := must(r1.AddHost("alone", Alone()))(t)
	c := must(a.lab.AddHost("c"))(t)
	list := map[string]*gauge{
		"a leg": {near: a, far: b, to: at(far.Addr(), stampPort), out: newStamps(t, a, near.Name()), in: newStamps(t, b, far.Name()),
			set: func(l vnet.LinkConfig) error { return near.SetLinks(l, l) }},
		"a router":               {near: pc, far: b, to: at(b.Addr(), stampPort), out: newStamps(t, pc, "eth0"), in: newStamps(t, b, "eth0"), set: r.SetLink},
		"a router with one host": {near: alone, far: c, to: at(c.Addr(), stampPort), out: newStamps(t, alone, "eth0"), in: newStamps(t, c, "eth0"), set: r1.SetLink},
	}
	for _, g := range list {
		g.t = t
		udp(t, g.far, g.to.String()) // or the kernel answers with errors
		g.send(3, time.Millisecond, 100*time.Millisecond)
	}
	return list
}

// be changes the link.
func (g *gauge) be(l vnet.LinkConfig) {
	g.t.Helper()
	if err := g.set(l); err != nil {
		g.t.Fatal(err)
	}
}

// gaugeSize is the length of what a gauge sends as the link sees it, in bytes: 1,200 of UDP's payload.
const gaugeSize = 1200 + 8 + 20 + 14

// send sends n datagrams, one in a step or all at once, waits for them, and returns those that came, as they left.
func (g *gauge) send(n int, step, wait time.Duration) (list []passage, lost int) {
	g.t.Helper()
	c := udp(g.t, g.near, "0.0.0.0:0")
	defer c.Close()
	raw, err := c.SyscallConn()
	if err != nil {
		g.t.Fatal(err)
	}
	raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, 16<<20) }) // nothing waits in the sender
	tick := time.NewTicker(max(step, 1))
	defer tick.Stop()
	packet := make([]byte, 1200)
	for range n {
		if step > 0 {
			<-tick.C
		}
		binary.BigEndian.PutUint64(packet, g.next)
		g.next++
		if _, err := c.WriteToUDPAddrPort(packet, g.to); err != nil {
			g.t.Fatal(err)
		}
	}
	<-time.After(wait)
	return passages(g.out, g.in)
}

// looks is how often a figure may be looked at until a look is not spoiled.
const looks = 6

// rightOnce looks until a look is right. Where none is, and they were good enough for a machine that is too busy to say, that is
// told and no more.
func (g *gauge) rightOnce(what string, look func() (right, goodEnough bool, seen any)) {
	g.t.Helper()
	var all []any
	enough := false
	for range looks {
		right, goodEnough, seen := look()
		if all = append(all, seen); right {
			g.t.Logf("%s: %v", what, seen)
			return
		}
		enough = enough || goodEnough
	}
	if enough {
		g.t.Logf("%s: %v, on a machine that is too busy to say", what, all)
		return
	}
	g.t.Errorf("%s: %v", what, all)
}

func TestALinkDelaysPacketsByWhatItSaysToHalfAMillisecond(t *testing.T) {
	for name, g := range gauges(t) {
		g.t = t
		const delay, jitter = 10 * time.Millisecond, 4 * time.Millisecond
		g.be(vnet.LinkConfig{Delay: delay})
		g.rightOnce(name+"'s delay of 10 ms, the least, 50 and 99 %", func() (bool, bool, any) {
			list, lost := g.send(200, 2*time.Millisecond, 30*time.Millisecond)
			if len(list) < 200 {
				return false, false, lost
			}
			least, middle, most := quantile(list, 0), quantile(list, 0.5), quantile(list, 0.99)
			early, late := delay-quantum/2, delay+500*time.Microsecond
			return least >= early && most <= late, least >= early && middle <= late, [3]time.Duration{least, middle, most}
		})
		g.be(vnet.LinkConfig{Delay: delay, Jitter: jitter})
		g.rightOnce(name+"'s jitter of 4 ms on top, 1, 50 and 99 %", func() (bool, bool, any) {
			list, lost := g.send(100, 6*time.Millisecond, 30*time.Millisecond) // farther apart than the jitter: nothing is held back to keep order
			if len(list) < 100 {
				return false, false, lost
			}
			low, middle, high := quantile(list, 0.01), quantile(list, 0.5), quantile(list, 0.99)
			spread := low >= delay-quantum/2 && middle > delay+jitter*3/10 && middle < delay+jitter*7/10 && high > delay+jitter*8/10
			return spread && high <= delay+jitter+500*time.Microsecond, spread, [3]time.Duration{low, middle, high}
		})
	}
}

func TestALinkHasItsRateAndItsQueue(t *testing.T) {
	for name, g := range gauges(t) {
		for _, rate := range []float64{8e6, 50e6, 300e6} {
			g.t = t
			n := max(100, int(rate/8*0.05/gaugeSize)) // 50 ms of it
			g.be(vnet.LinkConfig{Rate: rate, Queue: 2 * n * gaugeSize})
			// The first ones of a burst are a tbf's, whose rate begins behind them.
			skip := int(rate/8*burstTime.Seconds()/gaugeSize) + 3
			want := time.Duration(float64((n-skip)*gaugeSize*8) / rate * float64(time.Second))
			g.rightOnce(name+"'s time for "+strconv.Itoa(n-skip)+" packets at "+megabit(rate)+", which should be "+want.String(), func() (bool, bool, any) {
				list, lost := g.send(n, 0, want+50*time.Millisecond)
				if len(list) < n {
					return false, false, lost
				}
				took := list[n-1].came().Sub(list[skip-1].came())
				fast := took <= want*96/100
				return !fast && took < want*104/100, !fast && rate > 100e6, took // a sender, or a softirq, that got no processor
			})
		}
		g.be(vnet.LinkConfig{Rate: 8e6, Queue: 30 * gaugeSize})
		g.rightOnce(name+"'s packets of 100 that find room in a queue of 30", func() (bool, bool, any) {
			list, _ := g.send(100, 0, 100*time.Millisecond)
			return len(list) >= 30 && len(list) <= 34, false, len(list) // one is on the line, and a tbf's burst goes at once
		})
		g.be(vnet.LinkConfig{Loss: 0.05})
		list, lost := g.send(2000, 100*time.Microsecond, 50*time.Millisecond)
		if lost < 60 || lost > 150 {
			t.Errorf("%s loses %d of %d packets, not 5 %%", name, lost, lost+len(list))
		}
		for i := 1; i < len(list); i++ {
			if list[i].came().Before(list[i-1].came()) {
				t.Fatalf("%s brings packets out of order", name)
			}
		}
	}
}

// came is when it came out.
func (p passage) came() time.Time { return p.left.Add(p.took) }

func megabit(rate float64) string { return strconv.Itoa(int(rate/1e6)) + " Mbit/s" }
