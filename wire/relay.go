package wire

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"weft"
	"weft/key"
)

// A Ticket is the server's signed word that a node may use the relays of its network. The relay needs nothing
// else: no call to the server, no list of nodes.
//
//	| version 1 | 0 (3) | NodeID (4) | network (8) | node key (32) | not after (8) | signature (64) |
//
// Not-after is in seconds of Unix time. The Ed25519 signature is over all before it, behind the words of
// ticketContext, so that it can be taken for nothing else that the key signs.
type Ticket struct {
	Node     weft.NodeID
	Network  [8]byte // the network's random name; a relay forwards within one
	Key      key.NodePublic
	NotAfter time.Time
}

// TicketSize is the length in bytes of a signed ticket.
const TicketSize = ticketBody + key.SignatureSize

const ticketBody = 1 + 3 + 4 + 8 + key.Size + 8

const ticketContext = "weft relay ticket v1\x00"

// SignTicket adds the signed ticket to dst.
func SignTicket(dst []byte, t Ticket, k key.SigningPrivate) []byte {
	at := len(dst)
	dst = append(dst, 1, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(t.Node))
	dst = append(dst, t.Network[:]...)
	dst = t.Key.Append(dst)
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.NotAfter.Unix()))
	return k.Sign(dst, append([]byte(ticketContext), dst[at:]...))
}

// ParseTicket reads a ticket without verifying it; a node reads its own so, to know when to renew it.
func ParseTicket(b []byte) (Ticket, error) {
	if len(b) != TicketSize || b[0] != 1 {
		return Ticket{}, ErrFrame
	}
	t := Ticket{
		Node:     weft.NodeID(binary.BigEndian.Uint32(b[4:])),
		Network:  [8]byte(b[8:16]),
		NotAfter: time.Unix(int64(binary.BigEndian.Uint64(b[48:])), 0),
	}
	t.Key, _ = key.PublicFrom[key.Node](b[16:48])
	if t.Node == 0 {
		return Ticket{}, ErrFrame
	}
	return t, nil
}

// VerifyTicket reads a ticket and checks its signature and, against now, its age.
func VerifyTicket(b []byte, k key.SigningPublic, now time.Time) (Ticket, Refusal) {
	t, err := ParseTicket(b)
	if err != nil || !k.Verify(append([]byte(ticketContext), b[:ticketBody]...), b[ticketBody:]) {
		return Ticket{}, RefusedForged
	}
	if now.After(t.NotAfter) {
		return Ticket{}, RefusedExpired
	}
	return t, RefusedNot
}

// A Refusal is why a relay does not admit a node.
type Refusal uint8

// The refusals.
const (
	RefusedNot     Refusal = 0
	RefusedForged  Refusal = 1 // not signed by the server whose relay this is, or not the ticket's node
	RefusedExpired Refusal = 2 // past its end by the relay's clock
	RefusedFull    Refusal = 3 // the relay has as many nodes as it takes
	RefusedRevoked Refusal = 4 // the node was removed
)

func (r Refusal) String() string {
	switch r {
	case RefusedForged:
		return "ticket is not of this relay's server"
	case RefusedExpired:
		return "ticket has expired by the relay's clock: set that clock right, or the server's"
	case RefusedFull:
		return "relay is full"
	case RefusedRevoked:
		return "node was removed from the network"
	case RefusedNot:
		return "not refused"
	}
	return fmt.Sprintf("refused for a reason that this version does not know (%d)", uint8(r))
}

// Over UDP a node is bound to its address by an exchange that costs a stranger more than the relay: the first
// Bind carries no cookie and is answered, statelessly, by a Challenge shorter than itself; only a Bind whose
// cookie proves that its sender receives at its address is looked into.
//
//	node -> relay   Bind        | header | nonce (8) | cookie (16) | ticket (120) | sealed nothing (28) |
//	relay -> node   Challenge   | header | nonce (8) | cookie (16) |
//	node -> relay   Bind        the same, with the cookie
//	relay -> node   Bound       | header | nonce (8) | sealed: | lifetime (4) | observed (18) | |
//	or              Refused     | header | nonce (8) | refusal (1) | 0 (3) |
//
// The sealed parts are under the box of node key and relay key ([RelayBox]), with all in front of them
// authenticated: they prove that the node holds the key in its ticket, and that the relay is the one meant.
// The nonce ties an answer to its Bind. A Bind repeated with the same cookie renews the binding.
type Bind struct {
	Nonce  [8]byte
	Cookie [16]byte
	Ticket []byte // TicketSize bytes; aliases the frame after ParseBind
	frame  []byte
}

const (
	bindSealedAt = HeaderSize + 8 + 16 + TicketSize
	bindSize     = bindSealedAt + key.Overhead
)

const relayPurpose = "relay bind v1"

// RelayBox derives the box between a node and a relay, from either end.
func RelayBox[A, B key.Role](own key.Private[A], other key.Public[B]) (key.Box, error) {
	return key.Agree(own, other, relayPurpose)
}

