package engine

import (
	"cmp"
	"encoding/binary"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/bond"
	"weft/wire"
	"weft/wireguard"
)

// How a bond is offered (wire.Offer).
const (
	// offerSoon is how long an answer is waited for, which takes a round trip; offerTries is how often an offer is repeated then, and
	// offerSeldom when again where there was no answer: a peer that does not bond.
	offerSoon   = 500 * time.Millisecond
	offerTries  = 6
	offerSeldom = 30 * time.Second
	// offerAgain is how often it is said again while data flows: the peer may have started anew. offerNamed is how often while it
	// does not know the number of a way that carries data.
	offerAgain = 5 * time.Second
	offerNamed = time.Second
	// unheardFor is how long packets go by several ways while the peer says nothing of them.
	unheardFor = 3 * time.Second
	// lingerFor is how long a bond of which one way is left goes on: outages of links last seconds, and what flaps rests for some. What was lost by the others
	// is sent again by the one that is left, and a way that is back joins the same bond and proves itself first. To end one and begin
	// another costs an offer and its answer, in which nothing is sent again, and then all ways begin as if none of them had failed.
	// It costs what any bond does: feedback while data flows, and copies. One without data ends with the way (set).
	lingerFor = time.Minute
)

// A bonded is the sending half of a bond: it is there while the peer has several ways, and for a while after. Its senders are those of the
// device's queues, each with packets in a line of its own.
type bonded struct {
	e    *Engine
	peer *peer
	on   atomic.Bool // the peer puts in order what comes: packets may go by several ways

	rules atomic.Pointer[[]BondRule]
	near  atomic.Int64 // the least round trip of its ways, in nanoseconds; 0: one is not known
	limit atomic.Int32 // the longest inner packet that all ways take, in bytes; 0: as long as the device's

	mu      sync.Mutex
	conf    Bond
	send    *bond.Sender
	ways    []*way // that may be named; those of conf are the first of them
	live    int    // how many are conf's
	home    *sender
	asleep  uint64        // senders, by number, that wait for feedback
	until   time.Duration // home sleeps no longer
	closing time.Duration // the bond ends; 0: it does not
	gone    bool          // it has ended: what waits goes by the route
	agreed  bool          // the peer has answered an offer of this bond: what it still tells of an earlier one is no answer

	offer    uint32        // number of the last offer
	offerAt  time.Duration // of the next
	tries    int           // since the last answer
	unheard  time.Duration // when the first packet went of which nothing was heard; 0: none
	events   []BondEvent
	scratch  []bond.Event
	statuses []bond.PathStatus
	waiting  [2]int // packets and bytes in lines, as of the last look
}

// bondNow is the time of bonds: that of the hot path.
func (e *Engine) bondNow() time.Duration { return time.Duration(e.now()) }

// bond makes, changes or ends the sending half.
func (e *Engine) bond(p *peer, conf Bond) {
	var ways []*way
	conf.Ways = slices.DeleteFunc(slices.Clone(conf.Ways), func(w BondWay) bool { return canonical(w.Via) == (weft.Via{}) })
	e.mu.Lock()
	for _, w := range conf.Ways {
		ways = append(ways, e.way(p, canonical(w.Via)))
	}
	for _, w := range ways {
		e.learnWay(p, w)
	}
	b := p.bond.Load()
	if conf.Mode != BondOff && len(ways) > 1 && (b == nil || b.conf.Control != conf.Control) {
		if b != nil {
			defer b.end()
		}
		b = &bonded{e: e, peer: p, send: bond.NewSender(bond.SenderConfig{Control: controls[conf.Control]})}
		p.bond.Store(b)
	}
	e.mu.Unlock()
	for _, w := range ways {
		e.sockets.Carry(w.via.Link)
	}
	if b != nil {
		b.set(conf, ways)
	}
}

// canonical is a via in the form that ways have.
func canonical(via weft.Via) weft.Via {
	if via.Method == weft.Direct {
		return weft.DirectVia(via.Link, via.Addr)
	}
	return via
}

