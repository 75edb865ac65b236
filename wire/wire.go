// Package wire is every byte that weft puts on a network, apart from the packets of WireGuard and STUN, which
// have documents of their own. Each frame is drawn first and then has an Append that adds it to the caller's
// buffer and a Parse that takes what came, of any length and content, and never panics. docs/wire.md is the
// same in prose.
//
// # One UDP port, three protocols
//
// WireGuard, STUN and weft share a node's sockets. They are told apart by their first bytes, [Classify]:
//
//	WireGuard   01..04 00 00 00             message type, little endian
//	STUN        00xxxxxx                    and 20 bytes or more; package stun looks for the cookie
//	weft        F7                          [Magic]
//
// Every weft frame over UDP begins with the same four bytes. Numbers are big endian, as in STUN.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|  Magic (F7)   |  Version (1)  |     Kind      |  Reserved (0) |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//
// A frame of another version, or whose header has a bit where the zeros belong, is dropped: nothing is guessed.
// Reserved bytes behind the header are sent as zero and not looked at, so that a later version may use them.
package wire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// Magic is the first byte of every weft frame over UDP. It is none of WireGuard's types, has not STUN's two
// leading zero bits, and lies outside the ranges that RFC 7983 gives to what else shares ports.
const Magic = 0xF7

// Version is the second byte.
const Version = 1

// HeaderSize is the length in bytes of the header that every UDP frame has.
const HeaderSize = 4

// A Kind is the third byte: what the frame is.
type Kind uint8

// The kinds of frame over UDP.
const (
	KindPeer      Kind = 1  // between two nodes, sealed
	KindData      Kind = 2  // a WireGuard packet or a peer frame, through a relay
	KindBind      Kind = 3  // node to relay
	KindChallenge Kind = 4  // relay to node
	KindBound     Kind = 5  // relay to node
	KindRefused   Kind = 6  // relay to node
	KindLocate    Kind = 7  // node to relay
	KindLocated   Kind = 8  // relay to node
	KindProbe     Kind = 9  // node to relay
	KindProbed    Kind = 10 // relay to node
)

// ErrFrame is returned for bytes that are not the frame asked for.
var ErrFrame = errors.New("not a weft frame of this kind")

// A Class is which of the protocols on a port a datagram belongs to.
type Class uint8

// The classes.
const (
	ClassUnknown Class = iota
	ClassWireGuard
	ClassSTUN
	ClassWeft
)

// Classify tells the protocols apart. It looks at four bytes and the length, and allocates nothing. The only
// STUN messages that look like WireGuard's are without attributes and of the types 0100 to 0400: methods that
// IANA has given to nobody, but for one (GOOG-PING) that is never without an attribute.
func Classify(b []byte) Class {
	switch {
	case len(b) < HeaderSize:
		return ClassUnknown
	case b[0] >= 1 && b[0] <= 4 && b[1] == 0 && b[2] == 0 && b[3] == 0:
		return ClassWireGuard
	case b[0] == Magic:
		return ClassWeft
	case b[0] < 0x40 && len(b) >= 20:
		return ClassSTUN // RFC 3489 clients send no cookie: package stun looks closer
	}
	return ClassUnknown
}

func appendHeader(dst []byte, k Kind) []byte { return append(dst, Magic, Version, byte(k), 0) }

// KindOf returns the kind of a weft frame, or false for anything that is none.
func KindOf(b []byte) (Kind, bool) {
	if len(b) < HeaderSize || b[0] != Magic || b[1] != Version || b[3] != 0 {
		return 0, false
	}
	k := Kind(b[2])
	return k, k >= KindPeer && k <= KindProbed
}

// body returns what follows the header of a frame of kind k.
func body(b []byte, k Kind) ([]byte, error) {
	if have, ok := KindOf(b); !ok || have != k {
		return nil, ErrFrame
	}
	return b[HeaderSize:], nil
}

// addrSize is the length of an address and port: 16 bytes of IPv6 (IPv4 mapped, RFC 4291 section 2.5.5.2) and
// two of port. No address is all zeros.
const addrSize = 16 + 2

func appendAddr(dst []byte, a netip.AddrPort) []byte {
	if !a.IsValid() {
		return append(dst, make([]byte, addrSize)...)
	}
	ip := a.Addr().As16()
	return binary.BigEndian.AppendUint16(append(dst, ip[:]...), a.Port())
}

func parseAddr(b []byte) netip.AddrPort {
	ip := netip.AddrFrom16([16]byte(b[:16])).Unmap()
	port := binary.BigEndian.Uint16(b[16:])
	if ip.IsUnspecified() && port == 0 {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(ip, port)
}
