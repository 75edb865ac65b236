// Package queue is what stands in front of the cipher: packets that wait for a path, one queue for each flow, served
// in turn (RFC 8290, FQ-CoDel), and kept short (RFC 8289, CoDel). It is pure: the caller says what time it is.
//
// Where a path takes every packet at once the queue stays empty and costs a look. Where it does not, this is the place at
// which the overlay's packets can still be told apart: a bulk transfer waits for itself and not in front of a call, and
// what has to be dropped or marked is dropped or marked from the flow that fills the queue. Behind the cipher all
// packets of a peer look the same.
//
// # Peers, flows
//
// Turns are taken at two levels (deficit round robin, twice): first between peers, then between the flows of one. So a peer with a
// hundred flows gets no more than one with a single flow, and its flows share what it gets. A flow is what the caller's hash
// says; flows of a peer that share one of its [Flows] queues share its turn. Peers never share anything. Each peer, and
// each flow, has a deficit: it may send a [Quantum] of bytes per round, and a packet that is longer, as super-packets are, is
// paid off in the rounds that follow.
//
// A flow that begins, or was empty, is served before all that have a queue as long as it has something left of
// its share of a round, so that what sends little does not wait (RFC 8290 section 4.2), whatever else its peer sends. What goes ahead like that is on
// its account and its peer's, and limited: a peer whose every packet is a new flow gains nothing by it.
//
// Above both there are three classes, by DSCP (RFC 4594, RFC 8622). [Urgent] goes first, but past its share only when nobody
// else waits, so that marking everything urgent gains nothing; [Background] gets what is left, and a little always.
//
// # Staying short
//
// Each flow has a CoDel of its own: when packets have been waiting longer than [Target] for an [Interval], one is marked
// with congestion experienced (RFC 3168) if the flow said that it understands, else dropped from the head, and then more and more often until
// the queue is short again; and with one of a connection, if the caller says so, all that have waited for too long ([Queue.SetMost]). What a connection
// sends again is not dropped, but what follows it: or nothing that follows would be of use for as long again. The bound in bytes is for what does not listen: past it, the longest flow of the peer with the
// most bytes loses from its head.
//
// Files: queue.go (packets in and out, classes), turns.go (peers, flows, and whose turn it is), codel.go.
package queue

import "time"

// Parameters of RFC 8289 section 4 and RFC 8290 section 5.2.
const (
	Target   = 5 * time.Millisecond
	Interval = 100 * time.Millisecond
	// Quantum is in bytes: a full packet of Ethernet.
	Quantum = 1514
	// Flows is how many queues a peer has in each class.
	Flows = 256
	// atFirst is for how many packets, flows and peers there is memory at first.
	atFirst = 64
)

// A Class is how urgent a packet is.
type Class uint8

// The classes.
const (
	BestEffort Class = iota
	Urgent
	Background
	classes
)

// order is the one in which they are served.
var order = [classes]Class{Urgent, BestEffort, Background}

// shares is what the classes get of the bytes when all wait, in parts of allShares: Urgent a quarter, and Background a
// sixteenth. What a class leaves is saved up for as many quanta as it has shares.
var shares = [classes]int{Urgent: 4, BestEffort: 11, Background: 1}

const allShares = 16

// ClassOf is the class of a DSCP, the upper six bits of the traffic class: EF, VA and CS5 to CS7 are Urgent, as is AF4; LE
// and CS1 are Background.
func ClassOf(dscp uint8) Class {
	switch dscp {
	case 46, 44, 40, 48, 56, 34, 36, 38, 32:
		return Urgent
	case 1, 8:
		return Background
	}
	return BestEffort
}

// An Item is a packet that waits. What Value means is the caller's.
type Item[T any] struct {
	Value T
	Size  int    // bytes, as they will be sent; at least one
	Peer  uint32 // whom it is for: any number that is the peer's alone
	Flow  uint32 // hash of what makes a flow
	Class Class
	ECN   bool   // may be marked instead of dropped
	Again bool   // it carries what its connection sends again if it is lost
	End   uint32 // of such a packet: where what it carries ends, as its connection counts (RFC 9293 section 3.4)
	// Marked is set by Pop: the packet is to say that there is congestion.
	Marked bool

	at     instant
	repeat bool // it is sent again, if Again
}

// An instant is a time as the Queue counts it, in nanoseconds; zero is none.
type instant int64

