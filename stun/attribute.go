package stun

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
)

// Class is the two class bits of the message type (RFC 8489, section 5).
type Class uint8

const (
	ClassRequest    Class = 0b00
	ClassIndication Class = 0b01
	ClassSuccess    Class = 0b10
	ClassError      Class = 0b11
)

func (c Class) String() string {
	switch c {
	case ClassRequest:
		return "request"
	case ClassIndication:
		return "indication"
	case ClassSuccess:
		return "success response"
	case ClassError:
		return "error response"
	}
	return fmt.Sprintf("class %d", uint8(c))
}

// Method is the twelve method bits of the message type.
type Method uint16

// MethodBinding is the only method that this package speaks.
const MethodBinding Method = 0x001

// messageType interleaves class and method as RFC 8489, figure 3, draws them:
//
//	 0                 1
//	 2  3  4 5 6 7 8 9 0 1 2 3 4 5
//	+--+--+-+-+-+-+-+-+-+-+-+-+-+-+
//	|M |M |M|M|M|C|M|M|M|C|M|M|M|M|
//	|11|10|9|8|7|1|6|5|4|0|3|2|1|0|
//	+--+--+-+-+-+-+-+-+-+-+-+-+-+-+
func messageType(c Class, m Method) uint16 {
	return uint16(m&0x00f) | uint16(m&0x070)<<1 | uint16(m&0xf80)<<2 |
		uint16(c&1)<<4 | uint16(c&2)<<7
}

func splitType(t uint16) (Class, Method) {
	c := Class(t>>4&1 | t>>7&2)
	m := Method(t&0x000f | t>>1&0x0070 | t>>2&0x0f80)
	return c, m
}

// Attr is an attribute type. Those below 0x8000 must be understood by whoever
// receives them; the others may be skipped.
type Attr uint16

const (
	AttrMappedAddress          Attr = 0x0001
	AttrResponseAddress        Attr = 0x0002 // RFC 3489; refused, see the package comment
	AttrChangeRequest          Attr = 0x0003 // RFC 5780, 7.2
	AttrSourceAddress          Attr = 0x0004 // RFC 3489, the ancestor of RESPONSE-ORIGIN
	AttrChangedAddress         Attr = 0x0005 // RFC 3489, the ancestor of OTHER-ADDRESS
	AttrUsername               Attr = 0x0006
	AttrMessageIntegrity       Attr = 0x0008
	AttrErrorCode              Attr = 0x0009
	AttrUnknownAttributes      Attr = 0x000a
	AttrRealm                  Attr = 0x0014
	AttrNonce                  Attr = 0x0015
	AttrMessageIntegritySHA256 Attr = 0x001c
	AttrPasswordAlgorithm      Attr = 0x001d
	AttrUserhash               Attr = 0x001e
	AttrXORMappedAddress       Attr = 0x0020
	AttrPadding                Attr = 0x0026 // RFC 5780, 7.6
	AttrResponsePort           Attr = 0x0027 // RFC 5780, 7.5
	AttrSoftware               Attr = 0x8022
	AttrFingerprint            Attr = 0x8028
	AttrResponseOrigin         Attr = 0x802b // RFC 5780, 7.3
	AttrOtherAddress           Attr = 0x802c // RFC 5780, 7.4

	// AttrAlternatePort is our own, from the range that is assigned first come (RFC 8489, 18.3) and not assigned:
	// the port, two bytes and two of zeros, where a server of one address answers as well, and from where it
	// sends its answer to a CHANGE-REQUEST with the change-port flag alone.
	AttrAlternatePort Attr = 0xd757
)

// required reports whether the type is in the comprehension-required range.
func (a Attr) required() bool { return a < 0x8000 }

// understood reports whether a comprehension-required attribute is one whose
// meaning we know. Knowing is not using: credentials are known and not checked.
func (a Attr) understood() bool {
	switch a {
	case AttrMappedAddress, AttrChangeRequest, AttrSourceAddress, AttrChangedAddress,
		AttrUsername, AttrMessageIntegrity, AttrErrorCode, AttrUnknownAttributes,
		AttrRealm, AttrNonce, AttrMessageIntegritySHA256, AttrPasswordAlgorithm,
		AttrUserhash, AttrXORMappedAddress, AttrPadding, AttrResponsePort:
		return true
	}
	return false
}

// Change holds the flags of CHANGE-REQUEST as they are on the wire. The zero
// value asks for no change.
type Change uint8

const (
	ChangeIP   Change = 0x04
	ChangePort Change = 0x02
)

// Error codes that the responder gives (RFC 8489, 14.8).
const (
	CodeBadRequest       = 400
	CodeUnknownAttribute = 420
)

// TransactionID is the 96 random bits that tie a response to its request.
type TransactionID [12]byte

// NewTransactionID draws from the system's secure source: an ID that cannot be
// guessed is all that keeps strangers off the path from forging answers.
func NewTransactionID() TransactionID {
	var id TransactionID
	rand.Read(id[:]) // never fails: it aborts the program where the system has no randomness
	return id
}

func (id TransactionID) String() string { return hex.EncodeToString(id[:]) }
