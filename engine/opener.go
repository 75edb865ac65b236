package engine

import (
	"log/slog"
	"net/netip"
	"time"

	"weft"
	"weft/bond"
	"weft/engine/fit"
	"weft/engine/segment"
	"weft/engine/underlay"
	"weft/host"
	"weft/wire"
	"weft/wireguard"
)

// An opener opens what one socket or stream has received, and writes it to the device. One goroutine at a time has it.
type opener struct {
	sources      sourceMemory // first, so that each of its entries is one line of the cache
	e            *Engine
	sieve        *wireguard.Sieve
	merge, spare *segment.Merger // spare is nil until it is needed
	to           *sender         // by whose queue it is written
	wrote        int             // packets
	session      *session        // whose window is held
	order        *ordered        // of its peer, held as well; nil: what comes is delivered as it comes
	came, data   bool            // by it: something authentic, something with a packet in it
	routes       *routing
	gate         gate
	run          run
	socket       inbox         // whose messages these are
	near         time.Duration // for how long what comes of the session's peer may lie
	collect      time.Duration // for how long the next may lie in it; negative: no peer is known yet that it is from
	now          int64
	unread       time.Duration // for how long what is read now lay in its socket
	feedback     wire.Feedback // the last
}

// A run is a stretch of packets that came the same way: counted together.
type run struct {
	source
	link weft.LinkID
	from netip.AddrPort // of a direct run

	packets, bytes uint64
	data           bool
}

// For how long packets of a peer may lie in their socket that follow each other closely, so that one wake-up takes several, which otherwise
// cost more than the packets: a share of the peer's shortest round trip, of which the packet waits half on average.
const (
	collectShare = 16
	collectMost  = time.Millisecond
	// collectLeast is the least for which it is worth it: somewhat more than the kernel's slack of timers, 50 us.
	collectLeast = 200 * time.Microsecond
)

// openSpare is how much longer than a packet what is opened may be, in bytes: padding and tag.
const openSpare = wireguard.PaddingMultiple + wireguard.TagSize

// receive takes what came to sockets. It is called from the goroutine of one of them.
func (e *Engine) receive(in *underlay.Incoming) {
	o := e.opener()
	o.begin()
	for reads := in.Next(); len(reads) > 0; reads = in.Next() {
		link, six := in.Link()
		in.MayLie(o.messages(inbox{link, six, true}, reads))
	}
	o.end()
	o.socket, o.unread = inbox{}, 0
	e.putOpener(o)
}

// messages takes what came to one socket, and tells for how long the next may lie in it.
func (o *opener) messages(from inbox, reads []host.UDPRead) (collect time.Duration) {
	o.now = o.e.now()
	o.socket, o.collect = from, -1
	o.ahead(reads)
	for i := range reads {
		o.unread = reads[i].Unread
		o.read(from.link, &reads[i])
	}
	if collect = min(o.collect, collectMost); collect < collectLeast {
		return 0
	}
	return collect
}

func (o *opener) begin() {
	o.now = o.e.now()
	o.routes = o.e.routes.Load()
	o.gate.load(o.e)
}

// end writes what is left and lets everything go.
func (o *opener) end() {
	o.endRun()
	o.hold(nil)
	o.write()
}

// read takes one message: a run of datagrams from one sender.
func (o *opener) read(link weft.LinkID, m *host.UDPRead) {
	for data := m.Data; len(data) > 0; {
		b := data[:min(len(data), max(m.Segment, 1))]
		data = data[len(b):]
		switch wire.Classify(b) {
		case wire.ClassWireGuard:
			if o.run.from != m.From || o.run.link != link {
				o.endRun()
				o.run = run{source: o.sources.source(o.e, link, m.From), link: link, from: m.From}
			}
			o.packet(b)
		case wire.ClassSTUN:
			o.e.handler.HandleDatagram(link, m.From, wire.ClassSTUN, b)
		case wire.ClassWeft:
			kind, ok := wire.KindOf(b)
			switch {
			case !ok:
				o.e.drops.strange.Add(1)
			case kind == wire.KindData:
				o.relayedFrame(m.From, b)
			default:
				o.e.handler.HandleDatagram(link, m.From, wire.ClassWeft, b)
			}
		default:
			o.e.drops.strange.Add(1)
		}
	}
}