// learnWay has packets that come from a bond's way counted there, and not under a link that nobody told of. Engine.mu is held.
func (e *Engine) learnWay(p *peer, w *way) {
	if w.via.Method == weft.Direct {
		if _, known := e.sources[w.via.Addr]; !known {
			e.sources[w.via.Addr] = source{p, e.way(p, weft.DirectVia(0, w.via.Addr))}
			e.sourced.Add(1)
		}
	}
}

// set says which ways live.
func (b *bonded) set(conf Bond, ways []*way) {
	now := b.e.bondNow()
	b.mu.Lock()
	b.conf = conf
	rules := slices.Clone(conf.Rules)
	b.rules.Store(&rules)
	old := b.ways
	b.ways, b.live = slices.Clone(ways), len(ways)
	for _, w := range old { // what is told of later may name them
		if !slices.Contains(b.ways, w) && len(b.ways) < maxWays {
			b.ways = append(b.ways, w)
		}
	}
	switch {
	case conf.Mode == BondOff || len(ways) == 0:
		b.mu.Unlock()
		b.end()
		return
	case len(ways) > 1:
		b.closing = 0
	case b.home == nil: // nothing is on its way
		b.mu.Unlock()
		b.end()
		return
	case b.closing == 0:
		b.closing = now + lingerFor
	}
	paths := make([]bond.Path, 0, len(ways))
	limit := int32(0)
	for i, w := range ways {
		paths = append(paths, bond.Path{ID: b.e.numbered(b.peer, w), Metric: conf.Ways[i].Metric, RTT: conf.Ways[i].RTT, Overhead: w.overhead()})
		if m := w.mtu.Load(); m != 0 && (limit == 0 || m < limit) {
			limit = m
		}
	}
	b.limit.Store(limit)
	b.near.Store(int64(slices.MinFunc(conf.Ways, func(x, y BondWay) int { return cmp.Compare(x.RTT, y.RTT) }).RTT))
	b.send.SetPaths(now, paths)
	b.offerAt = min(b.offerAt, now) // new ways are to be named
	b.collect(now)
	b.mu.Unlock()
	b.rouse()
}

// path is the number of a way that has one.
func (w *way) path() bond.PathID { return bond.PathID(w.number.Load()) }

// overhead is how many bytes are around a message on the underlay.
func (w *way) overhead() int {
	n := sizeUDP
	switch {
	case w.via.Method.Relayed():
		n += sizeIPv4 + wire.DataPrefix
	case w.via.Addr.Addr().Is4():
		n += sizeIPv4
	default:
		n += sizeIPv6
	}
	return n
}

// end has what waits go by the peer's route.
func (b *bonded) end() {
	b.mu.Lock()
	b.leave()
	b.mu.Unlock()
	b.rouse()
}

// leave has no more packets come to the bond. B.mu is held.
func (b *bonded) leave() {
	b.peer.bond.CompareAndSwap(b, nil)
	b.gone = true
	b.on.Store(false)
}

// rouse has the senders look, who may have something to do.
func (b *bonded) rouse() {
	b.mu.Lock()
	home, asleep := b.home, b.asleep
	b.asleep = 0
	b.mu.Unlock()
	for _, o := range b.e.senders {
		if o == home || asleep&(1<<o.number) != 0 {
			o.from.Wake()
		}
	}
}

// way finds the way of a path. B.mu is held.
func (b *bonded) way(id bond.PathID) *way {
	for _, w := range b.ways {
		if w.path() == id {
			return w
		}
	}
	return nil
}

// heardOf is told of feedback that came at some time. It is called by an opener.
func (b *bonded) heardOf(now, came time.Duration, f *wire.Feedback) {
	b.mu.Lock()
	if b.agreed {
		b.unheard, b.tries = 0, 0
		b.on.Store(!b.gone)
	}
	for i := range f.NPaths {
		if w := b.way(bond.PathID(f.Paths[i].ID)); w != nil {
			w.named.Store(true)
			if n := f.Paths[i].Packets; n != w.reported.Load() {
				w.reported.Store(n)
				w.heard.Store(int64(now))
			}
		}
	}
	b.send.Feedback(now, came, f)
	b.collect(now)
	wake := b.asleep != 0 || b.send.Wake() < b.until
	b.mu.Unlock()
	if wake {
		b.rouse()
	}
}

