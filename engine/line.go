package engine

import (
	"slices"
	"time"

	"weft"
	"weft/bond"
	"weft/engine/queue"
	"weft/engine/segment"
	"weft/wire"
	"weft/wireguard"
)

const (
	// lineBytes and linePackets bound what waits for the ways of one bond: CoDel leaves much less standing.
	lineBytes   = 4 << 20
	linePackets = 2048
	// leastWait is the least from one look at what is in order to the next: the resolution of timers (50 us of slack on
	// Linux), and what would otherwise be a loop.
	leastWait = 50 * time.Microsecond
	// paceGrain is how long a sender sleeps at least that waits for its turn on a path: what may go in it goes in one burst (package bond
	// gives as much at once), and each sleep and waking costs more than a packet.
	paceGrain = time.Millisecond
	// lineIdle is how long a line of a bond without traffic is kept: it takes half a megabyte.
	lineIdle = 10 * time.Second
)

// A line is what waits in one sender for the ways of a bond: packets, not super-packets, so that each may go by a way of its
// own, and none holds up others for longer than it takes. It is the sender's goroutine's.
type line struct {
	b     *bonded
	queue *queue.Queue[*parcel]
	head  *parcel // whose turn it is, taken out
	free  []*parcel
	room  int           // of a parcel, in bytes
	next  time.Duration // when it is to be served, unless something comes
	fresh bool          // something has come
	idle  time.Duration // since when nothing waits and nothing is on its way; 0: something is
}

// line finds or makes the sender's line of a bond.
func (o *sender) line(b *bonded) *line {
	for _, l := range o.lines {
		if l.b == b {
			return l
		}
	}
	l := &line{b: b, room: segment.HeaderSize + max(o.e.mtu, smallPacket) + wireguard.PaddingMultiple}
	l.queue = queue.New(lineBytes, linePackets, func(x *parcel) {
		o.e.drops.congested.Add(1)
		l.free = append(l.free, x)
	})
	o.lines = append(o.lines, l)
	b.mu.Lock()
	if b.home == nil {
		b.home = o
	}
	b.mu.Unlock()
	return l
}

// bonded puts a packet that was read into the line of its peer's bond. It is false if it has to go by the route.
func (o *sender) bonded(b *bonded, now time.Time, f *flow, n int) bool {
	at := now.Sub(o.e.began)
	o.ask(b, at)
	if !b.on.Load() {
		return false
	}
	l := o.line(b)
	packet := o.scratch.data[:n]
	twice := b.twice(packet[segment.HeaderSize:])
	reply, err := o.cutter.begin(packet, o.e.mtu, int(b.limit.Load()))
	switch {
	case reply != nil:
		o.e.drops.tooLong.Add(1)
		o.e.deliver(o.from, reply)
		return true
	case err != nil:
		o.e.drops.strange.Add(1)
		return true
	}
	l.fresh = true
	class := f.class()
	if twice {
		class = queue.Urgent
	}
	for piece := o.cutter.next(); piece != nil; piece = o.cutter.next() {
		x := l.take()
		x.peer, x.twice = b.peer, twice
		x.n = copy(x.data, piece)
		end, again := f.carries(piece)
		l.queue.Push(now, queue.Item[*parcel]{Value: x, Size: x.n, Flow: f.hash, Class: class, ECN: f.ecn, Again: again, End: end})
	}
	return true
}

func (l *line) take() *parcel {
	if n := len(l.free); n > 0 {
		x := l.free[n-1]
		l.free = l.free[:n-1]
		return x
	}
	return &parcel{data: make([]byte, l.room)}
}

// pop is the packet whose turn it is, nil: none waits.
func (l *line) pop(now time.Time) *parcel {
	if l.head != nil {
		return l.head
	}
	if it, ok := l.queue.Pop(now); ok {
		l.head = it.Value
		if it.Marked {
			segment.MarkCE(l.head.data[:l.head.n])
		}
	}
	return l.head
}

