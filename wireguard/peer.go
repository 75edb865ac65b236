package wireguard

import (
	"errors"
	"slices"
	"time"
)

// PeerConfig is what a peer is made of.
type PeerConfig struct {
	Public Key
	PSK    Key // zero: none (section 5.2)
	// Keepalive is how often something is sent at least; zero: only in answer to data.
	Keepalive time.Duration
}

const (
	// initiationGap is the least time between two initiations of one peer that are answered: each costs four
	// Curve25519 multiplications.
	initiationGap = 20 * time.Millisecond
	// silentFor is how long data may go unanswered before a new handshake is tried (section 6.5): what the other side
	// takes to answer with a keepalive, and that one's way.
	silentFor = KeepaliveTimeout + RekeyTimeout
	// lateRekey is the age at which a session that we began is renewed when a packet comes by it (section 6.2).
	lateRekey = RejectAfterTime - KeepaliveTimeout - RekeyTimeout
	// crossedWait is how much longer than the peer one of two that began at once waits to renew: long enough for the
	// peer's renewal to make its own unnecessary.
	crossedWait = 2 * RekeyTimeout
)

// A Peer is the other end of a tunnel. Its Device owns it; others may compare pointers to it.
type Peer struct {
	device *Device // nil: removed
	// Owner is whatever its user made of the peer: what leads back from a lookup.
	Owner any

	public, psk Key
	static      Key // the shared secret of both static keys
	macs        macs
	keepalive   time.Duration

	handshake     *handshake // that we began
	began         time.Time  // the first initiation of a row
	asked         time.Time  // the last
	retry         time.Time  // the next; zero: none
	sentStamp     timestamp
	heardStamp    timestamp
	consumed      time.Time   // the last initiation
	current, next *Session    // next waits to be confirmed
	old           [2]*Session // receive only, the younger first
	activity      Activity
	carried       time.Time // the last transport message out since handshakes were given up
	unanswered    time.Time // data went out since when nothing came; zero: none did
	owed          time.Time // data came since when nothing went out; zero: none did
	forget        time.Time // when to forget the keys
	late          bool      // lateRekey was used, or is of no use
	completedAt   time.Time

	due     time.Time // of the next of all these
	place   int       // in the Device's timers; -1: in none
	touched bool      // in the Device's list of those
}

// An Activity is what a peer's sessions have seen: the time of the last packet of a kind. Kinds include each other: data
// is a packet too.
type Activity struct {
	Sent, Received         time.Time // of any authentic kind, keepalives included
	DataSent, DataReceived time.Time
	Counter                uint64 // the largest used of the current session
}

// AddPeer makes a peer. It fails for a key that is no public key, or our own, and for one that is there already.
func (d *Device) AddPeer(cfg PeerConfig) (*Peer, error) {
	if cfg.Public == d.public {
		return nil, errors.New("that is this device's own key")
	}
	if d.byKey[cfg.Public] != nil {
		return nil, errors.New("there is a peer with that key already")
	}
	p := &Peer{device: d, public: cfg.Public, psk: cfg.PSK, keepalive: cfg.Keepalive, macs: newMACs(&cfg.Public), place: -1}
	secret, err := d.curve(d.private[:], cfg.Public[:])
	if err != nil {
		return nil, errors.New("that is no public key: nothing secret can be agreed on with it")
	}
	copy(p.static[:], secret)
	clear(secret)
	d.byKey[cfg.Public] = p
	return p, nil
}

// RemovePeer forgets a peer and ends its sessions.
func (d *Device) RemovePeer(p *Peer, out *Actions) {
	out.reset()
	d.forgetKeys(p, out)
	delete(d.byKey, p.public)
	d.timers.set(p, time.Time{})
	d.touched = slices.DeleteFunc(d.touched, func(t *Peer) bool { return t == p })
	p.device = nil
	clear(p.psk[:])
	clear(p.static[:])
}

// SetKeepalive changes how often something is sent at least; zero: only in answer to data. Poll is due after it.
func (p *Peer) SetKeepalive(every time.Duration) {
	p.keepalive = every
	if p.device != nil {
		p.device.touch(p)
	}
}

// Public is the peer's key.
func (p *Peer) Public() Key { return p.public }

// HandshakeAt is when the last handshake was completed; zero: none was.
func (p *Peer) HandshakeAt() time.Time { return p.completedAt }