// A Queue holds packets until they are sent. Make it with [New]; one goroutine at a time may use it.
type Queue[T any] struct {
	classes [classes]class
	turns
	nodes   []node[T]
	free    int32 // the first node that is in no flow
	holds   int   // packets, at most
	limit   int
	bytes   int
	packets int
	drop    func(T)
	epoch   time.Time // of instants
	stats   Stats

	target, interval instant // CoDel's
	most             instant // see SetMost; 0: any time
}

// Stats counts what became of packets.
type Stats struct {
	Passed  uint64 // given out
	Marked  uint64
	Late    uint64 // dropped by CoDel
	Overrun uint64 // dropped because the limit was reached
}

type node[T any] struct {
	item Item[T]
	next int32
}

type class struct {
	credit  int // of its share, in bytes by allShares; negative: it took more
	backlog int // bytes
}

// New makes a Queue that holds at most limit bytes, and calls drop for each packet that is given up; nil: nobody wants
// to know. It holds packets packets at most. It takes memory for as many packets, flows and peers as there ever were at once,
// twice as much each time that was too little, and nothing otherwise.
func New[T any](limit, packets int, drop func(T)) *Queue[T] {
	q := &Queue[T]{limit: limit, drop: drop, holds: packets, turns: newTurns(packets), free: none,
		target: instant(Target), interval: instant(Interval)}
	if drop == nil {
		q.drop = func(T) {}
	}
	return q
}

// grown is how many there shall be where n are too little and most are the bound.
func grown(n, most int) int { return min(max(2*n, atFirst), most) }

// spare reports whether there is a node that is in no flow, or makes some if there may be more.
func (q *Queue[T]) spare() bool {
	if q.free == none {
		n := len(q.nodes)
		q.nodes = append(q.nodes, make([]node[T], grown(n, q.holds)-n)...)
		for i := len(q.nodes) - 1; i >= n; i-- {
			q.nodes[i].next, q.free = q.free, int32(i)
		}
	}
	return q.free != none
}

// SetTarget has CoDel leave so much standing, and look at it for so long, in place of [Target] and [Interval]: for a queue in
// front of paths that need more to be kept busy (RFC 8289 section 4.3 has both follow the round-trip time).
func (q *Queue[T]) SetTarget(target, interval time.Duration) {
	q.target, q.interval = instant(target), instant(interval)
}

// SetMost has CoDel, each time that it drops a packet of a connection that sends it again, drop with it all that have waited longer than most: what is
// sent again waits behind what is left, and all that follows waits for it. Zero: a single packet goes, as in RFC 8289.
func (q *Queue[T]) SetMost(most time.Duration) { q.most = instant(most) }

// Len is how many packets wait.
func (q *Queue[T]) Len() int { return q.packets }

// Bytes is how long the packets that wait are together.
func (q *Queue[T]) Bytes() int { return q.bytes }

// Stats returns the counts.
func (q *Queue[T]) Stats() Stats { return q.stats }

// instant begins to count a second before the first packet, so that no time is zero.
func (q *Queue[T]) instant(now time.Time) instant {
	if q.epoch.IsZero() {
		q.epoch = now.Add(-time.Second)
	}
	return instant(now.Sub(q.epoch))
}

// Push adds a packet. If there is no room for it, the peer with the most bytes loses the oldest ones of its longest flow.
func (q *Queue[T]) Push(now time.Time, it Item[T]) {
	it.Size = max(it.Size, 1)
	for q.packets > 0 && (!q.spare() || q.bytes+it.Size > q.limit) {
		q.relieve()
	}
	if !q.spare() {
		q.stats.Overrun++
		q.drop(it.Value)
		return
	}
	it.at, it.Marked = q.instant(now), false
	it.Class = min(it.Class, classes-1)
	i := q.flowOf(it.Peer, it.Class, it.Flow%Flows)
	f := &q.flows[i]
	it.repeat = it.Again && f.repeats(it.Flow, it.End)
	n := q.free
	q.free = q.nodes[n].next
	q.nodes[n] = node[T]{it, none}
	if f.head == none {
		f.head = n
		q.begins(i, it.Size)
	} else {
		q.nodes[f.tail].next = n
	}
	f.tail = n
	f.bytes += it.Size
	q.peers[f.peer].bytes += it.Size
	q.classes[it.Class].backlog += it.Size
	q.bytes += it.Size
	q.packets++
}