func (l *line) done() {
	l.free = append(l.free, l.head)
	l.head = nil
}

// ask offers the peer a bond, if it is time to.
func (o *sender) ask(b *bonded, now time.Duration) {
	s := b.peer.current.Load()
	if s == nil || int64(now) >= s.until {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone || now < b.offerAt {
		return
	}
	b.offer++
	best, ok := b.send.Best()
	if !ok {
		return
	}
	soon := offerAgain
	first := !b.on.Load() && b.tries == 0
	for _, w := range b.ways[:b.live] {
		// A frame by a way that takes long is a gap for data that does not. So others than the best say their number before the best offers anything: the peer
		// waits for what follows the first offer that it gets. Later they do only where it is needed.
		needed := !w.named.Load() && (first || w.carried.Load())
		if needed {
			soon = offerNamed
		}
		if needed && w.path() != best {
			w.carried.Store(false)
			o.offer(b, s, w, now)
		}
	}
	if w := b.way(best); w != nil {
		w.carried.Store(false)
		o.offer(b, s, w, now)
	}
	o.paced.flush()
	switch {
	case b.on.Load() && b.tries == 0:
		b.offerAt = now + soon
	case b.tries < offerTries:
		b.offerAt = now + offerSoon
	default:
		b.offerAt = now + offerSeldom
	}
	b.tries++
}

// name has a way say at once how it is called, if the peer may know neither that nor what another is called: then it could not be told by which
// of them a message came that went by both. B.mu is held.
func (o *sender) name(b *bonded, s *session, w *way, now time.Duration) {
	if at := time.Duration(w.offered.Load()); w.named.Load() || at != 0 && now-at < offerNamed {
		return
	}
	for _, x := range b.ways[:b.live] {
		if x != w && !x.named.Load() {
			o.offer(b, s, w, now)
			return
		}
	}
}

// offer says by a way how it is called. B.mu is held.
func (o *sender) offer(b *bonded, s *session, w *way, now time.Duration) {
	w.offered.Store(int64(now))
	var room [wire.OfferSize + wireguard.PaddingMultiple]byte
	o.put(b, s, w, now, wire.AppendOffer(room[:0], wire.Offer{Seq: b.offer, Path: uint16(w.path())}), true)
}

// put seals a packet, or an offer, for a way and sends it. B.mu is held.
func (o *sender) put(b *bonded, s *session, w *way, now time.Duration, packet []byte, offer bool) (message []byte, counter uint64) {
	l, err := o.e.lane(w)
	if err != nil {
		o.e.drops.noRoute.Add(1) // what was lost by it is found out as any loss is
		return nil, 0
	}
	if message, counter = o.paced.seal(s, l, packet, o.e.mtu); message == nil {
		return nil, 0
	}
	switch {
	case offer && !b.on.Load(): // nothing is in order yet, and nobody waits for it
	case offer:
		b.send.SentName(now, w.path(), s.Remote, counter, message)
	default:
		b.send.Sent(now, w.path(), s.Remote, counter, message)
		w.carried.Store(true)
	}
	w.txPackets.Add(1)
	w.txBytes.Add(uint64(len(message)))
	return message, counter
}

// carry sends a message that was sealed before: again, or one of this burst by another way as well.
func (o *sender) carry(w *way, to weft.NodeID, message []byte, how func(*burst, lane, weft.NodeID, []byte) bool) {
	l, err := o.e.lane(w)
	if err != nil {
		o.e.drops.noRoute.Add(1)
		return
	}
	if how(o.paced, l, to, message) {
		w.txPackets.Add(1)
		w.txBytes.Add(uint64(len(message)))
	}
}

// serve sends what bonds may send now, and notes in o.next when there may be more.
func (o *sender) serve() {
	now := o.e.bondNow()
	o.next = bond.Never
	for i := 0; i < len(o.lines); {
		l := o.lines[i]
		if !l.fresh && !o.roused && now < l.next {
			o.next = min(o.next, l.next)
			i++
			continue
		}
		l.b.mu.Lock()
		if l.b.gone {
			l.b.mu.Unlock()
			o.lines = append(o.lines[:i], o.lines[i+1:]...)
			o.release(l)
			continue
		}
		l.next, l.fresh = o.serveLine(l), false
		if l.idle != 0 && now-l.idle >= lineIdle {
			o.leave(l.b)
			l.b.mu.Unlock()
			o.lines = append(o.lines[:i], o.lines[i+1:]...)
			continue
		}
		l.b.mu.Unlock()
		o.next = min(o.next, l.next)
		i++
	}
	o.paced.flush()
}

// leave is told that the sender has no line of a bond any more. B.mu is held.
func (o *sender) leave(b *bonded) {
	if b.home == o {
		b.home = nil
	}
	b.asleep &^= 1 << o.number
}

// serveLine sends what one bond may send now, a burst at most, and tells when there may be more. B.mu is held.
func (o *sender) serveLine(l *line) (next time.Duration) {
	b := l.b
	began := time.Now()
	now := began.Sub(o.e.began)
	if b.home == o && b.closing != 0 && now >= b.closing {
		b.leave()
		return now
	}
	if now >= b.send.Wake() {
		b.send.Tick(now)
		b.collect(now)
	}
	target, interval := b.send.Target()
	l.queue.SetTarget(target, max(queue.Interval, interval))
	l.queue.SetMost(b.send.Most())
	s := b.peer.current.Load()
	if s != nil && int64(now) >= s.until {
		s = nil
	}
	sealed := 0
	for sealed < burstSize/2 {
		id, message, ok := b.send.Again(now)
		if !ok {
			break
		}
		if w := b.way(id); w != nil {
			sealed += o.again(b, s, w, now, message)
		}
	}
	for sealed < burstSize/2 {
		id, message, ok := b.send.Due(now)
		if !ok {
			break
		}
		if w := b.way(id); w != nil {
			o.carry(w, b.peer.id, message, (*burst).carry)
			w.carried.Store(true)
			sealed += len(message)
		}
	}
	blocked := false
	for sealed < burstSize/2 {
		x := l.pop(began)
		if x == nil {
			b.send.Idle(now)
			break
		}
		if s == nil {
			o.await(l)
			continue
		}
		size := wireguard.Padded(x.n, o.e.mtu) + wireguard.Overhead
		id, room, ok := b.send.Next(now, size, l.queue.Bytes()+size)
		if !ok && o.assign(b, s, now, x) {
			l.done()
			continue
		}
		w := b.way(id)
		if !ok || w == nil {
			blocked = true
			break
		}
		for x != nil && size <= room {
			o.one(b, s, w, now, x)
			l.done()
			room -= size
			sealed += size
			if sealed >= burstSize/2 {
				break
			}
			if x = l.pop(began); x != nil {
				size = wireguard.Padded(x.n, o.e.mtu) + wireguard.Overhead
			}
		}
	}
	if sealed > 0 {
		p := b.peer
		p.sent.Store(int64(now))
		p.dataSent.Store(int64(now))
		o.e.touch(p, int64(now))
		o.e.watch(p)
	}
	return o.sleep(l, now, blocked)
}

// again sends a message again by a way, or has it say its number: the message says another's (bond.Sender.Again). It tells how much went. B.mu is held.
func (o *sender) again(b *bonded, s *session, w *way, now time.Duration, message []byte) int {
	if message != nil {
		o.carry(w, b.peer.id, message, (*burst).carry)
	}
	switch {
	case s == nil:
	case message == nil:
		o.offer(b, s, w, now)
	default:
		o.name(b, s, w, now)
	}
	return len(message)
}

// one sends one packet by a way, and by a second if it is to have two.
func (o *sender) one(b *bonded, s *session, w *way, now time.Duration, x *parcel) {
	message, counter := o.put(b, s, w, now, x.data[:x.n], false)
	if message == nil {
		return
	}
	if b.unheard == 0 {
		b.unheard = now
	}
	id, ok := b.send.Explore(now, len(message))
	if x.twice || b.conf.Mode == BondRedundant || b.send.Copies() {
		id, ok = b.send.Second(now, w.path(), len(message))
	}
	if ok {
		if second := b.way(id); second != nil {
			b.send.SentCopy(now, id, s.Remote, counter, len(message))
			second.carried.Store(true)
			o.carry(second, b.peer.id, message, (*burst).copy)
			o.name(b, s, second, now)
		}
	}
}

// assign seals a packet that goes later, but in front of what follows; false: it is not to. B.mu is held.
func (o *sender) assign(b *bonded, s *session, now time.Duration, x *parcel) bool {
	id, ok := b.send.Assign()
	if !ok || x.twice || b.conf.Mode == BondRedundant {
		return false
	}
	if counter, ok := s.take(); ok {
		o.early = slices.Grow(o.early[:0], wireguard.Padded(x.n, o.e.mtu)+wireguard.Overhead)
		o.early = s.sealPadded(o.early[:0], counter, x.data[:x.n], o.e.mtu)
		b.send.Assigned(now, id, s.Remote, counter, o.early)
	} else {
		o.e.drops.noSession.Add(1)
	}
	if b.unheard == 0 {
		b.unheard = now
	}
	return true
}

// sleep is until when a line has nothing to do. B.mu is held.
func (o *sender) sleep(l *line, now time.Duration, blocked bool) time.Duration {
	b := l.b
	b.waiting = [2]int{l.queue.Len(), l.queue.Bytes()}
	if b.unheard != 0 && now-b.unheard > unheardFor { // by the route, until it is heard of again
		b.on.Store(false)
		b.unheard, b.tries, b.offerAt = 0, 1, now
	}
	waits := l.head != nil || l.queue.Len() > 0
	if waits && !blocked {
		return now // there was more than a burst
	}
	waits = waits || b.send.Assigns()
	bit := uint64(1) << o.number
	b.asleep &^= bit
	at := bond.Never
	if b.home == o || waits {
		at = b.send.Wake()
	}
	if b.home == o && b.closing != 0 {
		at = min(at, b.closing)
	}
	switch {
	case waits:
		b.asleep |= bit
		l.idle = 0
	case at != bond.Never:
		l.idle = 0
	case l.idle == 0:
		l.idle = now
		fallthrough
	default:
		at = l.idle + lineIdle
	}
	at = max(at, now+paceGrain)
	if b.home == o {
		b.until = at
	}
	return at
}

// await has a packet wait for a session.
func (o *sender) await(l *line) {
	x := l.head
	packet := append(make([]byte, segment.HeaderSize, segment.HeaderSize+x.n), x.data[:x.n]...)
	o.e.await(l.b.peer, packet)
	l.done()
}

// release has what waits for a bond that has ended go by the peer's route.
func (o *sender) release(l *line) {
	now := time.Now()
	for x := l.pop(now); x != nil; x = l.pop(now) {
		y := o.take()
		if f, ok := flowOf(x.data[:x.n]); ok && segment.HeaderSize+x.n <= len(y.data)-wireguard.PaddingMultiple {
			clear(y.data[:segment.HeaderSize])
			y.peer, y.n = x.peer, segment.HeaderSize+copy(y.data[segment.HeaderSize:], x.data[:x.n])
			o.queue.Push(now, queue.Item[*parcel]{Value: y, Size: x.n, Flow: f.hash, Peer: uint32(y.peer.id), Class: f.class(), ECN: f.ecn})
		} else {
			o.e.drops.noRoute.Add(1)
			o.free(y)
		}
		l.done()
	}
}
