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
	if !reply && l.held.Add(1) >= heldMost {
		l.set(now)
	}
	return false
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
