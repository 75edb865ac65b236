package path

import (
	"net/netip"
	"slices"
	"testing"
	"time"

	"weft"
)

// TCP in the simulation: who is on the internet itself takes connections, and everybody gets out to them. What is sent comes in
// order, or, while TCP is faulty, not at all.

// dialFor is how long a dial takes that nobody answers: dialTimeout in package direct.
const dialFor = 10 * time.Second

// A simConn is a connection between two hosts.
type simConn struct {
	ends  [2]*host // the first has dialed
	vias  [2]weft.Via
	until [2]time.Time // of what was sent last by each, which is in order
	over  bool
}

func (c *simConn) end(h *host) int { return slices.Index(c.ends[:], h) }

// tcpHost is a host's part.
type tcpHost struct {
	use      TCP
	takes    bool // connections
	conns    []*simConn
	dials    int
	nextPort uint16
}

func (h *host) stopped() bool { return h.fault.tcp || h.w.other(h).fault.tcp }

// tell tells the agent which connections there are.
func (h *host) tell() {
	var list []Connection
	for _, c := range h.tcp.conns {
		list = append(list, Connection{Via: c.vias[c.end(h)], Dialed: c.ends[0] == h})
	}
	h.agent.SetConnections(h.w.now, list)
	h.poll()
}

// dial serves the agent's wish for a connection.
func (h *host) dial(d Dial) {
	w, o, session := h.w, h.w.other(h), h.session
	h.tcp.dials++
	at := slices.IndexFunc(d.Addrs, func(a netip.AddrPort) bool { return o.tcp.takes && o.nat == nil && a == o.inside })
	if at < 0 || h.stopped() || !o.up {
		w.after(dialFor, func() {
			if h.up && h.session == session {
				h.agent.Dialed(w.now, d.Link, d.Far)
				h.poll()
			}
		})
		return
	}
	to := d.Addrs[at]
	w.after(4*w.oneWay, func() { // TCP's handshake, and ours
		if !h.up || h.session != session {
			return
		}
		if o.up && !h.stopped() {
			from := h.inside
			if h.nat != nil {
				from = netip.AddrPortFrom(netip.MustParseAddr("203.0.113.250"), 0)
			}
			h.tcp.nextPort++
			from = netip.AddrPortFrom(from.Addr(), 50000+h.tcp.nextPort)
			w.join(&simConn{ends: [2]*host{h, o}, vias: [2]weft.Via{weft.TCPVia(0, to), weft.TCPVia(0, from)}})
		}
		h.agent.Dialed(w.now, d.Link, d.Far)
		h.poll()
	})
}

// join has a connection be there, unless another is to stay, by the rule of package direct.
func (w *world) join(c *simConn) {
	dialer := c.ends[0]
	for _, x := range slices.Clone(dialer.tcp.conns) {
		if x.ends[0] != dialer && x.ends[0].leads {
			return
		}
		w.part(x)
	}
	w.note("%s has connected to %s", dialer.name, c.ends[1].name)
	for _, h := range c.ends {
		h.tcp.conns = append(h.tcp.conns, c)
		h.tell()
	}
}

// part ends a connection.
func (w *world) part(c *simConn) {
	if c.over {
		return
	}
	c.over = true
	w.note("the connection that %s has opened is closed", c.ends[0].name)
	for _, h := range c.ends {
		h.tcp.conns = slices.DeleteFunc(h.tcp.conns, func(x *simConn) bool { return x == c })
		h.tell()
	}
}

// hang serves the agent's wish to have a connection closed.
func (h *host) hang(via weft.Via) {
	for _, c := range slices.Clone(h.tcp.conns) {
		if c.vias[c.end(h)] == via {
			h.w.after(time.Millisecond, func() { h.w.part(c) })
		}
	}
}

// byConnection sends by a connection.
func (w *world) byConnection(h *host, via weft.Via, p payload) {
	for _, c := range h.tcp.conns {
		i := c.end(h)
		if c.vias[i] != via || h.stopped() {
			continue
		}
		c.until[i] = latest(w.now.Add(w.delay(w.oneWay)), c.until[i])
		to, session := c.ends[1-i], c.ends[1-i].session
		w.at(c.until[i], func() {
			if !c.over && !h.stopped() {
				to.receive(session, c.vias[1-i], p)
			}
		})
		return
	}
}

// blocked is a world in which no UDP gets out of a's home, and b takes connections.
func blocked(t *testing.T, seed uint64) *world {
	w := newWorld(t, seed)
	w.behind(w.a, portRestricted.config())
	w.b.inside = addr("203.0.113.200:41641")
	w.b.tcp.takes = true
	for _, h := range w.hosts {
		h.eager, h.tcp.use = true, TCP{Allowed: true}
	}
	w.a.fault.udp = true
	return w
}

