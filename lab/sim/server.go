package sim

import (
	"slices"
	"time"

	"weft"
)

// An update is what the server tells others of a node.
type update struct {
	node       *node
	candidates []weft.Candidate
	home       weft.RelayID
	online     bool
}

// A coordinator is the server, as far as it has to do with paths: it hands round what nodes say of themselves. Nodes
// are connected to it by streams.
type coordinator struct {
	w    *world
	m    *machine
	on   bool
	life int              // grows with every start: of an earlier one, nothing is connected
	told []update         // by node number - 1
	sent map[[2]*node]int // the last of the updates of one that were sent to another
}

func newCoordinator(w *world, m *machine) *coordinator {
	return &coordinator{w: w, m: m, sent: map[[2]*node]int{}}
}

func (c *coordinator) start(now time.Time) {
	if c.on {
		return
	}
	c.on = true
	c.life++
	for _, n := range c.w.nodes {
		if n.on() && !n.server.up {
			n.server.open(now, n)
		}
	}
}

func (c *coordinator) stop() {
	c.on = false
	for _, n := range c.w.nodes {
		n.server.up = false
	}
}

// A connection is a node's to the server.
type connection struct {
	up    bool
	life  int // grows with every connection: of an earlier one, nothing arrives
	tries int
}

// Waits of the daemon's session: retryFirst and retryLast of package node.
const (
	retryFirst = 250 * time.Millisecond
	retryLast  = 30 * time.Second
)

// handshakes is how many round trips a stream takes to be up: TCP, TLS 1.3, the upgrade, and Noise with the greeting.
const handshakes = 4

// open connects. Who is there when everything begins is connected at once, and knows all the others that are: that is
// what time zero means.
func (c *connection) open(now time.Time, n *node) {
	c.life++
	life := c.life
	if n.w.elapsed() == 0 {
		n.w.net.At(now, func(now time.Time) { c.opened(now, n, life) })
		return
	}
	delay, up := n.w.way(n.m, n.w.server.m)
	n.w.net.After(2*handshakes*delay, func(now time.Time) {
		if c.life != life || !n.on() {
			return
		}
		if _, still := n.w.way(n.m, n.w.server.m); up && still && n.w.server.on {
			c.opened(now, n, life)
			return
		}
		wait := min(retryFirst<<min(c.tries, 10), retryLast)
		c.tries++
		n.w.net.After(wait, func(now time.Time) {
			if c.life == life && n.on() {
				c.open(now, n)
			}
		})
	})
}

func (c *connection) opened(now time.Time, n *node, life int) {
	if c.life != life || !n.on() || !n.w.server.on {
		return
	}
	c.up, c.tries = true, 0
	for _, u := range n.w.server.told {
		if u.node != nil {
			n.w.server.push(now, u, n)
		}
	}
	c.say(now, n)
}

// close is the end of the daemon.
func (c *connection) close(now time.Time, n *node) {
	was := c.up
	c.up = false
	c.life++
	if !was {
		return
	}
	n.w.reliably(n.m, n.w.server.m, func(now time.Time) { n.w.server.gone(now, n) })
}

// broke is what a change of the node's network does to the connection: it is silent, until the daemon asks, waits,
// and connects anew.
func (c *connection) broke(now time.Time, n *node) {
	c.up = false
	c.life++
	life := c.life
	n.w.net.After(noticed, func(now time.Time) {
		if c.life == life && n.on() {
			c.open(now, n)
		}
	})
}

// say tells the server what it should know of the node.
func (c *connection) say(now time.Time, n *node) {
	if !c.up {
		return
	}
	u := update{node: n, candidates: slices.Clone(n.local), home: n.homeRelay(), online: true}
	life := c.life
	if n.w.elapsed() == 0 {
		n.w.server.take(now, u)
		return
	}
	n.w.reliably(n.m, n.w.server.m, func(now time.Time) {
		if c.life == life {
			n.w.server.take(now, u)
		}
	})
}

// take takes in what a node says, and tells the others.
func (c *coordinator) take(now time.Time, u update) {
	if !c.on {
		return
	}
	for len(c.told) < int(u.node.id) {
		c.told = append(c.told, update{})
	}
	c.told[u.node.id-1] = u
	for _, n := range c.w.nodes {
		if n != u.node && n.server.up {
			c.push(now, u, n)
		}
	}
}

// gone notes that a node is no longer connected.
func (c *coordinator) gone(now time.Time, n *node) {
	if int(n.id) > len(c.told) || n.server.up {
		return
	}
	u := c.told[n.id-1]
	u.online = false
	c.take(now, u)
}

// push tells a node of another.
func (c *coordinator) push(now time.Time, u update, n *node) {
	if n == u.node {
		return
	}
	if c.w.elapsed() == 0 {
		n.meet(now, u)
		return
	}
	key := [2]*node{u.node, n}
	c.sent[key]++
	number, life := c.sent[key], n.server.life
	c.w.reliably(c.m, n.m, func(now time.Time) {
		if number == c.sent[key] && n.server.life == life { // a stream is in order: of two, the later one counts
			n.meet(now, u)
		}
	})
}

// resend is how soon TCP sends again what a dead link swallowed (RFC 6298 has 200 ms in practice, and more with
// every try), and patience for how long it does.
const (
	resend   = 200 * time.Millisecond
	patience = 45 * time.Second
)

// reliably has something arrive at another machine by a stream: late if a link is down, never if for long.
func (w *world) reliably(from, to *machine, arrive func(now time.Time)) {
	delay, _ := w.way(from, to)
	deadline := w.elapsed() + patience
	var try func(now time.Time)
	try = func(now time.Time) {
		if _, up := w.way(from, to); up {
			arrive(now)
		} else if w.elapsed() < deadline {
			w.net.After(resend, try)
		}
	}
	w.net.After(delay, try)
}
