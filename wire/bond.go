package wire

import "encoding/binary"

// What two nodes that bond tell each other rides inside their WireGuard session, where packets of IP ride: sealed,
// counted and kept from replay like them. The first byte tells: its upper half is IP's version (RFC 791, RFC 8200), and there is no
// version 0. Who does not bond, plain WireGuard peers too, takes it for a broken packet and drops it.
//
//	0000kkkk                                kind: 1 Offer, 2 Feedback, 3 Withdrawal
//
// WireGuard pads what it carries with zeros to a multiple of 16 bytes, so each frame tells its own length, and zeros may stand behind it.

// The kinds of frame inside a session.
const (
	InnerOffer    = 1
	InnerFeedback = 2
	// InnerWithdrawal takes back all that was offered: what its sender sends after it in the session goes by one path and is not sent again. Nothing of
	// that is to be waited for, nor told of. It is four bytes, of which the last three are reserved.
	InnerWithdrawal = 3
)

// InnerKind returns the kind of an inner packet that is weft's and not IP's, of those that there are or not.
func InnerKind(inner []byte) (kind byte, ok bool) {
	if len(inner) == 0 || inner[0]>>4 != 0 {
		return 0, false
	}
	return inner[0], true
}

// Offer asks the receiver to put packets in order that come by several paths, and to tell by [Feedback] which came. It is sent by
// each path; the answer is Feedback, and Offer with Answer set is what says it when there is nothing to tell of yet.
//
//	+---------------+-------------+-+-------------------------------+
//	|       1       |  Reserved   |A|             path              |
//	+---------------+-------------+-+-------------------------------+
//	|                           sequence                            |
//	+---------------------------------------------------------------+
//
// Path is the sender's number of the path that the frame is sent by, not zero: Feedback names paths by it. In an answer it is that of the offer.
type Offer struct {
	Seq    uint32 // grows with each offer of a sender; the answer's is that of the offer
	Path   uint16
	Answer bool
}

// OfferSize is an offer's length in bytes.
const OfferSize = 8

// AppendOffer adds an offer to dst.
func AppendOffer(dst []byte, o Offer) []byte {
	var flags byte
	if o.Answer {
		flags = 1
	}
	dst = binary.BigEndian.AppendUint16(append(dst, InnerOffer, flags), o.Path)
	return binary.BigEndian.AppendUint32(dst, o.Seq)
}

// ParseOffer parses an offer, with what padding there is behind it.
func ParseOffer(b []byte) (Offer, error) {
	if len(b) < OfferSize || b[0] != InnerOffer {
		return Offer{}, ErrFrame
	}
	o := Offer{Seq: binary.BigEndian.Uint32(b[4:]), Path: binary.BigEndian.Uint16(b[2:]), Answer: b[1]&1 != 0}
	if o.Path == 0 {
		return Offer{}, ErrFrame
	}
	return o, nil
}

// WithdrawalSize is a withdrawal's length in bytes.
const WithdrawalSize = 4

// AppendWithdrawal adds a withdrawal to dst.
func AppendWithdrawal(dst []byte) []byte { return append(dst, InnerWithdrawal, 0, 0, 0) }

// Bounds of one [Feedback].
const (
	MaxBondPaths     = 16
	MaxFeedbackWords = 64 // of 64 counters each
)

const (
	feedbackHead     = 4 + 4 + 8 + 8
	feedbackPathSize = 4 + 4 + 4 + 4 + 2 + 2
)

// MaxFeedbackSize is the longest feedback in bytes. It has room in a packet of any IPv6 link (1280 bytes, RFC 8200 section 5) beside the headers.
const MaxFeedbackSize = feedbackHead + 8*MaxFeedbackWords + feedbackPathSize*MaxBondPaths

// FeedbackPath is what came by one path.
type FeedbackPath struct {
	ID             uint16 // the number that the data's sender gave the path in its [Offer]; 0: it has not said
	Newest         uint64 // largest counter of the session that came by it
	At             uint64 // when that came: microseconds of the receiver's clock
	Packets, Bytes uint32 // all that came by it, of any session, modulo 2^32; bytes are lengths of WireGuard messages
	Unread         bool   // more had come by it, or may have, that the receiver had not looked at yet
}

