package router

import (
	"errors"
	"math/rand/v2"
	"time"

	"weft/lab/vnet"
)

// A Cable joins two segments into one and does to every frame what its link says, in each direction: the leg of a
// host whose way into the network is slow, lossy or pulled out. ARP and neighbour discovery pass at once.
type Cable struct {
	wires [2]wire // by the leg that frames come from
	out   func(Leg, []byte)
}

// NewCable makes a cable, whose frames go to out.
func NewCable(l vnet.LinkConfig, seed uint64, out func(Leg, []byte)) (*Cable, error) {
	c := &Cable{out: out}
	for i := range c.wires {
		c.wires[i].rng = rand.New(rand.NewPCG(seed, uint64(i)))
	}
	return c, c.SetLink(l)
}

// SetLink changes what it does to frames. What is under way arrives when it would have.
func (c *Cable) SetLink(l vnet.LinkConfig) error { return c.SetLinks(l, l) }

// SetLinks is SetLink with a configuration for each direction: outwards, and inwards.
func (c *Cable) SetLinks(out, in vnet.LinkConfig) error {
	if err := errors.Join(out.Check(), in.Check()); err != nil {
		return err
	}
	c.wires[Inside].link, c.wires[Outside].link = out, in
	return nil
}

// SetUp plugs it in, or pulls it out.
func (c *Cable) SetUp(up bool) { c.SetCut(!up, !up) }

// SetCut lets nothing pass outwards, or inwards, or lets it pass again. What is under way arrives.
func (c *Cable) SetCut(out, in bool) { c.wires[Inside].down, c.wires[Outside].down = out, in }

// LinkCounts are what the two directions have done so far.
func (c *Cable) LinkCounts() (out, in WireCounts) {
	return c.wires[Inside].WireCounts, c.wires[Outside].WireCounts
}

// Handle takes a frame that came in by a leg, and keeps nothing of it.
func (c *Cable) Handle(now time.Time, from Leg, frame []byte) {
	if isDiscovery(frame) {
		if !c.wires[from].down {
			c.out(1-from, frame)
		}
		return
	}
	if c.wires[from].push(now, frame) == passes {
		c.out(1-from, frame)
	}
}

// Poll does what is due, and says when to come again; zero: only with the next frame.
func (c *Cable) Poll(now time.Time) (next time.Time) {
	for i := range c.wires {
		w := &c.wires[i]
		for f := w.pop(now); f != nil; f = w.pop(now) {
			c.out(1-Leg(i), f)
			w.release(f)
		}
		next = earliest(next, w.next())
	}
	return next
}

// isDiscovery reports whether a frame is ARP or neighbour discovery.
func isDiscovery(frame []byte) bool {
	if len(frame) < etherLen {
		return false
	}
	switch int(frame[12])<<8 | int(frame[13]) {
	case typeARP:
		return true
	case typeIPv6:
		p := parse6(frame[etherLen:], false)
		return p.icmp == icmp6Solicit || p.icmp == icmp6Advertise
	}
	return false
}
