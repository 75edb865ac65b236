package engine

import (
	"encoding/binary"
	"math/bits"
	"net/netip"

	"weft/engine/queue"
)

// What is read of an inner packet: where it goes, which flow it is of, how urgent it is. Options, extension headers and
// fragments need no care here: a flow that is not told apart shares its turn with others of the same addresses.
const (
	sizeIPv4, sizeIPv6, sizeTCP = 20, 40, 20

	protoTCP, protoUDP = 6, 17
	// moreOrOffset are the bits of IPv4's fragment field that say: this is one.
	moreOrOffset = 0x3fff

	ecnBits = 3 // of the traffic class (RFC 3168)
)

// flow is what an outgoing packet's headers say.
type flow struct {
	to   netip.Addr
	hash uint32
	dscp uint8
	ecn  bool // says that it understands congestion marks
	tcp  int  // where its header begins, in bytes; 0: it has none
}

// flowOf reads a packet's headers; false: it is no whole IP packet.
func flowOf(b []byte) (f flow, ok bool) {
	if len(b) < sizeIPv4 {
		return f, false
	}
	var h uint64
	var proto byte
	at := 0 // of the ports
	switch b[0] >> 4 {
	case 4:
		f.to = netip.AddrFrom4([4]byte(b[16:20]))
		class := b[1]
		f.dscp, f.ecn = class>>2, class&ecnBits != 0
		h = mix(binary.LittleEndian.Uint64(b[12:20]), uint64(b[9]))
		if binary.BigEndian.Uint16(b[6:])&moreOrOffset == 0 {
			proto, at = b[9], int(b[0]&15)*4
		}
	case 6:
		if len(b) < sizeIPv6 {
			return f, false
		}
		f.to = netip.AddrFrom16([16]byte(b[24:40]))
		class := b[0]<<4 | b[1]>>4
		f.dscp, f.ecn = class>>2, class&ecnBits != 0
		h = mix(binary.LittleEndian.Uint64(b[8:16]), binary.LittleEndian.Uint64(b[16:24]))
		h = mix(h^binary.LittleEndian.Uint64(b[24:32]), binary.LittleEndian.Uint64(b[32:40])^uint64(b[6]))
		proto, at = b[6], sizeIPv6
	default:
		return f, false
	}
	if (proto == protoTCP || proto == protoUDP) && len(b) >= at+4 {
		h = mix(h, uint64(binary.LittleEndian.Uint32(b[at:])))
	}
	f.hash = uint32(h ^ h>>32)
	if proto == protoTCP {
		f.tcp = at
	}
	return f, true
}

// carries is where what a packet of the flow carries ends, as its connection counts (RFC 9293 section 3.4). It is false for one that carries nothing that is
// sent again if it is lost, and for a fragment.
func (f *flow) carries(b []byte) (end uint32, ok bool) {
	at := f.tcp
	if at == 0 || len(b) < at+sizeTCP || b[0]>>4 == 4 && binary.BigEndian.Uint16(b[6:])&moreOrOffset != 0 {
		return 0, false
	}
	payload := len(b) - at - int(b[at+12]>>4)*4
	return binary.BigEndian.Uint32(b[at+4:]) + uint32(payload), payload > 0
}

// mix is a multiplication folded: cheap, and good enough for telling flows apart. Who makes flows collide shares their turn.
func mix(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xbf58476d1ce4e5b9)
	return hi ^ lo
}

// class is the queue's class of a flow.
func (f *flow) class() queue.Class { return queue.ClassOf(f.dscp) }

// innerLength is how long an opened packet is without its padding, and who sent it; zero: it is no IP packet, or longer
// than what came (section 5.4.6 of WireGuard's paper: the padding is told by IP's own length).
func innerLength(b []byte) (n int, from netip.Addr) {
	if len(b) < sizeIPv4 {
		return 0, from
	}
	switch b[0] >> 4 {
	case 4:
		n = int(binary.BigEndian.Uint16(b[2:]))
		if n < sizeIPv4 || n > len(b) {
			return 0, from
		}
		return n, netip.AddrFrom4([4]byte(b[12:16]))
	case 6:
		if len(b) < sizeIPv6 {
			return 0, from
		}
		n = int(binary.BigEndian.Uint16(b[4:])) + sizeIPv6
		if n > len(b) {
			return 0, from
		}
		return n, netip.AddrFrom16([16]byte(b[8:24]))
	}
	return 0, from
}
