package bond_test

import (
	"encoding/binary"
	"fmt"
	"strings"
	"time"

	"weft/bond"
	"weft/engine/queue"
	"weft/wire"
)

// A node is one end of a tunnel: what an engine does with a Sender and a Receiver, with messages that are not sealed.
type node struct {
	w    *world
	name string
	s    *bond.Sender // nil: plain, all by the first way
	r    *bond.Receiver
	q    *queue.Queue[[]byte]
	head queue.Item[[]byte] // taken from q, and not sent
	has  bool
	peer *node
	ways []*way

	session uint32
	counter uint64
	seen    map[uint64]bool // session and counter, that came
	flows   map[uint16]func(inner []byte)

	redundant func(inner []byte) bool // nil: nothing is
	urgent    func(inner []byte) bool
	offered   time.Duration
	alarm     time.Duration // when a timer is set
	turn      bool          // feedback goes by two ways
	heard     *way          // by which the newest data came
	asleep    bool          // its threads do not run
	sockets   map[bond.PathID][]unread
	unsent    [][]byte   // of the device
	silent    func(*way) // data by it does not arrive; nil: nobody is told

	sentData, sentCopies, sentAgain, sentControl int
	came, delivered, wakes                       int
	events                                       []bond.Event
	told                                         int // of events, that were printed
}

// A way is a path as a node sends by it.
type way struct {
	id      bond.PathID
	far     bond.PathID // the peer's number of it
	out     *pipe
	down    bool // not in the set
	refused int  // messages, since it was down
	known   bool // the peer has it by its number
	offered time.Duration
	metric  int
	rtt     time.Duration
}

const (
	overhead    = 28 // IPv4 and UDP
	messageHead = 16
	messageTail = 16
	timerGrain  = 50 * time.Microsecond
)

// queueLimit is what a peer's queue holds.
const queueLimit = 4 << 20

// tunnel joins two hosts by links; bonded or, if not, by the first link alone.
func tunnel(w *world, bonded bool, control func() bond.Control, links ...*link) (a, b *node) {
	a, b = &node{w: w, name: "a"}, &node{w: w, name: "b"}
	a.peer, b.peer = b, a
	for i, l := range links {
		rtt := l.there.delay + l.back.delay
		a.ways = append(a.ways, &way{id: bond.PathID(i + 1), far: bond.PathID(101 + i), out: l.there, rtt: rtt})
		b.ways = append(b.ways, &way{id: bond.PathID(i + 1), far: bond.PathID(101 + i), out: l.back, rtt: rtt})
	}
	for i, n := range []*node{a, b} {
		n.flows, n.seen = map[uint16]func([]byte){}, map[uint64]bool{}
		n.session = uint32(1000 * (i + 1))
		if bonded {
			n.sockets = map[bond.PathID][]unread{}
			n.s = bond.NewSender(bond.SenderConfig{Control: control})
			n.r = bond.NewReceiver(bond.ReceiverConfig{Unread: func(p bond.PathID) bool { return len(n.sockets[p]) > 0 }})
			n.q = queue.New(queueLimit, 8192, func([]byte) {})
			n.setPaths()
			n.offer()
		}
	}
	return a, b
}

// setPaths tells the Sender which ways there are.
func (n *node) setPaths() {
	var list []bond.Path
	for _, x := range n.ways {
		if !x.down {
			list = append(list, bond.Path{ID: x.id, Metric: x.metric, RTT: x.rtt, Overhead: overhead})
		}
	}
	n.s.SetPaths(n.w.now, list)
	n.pump()
}

// rekey begins a new session for what the node sends.
func (n *node) rekey() { n.session, n.counter = n.session+1, 0 }

func (n *node) way(id bond.PathID) *way {
	for _, x := range n.ways {
		if x.id == id {
			return x
		}
	}
	n.w.t.Fatalf("%s was to send by path %d, which it does not have", n.name, id)
	return nil
}

