package queue

import "math/bits"

// How much may be sent before those that have been waiting, in bytes, by a flow that begins and by all of a peer. A Quantum each
// would do if all packets were short: but the turns of those that send super-packets come seldom, and many at once.
const (
	aheadFlow = 4 * Quantum
	aheadPeer = 8 * Quantum
)

// A turns knows the peers and flows that have packets or had some just now, and whose turn it is. They come from pools and
// are found by chained hash tables, so that nobody has to be forgotten by the caller. Pools and tables become twice as large when
// more are known at once than ever before, up to a bound; beside that nothing is allocated.
//
// A flow that became empty is kept until its turn comes, or what it was given ahead would not count (RFC 8290 section 4.2
// has it wait a round for the same reason). When the pool has run out, the one that has been empty longest is
// forgotten at once.
type turns struct {
	ready [classes]ready
	bound int // of flows, and so of peers

	flows     []flow
	flowTable []int32 // the first flow of each chain
	freeFlow  int32
	turnLinks []links // of flows, in a class's fresh list or their peer's
	mineLinks []links // of flows, in their peer's list of all
	idleLinks []links // of flows, in idle
	idle      list    // flows without packets, the one that has been longest first

	peers     []peer
	peerTable []int32
	freePeer  int32
	peerLinks []links
	active    []int32 // peers in use, in no order
}

func newTurns(packets int) turns {
	t := turns{
		bound:    packets + Flows, // so that flows that became empty are seldom forgotten before their turn
		freeFlow: none, freePeer: none, idle: list{none, none},
	}
	for c := range t.ready {
		t.ready[c] = ready{list{none, none}, list{none, none}}
	}
	t.moreFlows()
	t.morePeers()
	return t
}

// moreFlows makes flows that are free. There must be none.
func (t *turns) moreFlows() {
	n := len(t.flows)
	size := grown(n, t.bound)
	t.flows = append(t.flows, make([]flow, size-n)...)
	t.turnLinks = append(t.turnLinks, make([]links, size-n)...)
	t.mineLinks = append(t.mineLinks, make([]links, size-n)...)
	t.idleLinks = append(t.idleLinks, make([]links, size-n)...)
	t.flowTable = newTable(size)
	for i := range int32(n) {
		f := &t.flows[i]
		p := &t.peers[f.peer]
		chain := slot(t.flowTable, p.id, p.class, f.hash)
		f.chain, *chain = *chain, i
	}
	for i := int32(size - 1); i >= int32(n); i-- {
		t.flows[i].chain, t.freeFlow = t.freeFlow, i
	}
}

// morePeers makes peers that are free. There must be none.
func (t *turns) morePeers() {
	n := len(t.peers)
	size := grown(n, t.bound)
	t.peers = append(t.peers, make([]peer, size-n)...)
	t.peerLinks = append(t.peerLinks, make([]links, size-n)...)
	t.peerTable = newTable(size)
	for i := range int32(n) {
		p := &t.peers[i]
		chain := slot(t.peerTable, p.id, p.class, 0)
		p.chain, *chain = *chain, i
	}
	for i := int32(size - 1); i >= int32(n); i-- {
		t.peers[i].chain, t.freePeer = t.freePeer, i
	}
}

// newTable is an empty hash table for n things.
func newTable(n int) []int32 {
	table := make([]int32, 1<<bits.Len(uint(2*n)))
	for i := range table {
		table[i] = none
	}
	return table
}

// A ready is what waits for its turn in a class.
type ready struct {
	fresh list // flows that go ahead
	peers list // peers that have others
}

// A flow is one queue.
type flow struct {
	head, tail int32 // nodes
	peer       int32
	chain      int32 // the next in its chain, or of those that are free
	hash       uint32
	fresh      bool // in its class's list, not its peer's
	bytes      int
	deficit    int
	codel      codel
	sent       sent
}

// A sent is how far the connection is of which the flow's latest packet was, as it counts.
type sent struct {
	some bool
	flow uint32 // its hash: flows may share a queue
	end  uint32
}

// sentMost is how far back what a connection sends again may be: the longest window that TCP has (RFC 7323 section 2.3).
const sentMost = 1 << 30

// repeats is told of a packet that carries something of a connection up to an end, and reports whether that came before.
func (f *flow) repeats(hash, end uint32) bool {
	s := &f.sent
	if back := int32(s.end - end); s.some && s.flow == hash && back >= 0 && back < sentMost {
		return true
	}
	*s = sent{true, hash, end}
	return false
}

// A peer is who has flows, in one class.
type peer struct {
	id      uint32
	class   Class
	listed  bool  // in its class's list
	chain   int32 // the next in its chain, or of those that are free
	pos     int32 // in active
	waiting list  // flows that are served in turn
	mine    list  // all flows
	bytes   int
	deficit int
	ahead   int // what its flows may send before others, in bytes
}

// slot is where in a table a key's chain begins. The factors are odd and random; the top bits of a product depend on all
// bits of the key.
func slot(table []int32, peer uint32, class Class, hash uint32) *int32 {
	x := (uint64(peer)<<2|uint64(class))*0x9e3779b97f4a7c15 ^ uint64(hash)*0xd6e8feb86659fd93
	x = (x ^ x>>32) * 0x9fb21c651e98df25
	return &table[x>>32&uint64(len(table)-1)]
}