// Pop takes out the packet whose turn it is. It is false if none waits.
func (q *Queue[T]) Pop(now time.Time) (it Item[T], ok bool) {
	if q.packets == 0 {
		return it, false
	}
	at := q.instant(now)
	for q.packets > 0 {
		c, alone := q.turn()
		if it, ok = q.popFrom(at, c); !ok {
			continue
		}
		if !alone {
			q.charge(c, it.Size)
		}
		q.stats.Passed++
		if it.Marked {
			q.stats.Marked++
		}
		return it, true
	}
	return it, false
}

// turn picks the class that is served: the most urgent that waits and has some of its share left, else the one that has
// taken least beyond its share. It tells whether no other waits.
func (q *Queue[T]) turn() (best Class, alone bool) {
	best, alone = classes, true
	for _, c := range order {
		if q.classes[c].backlog == 0 {
			continue
		}
		if best == classes {
			best = c
			continue
		}
		alone = false
		if q.classes[best].credit <= 0 && q.classes[c].credit > q.classes[best].credit {
			best = c
		}
	}
	return best, alone
}

// charge takes what a class was given from its share, and divides it among all by theirs: so the sum stays, and a class
// that takes less than its share always has some left.
func (q *Queue[T]) charge(from Class, size int) {
	q.classes[from].credit -= size * allShares
	for c := range q.classes {
		k := &q.classes[c]
		k.credit = min(k.credit+size*shares[c], shares[c]*allShares*Quantum)
	}
}

// popFrom takes out the packet whose turn it is in a class; false if CoDel dropped all that were left.
func (q *Queue[T]) popFrom(now instant, c Class) (it Item[T], ok bool) {
	for {
		i := q.next(c)
		if i == none {
			return it, false
		}
		if it, ok = q.dequeue(now, i); ok {
			q.spend(i, it.Size)
			return it, true
		}
		q.emptied(i)
	}
}

// next is the flow whose turn it is in a class, none if there is no flow.
func (q *Queue[T]) next(c Class) int32 {
	k := &q.ready[c]
	for {
		if i := k.fresh.head; i != none {
			f := &q.flows[i]
			if f.head == none || q.nodes[f.head].item.Size <= min(f.deficit, q.peers[f.peer].ahead) {
				return i
			}
			k.fresh.remove(q.turnLinks, i)
			q.wait(i)
			continue
		}
		n := k.peers.head
		if n == none {
			return none
		}
		p := &q.peers[n]
		if p.deficit <= 0 {
			more := Quantum
			if k.peers.tail == n { // all rounds at once that it would have to wait for itself
				more += -p.deficit / Quantum * Quantum
			}
			p.deficit += more
			p.ahead = min(p.ahead+more, aheadPeer)
			k.peers.rotate(q.peerLinks)
			continue
		}
		i := p.waiting.head
		f := &q.flows[i]
		if f.deficit > 0 {
			return i
		}
		more := Quantum
		if p.waiting.tail == i {
			more += -f.deficit / Quantum * Quantum
		}
		f.deficit += more
		p.waiting.rotate(q.turnLinks)
	}
}

// take takes out a flow's oldest packet.
func (q *Queue[T]) take(i int32) Item[T] { return q.takeAfter(i, none) }

// takeAfter takes out the packet behind that of a node.
func (q *Queue[T]) takeAfter(i, before int32) Item[T] {
	f := &q.flows[i]
	at := &f.head
	if before != none {
		at = &q.nodes[before].next
	}
	n := *at
	it := q.nodes[n].item
	if *at = q.nodes[n].next; *at == none {
		f.tail = before
	}
	if f.head == none {
		q.idle.push(q.idleLinks, i)
	}
	q.nodes[n] = node[T]{next: q.free}
	q.free = n
	f.bytes -= it.Size
	q.peers[f.peer].bytes -= it.Size
	q.classes[it.Class].backlog -= it.Size
	q.bytes -= it.Size
	q.packets--
	return it
}

// relieveBatch is how many packets are dropped at once at most, so that who floods does not make each packet cost a look at
// all flows (as RFC 8290's implementations do; half of the flow stays).
const relieveBatch = 64

// relieve drops the oldest packets of the longest flow of the peer with the most bytes.
func (q *Queue[T]) relieve() {
	i := q.longest()
	f := &q.flows[i]
	half := f.bytes / 2
	for n := 0; f.head != none && n < relieveBatch && (n == 0 || f.bytes > half); n++ {
		q.stats.Overrun++
		q.drop(q.take(i).Value)
	}
}