// AppendBind adds a Bind frame; ticket must have TicketSize bytes.
func AppendBind(dst []byte, b Bind, box key.Box) []byte {
	at := len(dst)
	dst = append(appendHeader(dst, KindBind), b.Nonce[:]...)
	dst = append(dst, b.Cookie[:]...)
	dst = append(dst, b.Ticket[:TicketSize]...)
	return box.Seal(dst, nil, dst[at:])
}

// ParseBind reads a Bind frame. The ticket is not verified, nor the proof: that is [Bind.Proves].
func ParseBind(b []byte) (Bind, error) {
	if _, err := body(b, KindBind); err != nil || len(b) != bindSize {
		return Bind{}, ErrFrame
	}
	return Bind{
		Nonce:  [8]byte(b[4:12]),
		Cookie: [16]byte(b[12:28]),
		Ticket: b[28 : 28+TicketSize],
		frame:  b,
	}, nil
}

// Proves reports whether the sender of a parsed Bind holds the node key whose box this is. Of a Bind that was
// not parsed nothing is proved.
func (b Bind) Proves(box key.Box) bool {
	if len(b.frame) != bindSize {
		return false
	}
	_, err := box.Open(nil, b.frame[bindSealedAt:], b.frame[:bindSealedAt])
	return err == nil
}

// Challenge asks for a Bind with this cookie.
type Challenge struct {
	Nonce  [8]byte
	Cookie [16]byte
}

// AppendChallenge adds a Challenge frame.
func AppendChallenge(dst []byte, c Challenge) []byte {
	return append(append(appendHeader(dst, KindChallenge), c.Nonce[:]...), c.Cookie[:]...)
}

// ParseChallenge reads a Challenge frame.
func ParseChallenge(b []byte) (Challenge, error) {
	rest, err := body(b, KindChallenge)
	if err != nil || len(rest) != 24 {
		return Challenge{}, ErrFrame
	}
	return Challenge{Nonce: [8]byte(rest), Cookie: [16]byte(rest[8:])}, nil
}

// Bound says that the binding stands.
type Bound struct {
	Nonce    [8]byte
	Lifetime time.Duration  // whole seconds; renew well before
	Observed netip.AddrPort // where the relay sees the node
}

// AppendBound adds a Bound frame.
func AppendBound(dst []byte, b Bound, box key.Box) []byte {
	at := len(dst)
	dst = append(appendHeader(dst, KindBound), b.Nonce[:]...)
	var plain [4 + addrSize]byte
	binary.BigEndian.PutUint32(plain[:], uint32(b.Lifetime/time.Second))
	return box.Seal(dst, appendAddr(plain[:4], b.Observed), dst[at:])
}

// ParseBound opens a Bound frame.
func ParseBound(b []byte, box key.Box) (Bound, error) {
	rest, err := body(b, KindBound)
	if err != nil || len(rest) != 8+key.Overhead+4+addrSize {
		return Bound{}, ErrFrame
	}
	plain, err := box.Open(nil, rest[8:], b[:HeaderSize+8])
	if err != nil {
		return Bound{}, err
	}
	return Bound{
		Nonce:    [8]byte(rest),
		Lifetime: time.Duration(binary.BigEndian.Uint32(plain)) * time.Second,
		Observed: parseAddr(plain[4:]),
	}, nil
}

// AppendRefused adds a Refused frame.
func AppendRefused(dst []byte, nonce [8]byte, r Refusal) []byte {
	return append(append(appendHeader(dst, KindRefused), nonce[:]...), byte(r), 0, 0, 0)
}

// ParseRefused reads a Refused frame.
func ParseRefused(b []byte) (nonce [8]byte, r Refusal, err error) {
	rest, err := body(b, KindRefused)
	if err != nil || len(rest) != 12 || Refusal(rest[8]) == RefusedNot {
		return nonce, 0, ErrFrame
	}
	return [8]byte(rest), Refusal(rest[8]), nil
}

// A Data frame carries a datagram through a relay:
//
//	+---------------------------------------------------------------+
//	|                     header, Kind = Data                       |
//	+---------------------------------------------------------------+
//	|    NodeID: the receiver's to the relay, the sender's from it   |
//	+---------------------------------------------------------------+
//	|                 WireGuard packet or peer frame                |
//	+---------------------------------------------------------------+
//
// The relay changes the four bytes in place and nothing else: a run of equal frames stays one run, which is
// what segmentation offload needs.

// DataPrefix is the length in bytes of what a relay adds to a datagram.
const DataPrefix = HeaderSize + 4

// AppendData adds a Data frame's prefix; the payload follows it.
func AppendData(dst []byte, id weft.NodeID) []byte {
	return binary.BigEndian.AppendUint32(appendHeader(dst, KindData), uint32(id))
}

// ParseData returns the NodeID and payload of a Data frame.
func ParseData(b []byte) (weft.NodeID, []byte, error) {
	rest, err := body(b, KindData)
	if err != nil || len(rest) <= 4 {
		return 0, nil, ErrFrame
	}
	return weft.NodeID(binary.BigEndian.Uint32(rest)), rest[4:], nil
}

// SetDataID rewrites the NodeID of a frame that ParseData accepted.
func SetDataID(b []byte, id weft.NodeID) {
	binary.BigEndian.PutUint32(b[HeaderSize:], uint32(id))
}
