// Package segment takes super-packets apart and puts them together: what segmentation offload means for a program
// between a TUN device with a virtio-net header and a cipher. Both directions work where the bytes lie.
//
// A [Splitter] goes through a super-packet of TCP or UDP from front to back. Each piece needs headers of its own right
// in front of its payload; they are written over the end of the piece before, which has been sealed by then. So nothing
// is copied but headers.
//
// A [Merger] does the opposite. Each packet is opened to where its payload follows the last one's, which puts its headers
// over the end of what is there; that is kept aside meanwhile, and put back when the headers turn out to continue
// the flow. So the cipher is the only copy here too. What does not continue it is moved, and begins anew.
//
// # Checksums
//
// A piece leaves with a full checksum, since whoever opens it may look. A packet that comes is merged only if its
// checksum is right, for a merged packet is handed to the kernel as one whose checksum is still to be made; a wrong one
// is passed on alone and stays wrong. No packet is marked as verified: kernels believe that, and flows hang.
//
// Nothing here allocates, or keeps what it was given.
package segment

import (
	"encoding/binary"
	"errors"
	"math/bits"
)

// HeaderSize is the length in bytes of what is in front of each packet of a TUN device with IFF_VNET_HDR, before any
// of VIRTIO_NET_F_MRG_RXBUF: flags, GSO type, header length, GSO size, checksum start and offset.
const HeaderSize = 10

// Flags and types of the virtio-net header (virtio 1.2, section 5.1.6).
const (
	NeedsChecksum = 1

	None  = 0
	TCPv4 = 1
	TCPv6 = 4
	UDP   = 5    // VIRTIO_NET_HDR_GSO_UDP_L4
	ECN   = 0x80 // with a TCP type: the first piece has CWR
)

// A Header is a virtio-net header in front of a packet, in the machine's byte order.
type Header struct {
	Flags, Type   uint8
	HeaderLen     uint16 // of all headers of the packet; a hint only
	Size          uint16 // of a piece's payload, in bytes
	ChecksumStart uint16 // where summing begins; that is the transport header
	ChecksumAt    uint16 // behind ChecksumStart: where the sum belongs
}

// ParseHeader reads a header. It needs HeaderSize bytes.
func ParseHeader(b []byte) Header {
	_ = b[HeaderSize-1]
	return Header{
		Flags: b[0], Type: b[1], HeaderLen: binary.NativeEndian.Uint16(b[2:]), Size: binary.NativeEndian.Uint16(b[4:]),
		ChecksumStart: binary.NativeEndian.Uint16(b[6:]), ChecksumAt: binary.NativeEndian.Uint16(b[8:]),
	}
}

// Put writes the header. It needs HeaderSize bytes.
func (h Header) Put(b []byte) {
	_ = b[HeaderSize-1]
	b[0], b[1] = h.Flags, h.Type
	binary.NativeEndian.PutUint16(b[2:], h.HeaderLen)
	binary.NativeEndian.PutUint16(b[4:], h.Size)
	binary.NativeEndian.PutUint16(b[6:], h.ChecksumStart)
	binary.NativeEndian.PutUint16(b[8:], h.ChecksumAt)
}

// Protocols and places in headers (RFC 791, 8200, 9293, 768).
const (
	protoTCP = 6
	protoUDP = 17

	sizeIPv4, sizeIPv6, sizeTCP, sizeUDP = 20, 40, 20, 8
	// maxTransport is the longest TCP header, and maxHeaders all headers that are taken apart: IP options and extension
	// headers are not, since no kernel offloads packets with them.
	maxTransport = 60
	maxHeaders   = sizeIPv6 + maxTransport

	atLength4, atID, atFragment, atTTL4, atProto4, atSum4 = 2, 4, 6, 8, 9, 10
	atLength6, atProto6, atHops6                          = 4, 6, 7
	atSeq, atAck, atOffset, atFlags, atWindow, atSumTCP   = 4, 8, 12, 13, 14, 16
	atLengthUDP, atSumUDP                                 = 4, 6

	flagFIN, flagSYN, flagRST, flagPSH, flagACK, flagURG, flagECE, flagCWR = 1, 2, 4, 8, 16, 32, 64, 128
)

// Errors of packets that their headers contradict. A kernel makes none of them.
var (
	ErrShort = errors.New("the packet is shorter than its headers say")
	ErrKind  = errors.New("the packet is of another kind than its header says")
)

