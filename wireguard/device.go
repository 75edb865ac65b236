package wireguard

import (
	"encoding/binary"
	"net/netip"
	"time"
)

// Config is what a Device is made of.
type Config struct {
	Private Key
	// Rand fills a slice with random bytes: cryptographic in production, seeded in tests.
	Rand func([]byte)
}

// A Device is one end of all tunnels of one key: its peers, handshakes and sessions. It is not safe for concurrent
// use.
type Device struct {
	*primitives
	private, public Key
	rand            func([]byte)
	guard           guard
	byKey           map[Key]*Peer
	indices         map[uint32]owner
	timers          timers
	touched         []*Peer // of which something was heard since the last Poll
}

// An owner is whose an index of ours is: of a handshake under way, or of a session.
type owner struct {
	peer    *Peer
	session *Session // nil: the handshake's
}

// New makes a Device without peers.
func New(cfg Config) *Device {
	return newDevice(cfg, genuine)
}

func newDevice(cfg Config, with *primitives) *Device {
	d := &Device{primitives: with, private: cfg.Private, rand: cfg.Rand, byKey: make(map[Key]*Peer), indices: make(map[uint32]owner)}
	d.public = d.publicOf(&d.private)
	d.guard = newGuard(&d.public)
	return d
}

// Public is the Device's own public key.
func (d *Device) Public() Key { return d.public }

// Actions is what a Device wants done. Its slices are used again when it is passed again.
type Actions struct {
	Send []Datagram
	// Keepalives are peers to which an empty packet is due, unless a packet goes out now anyway.
	Keepalives []*Peer
	Changes    []Change
	// Next is when Poll is due if nothing happens before; zero: never. Poll alone sets it.
	Next time.Time
}

func (a *Actions) reset() {
	a.Send, a.Keepalives, a.Changes, a.Next = a.Send[:0], a.Keepalives[:0], a.Changes[:0], time.Time{}
}

// A Datagram is a handshake message or cookie reply.
type Datagram struct {
	Peer *Peer // nil of a cookie reply
	// Back says that it goes where the message came from that Handle was called with; otherwise by the way to the peer
	// that is known to be best.
	Back    bool
	Message []byte
}

// A Change is news of a session.
type Change struct {
	Peer    *Peer
	What    What
	Session *Session // nil of GaveUp
}

// What is the kind of a Change.
type What uint8

// The kinds.
const (
	// Began is a session that may receive from now on. One that we began may send too: Current follows at once.
	Began What = iota + 1
	// Current is a session that is to be sent by from now on, in place of any other.
	Current
	// Ended is a session that neither sends nor receives any more.
	Ended
	// GaveUp says that handshakes went unanswered for RekeyAttemptTime. What waits for one may be dropped; the
	// next packet begins anew.
	GaveUp
)

// Handle takes a handshake message or cookie reply that came from an address, which through a relay may be any that
// is always the same for that sender. UnderLoad says that there are more than can be answered. What is to be done is
// added to out; the error says why nothing came of the message, and is for counting.
func (d *Device) Handle(now time.Time, from netip.AddrPort, msg []byte, underLoad bool, out *Actions) error {
	out.reset()
	kind, ok := kindOf(msg)
	switch {
	case !ok:
		return ErrMessage
	case kind == TypeCookieReply:
		return d.cookieReply(now, msg)
	case !validMAC(d.guard.first, msg):
		return ErrMAC
	}
	if underLoad {
		if !d.guard.proven(now, d.rand, msg, from) {
			out.Send = append(out.Send, Datagram{Back: true, Message: d.guard.reply(now, d.rand, nil, msg, from)})
			return ErrCookie
		}
		if !d.guard.allow(now, from) {
			return ErrRate
		}
	}
	if kind == TypeInitiation {
		return d.initiation(now, msg, out)
	}
	return d.response(now, msg, out)
}

// cookieReply takes a cookie for messages to a peer.
func (d *Device) cookieReply(now time.Time, msg []byte) error {
	o, ok := d.indices[binary.LittleEndian.Uint32(msg[4:])]
	if !ok {
		return ErrUnexpected
	}
	if !o.peer.macs.take(now, msg) {
		return ErrUnauthentic
	}
	return nil
}

