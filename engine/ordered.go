package engine

import (
	"sync"
	"time"

	"weft"
	"weft/bond"
	"weft/engine/queue"
	"weft/wire"
	"weft/wireguard"
)

// An ordered is the receiving half of a bond: it is there from the peer's first offer on. Packets are opened as they come and put in
// order afterwards, so that strangers cannot have anything held, and what is weft's own is seen at once.
type ordered struct {
	e    *Engine
	peer *peer

	mu     sync.Mutex // held while packets of the peer are opened; before bonded's
	recv   *bond.Receiver
	burst  *burst // feedback goes out by it
	timer  *time.Timer
	alarm  time.Duration // when the timer is set for; bond.Never: it is not
	ended  bool          // the peer is no more, or the engine: the timer does nothing
	turns  int           // feedback sent
	came   *way          // by which the latest data came; nil: none
	socket inbox         // whose messages are being worked on
	frame  wire.Feedback
	room   [wire.MaxFeedbackSize + wireguard.PaddingMultiple]byte
}

// orderOf finds the receiving half of a bond, or makes it.
func (e *Engine) orderOf(p *peer) *ordered {
	if r := p.order.Load(); r != nil {
		return r
	}
	r := &ordered{e: e, peer: p, burst: newBurst(e), alarm: bond.Never}
	r.recv = bond.NewReceiver(bond.ReceiverConfig{Unread: r.unread})
	p.order.CompareAndSwap(nil, r)
	e.sockets.Stamp() // the sender reckons with when packets came, not with when they were read
	return p.order.Load()
}

// name notes what the peer calls a way by which its offer came, and answers.
func (r *ordered) name(s *session, w *way, offer wire.Offer) {
	r.recv.Named(r.e.numbered(r.peer, w), offer.Path)
	answer := wire.AppendOffer(r.room[:0], wire.Offer{Seq: offer.Seq, Path: offer.Path, Answer: true})
	if err := r.e.sealInner(r.burst, s, w, copyNext, answer); err != nil {
		r.e.failed(1, err)
	}
}

// withdrawAgain is how long it takes until who goes on telling of what came is told again that there is no bond: the first may be lost, and an older
// node does not know what it means.
const withdrawAgain = 500 * time.Millisecond

// withdraw tells a peer that there is no bond, or it would wait for what is lost, which nobody sends again. Its feedback is the
// sign that it does not know.
func (o *opener) withdraw(s *session) {
	p := s.peer
	if last := p.withdrew.Load(); last != 0 && o.now-last < int64(withdrawAgain) {
		return
	}
	p.withdrew.Store(o.now)
	var out *burst
	if o.order != nil {
		out = o.order.burst
	} else { // the peer offers nothing itself
		out = newBurst(o.e)
	}
	var room [wire.WithdrawalSize + wireguard.PaddingMultiple]byte
	if err := o.e.sealInner(out, s, nil, copyNone, wire.AppendWithdrawal(room[:0])); err != nil {
		o.e.failed(1, err)
	}
	if b := p.bond.Load(); b != nil { // it has been made meanwhile, and may have offered before this
		b.mu.Lock()
		b.offerAt, b.tries = 0, max(b.tries, 1)
		b.mu.Unlock()
	}
}

// numbered is the number of a way.
func (e *Engine) numbered(p *peer, w *way) bond.PathID {
	if n := w.number.Load(); n != 0 {
		return bond.PathID(n)
	}
	w.number.CompareAndSwap(0, p.numbered.Add(1))
	return bond.PathID(w.number.Load())
}

// tell sends the feedback that is due: by the way that takes least time, and every other by that as well by which the latest
// data came, which works at least in that direction; and by another, whatever that is for, what the peer does not seem to hear. R.mu is held.
func (r *ordered) tell(now time.Duration) {
	s := r.peer.current.Load()
	if b, w := r.peer.bond.Load(), r.peer.route.Load(); s != nil && b != nil && w != nil && !b.on.Load() {
		if offer, ok := b.solicit(now, w); ok {
			if err := r.e.sealInner(r.burst, s, nil, copyNone, wire.AppendOffer(r.room[:0], offer)); err != nil {
				r.e.failed(1, err)
			}
		}
	}
	for s != nil && r.recv.Feedback(now, &r.frame) {
		r.turns++
		c := copyNone
		switch {
		case r.recv.Elsewhere():
			c = copyElse
		case r.turns%2 == 0:
			c = copyNext
		}
		if err := r.e.sealInner(r.burst, s, r.came, c, wire.AppendFeedback(r.room[:0], &r.frame)); err != nil {
			r.e.failed(1, err)
		}
	}
}

// An inbox is a socket that messages come to, of a link and an address family.
type inbox struct {
	link weft.LinkID
	six  bool
	some bool // there is one
}

// inbox is where what comes by a way comes to.
func (e *Engine) inbox(w *way) inbox {
	via := w.via
	if via.Method == weft.RelayUDP {
		r := e.relays.Load().byID[via.Relay]
		if r == nil || r.udp == nil {
			return inbox{}
		}
		via = r.udp.via
	}
	if via.Method != weft.Direct && via.Method != weft.RelayUDP {
		return inbox{}
	}
	return inbox{via.Link, via.Addr.Addr().Is6(), true}
}

// unread reports whether something that came by a way may lie unread: then nothing that is missing of it is overdue, since
// it is this machine that is late. R.mu is held.
func (r *ordered) unread(id bond.PathID) bool {
	var in inbox
	r.e.mu.RLock()
	for _, w := range r.peer.ways {
		if w.path() == id {
			in = r.e.inbox(w)
			break
		}
	}
	r.e.mu.RUnlock()
	return in.some && r.e.sockets.Unread(in.link, in.six, in == r.socket)
}

// settle has what is due happen, and sets the timer for what will be. R.mu is held, and what was in order is delivered.
func (r *ordered) settle(now time.Duration) {
	at := r.recv.Wake()
	if at <= now {
		r.tell(now)
		at = max(r.recv.Wake(), now+leastWait)
	}
	if r.ended || at == bond.Never {
		return // an alarm that is set looks again
	}
	// What comes next has this happen, if it comes as soon as its socket is read again.
	if at += min(r.peer.collects(), collectMost); r.alarm == at {
		return
	}
	r.alarm = at
	if r.timer == nil {
		r.timer = time.AfterFunc(at-now, r.ring)
	} else {
		r.timer.Reset(at - now)
	}
}

// ring delivers what has waited long enough.
func (r *ordered) ring() {
	r.mu.Lock()
	select {
	case <-r.e.course.done:
		r.ended = true // it was made when the engine had stopped the others
	default:
	}
	if r.ended {
		r.mu.Unlock()
		return
	}
	r.e.course.ended.Add(1) // before anything waits: that comes after stop
	defer r.e.course.ended.Done()
	o := r.e.opener()
	o.begin()
	r.alarm = bond.Never
	o.order = r
	o.to = o.e.senderOf(r.peer)
	o.letGo()
	o.end()
	r.e.putOpener(o)
}

// stop ends it: the peer is no more, or the engine ends, which waits for a timer that is at work already.
func (r *ordered) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.timer != nil {
		r.timer.Stop()
	}
}

// urgent reports whether a packet is delivered at once, whatever was sent before it.
func (r *ordered) urgent(packet []byte) bool {
	dscp, proto, ports := classOf(packet)
	if queue.ClassOf(dscp) == queue.Urgent {
		return true
	}
	b := r.peer.bond.Load()
	return b != nil && b.ruled(dscp, proto, ports)
}
