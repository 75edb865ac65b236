// Package queue is what stands in front of the cipher: packets that wait for a path, one queue for each flow, served
// in turn (RFC 8290, FQ-CoDel), and kept short (RFC 8289, CoDel). It is pure: the caller says what time it is.
//
// Where a path takes every packet at once the queue stays empty and costs a look. Where it does not, this is the place at
// which the overlay's packets can still be told apart: a bulk transfer waits for itself and not in front of a call, and
// what has to be dropped or marked is dropped or marked from the flow that fills the queue. Behind the cipher all
// packets of a peer look the same.
//
// # Flows, classes
//
// A flow is what the caller's hash says; flows that share one of the [Flows] queues share its turn. Each has a
// deficit: it may send a [Quantum] of bytes per round, and a packet that is longer, as super-packets are, is paid off in the rounds
// that follow. A flow that begins is served before those that have a queue, once, so that what sends little does not
// wait (RFC 8290 section 4.2).
//
// Above flows there are three classes, by DSCP (RFC 4594, RFC 8622). [Urgent] goes first, but past its share only when nobody
// else waits, so that marking everything urgent gains nothing; [Background] gets what is left, and a little always.
//
// # Staying short
//
// Each flow has a CoDel of its own: when packets have been waiting longer than [Target] for an [Interval], one is marked
// with congestion experienced (RFC 3168) if the flow said that it understands, else dropped from the head, and then more and more often until
// the queue is short again. The bound in bytes is for what does not listen: past it, the longest flow loses from its head.
package queue

import "time"

// Parameters of RFC 8289 section 4 and RFC 8290 section 5.2.
const (
	Target   = 5 * time.Millisecond
	Interval = 100 * time.Millisecond
	// Quantum is in bytes: a full packet of Ethernet.
	Quantum = 1514
	// Flows is how many queues there are in each class.
	Flows = 256
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
	Size  int    // bytes, as they will be sent
	Peer  uint32 // whom it is for: any number that is the peer's alone
	Flow  uint32 // hash of what makes a flow
	Class Class
	ECN   bool // may be marked instead of dropped
	// Marked is set by Pop: the packet is to say that there is congestion.
	Marked bool

	at time.Time
}

