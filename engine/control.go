package engine

import (
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"time"

	"weft"
	"weft/wireguard"
)

const (
	// messagesQueued is how many handshake messages wait at most: 50 ms of them, at 0.2 ms for what Curve25519 costs.
	messagesQueued = 256
	// loadedAt is how many waiting messages are load, under which cookies are asked for; loadedFor how long after
	// that it still is, so that a sender has the time to use its cookie (wireguard-go has an eighth, and a second, too).
	loadedAt  = messagesQueued / 8
	loadedFor = time.Second
	// postsQueued is how many notes wait at most. What makes them tries again with its next packet.
	postsQueued = 1024
	// sampleEvery is how often the times of peers with traffic are looked at: WireGuard's shortest timer but one is 10 s.
	sampleEvery = time.Second
	// quietAfter is when a peer without packets is no longer looked at.
	quietAfter = 2 * sampleEvery
)

// A control is the slow half: one goroutine owns the protocol's state.
type control struct {
	e        *Engine
	dev      *wireguard.Device
	messages chan message
	posts    chan post
	calls    chan func(now time.Time)
	burst    *burst
	out      wireguard.Actions

	busy     []*peer
	sampleAt time.Time
	load     load
}

// A message is a handshake message, with where it came from.
type message struct {
	source
	link weft.LinkID
	from netip.AddrPort // not valid of what came through a relay
	n    int
	b    [wireguard.InitiationSize]byte
}

// A post is a note to the control goroutine.
type post struct {
	peer    *peer
	what    what
	session *session // of confirmed
}

type what uint8

const (
	wanted    what = iota + 1 // a packet waits for a session
	confirmed                 // something came by a session that the peer began
	active                    // a peer has traffic again
	routed                    // a peer's route changed
	greeted                   // a peer is known to receive
)

func newControl(e *Engine, dev *wireguard.Device) *control {
	out := newBurst(e)
	out.writer.Patient = true
	return &control{
		e: e, dev: dev, burst: out, load: load{seed: rand.Uint64()},
		messages: make(chan message, messagesQueued), posts: make(chan post, postsQueued), calls: make(chan func(time.Time)),
	}
}

// hand passes a message on, unless too many wait.
func (c *control) hand(m *message) {
	select {
	case c.messages <- *m:
	default:
		c.e.drops.strange.Add(1)
	}
}

// tryPost leaves a note, and reports whether there was room for it.
func (c *control) tryPost(p post) bool {
	select {
	case c.posts <- p:
		return true
	default:
		return false
	}
}

// post leaves a note that must not get lost. Callbacks may not use it.
func (c *control) post(p post) {
	select {
	case c.posts <- p:
	case <-c.e.course.done:
	}
}

// do has f run on the goroutine and waits for it; false: the engine has ended.
func (c *control) do(f func(now time.Time)) bool {
	ran := make(chan struct{})
	select {
	case c.calls <- func(now time.Time) { f(now); close(ran) }:
		<-ran
		return true
	case <-c.e.course.done:
		return false
	}
}

func (c *control) run() {
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-c.e.course.done:
			return
		case m := <-c.messages:
			c.message(time.Now(), &m)
		case p := <-c.posts:
			c.note(time.Now(), p)
		case f := <-c.calls:
			f(time.Now())
		case <-timer.C:
		}
		timer.Reset(time.Until(c.work(time.Now())))
	}
}

// work does what is due and says when more will be.
func (c *control) work(now time.Time) time.Time {
	if len(c.busy) > 0 && !now.Before(c.sampleAt) {
		c.sample(now)
	}
	c.dev.Poll(now, &c.out)
	next := c.out.Next
	c.act(now, nil)
	if next.IsZero() {
		next = now.Add(time.Hour)
	}
	if len(c.busy) > 0 && c.sampleAt.Before(next) {
		next = c.sampleAt
	}
	return next
}

// sample tells the device what packets have come and gone.
func (c *control) sample(now time.Time) {
	c.sampleAt = now.Add(sampleEvery)
	kept := c.busy[:0]
	for _, p := range c.busy {
		if now.Sub(c.e.at(max(p.sent.Load(), p.received.Load()))) > quietAfter {
			p.busy.Store(false) // first, so that what comes now is noticed again
		} else {
			kept = append(kept, p)
		}
		c.observe(p)
	}
	clear(c.busy[len(kept):])
	c.busy = kept
}

