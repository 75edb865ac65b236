package router

import (
	"encoding/binary"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft/lab/vnet"
)

func newWire(l vnet.LinkConfig) *wire { return &wire{link: l, rng: rand.New(rand.NewPCG(1, 2))} }

// feed pushes numbered frames, one every step, and returns when each arrived; those that did not are absent.
func feed(w *wire, frames, size int, step time.Duration) (arrived map[int]time.Duration, order []int) {
	arrived = map[int]time.Duration{}
	now := start
	take := func() {
		for f := w.pop(now); f != nil; f = w.pop(now) {
			n := int(binary.BigEndian.Uint32(f))
			arrived[n] = now.Sub(start)
			order = append(order, n)
			w.release(f)
		}
	}
	for i := range frames {
		until := start.Add(time.Duration(i) * step)
		for next := w.next(); !next.IsZero() && next.Before(until); next = w.next() {
			now = next
			take()
		}
		now = until
		f := binary.BigEndian.AppendUint32(make([]byte, 0, size), uint32(i))[:size]
		if w.push(now, f) == passes {
			arrived[i] = now.Sub(start)
			order = append(order, i)
		}
	}
	for next := w.next(); !next.IsZero(); next = w.next() {
		now = next
		take()
	}
	return arrived, order
}

func TestAWireKeepsOrderAndDelaysByWhatItSays(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		l := vnet.LinkConfig{
			Delay:  time.Duration(rapid.IntRange(0, 50_000_000).Draw(rt, "delay")),
			Jitter: time.Duration(rapid.IntRange(0, 5_000_000).Draw(rt, "jitter")),
		}
		step := time.Duration(rapid.IntRange(0, 2_000_000).Draw(rt, "step"))
		arrived, order := feed(newWire(l), 100, 100, step)
		if len(order) != 100 {
			rt.Fatalf("%d of 100 frames arrived", len(order))
		}
		for i, n := range order {
			took := arrived[n] - time.Duration(n)*step
			if n != i || took < l.Delay || took > l.Delay+l.Jitter {
				rt.Fatalf("the frame %d arrived as the %dth after %v, and the link is %+v", n, i, took, l)
			}
		}
	})
}

func TestAWireSendsAtItsRateAndDropsWhatItsQueueHasNoRoomFor(t *testing.T) {
	// 1000 bytes at 8 Mbit/s take a millisecond; frames come twice as fast.
	w := newWire(vnet.LinkConfig{Rate: 8e6, Queue: 10_000})
	arrived, order := feed(w, 1000, 1000, 500*time.Microsecond)
	for i := 1; i < len(order); i++ {
		if gap := arrived[order[i]] - arrived[order[i-1]]; gap < time.Millisecond-time.Microsecond {
			t.Fatalf("the frames %d and %d arrived within %v", order[i-1], order[i], gap)
		}
	}
	if n := len(order); n < 500 || n > 511 {
		t.Errorf("%d of 1000 frames arrived, want half, and the queue's ten", n)
	}
	for n, at := range arrived {
		if took := at - time.Duration(n)*500*time.Microsecond; took > 11*time.Millisecond {
			t.Fatalf("the frame %d was %v under way: the queue holds ten of a millisecond", n, took)
		}
	}
}

func TestAWireLosesItsShareAndReordersItsShare(t *testing.T) {
	arrived, _ := feed(newWire(vnet.LinkConfig{Loss: 0.3}), 10_000, 100, time.Millisecond)
	// The deviation is 46.
	if n := len(arrived); n < 6700 || n > 7300 {
		t.Errorf("%d of 10000 frames arrived at 30 %% loss", n)
	}
	_, order := feed(newWire(vnet.LinkConfig{Delay: time.Millisecond, Reorder: 0.1}), 10_000, 100, 100*time.Microsecond)
	late, highest := 0, -1
	for _, n := range order {
		if n < highest {
			late++
		}
		highest = max(highest, n)
	}
	if late < 700 || late > 1300 || len(order) != 10_000 {
		t.Errorf("%d of %d frames were overtaken, want a tenth", late, len(order))
	}
}

func TestACableCarriesFramesBothWaysAndARPAtOnce(t *testing.T) {
	var sent [2][][]byte
	c, err := NewCable(vnet.LinkConfig{Delay: time.Millisecond}, 1, func(l Leg, f []byte) { sent[l] = append(sent[l], append([]byte(nil), f...)) })
	if err != nil {
		t.Fatal(err)
	}
	ip := append(append(make([]byte, 12), 8, 0), datagram(protoUDP, at(host, 1), at(server, 2), 64, nil)...)
	arp := newBench(t, Config{}).arp(Inside, 1, broadcast, home.Addr(), host)
	for _, from := range []Leg{Inside, Outside} {
		c.Handle(start, from, ip)
		c.Handle(start, from, arp)
		if len(sent[1-from]) != 1 || string(sent[1-from][0]) != string(arp) {
			t.Fatalf("at once it passed on %d frames, want the ARP request alone", len(sent[1-from]))
		}
		sent = [2][][]byte{}
		if next := c.Poll(start); !next.Equal(start.Add(time.Millisecond)) {
			t.Fatalf("it wants to be woken at %v", next)
		}
		if c.Poll(start.Add(time.Millisecond)); len(sent[1-from]) != 1 || string(sent[1-from][0]) != string(ip) {
			t.Fatalf("after a millisecond it had passed on %d frames", len(sent[1-from]))
		}
		sent = [2][][]byte{}
	}
	c.SetUp(false)
	c.Handle(start, Inside, ip)
	c.Handle(start, Inside, arp)
	if c.Poll(start.Add(time.Second)); len(sent[Outside]) != 0 {
		t.Error("what is pulled out carried something")
	}
	if _, err := NewCable(vnet.LinkConfig{Loss: -1}, 1, nil); err == nil {
		t.Error("a negative loss was accepted")
	}
}