// A Queue holds packets until they are sent. Make it with [New]; one goroutine at a time may use it.
type Queue[T any] struct {
	classes [classes]class[T]
	limit   int
	bytes   int
	packets int
	drop    func(T)
	free    []int32 // of nodes
	nodes   []node[T]
	stats   Stats
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

type class[T any] struct {
	flows   [Flows]flow
	fresh   list // flows that have just begun
	old     list
	credit  int // of its share, in bytes by allShares; negative: it took more
	backlog int // bytes
}

// A flow is one queue, and its place in one of its class's lists.
type flow struct {
	head, tail int32 // nodes; -1: none
	bytes      int
	deficit    int
	listed     bool
	next       int16 // in the list
	codel      codel
}

// A list holds flows by number, in order.
type list struct{ head, tail int16 }

// none is no node, and no flow.
const none = -1

// New makes a Queue that holds at most limit bytes, and calls drop for each packet that is given up; nil: nobody wants
// to know. It holds packets packets at most, for which it takes memory now.
func New[T any](limit, packets int, drop func(T)) *Queue[T] {
	q := &Queue[T]{limit: limit, drop: drop, nodes: make([]node[T], packets), free: make([]int32, packets)}
	if drop == nil {
		q.drop = func(T) {}
	}
	for i := range q.free {
		q.free[i] = int32(packets - 1 - i)
	}
	for c := range q.classes {
		k := &q.classes[c]
		k.fresh, k.old = list{none, none}, list{none, none}
		for i := range k.flows {
			k.flows[i].head, k.flows[i].tail = none, none
		}
	}
	return q
}

// Len is how many packets wait, Bytes how long they are together.
func (q *Queue[T]) Len() int { return q.packets }

// Bytes is how long the packets that wait are together.
func (q *Queue[T]) Bytes() int { return q.bytes }

// Stats returns the counts.
func (q *Queue[T]) Stats() Stats { return q.stats }

// Push adds a packet. If there is no room for it, the flow with the most bytes loses its oldest ones.
func (q *Queue[T]) Push(now time.Time, it Item[T]) {
	for q.packets > 0 && (len(q.free) == 0 || q.bytes+it.Size > q.limit) {
		q.relieve()
	}
	if len(q.free) == 0 {
		q.stats.Overrun++
		q.drop(it.Value)
		return
	}
	it.at, it.Marked = now, false
	it.Class = min(it.Class, classes-1)
	n := q.free[len(q.free)-1]
	q.free = q.free[:len(q.free)-1]
	q.nodes[n] = node[T]{it, none}
	k := &q.classes[it.Class]
	i := int16(it.Flow % Flows)
	f := &k.flows[i]
	if f.tail == none {
		f.head = n
	} else {
		q.nodes[f.tail].next = n
	}
	f.tail = n
	f.bytes += it.Size
	k.backlog += it.Size
	q.bytes += it.Size
	q.packets++
	if !f.listed {
		f.listed, f.deficit = true, Quantum
		k.fresh.push(k.flows[:], i)
	}
}

// Pop takes out the packet whose turn it is. It is false if none waits.
func (q *Queue[T]) Pop(now time.Time) (it Item[T], ok bool) {
	for q.packets > 0 {
		k, alone := q.turn()
		if it, ok = q.popFrom(now, k); !ok {
			continue
		}
		if !alone {
			q.charge(k, it.Size)
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
func (q *Queue[T]) turn() (best *class[T], alone bool) {
	alone = true
	for _, c := range order {
		k := &q.classes[c]
		if k.backlog == 0 {
			continue
		}
		if best == nil {
			best = k
			continue
		}
		alone = false
		if best.credit <= 0 && k.credit > best.credit {
			best = k
		}
	}
	return best, alone
}

// charge takes what a class was given from its share, and divides it among all by theirs: so the sum stays, and a class
// that takes less than its share always has some left.
func (q *Queue[T]) charge(from *class[T], size int) {
	from.credit -= size * allShares
	for c := range q.classes {
		k := &q.classes[c]
		k.credit = min(k.credit+size*shares[c], shares[c]*allShares*Quantum)
	}
}

// popFrom takes out the packet whose turn it is in a class; false if CoDel dropped all that were left.
func (q *Queue[T]) popFrom(now time.Time, k *class[T]) (it Item[T], ok bool) {
	for {
		l, began := &k.fresh, true
		if l.head == none {
			if l, began = &k.old, false; l.head == none {
				return it, false
			}
		}
		i := l.head
		f := &k.flows[i]
		if f.deficit <= 0 {
			f.deficit += Quantum
			l.pop(k.flows[:])
			k.old.push(k.flows[:], i)
			continue
		}
		if it, ok = q.dequeue(now, k, f); !ok {
			l.pop(k.flows[:])
			if began {
				// It waits a round before it is new again, or it would be served first for ever (RFC 8290 section 4.2).
				k.old.push(k.flows[:], i)
			} else {
				f.listed = false
			}
			continue
		}
		f.deficit -= it.Size
		return it, true
	}
}

// take takes out a flow's oldest packet.
func (q *Queue[T]) take(k *class[T], f *flow) Item[T] {
	n := f.head
	it := q.nodes[n].item
	if f.head = q.nodes[n].next; f.head == none {
		f.tail = none
	}
	q.nodes[n] = node[T]{}
	q.free = append(q.free, n)
	f.bytes -= it.Size
	k.backlog -= it.Size
	q.bytes -= it.Size
	q.packets--
	return it
}

// relieveBatch is how many packets are dropped at once at most, so that who floods does not make each packet cost a look at
// all flows (as RFC 8290's implementations do; half of the flow stays).
const relieveBatch = 64

// relieve drops the oldest packets of the longest flow.
func (q *Queue[T]) relieve() {
	var at *class[T]
	var longest *flow
	for c := range q.classes {
		k := &q.classes[c]
		if k.backlog == 0 {
			continue
		}
		for i := range k.flows {
			if f := &k.flows[i]; f.head != none && (longest == nil || f.bytes > longest.bytes) {
				at, longest = k, f
			}
		}
	}
	half := longest.bytes / 2
	for n := 0; longest.head != none && n < relieveBatch && (n == 0 || longest.bytes > half); n++ {
		q.stats.Overrun++
		q.drop(q.take(at, longest).Value)
	}
}

func (l *list) push(flows []flow, i int16) {
	flows[i].next = none
	if l.tail == none {
		l.head = i
	} else {
		flows[l.tail].next = i
	}
	l.tail = i
}

func (l *list) pop(flows []flow) {
	if l.head = flows[l.head].next; l.head == none {
		l.tail = none
	}
}