func (c *control) observe(p *peer) {
	if p.wg == nil {
		return // it was removed
	}
	a := wireguard.Activity{
		Sent: c.e.at(p.sent.Load()), Received: c.e.at(p.received.Load()),
		DataSent: c.e.at(p.dataSent.Load()), DataReceived: c.e.at(p.dataReceived.Load()),
	}
	if s := p.current.Load(); s != nil {
		a.Counter = s.next.Load()
	}
	c.dev.Observe(p.wg, a)
}

// note acts on a note.
func (c *control) note(now time.Time, n post) {
	p := n.peer
	if n.session != nil {
		p = n.session.peer
	}
	if p.wg == nil {
		return // it was removed meanwhile
	}
	switch n.what {
	case wanted:
		c.dev.Want(now, p.wg, &c.out)
		c.act(now, nil)
	case greeted:
		c.dev.Greet(now, p.wg, &c.out)
		c.act(now, nil)
	case confirmed:
		c.dev.Confirm(now, n.session.Session, &c.out)
		c.act(now, nil)
	case active:
		if len(c.busy) == 0 {
			c.sampleAt = now.Add(sampleEvery)
		}
		c.busy = append(c.busy, p)
	case routed:
		c.release(now, p)
	}
}

// message has the device look at a handshake message.
func (c *control) message(now time.Time, m *message) {
	at := c.e.nanos(now)
	if len(c.messages) >= loadedAt {
		c.load.set(at)
	}
	loaded := c.load.is(at)
	if loaded {
		c.load.publish(c.dev.CookieSecret(now))
	}
	if err := c.dev.Handle(now, m.sender(m.from), m.b[:m.n], loaded, &c.out); err != nil {
		c.e.log.Debug("a handshake message was not taken", "error", err)
	}
	c.act(now, m)
}

// relayedFrom stands for the address of a peer whose messages come through relays: cookies are bound to it and handshakes
// limited by it. It is of the range that RFC 6666 sets aside for no host, a /64 each.
func relayedFrom(id weft.NodeID) netip.AddrPort {
	ip := [16]byte{0: 1}
	binary.BigEndian.PutUint32(ip[4:], uint32(id))
	return netip.AddrPortFrom(netip.AddrFrom16(ip), 0)
}

// sender is the address that cookies are bound to and handshakes limited by, of what came from an underlay address, or from none
// through a relay.
func (s source) sender(from netip.AddrPort) netip.AddrPort {
	if !from.IsValid() {
		return relayedFrom(s.peer.id)
	}
	return from
}

// act does what the device wants done. M is what it answers, if it does.
func (c *control) act(now time.Time, m *message) {
	for _, x := range c.out.Changes {
		c.change(now, x, m)
	}
	for _, d := range c.out.Send {
		switch {
		case d.Back && m != nil:
			c.answer(now, m, d)
		case d.Peer != nil:
			p := d.Peer.Owner.(*peer)
			c.e.touch(p, c.e.nanos(now))
			c.send(now, p, d.Message)
		}
	}
	for _, wg := range c.out.Keepalives {
		c.keepalive(now, wg.Owner.(*peer))
	}
	c.out.Changes, c.out.Send, c.out.Keepalives = c.out.Changes[:0], c.out.Send[:0], c.out.Keepalives[:0]
}

// change follows a session.
func (c *control) change(now time.Time, x wireguard.Change, m *message) {
	p := x.Peer.Owner.(*peer)
	switch x.What {
	case wireguard.Began:
		c.e.sessions.add(c.e.newSession(x.Session, p))
		if p.plain && m != nil && m.from.IsValid() && c.e.follow(p, weft.DirectVia(m.link, m.from)) {
			c.release(now, p) // and no note of it: who takes them cannot wait for room for one
		}
	case wireguard.Current:
		p.handshake.Store(c.e.nanos(now))
		if s := c.e.sessions.find(x.Session.Local); s != nil {
			c.start(now, p, s)
		}
		p.wanting.Store(false)
	case wireguard.Ended:
		if s := c.e.sessions.remove(x.Session.Local); s != nil {
			p.current.CompareAndSwap(s, nil)
		}
	case wireguard.GaveUp:
		c.giveUp(p)
	}
}

