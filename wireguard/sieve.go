package wireguard

import (
	"crypto/subtle"
	"net/netip"
)

// A Sieve tells handshake messages to us from what strangers send, in front of the Device: a thread that reads packets
// has one of its own, so that a flood without our public key never reaches the goroutine that owns the Device. Make it
// with [NewSieve]; one goroutine at a time may use it.
type Sieve struct {
	first   *mac
	cookies *cookies // nil until the first message that has one
}

// NewSieve makes a Sieve for messages to a public key.
func NewSieve(public Key) *Sieve {
	k := hashOf([]byte(labelMAC1), public[:])
	return &Sieve{first: newMAC(k[:])}
}

// Valid reports whether a message is an initiation or a response with a MAC over our public key (section 5.4.4), or has
// the form of a cookie reply. That one has no MAC, and only [Device.Handle] can tell whether it was asked for: whoever
// queues messages should not let cookie replies take the room of the others. It allocates nothing.
func (s *Sieve) Valid(msg []byte) bool {
	kind, ok := kindOf(msg)
	return ok && (kind == TypeCookieReply || validMAC(s.first, msg))
}

// Proven reports whether a valid initiation or response carries a cookie of its sender's address (section 5.4.7) that was
// made with a Device's secret: so that under load what is proven need not wait behind what is not.
func (s *Sieve) Proven(secret *Key, msg []byte, from netip.AddrPort) bool {
	if !HasMAC2(msg) {
		return false
	}
	if s.cookies == nil || s.cookies.secret != *secret {
		s.cookies = newCookies(*secret)
	}
	return s.cookies.carried(msg, from)
}

// HasMAC2 reports whether an initiation or a response has a second MAC (section 5.4.4), right or wrong: it is zeros where the
// sender has no cookie. What is too short for either has none.
func HasMAC2(msg []byte) bool {
	return len(msg) >= ResponseSize && [macSize]byte(msg[len(msg)-macSize:]) != [macSize]byte{}
}

// kindOf is the type of a handshake message or cookie reply; it is false for what has another length than its type, or
// is anything else.
func kindOf(msg []byte) (kind byte, ok bool) {
	if len(msg) < CookieReplySize || msg[1]|msg[2]|msg[3] != 0 {
		return 0, false
	}
	switch kind = msg[0]; kind {
	case TypeInitiation:
		ok = len(msg) == InitiationSize
	case TypeResponse:
		ok = len(msg) == ResponseSize
	case TypeCookieReply:
		ok = len(msg) == CookieReplySize
	}
	return kind, ok
}

// validMAC checks MAC1 of a message that has both.
func validMAC(first *mac, msg []byte) bool {
	at := len(msg) - 2*macSize
	want := first.of(msg[:at])
	return subtle.ConstantTimeCompare(want[:], msg[at:at+macSize]) == 1
}
