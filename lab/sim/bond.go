package sim

import (
	"encoding/binary"
	"slices"
	"time"

	"weft"
	"weft/bond"
	"weft/engine/queue"
	"weft/path"
	"weft/wire"
)

// Frames of the data plane. A data packet's header says who sent it, and of which flow it is the how manieth; one that goes by a
// bond has a counter too. What stands in for a flow's number says that it is a frame of weft's own (wire.Offer, wire.Feedback).
const (
	bondHeader   = 24 // bytes: a data packet's header, and the counter
	controlFlow  = 1<<32 - 1
	bondSession  = 1       // sessions are not renewed
	bondQueue    = 4 << 20 // bytes that wait for a bond's paths
	bondPackets  = 8192
	bondGrain    = 50 * time.Microsecond // of timers
	offerEvery   = time.Second
	bondOverhead = 28 // bytes: IPv4 and UDP
)

// A bonded is what engines make of a bond to one peer: its sending half while there are several ways, its receiving half
// always.
type bonded struct {
	n    *node
	p    *peer
	ids  map[weft.Via]bond.PathID // of all ways that ever were
	vias map[bond.PathID]weft.Via

	send    *bond.Sender // nil: there is one way
	live    []path.Member
	queue   *queue.Queue[[]byte]
	head    queue.Item[[]byte] // taken from the queue, and not sent
	has     bool
	counter uint64
	offered uint32
	offers  bool // they are sent

	recv *bond.Receiver
	seen map[uint64]bool // counters that came
	came weft.Via        // by which the newest data came
	turn bool

	alarm time.Time // when it wakes; zero: never
	gone  bool
}

func newBonded(n *node, p *peer) *bonded {
	return &bonded{n: n, p: p, ids: map[weft.Via]bond.PathID{}, vias: map[bond.PathID]weft.Via{},
		recv: bond.NewReceiver(bond.ReceiverConfig{}), seen: map[uint64]bool{}}
}

// now is the time as bonds have it.
func (b *bonded) now() time.Duration { return b.n.w.elapsed() }

// stop ends it: the node, or its peer, is switched off.
func (b *bonded) stop() { b.gone = true }

// number is the number of a way.
func (b *bonded) number(via weft.Via) bond.PathID {
	id := b.ids[via]
	if id == 0 {
		id = bond.PathID(len(b.ids) + 1)
		b.ids[via], b.vias[id] = id, via
	}
	return id
}

// setWays takes over which ways a bond may send by. With one left it goes on.
func (b *bonded) setWays(now time.Time, list []path.Member) {
	b.live = slices.Clone(list)
	if b.send == nil && len(list) > 1 {
		b.send = bond.NewSender(bond.SenderConfig{})
		b.queue = queue.New(bondQueue, bondPackets, func([]byte) {})
		b.n.log("%s: bonded", b.p.node.name())
	}
	if b.send == nil {
		return
	}
	paths := make([]bond.Path, 0, len(list))
	for _, m := range list {
		paths = append(paths, bond.Path{ID: b.number(m.Via), Metric: m.Metric, RTT: m.RTT, Overhead: bondOverhead})
	}
	b.send.SetPaths(b.now(), paths)
	if !b.offers {
		b.offers = true
		b.offer(now)
	}
	b.work(now)
}

// submit gives a packet to the bond; false: there is none.
func (b *bonded) submit(now time.Time, packet []byte, flow uint32) bool {
	if b.send == nil || len(b.live) == 0 {
		return false
	}
	inner := slices.Concat(packet[:dataHeader], make([]byte, bondHeader-dataHeader), packet[dataHeader:])
	b.queue.Push(now, queue.Item[[]byte]{Value: inner[:max(len(packet), bondHeader)], Size: len(packet), Peer: 1, Flow: flow})
	b.work(now)
	return true
}

// number the next message.
func (b *bonded) count(message []byte) uint64 {
	b.counter++
	binary.BigEndian.PutUint64(message[dataHeader:], b.counter)
	return b.counter
}

func (b *bonded) transmit(id bond.PathID, message []byte, what string) {
	via := b.vias[id]
	b.n.count(b.n.w.net.Now(), b.p, via, len(message), true)
	b.n.sendBy(b.p, via, message, 0, what)
}

// work sends what may go, gives on what is in order, and sets the timer for the rest.
func (b *bonded) work(now time.Time) {
	if b.gone || !b.n.on() {
		return
	}
	for inner := b.recv.Next(b.now()); inner != nil; inner = b.recv.Next(b.now()) {
		b.n.deliver(inner)
	}
	var f wire.Feedback
	for b.recv.Feedback(b.now(), &f) {
		b.tell(&f)
	}
	at := b.recv.Wake()
	if b.send != nil {
		b.pump(now)
		b.heed(now)
		at = min(at, b.send.Wake())
	}
	if at == bond.Never {
		return
	}
	wake := now.Add(max(at-b.now(), bondGrain))
	if !b.alarm.IsZero() && !b.alarm.After(wake) {
		return
	}
	b.alarm = wake
	b.n.w.net.At(wake, func(now time.Time) {
		if !b.alarm.Equal(wake) {
			return // an earlier one has come between
		}
		b.alarm = time.Time{}
		if b.send != nil {
			b.send.Tick(b.now())
		}
		b.work(now)
	})
}