// Want says that a packet waits for a session: a handshake is begun unless one is under way.
func (d *Device) Want(now time.Time, p *Peer, out *Actions) {
	out.reset()
	if p.device == d && p.retry.IsZero() {
		d.begin(now, p, out)
		d.touch(p)
	}
}

// Greet begins a handshake although nothing waits for it.
func (d *Device) Greet(now time.Time, p *Peer, out *Actions) { d.Want(now, p, out) }

// Observe is told what a peer's sessions have seen so far. Poll is due after it.
func (d *Device) Observe(p *Peer, a Activity) {
	b := &p.activity
	if a.Received.After(b.Received) {
		p.received(a.Received)
	}
	if a.Sent.After(b.Sent) {
		p.sent(a.Sent)
		p.carried = a.Sent
	}
	if a.DataSent.After(b.DataSent) && p.unanswered.IsZero() && a.DataSent.After(b.Received) {
		p.unanswered = a.DataSent
	}
	if a.DataReceived.After(b.DataReceived) && p.owed.IsZero() && a.DataReceived.After(b.Sent) {
		p.owed = a.DataReceived
	}
	b.DataSent, b.DataReceived = latest(b.DataSent, a.DataSent), latest(b.DataReceived, a.DataReceived)
	b.Counter = a.Counter
	d.touch(p)
}

// received notes that the peer is there.
func (p *Peer) received(at time.Time) {
	p.activity.Received = latest(p.activity.Received, at)
	if !at.Before(p.unanswered) {
		p.unanswered = time.Time{}
	}
}

// sent notes that something went to the peer.
func (p *Peer) sent(at time.Time) {
	p.activity.Sent = latest(p.activity.Sent, at)
	if !at.Before(p.owed) {
		p.owed = time.Time{}
	}
}

// completed notes a handshake that both sides have seen to be over.
func (p *Peer) completed(now time.Time) {
	p.retry, p.began, p.late = time.Time{}, time.Time{}, false
	p.completedAt, p.forget = now, now.Add(forgetAfter)
	p.activity.Counter = 0
	p.received(now)
}

// Poll does what is due. It looks at the peers whose time has come, and those of which something was heard since the
// last Poll; all others cost nothing.
func (d *Device) Poll(now time.Time, out *Actions) {
	out.reset()
	for _, p := range d.touched {
		p.touched = false
		d.timers.set(p, d.poll(now, p, out))
	}
	d.touched = d.touched[:0]
	for len(d.timers) > 0 && !now.Before(d.timers[0].due) {
		p := d.timers[0]
		d.timers.set(p, d.poll(now, p, out))
	}
	if len(d.timers) > 0 {
		out.Next = d.timers[0].due
	}
}

// touch has the next Poll look at a peer.
func (d *Device) touch(p *Peer) {
	if p.device == d && !p.touched {
		p.touched = true
		d.touched = append(d.touched, p)
	}
}