// relayedFrame takes a data frame apart.
func (o *opener) relayedFrame(from netip.AddrPort, frame []byte) {
	id, payload, err := wire.ParseData(frame)
	if err != nil {
		o.e.drops.strange.Add(1)
		return
	}
	r := o.e.relays.Load().byUDP[from]
	if r == nil {
		o.e.drops.notRelay.Add(1)
		return
	}
	o.relayed(id, weft.Via{Method: weft.RelayUDP, Relay: r.id}, payload)
}

// relayed takes a datagram that came through a relay from a node.
func (o *opener) relayed(id weft.NodeID, via weft.Via, b []byte) {
	if o.run.way == nil || o.run.peer.id != id || o.run.way.via != via {
		src, ok := o.e.relaySource(id, via)
		if !ok {
			return
		}
		o.endRun()
		o.run = run{source: src}
	}
	switch wire.Classify(b) {
	case wire.ClassWireGuard:
		o.packet(b)
		return
	case wire.ClassWeft:
		if kind, ok := wire.KindOf(b); ok && kind == wire.KindPeer {
			o.e.handler.HandleRelayed(via, id, b)
			return
		}
	}
	o.e.drops.strange.Add(1)
}

// packet takes a WireGuard message of the run.
func (o *opener) packet(b []byte) {
	index, counter, ok := wireguard.Transport(b)
	if !ok {
		o.handshake(b)
		return
	}
	o.run.packets++
	o.run.bytes += uint64(len(b))
	o.run.data = o.run.data || len(b) > wireguard.KeepaliveSize
	s := o.session
	if s == nil || s.Local != index {
		if s = o.e.sessions.find(index); s == nil {
			o.e.drops.strange.Add(1)
			return
		}
		o.hold(s)
	}
	if o.collect < 0 || o.near < o.collect {
		o.collect = o.near
	}
	o.open(s, counter, b)
}

// open opens a transport message and puts what was in it where the device gets it from.
func (o *opener) open(s *session, counter uint64, b []byte) {
	if o.now >= s.until || !s.window.Check(counter) {
		o.e.drops.unopened.Add(1)
		if r := o.order; r != nil && o.now < s.until && r.recv.Duplicate(time.Duration(o.now), o.arrival(), o.path(), s.Local, counter, len(b)) && o.run.way != nil {
			r.came = o.run.way
		}
		return
	}
	most := len(b) - wireguard.HeaderSize
	place := o.merge.Place(most)
	if place == nil {
		o.write()
		if place = o.merge.Place(most); place == nil {
			o.e.drops.strange.Add(1) // longer than any packet
			return
		}
	}
	packet, ok := s.Open(place, b)
	if !ok || !s.window.Take(counter) {
		o.merge.Undo()
		o.e.drops.unopened.Add(1)
		return
	}
	if s.fresh.Load() && s.fresh.CompareAndSwap(true, false) && !o.e.control.tryPost(post{session: s, what: confirmed}) {
		s.fresh.Store(true) // the next one does it
	}
	p := s.peer
	o.came = true
	if p.plain {
		o.roam(p)
	}
	if len(packet) == 0 {
		o.merge.Undo()
		o.arrived(s, counter, len(b), nil)
		return
	}
	if kind, ok := wire.InnerKind(packet); ok {
		o.control(s, kind, packet)
		o.merge.Undo()
		o.arrived(s, counter, len(b), nil)
		return
	}
	n, from := innerLength(packet)
	if n == 0 || !o.belongs(from, s) {
		o.merge.Undo()
		o.e.drops.foreign.Add(1)
		o.arrived(s, counter, len(b), nil)
		return
	}
	o.data = true
	if o.gate.shut() && !o.gate.admits(o.e, p, o.now, packet[:n]) {
		o.merge.Undo()
		o.arrived(s, counter, len(b), nil)
		return
	}
	if w := p.route.Load(); w != nil {
		if most := int(w.mtu.Load()); most != 0 && most < o.e.mtu {
			fit.Clamp(packet[:n], most)
		}
	}
	if o.order == nil {
		o.add(n)
		return
	}
	if o.arrived(s, counter, len(b), packet[:n]) {
		o.add(n)
	} else {
		o.merge.Undo()
	}
	o.drain()
}