// Feedback acknowledges data of one session: which counters came by any path, and per path how far it is.
//
//	+---------------+---------------+---------------+---------------+
//	|       2       |   Reserved    |     words     |     paths     |
//	+---------------+---------------+---------------+---------------+
//	|                            session                            |
//	+---------------------------------------------------------------+
//	|                           clock (8)                           |
//	|                                                               |
//	+---------------------------------------------------------------+
//	|                           base (8)                            |
//	|                                                               |
//	+---------------------------------------------------------------+
//
// words times (at most 64)
//
//	+---------------------------------------------------------------+
//	|                          counters (8)                         |
//	|                                                               |
//	+---------------------------------------------------------------+
//
// and paths times (at most 16)
//
//	+---------------------------------------------------------------+
//	|                   newest, its lower 32 bits                   |
//	+---------------------------------------------------------------+
//	|                              age                              |
//	+---------------------------------------------------------------+
//	|                            packets                            |
//	+---------------------------------------------------------------+
//	|                             bytes                             |
//	+-------------------------------+-------------------------------+
//	|             path              |          Reserved           |U|
//	+-------------------------------+-----------------------------+-+
//
// Session is the receiver index of the session's data messages. All counters below base are settled: they came, or are no longer waited for. Bit i of
// word n, the lowest being bit 0, says that base + 64n + i came. Newest is within 2^31 of base. Age is for how many microseconds of
// the clock newest had been there. U is Unread.
type Feedback struct {
	Session uint32
	Clock   uint64 // microseconds, of the receiver's clock, which has any origin
	Base    uint64
	Words   [MaxFeedbackWords]uint64
	NWords  int
	Paths   [MaxBondPaths]FeedbackPath
	NPaths  int
}

// Came reports whether a counter not below Base is said to have come.
func (f *Feedback) Came(counter uint64) bool {
	i := counter - f.Base
	return counter >= f.Base && i < uint64(f.NWords)*64 && f.Words[i/64]>>(i%64)&1 != 0
}

// AppendFeedback adds a feedback to dst. A path whose newest counter is too far from the base, or whose time is not of
// the last 71 minutes of the clock, is passed over.
func AppendFeedback(dst []byte, f *Feedback) []byte {
	at := len(dst)
	words, paths := min(max(f.NWords, 0), MaxFeedbackWords), min(max(f.NPaths, 0), MaxBondPaths)
	dst = append(dst, InnerFeedback, 0, byte(words), 0)
	dst = binary.BigEndian.AppendUint32(dst, f.Session)
	dst = binary.BigEndian.AppendUint64(dst, f.Clock)
	dst = binary.BigEndian.AppendUint64(dst, f.Base)
	for _, w := range f.Words[:words] {
		dst = binary.BigEndian.AppendUint64(dst, w)
	}
	for i := range f.Paths[:paths] {
		p := &f.Paths[i]
		age := f.Clock - p.At
		if p.At > f.Clock || age > 1<<32-1 || nearest(uint32(p.Newest), f.Base) != p.Newest {
			continue
		}
		dst = binary.BigEndian.AppendUint32(dst, uint32(p.Newest))
		dst = binary.BigEndian.AppendUint32(dst, uint32(age))
		dst = binary.BigEndian.AppendUint32(dst, p.Packets)
		dst = binary.BigEndian.AppendUint32(dst, p.Bytes)
		dst = binary.BigEndian.AppendUint16(dst, p.ID)
		var flags uint16
		if p.Unread {
			flags = 1
		}
		dst = binary.BigEndian.AppendUint16(dst, flags)
		dst[at+3]++
	}
	return dst
}

// nearest is the counter with these lower bits that is within 2^31 of base, modulo 2^64.
func nearest(low uint32, base uint64) uint64 {
	return base + uint64(int64(int32(low-uint32(base))))
}

// ParseFeedback parses a feedback, with what padding there is behind it, into f, of which it leaves alone the words and paths that the
// counts do not name. A time before the clock's origin, a newest counter below zero, and a base that no session reaches are errors.
func ParseFeedback(b []byte, f *Feedback) error {
	if len(b) < feedbackHead || b[0] != InnerFeedback {
		return ErrFrame
	}
	words, paths := int(b[2]), int(b[3])
	if words > MaxFeedbackWords || paths > MaxBondPaths || len(b) < feedbackHead+8*words+feedbackPathSize*paths {
		return ErrFrame
	}
	f.Session = binary.BigEndian.Uint32(b[4:])
	f.Clock = binary.BigEndian.Uint64(b[8:])
	f.Base = binary.BigEndian.Uint64(b[16:])
	if f.Base>>63 != 0 {
		return ErrFrame
	}
	f.NWords, f.NPaths = words, paths
	b = b[feedbackHead:]
	for i := range words {
		f.Words[i] = binary.BigEndian.Uint64(b[8*i:])
	}
	b = b[8*words:]
	for i := range paths {
		at := b[feedbackPathSize*i:]
		p := FeedbackPath{
			ID:      binary.BigEndian.Uint16(at[16:]),
			Newest:  nearest(binary.BigEndian.Uint32(at), f.Base),
			At:      f.Clock - uint64(binary.BigEndian.Uint32(at[4:])),
			Packets: binary.BigEndian.Uint32(at[8:]),
			Bytes:   binary.BigEndian.Uint32(at[12:]),
			Unread:  at[19]&1 != 0,
		}
		if p.At > f.Clock || p.Newest>>63 != 0 {
			return ErrFrame
		}
		f.Paths[i] = p
	}
	return nil
}