func TestWhereNoUDPGetsOutTCPIsFoundAndUDPTakesOverWithoutLoss(t *testing.T) {
	forSeeds(t, 30, func(t *testing.T, seed uint64) {
		w := blocked(t, seed)
		w.bootBoth()
		w.talkBoth(5 * time.Minute)
		took := w.until(tcpPatience+tcpGiveWay+3*time.Second, "both by TCP", w.both(weft.DirectTCP))
		if took < tcpPatience-500*time.Millisecond {
			w.failf("by TCP after %v: UDP had no time", took)
		}
		begin := w.now
		w.run(time.Duration(w.rng.IntN(60)) * time.Second)
		if !w.both(weft.DirectTCP)() || len(w.a.tcp.conns) != 1 {
			w.failf("a reaches b by %v, with %d connections", w.a.agent.Selected(), len(w.a.tcp.conns))
		}
		w.a.fault.udp = false
		w.until(time.Minute, "both by UDP", w.bothDirect)
		w.until(2*tcpLinger, "the connection closed", func() bool { return len(w.a.tcp.conns) == 0 })
		w.run(time.Minute)
		for _, h := range w.hosts {
			lost := 0
			for i, at := range h.flow.received {
				if at.IsZero() && h.flow.sentAt[i].After(begin) && h.flow.sentAt[i].Before(w.now.Add(-time.Second)) {
					lost++
				}
			}
			if lost > 0 {
				w.failf("of %s %d packets were lost since %v", h.name, lost, w.now.Sub(begin))
			}
			if h.tcp.dials > 1 {
				w.failf("%s has dialed %d times", h.name, h.tcp.dials)
			}
		}
	})
}

func TestWhenAConnectionFallsSilentDataGoesOnAndANewOneIsMade(t *testing.T) {
	forSeeds(t, 30, func(t *testing.T, seed uint64) {
		w := blocked(t, seed)
		w.bootBoth()
		w.talkBoth(5 * time.Minute)
		w.until(tcpPatience+tcpGiveWay+3*time.Second, "both by TCP", w.both(weft.DirectTCP))
		w.run(time.Duration(w.rng.IntN(10_000)) * time.Millisecond)
		began := w.now
		w.a.fault.tcp = true
		w.until(3*time.Second, "both by the relay", func() bool {
			return w.a.agent.Selected().Method.Relayed() && w.b.agent.Selected().Method.Relayed()
		})
		w.run(time.Duration(w.rng.IntN(60)) * time.Second)
		w.a.fault.tcp = false
		w.until(tcpLast/2, "both by TCP again", w.both(weft.DirectTCP))
		w.needOutageBelow(2500*time.Millisecond, began, w.now.Sub(began))
	})
}

func TestOfTwoThatConnectAtOnceOneConnectionIsUsedByBoth(t *testing.T) {
	forSeeds(t, 30, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		w.a.inside, w.b.inside = addr("203.0.113.100:41641"), addr("203.0.113.200:41641")
		for _, h := range w.hosts {
			h.eager, h.tcp = true, tcpHost{use: TCP{Allowed: true}, takes: true}
			h.fault.udp = true
		}
		w.bootBoth()
		w.talkBoth(5 * time.Minute)
		w.until(tcpPatience+tcpGiveWay+3*time.Second, "both by TCP", w.both(weft.DirectTCP))
		w.run(time.Minute)
		if !w.both(weft.DirectTCP)() || len(w.a.tcp.conns) != 1 || len(w.b.tcp.conns) != 1 || w.a.tcp.conns[0] != w.b.tcp.conns[0] {
			w.failf("there are %d and %d connections", len(w.a.tcp.conns), len(w.b.tcp.conns))
		}
		if n := w.a.tcp.dials + w.b.tcp.dials; n > 2 {
			w.failf("%d were dialed", n)
		}
	})
}

func TestWhatTakesNoConnectionIsAskedSeldom(t *testing.T) {
	forSeeds(t, 4, func(t *testing.T, seed uint64) {
		w := blocked(t, seed)
		w.bootBoth()
		w.a.fault.tcp = true
		w.run(2 * time.Hour)
		// 5, 10, ... s and the 10 s that each takes, then every 5 min and 10 s.
		if n := w.a.tcp.dials; n < 20 || n > 35 {
			w.failf("in two hours a has dialed %d times", n)
		}
		if n := w.b.tcp.dials; n != 0 {
			w.failf("b has dialed %d times where nobody listens", n)
		}
	})
}