// add puts the packet of n bytes that was put where the merger said behind those that are there.
func (o *opener) add(n int) {
	if !o.merge.Add(n) {
		if o.spare == nil {
			o.spare = segment.NewMerger(openSpare)
		}
		o.merge.Move(n, o.spare)
		o.write()
		o.merge, o.spare = o.spare, o.merge
	}
}

// arrived tells who keeps the order, if somebody does, of an authentic message, with the packet in it or nil. True: it is to be
// delivered now.
func (o *opener) arrived(s *session, counter uint64, size int, packet []byte) bool {
	r := o.order
	if r != nil && packet != nil && o.run.way != nil {
		r.came = o.run.way
	}
	return r != nil && r.recv.Arrive(time.Duration(o.now), o.arrival(), o.path(), s.Local, counter, size, packet, packet != nil && r.urgent(packet))
}

// arrival is when what is worked on came to this machine.
func (o *opener) arrival() time.Duration { return time.Duration(o.now) - o.unread }

// path is the number of the way that the run came by; of one that nobody told of it is zero.
func (o *opener) path() bond.PathID {
	if o.run.way == nil || o.run.peer != o.order.peer {
		return 0
	}
	return o.e.numbered(o.run.peer, o.run.way)
}

// drain delivers what was held and has its turn now.
func (o *opener) drain() {
	for p := o.order.recv.Next(time.Duration(o.now)); p != nil; p = o.order.recv.Next(time.Duration(o.now)) {
		place := o.merge.Place(len(p))
		if place == nil {
			o.write()
			place = o.merge.Place(len(p))
		}
		copy(place[:len(p)], p)
		o.add(len(p))
	}
}

// control takes a frame of weft's own that came inside a session.
func (o *opener) control(s *session, kind byte, frame []byte) {
	p := s.peer
	switch kind {
	case wire.InnerOffer:
		offer, err := wire.ParseOffer(frame)
		if err != nil {
			break
		}
		if offer.Answer {
			if b := p.bond.Load(); b != nil {
				b.answered(offer.Seq)
			}
			return
		}
		if o.run.way == nil || o.run.peer != p {
			return // from where nobody told of
		}
		r := o.e.orderOf(p)
		if o.order == nil {
			r.mu.Lock()
			o.order = r
		}
		r.name(s, o.run.way, offer)
		return
	case wire.InnerFeedback:
		if err := wire.ParseFeedback(frame, &o.feedback); err != nil {
			break
		}
		if b := p.bond.Load(); b != nil {
			b.heardOf(time.Duration(o.now), o.arrival(), &o.feedback)
		} else {
			o.withdraw(s)
		}
		return
	case wire.InnerWithdrawal:
		if o.order != nil {
			o.order.recv.Alone()
		}
		return
	}
	o.e.drops.foreign.Add(1)
}

// belongs reports whether an inner source address is the peer's (section 2) of a session that is held.
func (o *opener) belongs(from netip.Addr, s *session) bool {
	if from == s.from && s.fromBy == o.routes.number {
		return true
	}
	wg := o.routes.Lookup(from)
	if wg == nil || wg != s.Peer && !o.also(from, s.peer) {
		return false
	}
	s.from, s.fromBy = from, o.routes.number
	return true
}

