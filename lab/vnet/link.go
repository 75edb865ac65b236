package vnet

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// LinkConfig is what a link does to packets, in either direction. The zero link is perfect.
type LinkConfig struct {
	Rate   float64       // bit/s; 0: without limit
	Delay  time.Duration // one way
	Jitter time.Duration // up to which a packet takes longer, uniformly; packets keep their order
	Loss   float64       // the share of packets that are lost, 0 to 1
	// Reorder is the share of packets, 0 to 1, that are held up for 1 to 10 ms, while later ones pass them.
	Reorder float64
	// Queue is how many bytes wait for their turn at Rate; 0: a tenth of a second's worth, and at least 30,000.
	Queue int
}

// Check says in one sentence what is impossible about the link.
func (c LinkConfig) Check() error {
	switch {
	case !(c.Rate >= 0):
		return fmt.Errorf("a link's rate is 0, for no limit, or more; not %v bit/s", c.Rate)
	case c.Delay < 0 || c.Jitter < 0:
		return fmt.Errorf("a link's delay and jitter are 0 or more, not %v and %v", c.Delay, c.Jitter)
	case !(c.Loss >= 0 && c.Loss <= 1):
		return fmt.Errorf("the share of packets that a link loses is between 0 and 1, not %v", c.Loss)
	case !(c.Reorder >= 0 && c.Reorder <= 1):
		return fmt.Errorf("the share of packets that a link reorders is between 0 and 1, not %v", c.Reorder)
	case c.Queue < 0:
		return fmt.Errorf("a link's queue is 0, for a tenth of a second, or more; not %d bytes", c.Queue)
	}
	return nil
}

// QueueBytes is the queue in bytes.
func (c LinkConfig) QueueBytes() float64 {
	if c.Queue > 0 {
		return float64(c.Queue)
	}
	return max(c.Rate/8/10, 30_000)
}

// The headers of IP and UDP in bytes (RFC 791, RFC 8200, RFC 768), which take their time on a link too.
const (
	headers4 = 20 + 8
	headers6 = 40 + 8
)

// A plug is where a host, or a router with its outside, is attached to a segment by a link of its own.
type plug struct {
	network  *Network
	name     string
	segment  *Segment
	leg      *Leg // either
	router   *Router
	up, down lane
	off      bool
}

// A lane is one direction of a link.
type lane struct {
	config LinkConfig
	cut    bool          // it swallows what it is given
	busy   time.Duration // until when it has what to send
	last   time.Duration // when the last packet that kept its place arrives
	bytes  uint64        // of IP packets that it has taken
}

type packet struct {
	id       uint64
	src, dst netip.AddrPort
	ttl      int
	data     []byte
	next     *packet // in the free list
}

func (p *packet) size() int {
	if p.dst.Addr().Is4() {
		return len(p.data) + headers4
	}
	return len(p.data) + headers6
}

// cross takes a packet over the link, to the segment or from it.
func (l *plug) cross(p *packet, up bool) {
	n := l.network
	at, v := l.crossing(p, up)
	switch {
	case v != Forward:
		n.drop(p, l.name, v)
	case at > n.now || !up && l.leg != nil: // a socket's handler is never called from within a Send
		e := n.event()
		e.p, e.plug, e.up = p, l, up
		n.schedule(at, e)
	case up:
		l.segment.route(p, l)
	default:
		l.arrive(p)
	}
}

// crossing is when the packet will be over the link.
func (l *plug) crossing(p *packet, up bool) (time.Duration, Verdict) {
	n, way := l.network, &l.down
	if up {
		way = &l.up
	}
	c := &way.config
	if l.off || way.cut {
		return 0, DropDown
	}
	if c.Loss > 0 && n.rng.Float64() < c.Loss {
		return 0, DropLost
	}
	at := n.now
	if c.Rate > 0 {
		waiting := max(way.busy-n.now, 0)
		size := float64(p.size())
		if waiting.Seconds()*c.Rate/8+size > c.QueueBytes() {
			return 0, DropQueue
		}
		at += waiting + time.Duration(size*8/c.Rate*float64(time.Second))
		way.busy = at
	}
	way.bytes += uint64(p.size())
	at += c.Delay
	if c.Jitter > 0 {
		at += time.Duration(n.rng.Int64N(int64(c.Jitter) + 1))
	}
	if c.Reorder > 0 && n.rng.Float64() < c.Reorder {
		return at + time.Millisecond + time.Duration(n.rng.Int64N(int64(9*time.Millisecond))), Forward
	}
	at = max(at, way.last)
	way.last = at
	return at, Forward
}

// arrive hands a packet that came from the segment to whoever is at the link's end.
func (l *plug) arrive(p *packet) {
	if l.off {
		l.network.drop(p, l.name, DropDown)
		return
	}
	if l.router != nil {
		l.router.inbound(p)
		return
	}
	l.leg.receive(p)
}

func (l *plug) setLinks(out, in LinkConfig) error {
	if err := errors.Join(out.Check(), in.Check()); err != nil {
		return err
	}
	l.up.config, l.down.config = out, in
	return nil
}
