package wire

import (
	"encoding/binary"
	"time"

	"weft"
	"weft/key"
)

// Where UDP is blocked, the relay is spoken to over a stream of frames, inside an upgraded HTTP connection or
// the messages of a WebSocket (whose borders mean nothing):
//
//	+---------------+---------------+-------------------------------+
//	|     Type      | Reserved (0)  |      length of the body       |
//	+---------------+---------------+-------------------------------+
//	|                             body                              |
//	+---------------------------------------------------------------+
//
//	relay -> node   Hello     nonce (16)
//	node -> relay   Bind      ticket (120) | sealed nothing (28); nonce and ticket authenticated
//	relay -> node   Bound     sealed: lifetime (4); nonce authenticated
//	or              Refused   refusal (1), and the relay closes
//	both ways       Data      NodeID (4) | datagram; the relay changes receiver to sender
//	either way      Ping      8 bytes, answered by
//	                Pong      the same 8 bytes

// A StreamType is what a frame on the stream is.
type StreamType uint8

// The types of frame on the stream.
const (
	StreamHello   StreamType = 1
	StreamBind    StreamType = 2
	StreamBound   StreamType = 3
	StreamRefused StreamType = 4
	StreamData    StreamType = 5
	StreamPing    StreamType = 6
	StreamPong    StreamType = 7
)

// StreamHeaderSize is the length in bytes of a stream frame's header.
const StreamHeaderSize = 4

// StreamDataPrefix is what the stream adds to a datagram.
const StreamDataPrefix = StreamHeaderSize + 4

// MaxStreamBody is the longest body of a frame: a NodeID and a datagram of any length that UDP carries.
const MaxStreamBody = 1<<16 - 1

// StreamNonceSize is the length in bytes of Hello's nonce.
const StreamNonceSize = 16

// AppendStreamHeader adds the header of a frame whose body has n bytes.
func AppendStreamHeader(dst []byte, t StreamType, n int) []byte {
	return binary.BigEndian.AppendUint16(append(dst, byte(t), 0), uint16(n))
}

// ParseStreamHeader reads the header of a frame; b has at least StreamHeaderSize bytes.
func ParseStreamHeader(b []byte) (t StreamType, n int, err error) {
	if len(b) < StreamHeaderSize || b[1] != 0 || b[0] < byte(StreamHello) || b[0] > byte(StreamPong) {
		return 0, 0, ErrFrame
	}
	return StreamType(b[0]), int(binary.BigEndian.Uint16(b[2:])), nil
}

// AppendStreamData adds a Data frame's header and NodeID for a datagram of n bytes, which follows.
func AppendStreamData(dst []byte, id weft.NodeID, n int) []byte {
	return binary.BigEndian.AppendUint32(AppendStreamHeader(dst, StreamData, 4+n), uint32(id))
}

// AppendStreamBind adds a whole Bind frame that answers the nonce of Hello.
func AppendStreamBind(dst, nonce, ticket []byte, box key.Box) []byte {
	dst = AppendStreamHeader(dst, StreamBind, TicketSize+key.Overhead)
	dst = append(dst, ticket[:TicketSize]...)
	return box.Seal(dst, nil, streamBindAdditional(nonce, ticket))
}

// ParseStreamBind takes the body of a Bind frame apart.
func ParseStreamBind(body []byte) (ticket, proof []byte, err error) {
	if len(body) != TicketSize+key.Overhead {
		return nil, nil, ErrFrame
	}
	return body[:TicketSize], body[TicketSize:], nil
}

// StreamBindProves reports whether the proof of a Bind was made by the holder of the ticket's node key, whose
// box this is, for this nonce.
func StreamBindProves(nonce, ticket, proof []byte, box key.Box) bool {
	_, err := box.Open(nil, proof, streamBindAdditional(nonce, ticket))
	return err == nil
}

func streamBindAdditional(nonce, ticket []byte) []byte {
	return append(append([]byte("stream bind\x00"), nonce...), ticket[:TicketSize]...)
}

// AppendStreamBound adds a whole Bound frame.
func AppendStreamBound(dst, nonce []byte, lifetime time.Duration, box key.Box) []byte {
	dst = AppendStreamHeader(dst, StreamBound, key.Overhead+4)
	plain := binary.BigEndian.AppendUint32(nil, uint32(lifetime/time.Second))
	return box.Seal(dst, plain, append([]byte("stream bound\x00"), nonce...))
}

// ParseStreamBound opens the body of a Bound frame: it proves that the relay holds its key.
func ParseStreamBound(body, nonce []byte, box key.Box) (time.Duration, error) {
	plain, err := box.Open(nil, body, append([]byte("stream bound\x00"), nonce...))
	if err != nil || len(plain) != 4 {
		return 0, ErrFrame
	}
	return time.Duration(binary.BigEndian.Uint32(plain)) * time.Second, nil
}

// AppendStreamRefused adds a whole Refused frame.
func AppendStreamRefused(dst []byte, r Refusal) []byte {
	return append(AppendStreamHeader(dst, StreamRefused, 1), byte(r))
}