// also reports whether a peer may send from an address that is another's: both are routers of the address's network.
func (o *opener) also(from netip.Addr, p *peer) bool {
	list := p.also.Load()
	if list == nil {
		return false
	}
	bits := o.routes.Bits(from)
	for _, r := range *list {
		if r.Bits() >= bits && r.Contains(from) {
			return true
		}
	}
	return false
}

// roam follows a plain peer to where its packets come from.
func (o *opener) roam(p *peer) {
	if o.run.from.IsValid() && o.e.follow(p, weft.DirectVia(o.run.link, o.run.from)) {
		o.e.control.post(post{peer: p, what: routed})
	}
}

// hold has the window of one session and lets the last one go; nil: of none.
func (o *opener) hold(s *session) {
	if o.session == s {
		return
	}
	if o.order != nil {
		o.letGo()
	}
	if last := o.session; last != nil {
		last.mu.Unlock()
		if o.came {
			last.peer.received.Store(o.now)
			if o.data {
				last.peer.dataReceived.Store(o.now)
			}
			o.e.watch(last.peer)
		}
		o.came, o.data = false, false
	}
	if o.session = s; s != nil {
		s.mu.Lock()
		o.to = o.e.senderOf(s.peer)
		o.near = s.peer.collects()
		if r := s.peer.order.Load(); r != nil {
			r.mu.Lock()
			o.order = r
		}
	}
}

// collects is for how long what comes of a peer may lie: not at all, unless it is known to be far away.
func (p *peer) collects() time.Duration {
	if b := p.bond.Load(); b != nil && b.on.Load() {
		return time.Duration(b.near.Load()) / collectShare
	}
	return 0
}

// letGo delivers what is in order now, while nobody else can, and has feedback sent.
func (o *opener) letGo() {
	r := o.order
	o.drain()
	o.write()
	r.socket = o.socket
	r.settle(time.Duration(o.now))
	o.order = nil
	r.mu.Unlock()
}

// senderOf is the sender to whose queue of the device a peer's packets are written.
func (e *Engine) senderOf(p *peer) *sender { return e.senders[int(p.id)%len(e.senders)] }

// endRun counts a run.
func (o *opener) endRun() {
	r := &o.run
	if r.packets > 0 && r.peer != nil {
		r.way.rxPackets.Add(r.packets)
		r.way.rxBytes.Add(r.bytes)
		if r.data {
			o.e.touch(r.peer, o.now)
		}
	}
	o.run = run{}
}

// write writes what was put together to the device.
func (o *opener) write() {
	if o.merge.Len() > 0 {
		o.wrote += o.merge.Len()
		o.e.deliver(o.to.from, o.merge.Take())
	}
}

// deliver writes a packet to the device, if there is one.
func (e *Engine) deliver(to Queue, packet []byte) {
	if len(packet) == 0 {
		return
	}
	if err := to.Write(packet); err != nil {
		e.drops.deviceFull.Add(1)
		e.quiet.say(slog.LevelDebug, "device", "the interface did not take a packet", "error", err)
	}
}

// DeliverStream takes datagrams that came by a relay's stream from a node; they are valid during the call only, and its
// to change.
func (e *Engine) DeliverStream(id weft.RelayID, src weft.NodeID, datagrams [][]byte) {
	o := e.opener()
	o.begin()
	for _, b := range datagrams {
		o.relayed(src, weft.Via{Method: weft.RelayStream, Relay: id}, b)
	}
	o.end()
	e.putOpener(o)
}

// watch has the control goroutine look at a peer's times, as long as it is not quiet.
func (e *Engine) watch(p *peer) {
	if !p.busy.Load() && p.busy.CompareAndSwap(false, true) && !e.control.tryPost(post{peer: p, what: active}) {
		p.busy.Store(false)
	}
}
