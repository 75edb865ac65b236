package engine

import (
	"sync/atomic"
	"time"

	"weft/bond"
	"weft/engine/queue"
	"weft/engine/segment"
	"weft/host"
	"weft/wireguard"
)

const (
	// queueBytes bounds what waits in front of the cipher for one queue of the device: 8 ms of 4 Gbit/s, which is more than
	// CoDel leaves standing. It is also what bounds the memory of a busy engine.
	queueBytes = 4 << 20
	// queuePackets bounds it in packets: what is small is not kept in large buffers.
	queuePackets = 2048
	// drainMost is how many packets are taken from the device before the next burst is sent.
	drainMost = 32
	// smallPacket is the room of a small packet's buffer, in bytes: header, a packet of Ethernet's MTU, and padding.
	smallPacket = 2048 - 64
	// largePackets is how many super-packets wait at most.
	largePackets = 64
	// lull is after how long without a packet the device was idle: longer than any pause of a transfer in a local network.
	lull = time.Millisecond
	// forever is a wait without an end.
	forever time.Duration = -1
)

// A parcel is a packet that waits, with its header in front.
type parcel struct {
	peer  *peer
	n     int
	data  []byte
	twice bool // in a bond's line: by two ways
}

// Whose turn it is to take packets from a queue of the device, and to have all that is the sender's.
const (
	own     int32 = iota // the sender's goroutine's
	nobodys              // it waits for the device
	openers              // an opener's, meanwhile
)

// A sender takes packets from one queue of the device and sends them. All of it is one goroutine's, whose turn it is.
type sender struct {
	memory  memory // first: see there
	e       *Engine
	number  int
	from    Queue
	queue   *queue.Queue[*parcel]
	burst   *burst
	scratch *parcel   // what is read into
	small   []*parcel // free
	large   []*parcel
	larges  int // there are, free or not
	slabs   []host.Slab

	turn   atomic.Int32
	lately atomic.Int64 // when there was a packet in the device

	patience host.Patience
	popped   [host.UDPBatch]queue.Item[*parcel] // whose turn it is

	lines  []*line       // of peers with several ways
	paced  *burst        // what goes by them
	early  []byte        // a message that goes later
	cutter cutter        // what is put into lines
	next   time.Duration // when lines are to be served
	roused bool          // without a packet: something may have changed for a line

	gate gate
}

func newSender(e *Engine, from Queue) *sender {
	o := &sender{e: e, number: len(e.senders), from: from, burst: newBurst(e), paced: newBurst(e), next: bond.Never}
	o.burst.writer.Patient = true // the only way that there is
	o.queue = queue.New(queueBytes, queuePackets, func(x *parcel) {
		e.drops.congested.Add(1)
		o.free(x)
	})
	return o
}

// run sends until the device is closed.
func (o *sender) run() {
	defer func() { // the turn is its own from now on
		for _, s := range o.slabs {
			s.Give()
		}
	}()
	for {
		if err := o.fill(true); err != nil {
			o.e.stop(err)
			return
		}
		o.send()
		if len(o.lines) > 0 {
			o.serve()
		}
	}
}

// read reads a packet into scratch. Zero without an error: there is none, or enough waits.
func (o *sender) read() (int, error) {
	if o.scratch == nil {
		if o.scratch = o.room(); o.scratch == nil {
			return 0, nil
		}
	}
	return o.from.TryRead(o.scratch.data[:ReadSize])
}

// wait waits for a packet and reads it. Zero without an error: lines are to be served. While it waits an opener may have the turn, and
// what was scratch before is in the queue then, or sent.
func (o *sender) wait() (int, error) {
	o.roused = true // unless a packet is what ends it
	for again, looks := 0, o.patience.Looks(); ; again++ {
		n, err := o.read()
		if n > 0 && again > 0 && again <= looks {
			o.patience.Found()
		}
		if n > 0 || err != nil || again > looks {
			return n, err
		}
		left := forever
		if o.next != bond.Never {
			if left = o.next - o.e.bondNow(); left <= 0 {
				return 0, nil
			}
		}
		if again < looks {
			host.LetOthers()
			continue
		}
		if looks > 0 {
			o.patience.Missed()
		}
		o.turn.Store(nobodys)
		err = o.from.Await(left)
		for !o.turn.CompareAndSwap(nobodys, own) {
			host.LetOthers() // an opener is about to give it back
		}
		if err != nil {
			return 0, err
		}
	}
}

// fill takes packets, and waits for the first if none waits in the queue and it may.
func (o *sender) fill(may bool) error {
	var now time.Time
	for i := range drainMost {
		read := o.read
		if i == 0 && may && o.queue.Len() == 0 {
			read = o.wait
		}
		n, err := read()
		if err != nil || n == 0 {
			return err
		}
		o.roused = false
		if now.IsZero() {
			now = time.Now()
			o.lately.Store(int64(now.Sub(o.e.began)))
		}
		o.push(now, n)
	}
	return nil
}

// answer sends what the device has to say to a packet that was just written to it: to an echo, or to a segment. Who wrote it is awake,
// and the sender's goroutine would have to be woken. That is quicker where the device was idle; else it would keep an
// opener from its socket.
func (o *sender) answer(now int64) {
	if now-o.lately.Load() < int64(lull) || !o.turn.CompareAndSwap(nobodys, openers) {
		return
	}
	o.burst.writer.Patient = false // an opener waits for no socket: it would keep others from its own, and the sender turns in circles meanwhile
	err := o.fill(false)
	o.send()
	o.burst.writer.Patient = true
	more := err != nil || o.queue.Len() > 0 || len(o.lines) > 0
	o.turn.Store(nobodys)
	if more {
		o.from.Wake()
	}
}

