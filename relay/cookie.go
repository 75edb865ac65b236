package relay

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/subtle"
	"encoding/binary"
	"net/netip"
	"time"
)

// cookies make and check the proof that a node receives at its address. Nothing is remembered of one:
//
//	| when it was made, in ms since the relay's start (5) | beginning of a MAC over that and the address (11) |
//
// The MAC is AES-128's CBC-MAC, which is sound for messages of one length; the key is drawn at the relay's
// start, so that a restart asks everybody anew. Guessing one takes 2^87 datagrams. The time does two things: a
// cookie ends, and of two it can be said which is newer, which a secret that rotates could not.
type cookies struct{ block cipher.Block }

const (
	cookieSize  = 16
	cookieTime  = 5
	cookieTicks = time.Millisecond
	// cookieLife is how long a cookie may renew a binding. A new one costs a round trip that nobody waits for.
	cookieLife = 10 * time.Minute
)

func newCookies(secret [16]byte) cookies {
	b, err := aes.NewCipher(secret[:])
	if err != nil {
		panic("16 bytes are always an AES key: " + err.Error())
	}
	return cookies{b}
}

func (c cookies) make(at netip.AddrPort, now time.Duration) [cookieSize]byte {
	return c.seal(at, uint64(now/cookieTicks))
}

func (c cookies) seal(at netip.AddrPort, tick uint64) (cookie [cookieSize]byte) {
	var second [aes.BlockSize]byte
	ip := at.Addr().As16()
	binary.BigEndian.PutUint64(second[:], tick)
	binary.BigEndian.PutUint16(second[8:], at.Port())
	var mac [aes.BlockSize]byte
	c.block.Encrypt(mac[:], ip[:])
	subtle.XORBytes(mac[:], mac[:], second[:])
	c.block.Encrypt(mac[:], mac[:])
	copy(cookie[:cookieTime], second[8-cookieTime:8])
	copy(cookie[cookieTime:], mac[:])
	return cookie
}

// check reports when a cookie was made, if it was made here, for this address, and has not ended.
func (c cookies) check(cookie [cookieSize]byte, at netip.AddrPort, now time.Duration) (issued uint64, ok bool) {
	var tick [8]byte
	copy(tick[8-cookieTime:], cookie[:cookieTime])
	issued = binary.BigEndian.Uint64(tick[:])
	want := c.seal(at, issued)
	ok = subtle.ConstantTimeCompare(want[:], cookie[:]) == 1
	age := now - time.Duration(issued)*cookieTicks
	return issued, ok && age <= cookieLife
}