// pump sends what may go.
func (b *bonded) pump(now time.Time) {
	target, interval := b.send.Target()
	b.queue.SetTarget(target, max(queue.Interval, interval))
	for {
		if id, message, ok := b.send.Again(b.now()); ok && message == nil {
			b.name(b.vias[id])
			continue
		} else if ok {
			b.transmit(id, message, "data again")
			continue
		}
		if id, message, ok := b.send.Due(b.now()); ok {
			b.transmit(id, message, "data")
			continue
		}
		if !b.next(now) {
			b.send.Idle(b.now())
			return
		}
		size := b.head.Size
		id, room, ok := b.send.Next(b.now(), size, b.queue.Bytes()+size)
		if !ok {
			later, ok := b.send.Assign()
			if !ok {
				return
			}
			b.has = false
			b.send.Assigned(b.now(), later, bondSession, b.count(b.head.Value), b.head.Value)
			continue
		}
		for room >= size {
			room -= size
			b.has = false
			message := b.head.Value
			counter := b.count(message)
			b.send.Sent(b.now(), id, bondSession, counter, message)
			b.transmit(id, message, "data")
			second, ok := b.send.Explore(b.now(), size)
			if b.send.Copies() {
				second, ok = b.send.Second(b.now(), id, size)
			}
			if ok {
				b.send.SentCopy(b.now(), second, bondSession, counter, size)
				b.transmit(second, message, "data, a copy")
			}
			if !b.next(now) {
				break
			}
			size = b.head.Size
		}
	}
}

// next takes a packet from the queue, unless one is taken.
func (b *bonded) next(now time.Time) bool {
	if !b.has {
		b.head, b.has = b.queue.Pop(now)
	}
	return b.has
}

// heed tells the agent which ways do not deliver.
func (b *bonded) heed(now time.Time) {
	for _, e := range b.send.Events(nil) {
		via := b.vias[e.Path]
		b.n.log("%s: %v is %v: %s", b.p.node.name(), via, e.To, e.Reason)
		if e.To != bond.Silent {
			continue
		}
		b.n.w.net.At(now, func(now time.Time) {
			if !b.gone && b.n.on() {
				b.p.agent.Silent(now, via, e.Reason)
				b.p.due = true
				b.n.work(now)
			}
		})
	}
}

// control sends a frame of weft's own by a way, on the books if it is one of the bond's.
func (b *bonded) control(frame []byte, via weft.Via, what string) {
	message := make([]byte, bondHeader+len(frame))
	message[0] = dataType
	binary.BigEndian.PutUint32(message[4:], uint32(b.n.id))
	binary.BigEndian.PutUint32(message[8:], controlFlow)
	copy(message[bondHeader:], frame)
	counter := b.count(message)
	if b.send != nil && slices.ContainsFunc(b.live, func(m path.Member) bool { return m.Via == via }) {
		sent := b.send.SentControl
		if kind, _ := wire.InnerKind(frame); kind == wire.InnerOffer {
			sent = b.send.SentName
		}
		sent(b.now(), b.number(via), bondSession, counter, message)
	}
	b.n.sendBy(b.p, via, message, 0, what)
}

// offer names every way to the peer, again and again.
func (b *bonded) offer(now time.Time) {
	if b.gone || !b.n.on() {
		return
	}
	b.offered++
	for _, m := range b.live {
		if len(b.live) > 1 {
			b.name(m.Via)
		}
	}
	b.n.w.net.At(now.Add(offerEvery), b.offer)
}

// name says by a way how it is called.
func (b *bonded) name(via weft.Via) {
	b.control(wire.AppendOffer(nil, wire.Offer{Seq: b.offered, Path: uint16(b.number(via))}), via, "offer to bond")
}

// tell sends feedback: by the way that the newest data came by, since that one works, and every other by another as well, since
// it may work in that direction alone.
func (b *bonded) tell(f *wire.Feedback) {
	if b.came.Method == weft.NoMethod {
		return
	}
	frame := wire.AppendFeedback(nil, f)
	b.control(frame, b.came, "feedback")
	if b.turn = !b.turn; b.turn || b.send == nil {
		return
	}
	if id, ok := b.send.Second(b.now(), b.number(b.came), len(frame)); ok {
		b.control(frame, b.vias[id], "feedback")
	}
}

// take takes a packet that has a counter.
func (b *bonded) take(now time.Time, via weft.Via, message []byte) {
	id, counter := b.number(via), binary.BigEndian.Uint64(message[dataHeader:])
	if b.seen[counter] {
		b.recv.Duplicate(b.now(), b.now(), id, bondSession, counter, len(message))
		b.work(now)
		return
	}
	b.seen[counter] = true
	packet := message
	if binary.BigEndian.Uint32(message[8:]) == controlFlow {
		b.takeControl(id, message[bondHeader:])
		packet = nil
	} else {
		b.came = via
	}
	if b.recv.Arrive(b.now(), b.now(), id, bondSession, counter, len(message), packet, false) {
		b.n.deliver(message)
	}
	b.work(now)
}

// takeControl takes a frame of weft's own.
func (b *bonded) takeControl(id bond.PathID, frame []byte) {
	switch kind, _ := wire.InnerKind(frame); kind {
	case wire.InnerOffer:
		if o, err := wire.ParseOffer(frame); err == nil {
			b.recv.Named(id, o.Path)
		}
	case wire.InnerFeedback:
		var f wire.Feedback
		if err := wire.ParseFeedback(frame, &f); err == nil && b.send != nil {
			b.send.Feedback(b.now(), b.now(), &f)
		}
	}
}
