package stun

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

const (
	headerLen = 20         // bytes; RFC 8489, section 5
	cookie    = 0x2112a442 // magic cookie; same place

	// maxUnknown bounds the unknown attribute types remembered of one message.
	// A reply that names the first 16 tells its reader enough.
	maxUnknown = 16
)

var (
	// ErrNotSTUN is what Parse says of bytes that are no STUN message at all.
	ErrNotSTUN = errors.New("stun: not a STUN message")
	// ErrMalformed is what Parse says of a STUN header with broken attributes.
	ErrMalformed = errors.New("stun: an attribute of the message is malformed")
	// ErrFingerprint is what Parse says of a message with a wrong FINGERPRINT:
	// damaged on its way, or not STUN but a lookalike.
	ErrFingerprint = errors.New("stun: the message does not match its FINGERPRINT")
)

// Is reports whether b looks like a STUN message of RFC 5389 or later: the two
// top bits are zero, the magic cookie is there and the length is a multiple of
// four that fits the datagram exactly. It looks at the header alone, so that it
// can stand first in a receive loop.
func Is(b []byte) bool {
	return len(b) >= headerLen && b[0]&0xc0 == 0 &&
		binary.BigEndian.Uint32(b[4:]) == cookie && lengthFits(b)
}

// IsClassic reports whether b looks like a binding request of RFC 3489, which
// has no cookie to know it by: the type is exactly 0x0001 and the length fits.
// WireGuard messages begin with 0x01 to 0x04 and never look like it.
func IsClassic(b []byte) bool {
	return len(b) >= headerLen && b[0] == 0 && b[1] == 1 &&
		binary.BigEndian.Uint32(b[4:]) != cookie && lengthFits(b)
}

func lengthFits(b []byte) bool {
	n := int(binary.BigEndian.Uint16(b[2:]))
	return n%4 == 0 && n == len(b)-headerLen
}

// Message is one parsed STUN message. It points into the bytes it was parsed
// from and is valid as long as they are left alone. The zero value is no message.
type Message struct {
	Class  Class
	Method Method
	ID     TransactionID

	Mapped netip.AddrPort // XOR-MAPPED-ADDRESS, else MAPPED-ADDRESS
	Origin netip.AddrPort // RESPONSE-ORIGIN, else SOURCE-ADDRESS
	Other  netip.AddrPort // OTHER-ADDRESS, else CHANGED-ADDRESS
	Code   int            // of ERROR-CODE, 300 to 699; 0 is none

	Change       Change // flags of CHANGE-REQUEST
	ResponsePort uint16 // of RESPONSE-PORT
	OtherPort    uint16 // of AttrAlternatePort; 0 is none
	Padding      int    // bytes of PADDING

	classic         bool // RFC 3489: no cookie
	hasChange       bool
	hasResponsePort bool
	hasPadding      bool
	hasFingerprint  bool

	integrity       int // offset of MESSAGE-INTEGRITY in raw; 0 is none
	integritySHA256 int // offset of MESSAGE-INTEGRITY-SHA256 in raw; 0 is none
	end             int // offset in raw where the attributes that count end
	unknowns        int // how many of unknown are set
	unknown         [maxUnknown]Attr
	raw             []byte
}

// Parse reads one STUN message that fills b exactly. It never keeps more than
// a reference to b, allocates nothing, and checks the FINGERPRINT if there is
// one. Malformed attributes that must be understood are an error; malformed
// attributes that may be skipped are skipped.
func Parse(b []byte) (Message, error) {
	if !Is(b) {
		return Message{}, ErrNotSTUN
	}
	return parse(b, false)
}

// parse reads the attributes of b, whose header is known to fit.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|0 0|       message type        |            length             |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                     cookie 0x2112A442                         |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                  transaction ID, 96 bits                      |
//	|                             ...                               |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|        attribute type         |   length without padding      |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|               value, padded to four bytes ...                 |
func parse(b []byte, classic bool) (Message, error) {
	m := Message{raw: b, end: len(b), classic: classic}
	m.Class, m.Method = splitType(binary.BigEndian.Uint16(b))
	copy(m.ID[:], b[8:headerLen])

	var plain, source, changed netip.AddrPort
	var bad bool
	for off := headerLen; off < len(b); {
		t, v, next, ok := attributeAt(b, off)
		if !ok || m.hasFingerprint { // FINGERPRINT must be the last (RFC 8489, 14.7)
			return Message{}, ErrMalformed
		}
		at := off
		off = next
		if t == AttrFingerprint && !classic {
			if len(v) != 4 {
				return Message{}, ErrMalformed
			}
			if binary.BigEndian.Uint32(v) != fingerprint(b[:at]) {
				return Message{}, ErrFingerprint
			}
			m.hasFingerprint = true
			continue
		}
		// What follows an integrity attribute is not covered by it and is
		// ignored, save a stronger one (RFC 8489, 14.5 and 14.6).
		if m.integritySHA256 != 0 || m.integrity != 0 && t != AttrMessageIntegritySHA256 {
			continue
		}
		switch t {
		case AttrMessageIntegrity:
			m.integrity, m.end, bad = at, at, len(v) != 20
		case AttrMessageIntegritySHA256:
			m.integritySHA256, m.end, bad = at, min(m.end, at), len(v) != 32
		case AttrXORMappedAddress:
			bad = !readAddress(&m.Mapped, v, b[4:headerLen])
		case AttrMappedAddress:
			bad = !readAddress(&plain, v, nil)
		case AttrSourceAddress:
			bad = !readAddress(&source, v, nil)
		case AttrChangedAddress:
			bad = !readAddress(&changed, v, nil)
		case AttrResponseOrigin:
			readAddress(&m.Origin, v, nil)
		case AttrOtherAddress:
			readAddress(&m.Other, v, nil)
		case AttrAlternatePort:
			if len(v) == 4 && m.OtherPort == 0 {
				m.OtherPort = binary.BigEndian.Uint16(v)
			}
		case AttrErrorCode:
			bad = !m.readErrorCode(v)
		case AttrUnknownAttributes:
			bad = len(v)%2 != 0
		case AttrChangeRequest:
			if bad = len(v) != 4; !bad && !m.hasChange {
				m.Change, m.hasChange = Change(v[3])&(ChangeIP|ChangePort), true
			}
		case AttrResponsePort:
			if bad = len(v) != 4 && len(v) != 2; !bad && !m.hasResponsePort {
				m.ResponsePort, m.hasResponsePort = binary.BigEndian.Uint16(v), true
			}
		case AttrPadding:
			if !m.hasPadding {
				m.Padding, m.hasPadding = len(v), true
			}
		default:
			if t.required() && !t.understood() {
				m.addUnknown(t)
			}
		}
		if bad {
			return Message{}, ErrMalformed
		}
	}
	if !m.Mapped.IsValid() {
		m.Mapped = plain
	}
	if !m.Origin.IsValid() {
		m.Origin = source
	}
	if !m.Other.IsValid() {
		m.Other = changed
	}
	return m, nil
}