// solicit is an offer by a way, if it is time for one: from who sends no data, and would like to know by which ways its feedback comes.
func (b *bonded) solicit(now time.Duration, w *way) (o wire.Offer, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.gone || now < b.offerAt || !slices.Contains(b.ways[:b.live], w) {
		return o, false
	}
	b.offer++
	b.offerAt = now + offerSeldom
	if b.tries < offerTries {
		b.offerAt = now + offerSoon
	}
	b.tries++
	return wire.Offer{Seq: b.offer, Path: uint16(w.path())}, true
}

// answered is told of an answer to an offer.
func (b *bonded) answered(seq uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if seq != b.offer && seq+1 != b.offer {
		return
	}
	b.unheard, b.tries, b.agreed = 0, 0, true
	b.on.Store(!b.gone)
}

// Arrives tells when a peer last said that more of what is sent to it by a way of its bond had come; zero: never.
func (e *Engine) Arrives(id weft.NodeID, via weft.Via) time.Time {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if p := e.peers[id]; p != nil {
		if w := p.find(canonical(via)); w != nil {
			return e.at(w.heard.Load())
		}
	}
	return time.Time{}
}

// collect takes note of what happened to ways, and tells of those that fell silent. B.mu is held.
func (b *bonded) collect(now time.Duration) {
	b.scratch = b.send.Events(b.scratch[:0])
	for _, x := range b.scratch {
		w := b.way(x.Path)
		if w == nil {
			continue
		}
		if len(b.events) == keptEvents {
			b.events = append(b.events[:0], b.events[1:]...)
		}
		b.events = append(b.events, BondEvent{At: b.e.began.Add(x.At), Via: w.via, From: x.From, To: x.To, Reason: x.Reason})
		if x.To == bond.Silent {
			b.e.handler.Silent(b.peer.id, w.via, x.Reason)
		}
	}
}

// matches reports whether a rule is a packet's.
func (r *BondRule) matches(dscp uint8, proto uint8, ports [2]uint16) bool {
	return (r.DSCP < 0 || int(dscp) == r.DSCP) && (r.Proto == 0 || r.Proto == proto) && (r.Port == 0 || r.Port == ports[0] || r.Port == ports[1])
}

// twice reports whether a packet is of a class that goes by two ways.
func (b *bonded) twice(packet []byte) bool {
	if rules := b.rules.Load(); rules == nil || len(*rules) == 0 {
		return false
	}
	return b.ruled(classOf(packet))
}

// ruled reports whether a rule is for packets of a class.
func (b *bonded) ruled(dscp, proto uint8, ports [2]uint16) bool {
	rules := b.rules.Load()
	if rules == nil {
		return false
	}
	for i := range *rules {
		if (*rules)[i].matches(dscp, proto, ports) {
			return true
		}
	}
	return false
}

// classOf is what rules look at. A fragment has no ports.
func classOf(b []byte) (dscp, proto uint8, ports [2]uint16) {
	if len(b) < sizeIPv4 {
		return 0, 0, ports
	}
	at := 0
	switch b[0] >> 4 {
	case 4:
		dscp, proto, at = b[1]>>2, b[9], int(b[0]&15)*4
		if binary.BigEndian.Uint16(b[6:])&moreOrOffset != 0 {
			return dscp, proto, ports
		}
	case 6:
		if len(b) < sizeIPv6 {
			return 0, 0, ports
		}
		dscp, proto, at = (b[0]<<4|b[1]>>4)>>2, b[6], sizeIPv6
	}
	if (proto == protoTCP || proto == protoUDP) && len(b) >= at+4 {
		ports = [2]uint16{binary.BigEndian.Uint16(b[at:]), binary.BigEndian.Uint16(b[at+2:])}
	}
	return dscp, proto, ports
}

// By how many ways a packet of weft's own goes.
type copies uint8

const (
	copyNone copies = iota // by the best alone
	copyNext               // by a second as well: the one that is named, or where that is nil or the same the next best of those that carry
	copyElse               // by a second as well: the next best, whatever it is for
)

