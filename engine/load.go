package engine

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"

	"weft/wireguard"
)

// Bounds of the handshake messages that are looked at while there is load: of senders that have proven their address by a
// cookie, and of those that have not, each by itself. Senders are dealt by address to buckets, so that who floods from a
// few addresses leaves room for all others, and a flood from all addresses costs a twentieth of a processor: a cookie
// reply takes some 10 us with all that is around it.
const (
	loadBuckets = 256
	// bucketEvery is what one message takes of a bucket's time: 20 a second, as the protocol allows to each address, and
	// 5,000 of all.
	bucketEvery = int64(time.Second) / 20
	// bucketBurst is how far a bucket may be ahead.
	bucketBurst = 5 * bucketEvery
	// heldMost is how many messages are held back, in loadedFor, before that is load itself: or a trickle from one address could
	// have all others ask for cookies for ever.
	heldMost = 500
)

// A load says whether there are more handshake messages than can be answered, and which are looked at then. Any number of
// threads may use it at once.
type load struct {
	until            atomic.Int64 // nanoseconds after Engine.began
	held             atomic.Int64 // messages that were held back since it was set
	secret           atomic.Pointer[wireguard.Key]
	seed             uint64 // unknown to who chooses addresses
	proven, unproven buckets
}

// buckets are limiters: each has the time until which it is used up.
type buckets [loadBuckets]atomic.Int64

func (l *load) is(now int64) bool { return now < l.until.Load() }

func (l *load) set(now int64) {
	l.held.Store(0)
	l.until.Store(now + int64(loadedFor))
}

// publish tells the threads that read what cookies are made with.
func (l *load) publish(secret wireguard.Key) {
	if old := l.secret.Load(); old == nil || *old != secret {
		l.secret.Store(&secret)
	}
}

// handshake passes a handshake message to the control goroutine, if it is one and meant for us.
func (o *opener) handshake(b []byte) {
	from, load := o.run.sender(o.run.from), &o.e.control.load
	if load.refuses(o.now, from, b) || !o.sieve.Valid(b) {
		o.e.drops.strange.Add(1)
		return
	}
	o.run.packets++
	o.run.bytes += uint64(len(b))
	if !load.admits(o.now, o.sieve, from, b) {
		o.e.drops.strange.Add(1)
		return
	}
	m := message{source: o.run.source, link: o.run.link, from: o.run.from, n: len(b)}
	copy(m.b[:], b)
	o.e.control.hand(&m)
}

// refuses reports whether a message would not be admitted whatever its first MAC is, as most of a flood: to make that costs far
// more than all else that is done for it. It takes nothing of a share, which would be the share of whoever has the address.
func (l *load) refuses(now int64, from netip.AddrPort, msg []byte) bool {
	reply := len(msg) == wireguard.CookieReplySize
	if !reply && !l.is(now) {
		return false
	}
	i := l.bucket(from)
	if !l.unproven.spent(i, now) || !reply && wireguard.HasMAC2(msg) && !l.proven.spent(i, now) {
		return false
	}
	l.hold(now, reply)
	return true
}

// admits reports whether a valid message is to be looked at. Cookie replies, which anybody can make up and few expect,
// are always limited.
func (l *load) admits(now int64, sieve *wireguard.Sieve, from netip.AddrPort, msg []byte) bool {
	reply := len(msg) == wireguard.CookieReplySize
	if !reply && !l.is(now) {
		return true
	}
	b := &l.unproven
	if secret := l.secret.Load(); !reply && secret != nil && sieve.Proven(secret, msg, from) {
		b = &l.proven
	}
	if b.take(l.bucket(from), now) {
		return true
	}
	l.hold(now, reply)
	return false
}

// hold counts a message that is held back; replies are no load.
func (l *load) hold(now int64, reply bool) {
	if !reply && l.held.Add(1) >= heldMost {
		l.set(now)
	}
}

// bucket is that of an address: an IPv4 address, or an IPv6 /64.
func (l *load) bucket(from netip.AddrPort) int {
	ip := from.Addr().As16()
	net, host := binary.LittleEndian.Uint64(ip[:]), uint64(0)
	if from.Addr().Unmap().Is4() {
		host = binary.LittleEndian.Uint64(ip[8:])
	}
	return int(mix(net^l.seed, host) % loadBuckets)
}

// take takes a message's time of a bucket; false: it is used up.
func (b *buckets) take(i int, now int64) bool {
	for {
		until := b[i].Load()
		if until > now+bucketBurst {
			return false
		}
		if b[i].CompareAndSwap(until, max(until, now)+bucketEvery) {
			return true
		}
	}
}

// spent reports whether a bucket is used up.
func (b *buckets) spent(i int, now int64) bool { return b[i].Load() > now+bucketBurst }