// initiation answers an initiation with a response, and has the keys that follow.
func (d *Device) initiation(now time.Time, msg []byte, out *Actions) error {
	hs, p, stamp, err := d.consumeInitiation(msg)
	if err != nil {
		return err
	}
	switch {
	case !stamp.newer(p.heardStamp):
		return ErrReplay
	case !p.consumed.IsZero() && now.Sub(p.consumed) < initiationGap:
		return ErrFlood
	}
	p.heardStamp, p.consumed, p.forget = stamp, now, now.Add(forgetAfter)
	reply, send, receive, ok := d.respond(make([]byte, 0, ResponseSize), p, &hs, d.newIndex())
	if !ok {
		return ErrUnauthentic
	}
	s := d.newSession(now, p, &hs, &send, &receive, false)
	d.end(p.next, out) // it was never confirmed
	p.next = s
	out.Changes = append(out.Changes, Change{p, Began, s})
	out.Send = append(out.Send, Datagram{Peer: p, Back: true, Message: p.macs.append(now, reply)})
	p.received(now)
	p.sent(now)
	d.touch(p)
	return nil
}

// response completes the handshake that we began.
func (d *Device) response(now time.Time, msg []byte, out *Actions) error {
	index := binary.LittleEndian.Uint32(msg[atReceiver:])
	o, ok := d.indices[index]
	if !ok || o.session != nil || o.peer.handshake == nil {
		return ErrUnexpected
	}
	p := o.peer
	hs := *p.handshake // what is wrong with the message leaves the handshake as it is
	send, receive, ok := d.consumeResponse(msg, p, hs)
	if !ok {
		return ErrUnauthentic
	}
	hs.remote = binary.LittleEndian.Uint32(msg[4:])
	p.handshake.forget()
	p.handshake = nil
	s := d.newSession(now, p, &hs, &send, &receive, true)
	d.retire(p, p.current, out)
	if p.next != nil {
		// Both began at once: the peer may send by that one already, and one of the two will do to renew.
		d.retire(p, p.next, out)
		p.next = nil
		s.crossed = string(d.public[:]) > string(p.public[:])
	}
	p.current = s
	out.Changes = append(out.Changes, Change{p, Began, s}, Change{p, Current, s})
	// The peer may not send by it before it has seen a packet under it (section 5.4.3).
	out.Keepalives = append(out.Keepalives, p)
	p.completed(now)
	d.touch(p)
	return nil
}

// Confirm is told of the first packet that opened under a session that we did not begin: from then on it is the one
// to send by.
func (d *Device) Confirm(now time.Time, s *Session, out *Actions) {
	out.reset()
	p := s.Peer
	if p.next != s || p.device != d {
		return
	}
	d.retire(p, p.current, out)
	p.current, p.next = s, nil
	out.Changes = append(out.Changes, Change{p, Current, s})
	p.completed(now)
	d.touch(p)
}

func (d *Device) newSession(now time.Time, p *Peer, hs *handshake, send, receive *Key, initiator bool) *Session {
	s := &Session{
		Peer: p, Local: hs.local, Remote: hs.remote, Began: now, Initiator: initiator,
		send: aead(send), receive: aead(receive),
	}
	clear(send[:])
	clear(receive[:])
	d.indices[hs.local] = owner{p, s}
	return s
}

// retire keeps a session for what is still under way by it: the last two, since both of a pair that began at once may
// have been sent by.
func (d *Device) retire(p *Peer, s *Session, out *Actions) {
	if s != nil {
		d.end(p.old[1], out)
		p.old[0], p.old[1] = s, p.old[0]
	}
}

// end forgets a session; nil is none.
func (d *Device) end(s *Session, out *Actions) {
	if s == nil {
		return
	}
	delete(d.indices, s.Local)
	out.Changes = append(out.Changes, Change{s.Peer, Ended, s})
}

// newIndex draws an index that is not in use: random, so that it tells nothing and cannot be guessed.
func (d *Device) newIndex() uint32 {
	for {
		var b [4]byte
		d.rand(b[:])
		index := binary.LittleEndian.Uint32(b[:])
		if _, taken := d.indices[index]; !taken {
			return index
		}
	}
}
