package bond_test

import (
	"encoding/binary"
	"slices"
	"time"
)

// A udp is a flow of datagrams at an even rate, and what became of them.
type udp struct {
	w       *world
	id      uint16
	out     func([]byte)
	size    int
	every   time.Duration
	stopped bool

	sent  []time.Duration
	came  []time.Duration // when, by number; 0: not
	twice int
	order int // came after a later one
	top   int
	last  time.Duration
	gap   time.Duration // the longest between two that came
	gapAt time.Duration
}

// startUDP sends so many Mbit/s of packets of that size from a to b.
func startUDP(a, b *node, id uint16, mbit float64, size int) *udp {
	u := &udp{w: a.w, id: id, out: a.push, size: size, every: time.Duration(float64(size) * 8 / mbit * 1000)}
	b.flows[id] = u.arrive
	a.w.after(0, u.send)
	return u
}

func (u *udp) send() {
	if u.stopped {
		return
	}
	b := make([]byte, u.size)
	b[0], b[6] = 0x45, 3
	binary.BigEndian.PutUint16(b[2:], uint16(u.size))
	binary.BigEndian.PutUint16(b[4:], u.id)
	binary.BigEndian.PutUint64(b[8:], uint64(len(u.sent)))
	u.sent = append(u.sent, u.w.now)
	u.came = append(u.came, 0)
	u.out(b)
	u.w.after(u.every, u.send)
}

func (u *udp) arrive(b []byte) {
	i := int(binary.BigEndian.Uint64(b[8:]))
	if u.came[i] != 0 {
		u.twice++
		return
	}
	u.came[i] = u.w.now
	if i < u.top {
		u.order++
	}
	u.top = max(u.top, i+1)
	if d := u.w.now - u.last; u.last > 0 && d > u.gap {
		u.gap, u.gapAt = d, u.last
	}
	u.last = u.w.now
}

// lost is how many of those sent in a time did not come.
func (u *udp) lost(from, to time.Duration) (n int) {
	for i, at := range u.sent {
		if at >= from && at < to && u.came[i] == 0 {
			n++
		}
	}
	return n
}

// late is how long the given share of those that came took at most.
func (u *udp) late(share float64) time.Duration {
	var took []time.Duration
	for i, at := range u.came {
		if at > 0 {
			took = append(took, at-u.sent[i])
		}
	}
	if len(took) == 0 {
		return never
	}
	slices.Sort(took)
	return took[min(int(share*float64(len(took))), len(took)-1)]
}

// An agent is what watches over the ways of a node, by pings: what the node's path agent does. A way by which data is said not to arrive is pinged
// at once and a tenth of a second later; it leaves the set if neither is answered, and comes back with the first answer.
type agent struct {
	n      *node
	asking map[*way]bool
}

const (
	pingSize    = 48 + overhead
	pingAgain   = 100 * time.Millisecond
	pingEvery   = 125 * time.Millisecond
	pingPatient = 20 * time.Millisecond
)

func watch(nodes ...*node) {
	for _, n := range nodes {
		g := &agent{n: n, asking: map[*way]bool{}}
		n.silent = func(x *way) {
			if x.down || g.asking[x] {
				return
			}
			g.asking[x] = true
			answered := false
			note := func() { answered = true }
			g.ping(x, note)
			n.w.after(pingAgain, func() { g.ping(x, note) })
			n.w.after(pingAgain+x.rtt+pingPatient, func() {
				if answered {
					g.asking[x] = false
					return
				}
				x.down = true
				n.setPaths()
				g.wait(x)
			})
		}
	}
}

// ping calls answered if the other end's answer comes.
func (g *agent) ping(x *way, answered func()) {
	back := g.n.peer.way(x.id)
	x.out.send(pingSize, func() { back.out.send(pingSize, answered) })
}

// wait pings a way until it answers.
func (g *agent) wait(x *way) {
	back := false
	g.ping(x, func() {
		if !back && g.asking[x] {
			back, g.asking[x], x.down = true, false, false
			g.n.setPaths()
		}
	})
	g.n.w.after(pingEvery, func() {
		if g.asking[x] {
			g.wait(x)
		}
	})
}