// push puts what was read into the queue.
func (o *sender) push(now time.Time, n int) {
	if n <= segment.HeaderSize {
		return
	}
	f, ok := flowOf(o.scratch.data[segment.HeaderSize:n])
	if !ok {
		o.e.drops.strange.Add(1)
		return
	}
	p := o.lookup(&f)
	if p == nil {
		o.e.drops.unroutable.Add(1)
		return
	}
	if o.gate.load(o.e); o.gate.shut() && !o.gate.sends(o.e, p, now.Sub(o.e.began), o.scratch.data[segment.HeaderSize:n]) {
		return
	}
	if s := p.current.Load(); s == nil || int64(now.Sub(o.e.began)) >= s.until {
		if o.e.await(p, o.scratch.data[:n]) {
			return
		}
	}
	if b := p.bond.Load(); b != nil && o.bonded(b, now, &f, n) {
		return
	}
	x := o.scratch
	if n <= smallPacket {
		x = o.take()
		copy(x.data, o.scratch.data[:n])
	} else {
		o.scratch = nil
	}
	x.peer, x.n = p, n
	o.queue.Push(now, queue.Item[*parcel]{
		Value: x, Size: n - segment.HeaderSize, Flow: f.hash, Peer: uint32(p.id), Class: f.class(), ECN: f.ecn,
	})
}

// lookup finds the peer that a flow goes to.
func (o *sender) lookup(f *flow) *peer {
	return o.memory.lookup(o.e.routes.Load(), f.to)
}

// send sends the packets whose turn it is: what makes one burst.
func (o *sender) send() {
	now := time.Now()
	at := int64(now.Sub(o.e.began))
	for left := burstSize / 2; left > 0; {
		next := o.pop(now, left)
		if len(next) == 0 {
			break
		}
		o.ahead(next)
		for i := range next {
			left -= o.add(at, &next[i])
		}
	}
	o.burst.flush()
}

// pop takes packets whose turn it is out of the queue, as many as have that many bytes or as are looked at together.
func (o *sender) pop(now time.Time, bytes int) []queue.Item[*parcel] {
	n := 0
	for ; n < len(o.popped) && bytes > 0; n++ {
		it, ok := o.queue.Pop(now)
		if !ok {
			break
		}
		o.popped[n] = it
		bytes -= it.Value.n
	}
	return o.popped[:n]
}

// add seals a packet whose turn it is, and returns how many bytes that is of what makes a burst: none if it goes nowhere.
func (o *sender) add(at int64, it *queue.Item[*parcel]) (sealed int) {
	x := it.Value
	b := x.data[:x.n]
	if it.Marked {
		segment.MarkCE(b[segment.HeaderSize:])
	}
	s, w := x.peer.current.Load(), x.peer.route.Load()
	switch {
	case s == nil || at >= s.until:
		o.e.await(x.peer, b)
	case w == nil:
		o.e.drops.noRoute.Add(1)
	default:
		if reply := o.burst.add(s, w, at, b); reply != nil {
			o.e.deliver(o.from, reply)
		}
		sealed = x.n
	}
	o.free(x)
	return sealed
}

// room finds a buffer to read into; nil: too many super-packets wait.
func (o *sender) room() *parcel {
	if n := len(o.large); n > 0 {
		x := o.large[n-1]
		o.large = o.large[:n-1]
		return x
	}
	if o.larges == largePackets {
		return nil
	}
	n := o.larges % host.SlabPackets
	if n == 0 {
		o.slabs = append(o.slabs, host.TakeSlab())
	}
	o.larges++
	return &parcel{data: o.slabs[len(o.slabs)-1].Room(n)[:ReadSize+wireguard.PaddingMultiple]}
}

// take finds a small buffer. The queue's bound is theirs, too.
func (o *sender) take() *parcel {
	if n := len(o.small); n > 0 {
		x := o.small[n-1]
		o.small = o.small[:n-1]
		return x
	}
	return &parcel{data: make([]byte, smallPacket+wireguard.PaddingMultiple)}
}

// free gives a buffer back: the one that was used last is used next, since it is still in the cache.
func (o *sender) free(x *parcel) {
	x.peer = nil
	if len(x.data) > smallPacket+wireguard.PaddingMultiple {
		o.large = append(o.large, x)
	} else {
		o.small = append(o.small, x)
	}
}

// await keeps a copy of a packet until there is a session to send it by, and asks for one. It is false if there is one now.
func (e *Engine) await(p *peer, b []byte) bool {
	now := e.now()
	w := &p.waiting
	w.mu.Lock()
	if s := p.current.Load(); s != nil && now < s.until {
		w.mu.Unlock()
		return false
	}
	for len(w.packets) > 0 && (len(w.packets) >= maxWaiting || w.bytes+len(b) > maxWaitingBytes) {
		w.bytes -= w.packets[0].n
		w.packets = append(w.packets[:0], w.packets[1:]...)
		e.drops.noSession.Add(1)
	}
	x := &parcel{peer: p, n: len(b), data: make([]byte, len(b)+wireguard.PaddingMultiple)}
	copy(x.data, b)
	w.packets = append(w.packets, x)
	w.bytes += len(b)
	w.mu.Unlock()
	e.touch(p, now)
	if p.wanting.CompareAndSwap(false, true) && !e.control.tryPost(post{peer: p, what: wanted}) {
		p.wanting.Store(false)
	}
	return true
}