// sealInner seals a packet of weft's own, or a keepalive, and sends it by the way that takes least time, or else the route. What goes by
// a way of the bond is on its books, so that it is sent again if it is lost and no gap stays.
func (e *Engine) sealInner(out *burst, s *session, also *way, c copies, inner []byte) error {
	p := s.peer
	w := p.route.Load()
	b := p.bond.Load()
	booked := false
	if b != nil {
		b.mu.Lock()
		defer b.mu.Unlock()
		if id, ok := b.send.Best(); ok && b.on.Load() {
			if best := b.way(id); best != nil {
				w, booked = best, true
			}
		}
	}
	if w == nil {
		return ErrNoWay
	}
	l, err := e.lane(w)
	if err != nil {
		return err
	}
	message, counter := out.seal(s, l, inner, len(inner)+wireguard.PaddingMultiple)
	if message == nil {
		return ErrNoWay
	}
	now := e.now()
	w.txPackets.Add(1)
	w.txBytes.Add(uint64(len(message)))
	p.sent.Store(now)
	if booked {
		b.send.SentControl(time.Duration(now), w.path(), s.Remote, counter, message)
		if c == copyNone && b.conf.Mode == BondRedundant {
			c = copyNext // or what is lost is waited for
		}
	}
	if c != copyNone {
		e.copyInner(out, b, s, b.second(time.Duration(now), w, also, c, booked, len(message)), now, counter, message)
	}
	out.flush()
	return nil
}

// second is the way that a copy goes by, nil: none. B.mu is held, if there is a bond.
func (b *bonded) second(now time.Duration, first, also *way, c copies, booked bool, size int) *way {
	if also == first {
		also = nil
	}
	switch {
	case c == copyNext && also != nil:
		return also
	case !booked && b != nil && c == copyElse:
		if i := slices.IndexFunc(b.ways[:b.live], func(w *way) bool { return w != first }); i >= 0 {
			return b.ways[i]
		}
		fallthrough
	case !booked:
		return also
	}
	id, ok := b.send.Second(now, first.path(), size)
	if c == copyElse {
		id, ok = b.send.Other(first.path())
	}
	if !ok {
		return nil
	}
	return b.way(id)
}

// copyInner sends a packet of weft's own by a second way; nil: by none. B.mu is held, if there is a bond.
func (e *Engine) copyInner(out *burst, b *bonded, s *session, w *way, now int64, counter uint64, message []byte) {
	if w == nil {
		return
	}
	if l, err := e.lane(w); err == nil && out.copy(l, s.peer.id, message) {
		if b != nil && slices.Contains(b.ways[:b.live], w) {
			b.send.SentCopy(time.Duration(now), w.path(), s.Remote, counter, len(message))
		}
		w.txPackets.Add(1)
		w.txBytes.Add(uint64(len(message)))
	}
}

// bondStatus tells how a peer's bond does.
func (e *Engine) bondStatus(p *peer) BondStatus {
	var s BondStatus
	if r := p.order.Load(); r != nil {
		r.mu.Lock()
		s.Receiver = r.recv.Stats()
		r.mu.Unlock()
	}
	b := p.bond.Load()
	if b == nil {
		s.Mode, s.Why = BondOff.String(), "there is one way, or none"
		return s
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	s.On, s.Mode, s.Control = b.on.Load() && b.live > 1, b.conf.Mode.String(), b.conf.Control
	if s.Control == "" {
		s.Control = "bbr"
	}
	switch {
	case s.On:
	case b.live == 1:
		s.Why = "there is one way left"
	case p.current.Load() == nil:
		s.Why = "there is no session with the peer yet"
	case b.tries == 0:
		s.Why = "nothing was sent yet"
	case b.tries < offerTries:
		s.Why = "the peer was asked to put in order what comes by several ways, and has not answered yet"
	default:
		s.Why = "the peer does not answer the question whether it can put in order what comes by several ways: it may be of an older version"
	}
	b.statuses = b.send.Status(b.statuses[:0])
	for _, x := range b.statuses {
		if w := b.way(x.ID); w != nil {
			s.Ways = append(s.Ways, BondWayStatus{Via: w.via, PathStatus: x})
		}
	}
	s.Events = slices.Clone(b.events)
	s.QueuePackets, s.QueueBytes = b.waiting[0], b.waiting[1]
	return s
}