// start makes a session the one to send by, after what has been waiting for one.
func (c *control) start(now time.Time, p *peer, s *session) {
	w := &p.waiting
	w.mu.Lock()
	defer w.mu.Unlock()
	if way := p.route.Load(); way != nil {
		for _, x := range w.packets {
			if reply := c.burst.add(s, way, c.e.nanos(now), x.data[:x.n]); reply != nil {
				c.e.deliver(c.e.senders[0].from, reply)
			}
		}
		c.burst.flush()
	} else {
		c.e.drops.noRoute.Add(uint64(len(w.packets)))
	}
	w.packets, w.bytes = nil, 0
	p.current.Store(s)
}

// giveUp drops what waited for a session that did not come about.
func (c *control) giveUp(p *peer) {
	w := &p.waiting
	w.mu.Lock()
	c.e.drops.noSession.Add(uint64(len(w.packets)))
	w.packets, w.bytes = nil, 0
	w.mu.Unlock()
	p.wanting.Store(false)
}

// keepalive sends an empty packet, unless there was another just now.
func (c *control) keepalive(now time.Time, p *peer) {
	if s := p.current.Load(); s != nil && p.sent.Load() != c.e.nanos(now) {
		_ = c.e.sealInner(c.burst, s, nil, copyNone, nil) // without a way there is none to keep alive
	}
}

// answer sends what a message is answered with. To an address that is nobody's it goes back; a peer gets it by its route, or
// else by the way that it called by.
func (c *control) answer(now time.Time, m *message, d wireguard.Datagram) {
	switch {
	case m.peer == nil || d.Peer == nil || d.Peer.Owner.(*peer) != m.peer:
		if !m.from.IsValid() {
			return
		}
		if err := c.e.write(m.link, m.from, d.Message, 0); err != nil {
			c.e.failed(1, err)
		}
	case m.peer.route.Load() == nil:
		if err := c.transmit(m.peer, m.way, d.Message); err != nil {
			c.e.failed(1, err)
		}
	default:
		c.send(now, m.peer, d.Message)
	}
}

// send sends a handshake message by the route, or keeps it until there is one.
func (c *control) send(now time.Time, p *peer, message []byte) {
	w := p.route.Load()
	if w != nil {
		err := c.transmit(p, w, message)
		if err == nil {
			return
		}
		if err != ErrNoWay {
			c.e.failed(1, err)
			return
		}
	}
	if p.held.message != nil {
		c.e.drops.noRoute.Add(1)
	}
	p.held = held{now, message}
}

// release sends the message that waits for a route, unless WireGuard has given it up.
func (c *control) release(now time.Time, p *peer) {
	h := p.held
	if h.message == nil {
		return
	}
	p.held = held{}
	if now.Sub(h.at) >= wireguard.RekeyTimeout {
		c.e.drops.noRoute.Add(1)
		return
	}
	c.send(now, p, h.message)
}

// transmit sends one message by a way.
func (c *control) transmit(p *peer, w *way, message []byte) error {
	var err error
	if w.via.Method == weft.Direct {
		err = c.e.write(w.via.Link, w.via.Addr, message, 0)
	} else {
		err = c.e.relayOne(p.id, w.via, message)
	}
	if err == nil {
		w.txPackets.Add(1)
		w.txBytes.Add(uint64(len(message)))
		p.sent.Store(c.e.now())
	}
	return err
}

// Greet begins a handshake with a peer, unless one was begun within WireGuard's REKEY_TIMEOUT of 5 s. It is for
// the moment when the peer is first known to receive: an initiation that data caused before that was lost, the
// next would come 5 s later, and until then the data waits.
func (e *Engine) Greet(id weft.NodeID) {
	if p := e.peer(id); p != nil {
		e.control.post(post{peer: p, what: greeted})
	}
}

// nanos is a moment as the hot path has it.
func (e *Engine) nanos(t time.Time) int64 { return int64(t.Sub(e.began)) }
