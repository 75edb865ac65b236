package wire

import (
	"encoding/binary"

	"weft"
	"weft/key"
)

// Where UDP does not get through between two nodes, a TCP connection may. Its first three messages are greetings, each of
// the same length; frames as on a relay's stream follow, Data, Ping and Pong, with the sender's number in Data:
//
//	+---------------------------------------------------------------+
//	|           header, Kind = Hello, Welcome or Confirm            |
//	+---------------------------------------------------------------+
//	|                      sender's NodeID                          |
//	+---------------------------------------------------------------+
//	|        nonce (12)   |   sealed (28)   |       tag (16)        |
//	+---------------------------------------------------------------+
//
//	sealed    | time (8) | answers (8) | token (8) | link (2) | Reserved (2) |
//
//	dialer -> listener   Hello      its clock, and a token
//	listener -> dialer   Welcome    answers the Hello's token, and has one of its own
//	dialer -> listener   Confirm    answers the Welcome's token
//
// They are sealed by the two nodes' [PeerBox], the first eight bytes authenticated: no kind passes for another, nor for a
// peer frame. Nobody but a peer can say a Hello, and the listener says nothing before one. A Hello that was recorded can
// be said again: so its time, nanoseconds since 1970, must be another than those that the listener remembers of the
// peer, and later than the earliest of them; and nothing is done in the peer's name before its Confirm. Link is the
// sender's number of the link that the connection is by.

// The kinds of greeting, numbered on from those of frames over UDP; they never come by UDP.
const (
	KindHello   Kind = 11
	KindWelcome Kind = 12
	KindConfirm Kind = 13
)

const greetingBody = 8 + 8 + 8 + 2 + 2

// GreetingSize is the length of each in bytes.
const GreetingSize = PeerPrefix + greetingBody + key.Overhead

// A Greeting is one of the three. Fields that a kind does not use are zero.
type Greeting struct {
	Kind    Kind
	Time    uint64 // Hello's: nanoseconds since 1970
	Answers TxID   // the token of the one before
	Token   TxID
	Link    weft.LinkID
}

// AppendGreeting adds a sealed greeting of a sender to dst.
func AppendGreeting(dst []byte, box key.Box, sender weft.NodeID, g Greeting) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(appendHeader(dst, g.Kind), uint32(sender))
	sealed := len(dst)
	dst = binary.BigEndian.AppendUint64(dst, g.Time)
	dst = append(append(dst, g.Answers[:]...), g.Token[:]...)
	dst = append(binary.BigEndian.AppendUint16(dst, uint16(g.Link)), 0, 0)
	return box.Seal(dst[:sealed], dst[sealed:], dst[at:sealed])
}

// GreetingSender tells who says that it sent a greeting of a kind: whose box to open it with.
func GreetingSender(b []byte, kind Kind) (weft.NodeID, error) {
	if len(b) != GreetingSize || b[0] != Magic || b[1] != Version || Kind(b[2]) != kind || b[3] != 0 {
		return 0, ErrFrame
	}
	return weft.NodeID(binary.BigEndian.Uint32(b[HeaderSize:])), nil
}

// OpenGreeting opens a greeting of a kind.
func OpenGreeting(b []byte, kind Kind, box key.Box) (Greeting, error) {
	if _, err := GreetingSender(b, kind); err != nil {
		return Greeting{}, err
	}
	plain, err := box.Open(nil, b[PeerPrefix:], b[:PeerPrefix])
	if err != nil {
		return Greeting{}, err
	}
	return Greeting{
		Kind: kind, Time: binary.BigEndian.Uint64(plain), Answers: TxID(plain[8:16]), Token: TxID(plain[16:24]),
		Link: weft.LinkID(binary.BigEndian.Uint16(plain[24:])),
	}, nil
}