// push is told of a packet from the device.
func (n *node) push(inner []byte) {
	if n.s == nil {
		n.transmit(n.ways[0], n.seal(inner))
		return
	}
	if n.asleep {
		n.unsent = append(n.unsent, inner)
		return
	}
	c := queue.BestEffort
	if n.urgent != nil && n.urgent(inner) {
		c = queue.Urgent
	}
	n.q.Push(n.wall(), queue.Item[[]byte]{Value: inner, Size: sealedSize(inner), Peer: 1, Flow: uint32(binary.BigEndian.Uint16(inner[4:])), Class: c, Again: inner[6] == 1, End: uint32(binary.BigEndian.Uint64(inner[8:])) + 1})
	n.pump()
}

func (n *node) wall() time.Time { return time.Unix(0, 0).Add(n.w.now) }

func sealedSize(inner []byte) int { return messageHead + (len(inner)+15)/16*16 + messageTail }

func (n *node) seal(inner []byte) []byte {
	m := make([]byte, sealedSize(inner))
	m[0] = 4
	binary.BigEndian.PutUint32(m[4:], n.session)
	binary.BigEndian.PutUint64(m[8:], n.counter)
	n.counter++
	copy(m[messageHead:], inner)
	return m
}

func counterOf(m []byte) (session uint32, counter uint64) {
	return binary.BigEndian.Uint32(m[4:]), binary.BigEndian.Uint64(m[8:])
}

func (n *node) transmit(x *way, m []byte) {
	if x.down {
		x.refused++
		return
	}
	x.out.send(len(m)+overhead, func() { n.peer.arrive(x.far, m) })
}

// pump sends what may go.
func (n *node) pump() {
	now := n.w.now
	target, interval := n.s.Target()
	n.q.SetTarget(target, max(queue.Interval, interval))
	n.q.SetMost(n.s.Most())
	for {
		if p, m, ok := n.s.Again(now); ok && m == nil {
			n.say(n.way(p))
			continue
		} else if ok {
			n.sentAgain++
			n.transmit(n.way(p), append([]byte(nil), m...))
			n.introduce(n.way(p))
			continue
		}
		if p, m, ok := n.s.Due(now); ok {
			n.transmit(n.way(p), append([]byte(nil), m...))
			continue
		}
		if !n.pop() {
			n.s.Idle(now)
			break
		}
		size := sealedSize(n.head.Value)
		p, room, ok := n.s.Next(now, size, n.q.Bytes()+size)
		if !ok {
			later, ok := n.s.Assign()
			if !ok || n.redundant != nil {
				break
			}
			n.has = false
			m := n.seal(n.head.Value)
			session, counter := counterOf(m)
			n.sentData++
			n.s.Assigned(now, later, session, counter, m)
			continue
		}
		if room < size {
			n.w.t.Fatalf("there is room for %d bytes where %d may go", room, size)
		}
		for room >= size {
			room -= size
			inner := n.head.Value
			n.has = false
			m := n.seal(inner)
			session, counter := counterOf(m)
			n.sentData++
			n.s.Sent(now, p, session, counter, m)
			n.transmit(n.way(p), m)
			if n.s.Copies() || n.redundant != nil && n.redundant(inner) {
				if second, ok := n.s.Second(now, p, size); ok {
					n.sentCopies++
					n.s.SentCopy(now, second, session, counter, size)
					n.transmit(n.way(second), m)
					n.introduce(n.way(second))
				}
			} else if other, ok := n.s.Explore(now, size); ok {
				n.sentCopies++
				n.s.SentCopy(now, other, session, counter, size)
				n.transmit(n.way(other), m)
			}
			if !n.pop() {
				break
			}
			size = sealedSize(n.head.Value)
		}
	}
	n.arm()
}

func (n *node) pop() bool {
	if !n.has {
		n.head, n.has = n.q.Pop(n.wall())
	}
	return n.has
}