// attributeAt reads the attribute header at off, which must be inside b, and
// returns its value without padding and the offset of the next attribute.
func attributeAt(b []byte, off int) (t Attr, v []byte, next int, ok bool) {
	if len(b)-off < 4 {
		return 0, nil, 0, false
	}
	t = Attr(binary.BigEndian.Uint16(b[off:]))
	n := int(binary.BigEndian.Uint16(b[off+2:]))
	next = off + 4 + (n+3)&^3
	if next > len(b) {
		return 0, nil, 0, false
	}
	return t, b[off+4 : off+4+n], next, true
}

const (
	familyIPv4 = 0x01
	familyIPv6 = 0x02
)

// readAddress reads a transport address into a, unless a is set: of several
// attributes of one type the first counts (RFC 8489, section 14). The mask is
// the 16 bytes of cookie and transaction ID for the XOR form, nil for the plain.
//
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|0 0 0 0 0 0 0 0|    family     |             port              |
//	+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+-+
//	|                 address, 32 or 128 bits ...                   |
func readAddress(a *netip.AddrPort, v, mask []byte) bool {
	if len(v) < 8 {
		return false
	}
	port := binary.BigEndian.Uint16(v[2:])
	var ip [16]byte
	n := copy(ip[:], v[4:])
	if mask != nil {
		port ^= binary.BigEndian.Uint16(mask)
		for i := range ip {
			ip[i] ^= mask[i]
		}
	}
	var addr netip.Addr
	switch {
	case v[1] == familyIPv4 && len(v) == 8:
		addr = netip.AddrFrom4([4]byte(ip[:4]))
	case v[1] == familyIPv6 && len(v) == 20 && n == 16:
		addr = netip.AddrFrom16(ip).Unmap() // some dual-stack servers forget to
	default:
		return false
	}
	if !a.IsValid() {
		*a = netip.AddrPortFrom(addr, port)
	}
	return true
}

func (m *Message) readErrorCode(v []byte) bool {
	if len(v) < 4 {
		return false
	}
	class, number := int(v[2]&7), int(v[3])
	if class < 3 || class > 6 || number > 99 {
		return false
	}
	if m.Code == 0 {
		m.Code = class*100 + number
	}
	return true
}

func (m *Message) addUnknown(t Attr) {
	if m.unknowns < maxUnknown {
		m.unknown[m.unknowns] = t
		m.unknowns++
	}
}

// Attribute returns the value of the first attribute of that type among those
// that count: what follows an integrity attribute does not.
func (m *Message) Attribute(t Attr) ([]byte, bool) {
	for off := headerLen; off < m.end; {
		at, v, next, ok := attributeAt(m.raw, off)
		if !ok {
			return nil, false
		}
		if at == t {
			return v, true
		}
		off = next
	}
	return nil, false
}

// Software returns the SOFTWARE attribute, in the words of a stranger.
func (m *Message) Software() string {
	v, _ := m.Attribute(AttrSoftware)
	return string(v)
}

// Reason returns the phrase of ERROR-CODE, in the words of a stranger.
func (m *Message) Reason() string {
	v, ok := m.Attribute(AttrErrorCode)
	if !ok || len(v) < 4 {
		return ""
	}
	return string(v[4:])
}

// UnknownAttributes returns the types listed by the UNKNOWN-ATTRIBUTES attribute
// of an error response.
func (m *Message) UnknownAttributes() []Attr {
	v, _ := m.Attribute(AttrUnknownAttributes)
	var list []Attr
	for ; len(v) >= 2; v = v[2:] {
		list = append(list, Attr(binary.BigEndian.Uint16(v)))
	}
	return list
}

// Unknown returns the comprehension-required attributes of this message that
// this package does not know, at most 16 of them.
func (m *Message) Unknown() []Attr { return m.unknown[:m.unknowns] }