// flowOf finds the flow of a key, or begins one.
func (t *turns) flowOf(id uint32, c Class, hash uint32) int32 {
	chain := slot(t.flowTable, id, c, hash)
	for i := *chain; i != none; i = t.flows[i].chain {
		if f := &t.flows[i]; f.hash == hash && t.peers[f.peer].id == id && t.peers[f.peer].class == c {
			return i
		}
	}
	switch {
	case t.freeFlow != none:
	case len(t.flows) < t.bound:
		t.moreFlows()
		chain = slot(t.flowTable, id, c, hash)
	default:
		t.forget(t.idle.head) // there is one: flows are more than packets
	}
	i := t.freeFlow
	f := &t.flows[i]
	t.freeFlow = f.chain
	p := t.peerOf(id, c)
	*f = flow{head: none, tail: none, peer: p, chain: *chain, hash: hash, deficit: aheadFlow}
	*chain = i
	t.peers[p].mine.push(t.mineLinks, i)
	t.idle.push(t.idleLinks, i)
	t.wait(i)
	return i
}

// peerOf finds the peer of a key, or begins one.
func (t *turns) peerOf(id uint32, c Class) int32 {
	chain := slot(t.peerTable, id, c, 0)
	for i := *chain; i != none; i = t.peers[i].chain {
		if t.peers[i].id == id && t.peers[i].class == c {
			return i
		}
	}
	if t.freePeer == none { // fewer than flows, of which each has one
		t.morePeers()
		chain = slot(t.peerTable, id, c, 0)
	}
	i := t.freePeer
	t.freePeer = t.peers[i].chain
	t.peers[i] = peer{
		id: id, class: c, chain: *chain, pos: int32(len(t.active)), waiting: list{none, none}, mine: list{none, none},
		deficit: Quantum, ahead: aheadPeer,
	}
	*chain = i
	t.active = append(t.active, i)
	return i
}

// wait has a flow wait for its turn among those of its peer.
func (t *turns) wait(i int32) {
	f := &t.flows[i]
	p := &t.peers[f.peer]
	f.fresh = false
	p.waiting.push(t.turnLinks, i)
	if !p.listed {
		p.listed = true
		t.ready[p.class].peers.push(t.peerLinks, f.peer)
	}
}

// begins is told that a flow that was empty gets a packet: it goes ahead if it has as much left of its round, and its peer too.
func (t *turns) begins(i int32, size int) {
	t.idle.remove(t.idleLinks, i)
	f := &t.flows[i]
	p := &t.peers[f.peer]
	if f.fresh || size > min(f.deficit, p.ahead) {
		return
	}
	t.leave(i)
	f.fresh = true
	t.ready[p.class].fresh.push(t.turnLinks, i)
}

// leave takes a flow out of those of its peer that wait.
func (t *turns) leave(i int32) {
	n := t.flows[i].peer
	p := &t.peers[n]
	if p.waiting.remove(t.turnLinks, i); p.waiting.head == none {
		p.listed = false
		t.ready[p.class].peers.remove(t.peerLinks, n)
	}
}

// spend puts a packet that a flow was given on its account and its peer's.
func (t *turns) spend(i int32, size int) {
	f := &t.flows[i]
	p := &t.peers[f.peer]
	f.deficit -= size
	p.deficit -= size
	if f.fresh {
		p.ahead -= size
	}
}

// emptied is told that a flow whose turn it was had no packet.
func (t *turns) emptied(i int32) {
	if f := &t.flows[i]; f.fresh {
		t.ready[t.peers[f.peer].class].fresh.remove(t.turnLinks, i)
		t.wait(i)
		return
	}
	t.forget(i)
}

// forget takes a flow without packets out of all lists, and its peer if that was its last.
func (t *turns) forget(i int32) {
	f := &t.flows[i]
	n := f.peer
	p := &t.peers[n]
	t.idle.remove(t.idleLinks, i)
	if p.mine.remove(t.mineLinks, i); f.fresh {
		t.ready[p.class].fresh.remove(t.turnLinks, i)
	} else {
		t.leave(i)
	}
	chain := slot(t.flowTable, p.id, p.class, f.hash)
	for *chain != i {
		chain = &t.flows[*chain].chain
	}
	*chain, f.chain, t.freeFlow = f.chain, t.freeFlow, i
	if p.mine.head != none {
		return
	}
	last := t.active[len(t.active)-1]
	t.active[p.pos], t.peers[last].pos = last, p.pos
	t.active = t.active[:len(t.active)-1]
	chain = slot(t.peerTable, p.id, p.class, 0)
	for *chain != n {
		chain = &t.peers[*chain].chain
	}
	*chain, p.chain, t.freePeer = p.chain, t.freePeer, n
}

// longest is the flow with the most bytes of the peer with the most bytes. There must be one.
func (t *turns) longest() int32 {
	best := t.active[0]
	for _, n := range t.active {
		if t.peers[n].bytes > t.peers[best].bytes {
			best = n
		}
	}
	i := t.peers[best].mine.head
	for j := i; j != none; j = t.mineLinks[j].next {
		if t.flows[j].bytes > t.flows[i].bytes {
			i = j
		}
	}
	return i
}

// A list holds things by number, in order; links are where each of them is in it.
type list struct{ head, tail int32 }

type links struct{ prev, next int32 }

// none is no node, no flow and no peer.
const none = -1

func (l *list) push(at []links, i int32) {
	at[i] = links{l.tail, none}
	if l.tail == none {
		l.head = i
	} else {
		at[l.tail].next = i
	}
	l.tail = i
}

func (l *list) remove(at []links, i int32) {
	x := at[i]
	if x.prev == none {
		l.head = x.next
	} else {
		at[x.prev].next = x.next
	}
	if x.next == none {
		l.tail = x.prev
	} else {
		at[x.next].prev = x.prev
	}
}

// rotate makes the first the last.
func (l *list) rotate(at []links) {
	if i := l.head; i != l.tail {
		l.remove(at, i)
		l.push(at, i)
	}
}