// control sends a frame of weft's by the best way, so that its counter is no gap that data waits for; and the same message, every other time or always
// where a gap must not be felt, by that which the newest data came by, or another.
func (n *node) control(frame []byte, only *way, elsewhere bool) {
	now := n.w.now
	m := n.seal(frame)
	session, counter := counterOf(m)
	first := only
	if p, ok := n.s.Best(); ok && first == nil {
		first = n.way(p)
	}
	if first == nil {
		first = n.ways[0]
	}
	n.sentControl++
	if only != nil {
		n.s.SentName(now, first.id, session, counter, m)
	} else {
		n.s.SentControl(now, first.id, session, counter, m)
	}
	n.transmit(first, m)
	if n.turn = !n.turn; only != nil || !n.turn && n.redundant == nil && !elsewhere {
		return
	}
	second := n.heard
	if elsewhere {
		p, ok := n.s.Other(first.id)
		if !ok {
			return
		}
		second = n.way(p)
	} else if second == nil || second.down || second == first {
		p, ok := n.s.Second(now, first.id, len(m))
		if !ok {
			return
		}
		second = n.way(p)
	}
	n.s.SentCopy(now, second.id, session, counter, len(m))
	n.transmit(second, m)
}

// offer sends one by the best way every five seconds, and by those that carry data and have not been named in feedback every second.
func (n *node) offer() {
	best, _ := n.s.Best()
	for _, p := range n.s.Status(nil) {
		x := n.way(p.ID)
		if x.down || p.ID != best && (x.known || p.Share == 0) || p.ID == best && x.known && n.w.now-n.offered < 5*time.Second {
			continue
		}
		if p.ID == best {
			n.offered = n.w.now
		}
		n.say(x)
	}
	n.w.after(time.Second, n.offer)
}

// introduce has a way say at once how it is called, if the peer may know neither that nor what another is called.
func (n *node) introduce(x *way) {
	if x.known || x.offered != 0 && n.w.now-x.offered < time.Second {
		return
	}
	for _, o := range n.ways {
		if o != x && !o.down && !o.known {
			n.say(x)
			return
		}
	}
}

// say has an offer say by a way how it is called.
func (n *node) say(x *way) {
	x.offered = n.w.now
	n.control(wire.AppendOffer(nil, wire.Offer{Seq: uint32(n.w.now / time.Millisecond), Path: uint16(x.id)}), x, false)
}

// arrive is told of a message in the socket of a path.
func (n *node) arrive(p bond.PathID, m []byte) {
	if n.asleep {
		n.sockets[p] = append(n.sockets[p], unread{m, n.w.now})
		return
	}
	n.receive(p, m, n.w.now)
}

// An unread message lies in a socket since it came; the kernel knows when that was.
type unread struct {
	message []byte
	came    time.Duration
}

// readAtOnce is how many messages a thread reads from a socket before it looks at another.
const readAtOnce = 64

// sleep has the node do nothing for a while, as on a machine that is busy with other things; then it reads one socket after the other.
func (n *node) sleep(d time.Duration) {
	if n.asleep {
		return
	}
	n.asleep = true
	n.w.after(d, func() {
		n.asleep = false
		for more := true; more; {
			more = false
			for _, x := range n.peer.ways {
				list := n.sockets[x.far]
				batch := list[:min(len(list), readAtOnce)]
				n.sockets[x.far] = list[len(batch):]
				for _, m := range batch {
					n.receive(x.far, m.message, m.came)
				}
				more = more || len(n.sockets[x.far]) > 0
			}
		}
		n.s.Tick(n.w.now)
		n.settle()
		list := n.unsent
		n.unsent = nil
		for _, inner := range list {
			n.push(inner)
		}
	})
}

