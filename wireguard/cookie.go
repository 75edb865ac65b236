package wireguard

import (
	"crypto/subtle"
	"encoding/binary"
	"hash"
	"net/netip"
	"time"

	"golang.org/x/crypto/blake2s"
	"golang.org/x/crypto/chacha20poly1305"
)

// Limits of handshakes from one address while under load. An address is an IPv4 address or an IPv6 /64, which
// is what one host has at its disposal.
const (
	handshakesPerSecond = 20
	handshakesBurst     = 5
	// maxLimited bounds the addresses that are remembered; when it is reached, those that have been quiet are forgotten,
	// and if none has, new ones are refused. Only addresses that returned a cookie get here.
	maxLimited = 8192
)

// A mac computes keyed MACs without allocating.
type mac struct {
	hash hash.Hash
	sum  [macSize]byte
}

func newMAC(k []byte) *mac {
	h, _ := blake2s.New128(k) // fails for other lengths only
	return &mac{hash: h}
}

func (m *mac) of(b []byte) [macSize]byte {
	m.hash.Reset()
	m.hash.Write(b)
	m.hash.Sum(m.sum[:0])
	return m.sum
}

// A macs makes the MACs of messages to a peer (section 5.4.4).
type macs struct {
	first     *mac // MAC1, over the receiver's public key
	cookieKey Key  // the receiver's replies are sealed under
	cookie    [macSize]byte
	cookieAt  time.Time
	last      [macSize]byte // MAC1 that went out last: what a cookie reply is bound to
	sent      bool
}

func newMACs(public *Key) macs {
	k := hashOf([]byte(labelMAC1), public[:])
	return macs{first: newMAC(k[:]), cookieKey: hashOf([]byte(labelCookie), public[:])}
}

// append adds both MACs to a message; the second is zeros without a fresh cookie.
func (m *macs) append(now time.Time, msg []byte) []byte {
	m.last, m.sent = m.first.of(msg), true
	msg = append(msg, m.last[:]...)
	var second [macSize]byte
	if !m.cookieAt.IsZero() && now.Sub(m.cookieAt) < CookieRefreshTime {
		second = newMAC(m.cookie[:]).of(msg)
	}
	return append(msg, second[:]...)
}

// take opens a cookie reply to the last message (section 5.4.7):
//
//	| 3 | 0 0 0 | receiver (4) | nonce (24) | cookie (16+16) |
func (m *macs) take(now time.Time, msg []byte) bool {
	if !m.sent {
		return false
	}
	a, _ := chacha20poly1305.NewX(m.cookieKey[:])
	plain, err := a.Open(nil, msg[8:8+chacha20poly1305.NonceSizeX], msg[8+chacha20poly1305.NonceSizeX:], m.last[:])
	if err != nil {
		return false
	}
	m.cookie, m.cookieAt, m.sent = [macSize]byte(plain), now, false
	return true
}

// A cookies makes the cookies of addresses, which are their MACs under a secret, without allocating.
type cookies struct {
	*mac
	secret  Key
	address [16 + 2]byte // and port
}

func newCookies(secret Key) *cookies { return &cookies{mac: newMAC(secret[:]), secret: secret} }

// to is the cookie of an address.
func (c *cookies) to(from netip.AddrPort) [macSize]byte {
	ip := from.Addr().As16()
	copy(c.address[:], ip[:])
	binary.BigEndian.PutUint16(c.address[len(ip):], from.Port())
	return c.of(c.address[:])
}

// A guard checks the MACs of messages to us.
type guard struct {
	first     *mac
	cookieKey Key
	cookies   *cookies
	secretAt  time.Time
	limited   map[netip.Addr]bucket
	swept     time.Time
}

// A bucket is a token bucket: how many handshakes an address may begin.
type bucket struct {
	tokens float64
	at     time.Time
}

func newGuard(public *Key) guard {
	k := hashOf([]byte(labelMAC1), public[:])
	return guard{
		first: newMAC(k[:]), cookieKey: hashOf([]byte(labelCookie), public[:]), limited: make(map[netip.Addr]bucket),
	}
}

// proven checks MAC2: whether who sent the message receives at the address that it came from.
func (g *guard) proven(now time.Time, rand func([]byte), msg []byte, from netip.AddrPort) bool {
	g.renew(now, rand)
	return g.cookies.carried(msg, from)
}

// carried checks MAC2 of a message by the cookie of its sender's address.
func (c *cookies) carried(msg []byte, from netip.AddrPort) bool {
	if !HasMAC2(msg) {
		return false
	}
	cookie, at := c.to(from), len(msg)-macSize
	want := newMAC(cookie[:]).of(msg[:at])
	return subtle.ConstantTimeCompare(want[:], msg[at:]) == 1
}

// renew makes another secret every CookieRefreshTime, with which older cookies end.
func (g *guard) renew(now time.Time, rand func([]byte)) {
	if g.cookies == nil || now.Sub(g.secretAt) >= CookieRefreshTime {
		var secret Key
		rand(secret[:])
		g.cookies, g.secretAt = newCookies(secret), now
	}
}

// CookieSecret is what cookies are made with now, for [Sieve.Proven]: it changes every CookieRefreshTime.
func (d *Device) CookieSecret(now time.Time) Key {
	d.guard.renew(now, d.rand)
	return d.guard.cookies.secret
}

// reply appends a cookie reply to a message.
func (g *guard) reply(now time.Time, rand func([]byte), dst, msg []byte, from netip.AddrPort) []byte {
	dst = append(dst, TypeCookieReply, 0, 0, 0)
	dst = append(dst, msg[4:8]...) // who sent it is now the receiver
	var nonce [chacha20poly1305.NonceSizeX]byte
	rand(nonce[:])
	dst = append(dst, nonce[:]...)
	a, _ := chacha20poly1305.NewX(g.cookieKey[:])
	g.renew(now, rand)
	cookie, at := g.cookies.to(from), len(msg)-2*macSize
	return a.Seal(dst, nonce[:], cookie[:], msg[at:at+macSize])
}

// allow takes a token of an address that has proven itself.
func (g *guard) allow(now time.Time, from netip.AddrPort) bool {
	ip := from.Addr().Unmap()
	if ip.Is6() {
		p, _ := ip.WithZone("").Prefix(64)
		ip = p.Addr()
	}
	b, known := g.limited[ip]
	if !known {
		if len(g.limited) >= maxLimited && !g.forget(now) {
			return false
		}
		b = bucket{tokens: handshakesBurst, at: now}
	}
	b.tokens = min(b.tokens+now.Sub(b.at).Seconds()*handshakesPerSecond, handshakesBurst)
	b.at = now
	ok := b.tokens >= 1
	if ok {
		b.tokens--
	}
	g.limited[ip] = b
	return ok
}

// refill is how long a bucket takes to be full again: then it needs no remembering.
const refill = handshakesBurst * time.Second / handshakesPerSecond

// forget drops the addresses whose buckets are full again, not more often than any can be, and reports whether there
// were any.
func (g *guard) forget(now time.Time) bool {
	if now.Sub(g.swept) < refill {
		return false
	}
	g.swept = now
	before := len(g.limited)
	for ip, b := range g.limited {
		if now.Sub(b.at) >= refill {
			delete(g.limited, ip)
		}
	}
	return len(g.limited) < before
}
