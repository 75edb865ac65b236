package vnet

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// Epoch is when every network begins.
var Epoch = time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)

// Network is an internet in virtual time: one loop, one seed. The same calls on a network of the same seed give
// the same packets at the same times, to the last tap. Everything of a network, what it calls included, belongs to
// the goroutine that runs it.
type Network struct {
	now      time.Duration // since Epoch
	rng      *rand.Rand
	queue    []queued // a heap
	seq      uint64   // breaks ties: what was scheduled first happens first
	idle     *event
	packets  *packet
	sent     uint64
	internet *Segment
	names    map[string]bool
	segments int
	taps     []func(Event)
}

type queued struct {
	at  time.Duration
	seq uint64
	e   *event
}

// An event is a function to call, or a packet that has crossed a link.
type event struct {
	f    func(now time.Time)
	p    *packet
	plug *plug
	up   bool
	uses uint64 // tells the timers of its earlier uses that they are over
	next *event
}

// New makes a network: an internet without anybody.
func New(seed uint64) *Network {
	n := &Network{rng: rand.New(rand.NewPCG(seed, 0x766e6574)), names: map[string]bool{}}
	n.internet = n.newSegment(nil)
	n.internet.hops = DefaultHops
	return n
}

// Internet is the segment that everybody reaches.
func (n *Network) Internet() *Segment { return n.internet }

// Now is the virtual time.
func (n *Network) Now() time.Time { return Epoch.Add(n.now) }

// Elapsed is the virtual time since Epoch.
func (n *Network) Elapsed() time.Duration { return n.now }

// Sent is how many packets sockets have sent so far.
func (n *Network) Sent() uint64 { return n.sent }

// Rand is the network's source of chance, for programs that shall be as repeatable as the network is.
func (n *Network) Rand() *rand.Rand { return n.rng }

// A Timer is a call to come.
type Timer struct {
	e    *event
	uses uint64
}

// Stop takes the call back, if it has not been made.
func (t Timer) Stop() {
	if t.e != nil && t.e.uses == t.uses {
		t.e.f = nil
	}
}

// At calls f at t, or as soon as can be if t has passed.
func (n *Network) At(t time.Time, f func(now time.Time)) Timer {
	return n.After(t.Sub(Epoch)-n.now, f)
}

// After calls f after d.
func (n *Network) After(d time.Duration, f func(now time.Time)) Timer {
	e := n.event()
	e.f = f
	n.schedule(n.now+max(d, 0), e)
	return Timer{e, e.uses}
}

// Run lets d pass.
func (n *Network) Run(d time.Duration) { n.RunUntil(d, nil) }

// RunUntil lets time pass until cond holds, which is asked after everything that happens, or until limit has
// passed. It reports whether cond held.
func (n *Network) RunUntil(limit time.Duration, cond func() bool) bool {
	end := n.now + limit
	if cond != nil && cond() {
		return true
	}
	for len(n.queue) > 0 && n.queue[0].at <= end {
		q := n.pop()
		n.now = q.at
		n.happen(q.e)
		if cond != nil && cond() {
			return true
		}
	}
	n.now = end
	return false
}

func (n *Network) happen(e *event) {
	f, p, plug, up := e.f, e.p, e.plug, e.up
	*e = event{uses: e.uses + 1, next: n.idle}
	n.idle = e
	switch {
	case p != nil && up:
		plug.segment.route(p, plug)
	case p != nil:
		plug.arrive(p)
	case f != nil:
		f(n.Now())
	}
}

func (n *Network) event() *event {
	e := n.idle
	if e == nil {
		return new(event)
	}
	n.idle, e.next = e.next, nil
	return e
}

func (n *Network) schedule(at time.Duration, e *event) {
	n.seq++
	n.queue = append(n.queue, queued{at, n.seq, e})
	q := n.queue
	for i := len(q) - 1; i > 0; {
		parent := (i - 1) / 2
		if !q[i].before(q[parent]) {
			break
		}
		q[i], q[parent] = q[parent], q[i]
		i = parent
	}
}

func (n *Network) pop() queued {
	q := n.queue
	first, last := q[0], len(q)-1
	q[0], q[last] = q[last], queued{}
	q = q[:last]
	for i := 0; ; {
		child := 2*i + 1
		if child >= len(q) {
			break
		}
		if child+1 < len(q) && q[child+1].before(q[child]) {
			child++
		}
		if !q[child].before(q[i]) {
			break
		}
		q[i], q[child] = q[child], q[i]
		i = child
	}
	n.queue = q
	return first
}

func (q queued) before(r queued) bool { return q.at < r.at || q.at == r.at && q.seq < r.seq }

// vacant says why nobody can be called that: hosts and routers are known by their names in traces.
func (n *Network) vacant(name string) error {
	switch {
	case name == "":
		return fmt.Errorf("a host or router needs a name")
	case n.names[name]:
		return fmt.Errorf("there are two hosts or routers called %s", name)
	}
	return nil
}