// A shape is where a packet's headers lie.
type shape struct {
	six, tcp bool
	ip, all  int // lengths of the IP header, and of all headers
}

// shapeOf reads the headers of TCP or UDP over IP without options, extension headers or fragments.
func shapeOf(b []byte) (s shape, ok bool) {
	if len(b) < sizeIPv4+sizeUDP {
		return s, false
	}
	var proto byte
	switch b[0] >> 4 {
	case 4:
		if b[0] != 0x45 || binary.BigEndian.Uint16(b[atFragment:])&0x3fff != 0 {
			return s, false
		}
		s.ip, proto = sizeIPv4, b[atProto4]
	case 6:
		s.six, s.ip, proto = true, sizeIPv6, b[atProto6]
	default:
		return s, false
	}
	switch proto {
	case protoTCP:
		s.tcp = true
		if len(b) < s.ip+sizeTCP {
			return s, false
		}
		n := int(b[s.ip+atOffset]>>4) * 4
		s.all = s.ip + n
		return s, n >= sizeTCP && len(b) >= s.all
	case protoUDP:
		s.all = s.ip + sizeUDP
		return s, len(b) >= s.all
	}
	return s, false
}

// setLength writes the packet's length, in the IP header and in UDP's, and the IPv4 header's checksum.
func (s shape) setLength(b []byte, n int) {
	if s.six {
		binary.BigEndian.PutUint16(b[atLength6:], uint16(n-sizeIPv6))
	} else {
		binary.BigEndian.PutUint16(b[atLength4:], uint16(n))
		b[atSum4], b[atSum4+1] = 0, 0
		binary.BigEndian.PutUint16(b[atSum4:], ^fold(sum(b[:sizeIPv4], 0)))
	}
	if !s.tcp {
		binary.BigEndian.PutUint16(b[s.ip+atLengthUDP:], uint16(n-s.ip))
	}
}

// pseudo is the sum of the pseudo-header of n bytes behind the IP header.
func (s shape) pseudo(b []byte, n int) uint64 {
	proto := uint64(protoUDP)
	if s.tcp {
		proto = protoTCP
	}
	if s.six {
		return sum(b[8:40], proto+uint64(n))
	}
	return sum(b[12:20], proto+uint64(n))
}

func (s shape) sumAt() int {
	if s.tcp {
		return s.ip + atSumTCP
	}
	return s.ip + atSumUDP
}

// finish writes the transport checksum of a whole packet.
func (s shape) finish(b []byte) {
	at := s.sumAt()
	b[at], b[at+1] = 0, 0
	v := ^fold(sum(b[s.ip:], s.pseudo(b, len(b)-s.ip)))
	if v == 0 && !s.tcp {
		v = 0xffff // zero would mean that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(b[at:], v)
}

// valid reports whether the transport checksum of a whole packet is right.
func (s shape) valid(b []byte) bool {
	if !s.tcp && binary.BigEndian.Uint16(b[s.sumAt():]) == 0 {
		return false // IPv4 allows that there is none; then it is not for us to make one
	}
	return fold(sum(b[s.ip:], s.pseudo(b, len(b)-s.ip))) == 0xffff
}

// sumBlock is how many bytes sumBlocks takes at a time.
const sumBlock = 128

// sum adds up a checksum of RFC 1071 over b, in words of the network's order, eight bytes at a time: what carries out at
// the top comes in again at the bottom.
func sum(b []byte, initial uint64) uint64 {
	var s, c uint64
	if wideSum && len(b) >= sumBlock {
		n := len(b) / sumBlock
		s = sumBlocks(&b[0], n)
		b = b[n*sumBlock:]
	}
	for len(b) >= 64 {
		_ = b[63]
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[24:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[32:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[40:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[48:]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[56:]), c)
		b = b[64:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), c)
		b = b[8:]
	}
	if len(b) > 0 {
		var last [8]byte
		copy(last[:], b)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(last[:]), c)
	}
	s, c = bits.Add64(s, c, 0)
	s += c
	// Summed in the other byte order, the folded sum is the same with its bytes swapped (RFC 1071 section 2 B).
	return uint64(bits.ReverseBytes16(fold(s))) + initial
}

// fold makes 16 bits of a sum.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}