// receive is told of a message that is read.
func (n *node) receive(p bond.PathID, m []byte, came time.Duration) {
	now := n.w.now
	inner := m[messageHead : len(m)-messageTail]
	if n.r == nil {
		n.deliver(inner)
		return
	}
	session, counter := counterOf(m)
	id := uint64(session)<<40 | counter
	if n.seen[id] {
		if n.r.Duplicate(now, came, p, session, counter, len(m)) {
			n.heardBy(p)
		}
	} else {
		n.seen[id] = true
		kind, ours := wire.InnerKind(inner)
		var packet []byte
		switch {
		case ours && kind == wire.InnerOffer:
			if o, err := wire.ParseOffer(inner); err != nil {
				n.w.t.Error(err)
			} else {
				n.r.Named(p, o.Path)
			}
		case ours && kind == wire.InnerFeedback:
			var f wire.Feedback
			if err := wire.ParseFeedback(inner, &f); err != nil {
				n.w.t.Error(err)
			}
			for _, p := range f.Paths[:f.NPaths] {
				for _, x := range n.ways {
					x.known = x.known || x.id == bond.PathID(p.ID)
				}
			}
			n.s.Feedback(now, came, &f)
		default:
			packet = inner
			n.came++
			n.heardBy(p)
		}
		if n.r.Arrive(now, came, p, session, counter, len(m), packet, packet != nil && n.urgent != nil && n.urgent(packet)) {
			n.deliver(packet)
		}
	}
	n.settle()
}

// heardBy notes by which way data came.
func (n *node) heardBy(p bond.PathID) {
	for _, x := range n.ways {
		if n.peer.way(x.id).far == p {
			n.heard = x
		}
	}
}

// settle does what may be due.
func (n *node) settle() {
	for b := n.r.Next(n.w.now); b != nil; b = n.r.Next(n.w.now) {
		n.deliver(append([]byte(nil), b...))
	}
	var f wire.Feedback
	for n.r.Feedback(n.w.now, &f) {
		n.control(wire.AppendFeedback(nil, &f), nil, n.r.Elsewhere())
	}
	n.pump()
}

func (n *node) deliver(inner []byte) {
	inner = inner[:binary.BigEndian.Uint16(inner[2:])]
	n.delivered++
	if f := n.flows[binary.BigEndian.Uint16(inner[4:])]; f != nil {
		f(inner)
	}
}

// arm sets the one timer.
func (n *node) arm() {
	n.heed()
	at := min(n.s.Wake(), n.r.Wake())
	if at == bond.Never || n.alarm != 0 && n.alarm <= at {
		return
	}
	at = max(at, n.w.now+timerGrain)
	n.alarm = at
	n.w.at(at, func() {
		if n.alarm != at {
			return
		}
		n.alarm = 0
		if n.asleep {
			return // and when it wakes it looks
		}
		n.wakes++
		n.s.Tick(n.w.now)
		n.settle()
	})
}

// heed takes the Sender's events to whoever watches over the ways.
func (n *node) heed() {
	have := len(n.events)
	n.events = n.s.Events(n.events)
	for _, e := range n.events[have:] {
		if e.To == bond.Silent && n.silent != nil {
			x := n.way(e.Path)
			n.w.after(0, func() { n.silent(x) })
		}
	}
}

// trace prints what the paths do.
func (n *node) trace() {
	n.w.every(100*time.Millisecond, func() {
		var b strings.Builder
		for _, p := range n.s.Status(nil) {
			x := n.way(p.ID)
			fmt.Fprintf(&b, "  %d %s rate %.2f srtt %.1f min %.1f fly %dk/%dk share %.2f lost %d again %d line %dk drop %d",
				p.ID, p.State, p.Rate*8/1e6, float64(p.RTT)/1e6, float64(p.MinRTT)/1e6, p.InFlight>>10, p.Window>>10, p.Share, p.LostPackets, p.AgainPackets, x.out.bytes>>10, x.out.dropped)
		}
		st := n.peer.r.Stats()
		fmt.Printf("%6.1f %s q %d%s  r %+v\n", n.w.now.Seconds()-1, n.name, n.q.Len(), b.String(), st)
		for _, e := range n.events[n.told:] {
			fmt.Printf("   event %.3f path %d %v -> %v: %s\n", e.At.Seconds()-1, e.Path, e.From, e.To, e.Reason)
		}
		n.told = len(n.events)
	})
}