// poll does what is due for one peer, and returns when more will be, which is after now; zero: never.
func (d *Device) poll(now time.Time, p *Peer, out *Actions) (next time.Time) {
	due := func(at time.Time) bool {
		if at.IsZero() {
			return false
		}
		if !now.Before(at) {
			return true
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
		return false
	}
	switch {
	case !due(p.forget):
	case p.retry.IsZero():
		d.forgetKeys(p, out)
	default:
		p.forget = time.Time{} // the handshake that is under way gets there or is given up, and both set it anew
	}
	for _, s := range []**Session{&p.old[0], &p.old[1], &p.current, &p.next} {
		if *s != nil && due((*s).Began.Add(RejectAfterTime)) {
			d.end(*s, out)
			*s = nil
		}
	}
	switch {
	case !p.retry.IsZero():
		if due(p.retry) {
			if now.Sub(p.began) >= RekeyAttemptTime {
				d.giveUp(now, p, out)
				due(p.forget)
			} else {
				d.begin(now, p, out)
			}
		}
		due(p.retry)
	case due(d.rekeyAt(p)):
		p.late = p.late || now.Sub(p.current.Began) >= lateRekey
		d.begin(now, p, out)
		due(p.retry)
	case !p.unanswered.IsZero() && due(p.unanswered.Add(silentFor)):
		p.unanswered = time.Time{}
		d.begin(now, p, out)
		due(p.retry)
	}
	if p.keepalive > 0 && p.current == nil && p.retry.IsZero() && due(latest(p.activity.Sent, p.asked).Add(p.keepalive)) {
		d.begin(now, p, out) // a tunnel that is to be kept up is not, or not yet
		due(p.retry)
	}
	if p.current == nil {
		return next
	}
	keep := time.Time{}
	if !p.owed.IsZero() {
		keep = p.owed.Add(KeepaliveTimeout)
	}
	if p.keepalive > 0 {
		if at := latest(p.activity.Sent, p.current.Began).Add(p.keepalive); keep.IsZero() || at.Before(keep) {
			keep = at
		}
	}
	if due(keep) {
		p.sent(now)
		p.carried = now
		out.Keepalives = append(out.Keepalives, p)
		if p.keepalive > 0 {
			due(now.Add(p.keepalive))
		}
		if p.retry.IsZero() && due(d.rekeyAt(p)) { // the keepalive is a packet sent, too
			d.begin(now, p, out)
			due(p.retry)
		}
	}
	return next
}

// rekeyAt is when the current session has to be renewed; zero: that is not for us to do, or not yet known. Both
// rules of section 6.2 are of sessions that we began: at the first packet that is sent when it has become old, or the
// first that comes shortly before its end.
func (d *Device) rekeyAt(p *Peer) time.Time {
	s := p.current
	if s == nil {
		return time.Time{}
	}
	if p.activity.Counter >= RekeyAfterMessages {
		return s.Began
	}
	if !s.Initiator {
		return time.Time{}
	}
	old := s.Began.Add(RekeyAfterTime)
	if s.crossed {
		old = old.Add(crossedWait)
	}
	if !p.carried.Before(old) {
		return old
	}
	if late := s.Began.Add(lateRekey); !p.late && !p.activity.DataReceived.Before(late) {
		return late
	}
	return time.Time{}
}

// begin sends an initiation, anew each time: with another ephemeral key and timestamp (section 6.4).
func (d *Device) begin(now time.Time, p *Peer, out *Actions) {
	if !p.asked.IsZero() && now.Sub(p.asked) < RekeyTimeout {
		p.retry = p.asked.Add(RekeyTimeout)
		if p.began.IsZero() {
			p.began = now
		}
		return
	}
	stamp := stampOf(now)
	if !stamp.newer(p.sentStamp) {
		stamp = p.sentStamp.after() // our clock went back: see the package comment
	}
	index := d.newIndex()
	hs, msg, ok := d.initiate(make([]byte, 0, InitiationSize), p, index, stamp)
	if !ok {
		return
	}
	d.dropHandshake(p)
	p.handshake, p.sentStamp = &hs, stamp
	d.indices[index] = owner{peer: p}
	if p.began.IsZero() {
		p.began = now
	}
	var b [2]byte
	d.rand(b[:])
	jitter := maxJitter * time.Duration(uint16(b[0])<<8|uint16(b[1])) / (1 << 16)
	p.asked, p.retry = now, now.Add(RekeyTimeout+jitter)
	out.Send = append(out.Send, Datagram{Peer: p, Message: p.macs.append(now, msg)})
	p.sent(now)
}

// giveUp ends a row of handshakes that nobody answered.
func (d *Device) giveUp(now time.Time, p *Peer, out *Actions) {
	d.dropHandshake(p)
	p.retry, p.began, p.unanswered, p.carried = time.Time{}, time.Time{}, time.Time{}, time.Time{}
	p.late = true // what came before is no reason to begin anew, as what went out before is none
	if p.forget.IsZero() {
		p.forget = now.Add(forgetAfter)
	}
	out.Changes = append(out.Changes, Change{Peer: p, What: GaveUp})
}

func (d *Device) dropHandshake(p *Peer) {
	if p.handshake == nil {
		return
	}
	if o := d.indices[p.handshake.local]; o.session == nil {
		delete(d.indices, p.handshake.local)
	}
	p.handshake.forget()
	p.handshake = nil
}

// forgetKeys ends all sessions and the handshake of a peer.
func (d *Device) forgetKeys(p *Peer, out *Actions) {
	d.dropHandshake(p)
	for _, s := range []**Session{&p.old[0], &p.old[1], &p.current, &p.next} {
		d.end(*s, out)
		*s = nil
	}
	p.forget, p.retry, p.began = time.Time{}, time.Time{}, time.Time{}
}

func latest(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}
