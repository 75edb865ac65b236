// Package wireguard is the WireGuard protocol, and nothing else: no sockets, no clock, no goroutine. It follows
// "WireGuard: Next Generation Kernel Network Tunnel" (Donenfeld, 2020-06-30), whose sections the comments name,
// and speaks with every other implementation, byte for byte.
//
// # Two halves
//
// A [Device] is the slow half: handshakes, cookies, timers, the sessions' coming and going. One goroutine owns
// it, hands it what came ([Device.Handle]) and the time ([Device.Poll]), and does what it answers in [Actions]:
// datagrams to send, sessions that have begun, changed their role or ended, and when to ask again.
//
// A [Session] is the fast half: a pair of keys. Sealing and opening under it touch nothing but their arguments,
// allocate nothing, and may be done by any number of threads at once. Who numbers packets, and in what order
// they are taken, is the caller's: a counter is given when a packet gets its path, not earlier, and what has
// come is checked by a [Window], one for each session. What the fast half has seen is told to the slow half now
// and then ([Device.Observe]), as times: once a second is enough for timers that count in tens of seconds.
//
// # Silence
//
// A stranger gets no answer. What is not of a known length and type, or carries no MAC over our public key, is
// dropped before anything is allocated or computed but that MAC (section 5.4.4). Under load, which the caller
// declares, the MAC of a cookie is asked for as well, and the cookie reply, which is shorter than what it answers,
// is the only thing that an unproven address is ever sent (section 5.4.7); handshakes from proven addresses are
// then limited for each. An initiation that was recorded and is played back is refused by its timestamp. A [Sieve] does
// the first of these checks in the threads that read, before anything is queued for the Device.
//
// # Clocks
//
// A node whose clock was ahead once, and is right again, sends timestamps that its peers take for old, for as long
// as they remember (CVE-2021-46873). The protocol leaves the responder no way to tell this from a replay. So an
// initiator whose initiations go unanswered uses the largest of its clock and the last timestamp that it sent plus
// one; and the peer that is asked in vain can begin a handshake itself, which resets nothing but works: timestamps
// are the initiator's alone. [Device.Greet] is for that.
//
// Files: noise.go (the handshake's messages), cookie.go (MACs, cookies, limits), sieve.go (the first look at what came),
// session.go (transport data), window.go (replays), device.go (peers, indices, messages in), peer.go (what is due for a
// peer), timers.go (for which peer something is due), allowed.go (cryptokey routing).
package wireguard

import (
	"errors"
	"time"
)

// Times and limits of section 6.1.
const (
	RekeyAfterMessages  = 1 << 60
	RejectAfterMessages = 1<<64 - 1<<13 - 1
	RekeyAfterTime      = 120 * time.Second
	RejectAfterTime     = 180 * time.Second
	RekeyAttemptTime    = 90 * time.Second
	RekeyTimeout        = 5 * time.Second
	KeepaliveTimeout    = 10 * time.Second
	// CookieRefreshTime is how long a secret, and with it the cookies made of it, is used (section 5.4.7).
	CookieRefreshTime = 120 * time.Second
	// maxJitter is added to RekeyTimeout, at most, so that two peers do not begin at once for ever (section 6.1).
	maxJitter = 333 * time.Millisecond
	// forgetAfter is when the keys of a peer that is silent are forgotten (section 6.3).
	forgetAfter = 3 * RejectAfterTime
)

// Lengths of messages, in bytes (section 5.4).
const (
	InitiationSize  = 148
	ResponseSize    = 92
	CookieReplySize = 64
	// HeaderSize is in front of a transport message's sealed packet, TagSize behind it.
	HeaderSize = 16
	TagSize    = 16
	// KeepaliveSize is the length of a transport message without a packet.
	KeepaliveSize = HeaderSize + TagSize
	// PaddingMultiple is what the sealed packet's length is a multiple of (section 5.4.6), unless that would make it
	// longer than a full one.
	PaddingMultiple = 16
)

// Types of messages: the first byte, with three zeros behind it (section 5.4).
const (
	TypeInitiation  = 1
	TypeResponse    = 2
	TypeCookieReply = 3
	TypeTransport   = 4
)

// Why a message was not taken.
var (
	// ErrMessage is for what is no message of the protocol.
	ErrMessage = errors.New("no WireGuard message")
	// ErrMAC is for a message whose first MAC is not over our public key.
	ErrMAC = errors.New("the message's MAC is wrong")
	// ErrCookie is for a message without a valid cookie while under load; a cookie reply goes out.
	ErrCookie = errors.New("under load, and the message has no valid cookie")
	// ErrRate is for one of too many handshakes from an address while under load.
	ErrRate = errors.New("too many handshakes from that address")
	// ErrUnauthentic is for what does not open.
	ErrUnauthentic = errors.New("the message does not open")
	// ErrUnknownPeer is for an initiation by a key that no peer has.
	ErrUnknownPeer = errors.New("the message is from no peer of ours")
	// ErrUnexpected is for an answer to what was not asked, or was answered already.
	ErrUnexpected = errors.New("the message answers nothing that is under way")
	// ErrReplay is for an initiation that is not newer than the last.
	ErrReplay = errors.New("the initiation is not newer than the last")
	// ErrFlood is for initiations of one peer in too quick a succession.
	ErrFlood = errors.New("the peer's initiations come too fast")
)
