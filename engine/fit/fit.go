// Package fit makes the overlay's packets fit paths that carry shorter ones than the interface promises: it tells
// those who send how long packets may be, by the means of the protocols themselves.
//
// TCP is told before it begins: [Clamp] lowers the maximum segment size of a SYN as it passes. Who sends longer packets
// all the same and does not want them fragmented is told by ICMP, as a router would: [TooBig].
//
// Neither makes anything else of a packet. A checksum is mended by what was changed (RFC 1624), so that a wrong one stays
// wrong. By ICMP, IPv6 cannot be asked for less than its smallest MTU, 1280 bytes (RFC 8201 section 4): a path that is
// narrower has to carry such packets in fragments of the tunnel's. By its MSS, TCP over IPv6 can.
//
// Packets are whole IP packets, without a virtio-net header and with their checksums made. Nothing here allocates, or
// keeps what it was given.
package fit

import "encoding/binary"

const (
	// Least MTUs in bytes that ICMP tells: what IPv4 links carry at least (RFC 791 section 3.2), and IPv6's (RFC 8200
	// section 5).
	least4 = 68
	least6 = 1280
	// leastMSS in bytes is what everybody takes who says nothing else (RFC 9293 section 3.7.1); no SYN is lowered below.
	leastMSS = 536
)

// Lengths and places in headers (RFC 791, 8200, 9293).
const (
	sizeIPv4, sizeIPv6, sizeTCP = 20, 40, 20

	atLength4, atFragment, atProto4, atSum4, atSource4, atDest4 = 2, 6, 9, 10, 12, 16
	atLength6, atProto6, atSource6, atDest6                     = 4, 6, 8, 24
	atOffset, atFlags, atSumTCP                                 = 12, 13, 16

	flagSYN = 2

	dontFragment   = 0x4000
	fragmentOffset = 0x1fff // IPv4, in units of 8 bytes
)

// Protocol numbers and IPv6 extension headers.
const (
	hopByHop    = 0
	icmp4       = 1
	tcp         = 6
	routing     = 43
	fragment    = 44
	icmp6       = 58
	destination = 60
)

// TCP options (RFC 9293 section 3.2).
const (
	optionEnd  = 0
	optionNop  = 1
	optionMSS  = 2
	sizeMSS    = 4
	sizeOption = 2 // kind and length
)

// Clamp lowers the MSS of a TCP SYN (IPv4, IPv6) to what fits in packets of mtu bytes, and reports whether it did. It
// needs to see the SYNs of both directions, as the MSS tells the other side what to send. A SYN without an MSS is left
// alone: it stands for one that fits nearly everywhere (RFC 9293 section 3.7.1).
func Clamp(packet []byte, mtu int) bool {
	p, ok := parse(packet)
	if !ok || p.proto != tcp || !p.first {
		return false
	}
	most := mtu - sizeIPv4 - sizeTCP
	if p.six {
		most = mtu - sizeIPv6 - sizeTCP
	}
	most = min(max(most, leastMSS), 1<<16-1)
	segment := packet[p.payload:p.end]
	if len(segment) < sizeTCP || segment[atFlags]&flagSYN == 0 {
		return false
	}
	length := int(segment[atOffset]>>4) * 4
	if length < sizeTCP || length > len(segment) {
		return false
	}
	changed := false
	for at := sizeTCP; at < length; {
		kind := segment[at]
		if kind == optionEnd {
			break
		}
		if kind == optionNop {
			at++
			continue
		}
		if at+sizeOption > length {
			break
		}
		n := int(segment[at+1])
		if n < sizeOption || at+n > length {
			break
		}
		if kind == optionMSS && n == sizeMSS {
			changed = lower(segment, at+sizeOption, most) || changed
		}
		at += n
	}
	return changed
}

// lower writes most to the 16-bit number at a place of a TCP segment if it is higher.
func lower(segment []byte, at, most int) bool {
	was := binary.BigEndian.Uint16(segment[at:])
	if int(was) <= most {
		return false
	}
	is := uint16(most)
	binary.BigEndian.PutUint16(segment[at:], is)
	if at%2 != 0 { // its bytes belong to two words of the sum, and so they do with bytes swapped (RFC 1071 section 2 B)
		was, is = was<<8|was>>8, is<<8|is>>8
	}
	// RFC 1624, equation 3: HC' = ~(~HC + ~m + m')
	sum := uint32(^binary.BigEndian.Uint16(segment[atSumTCP:])) + uint32(^was) + uint32(is)
	binary.BigEndian.PutUint16(segment[atSumTCP:], ^fold(sum))
	return true
}

// A packet is what there is to know of one.
type packet struct {
	six     bool
	first   bool // it has the transport header: it is no later fragment
	df      bool // it must not be fragmented on its way
	proto   byte // what follows the IP headers
	payload int  // where that begins
	end     int  // of the packet, by its own account
}

// parse reads the IP headers. It is false for what is none, or shorter than it says.
func parse(b []byte) (p packet, ok bool) {
	if len(b) < sizeIPv4 {
		return p, false
	}
	switch b[0] >> 4 {
	case 4:
		word := binary.BigEndian.Uint16(b[atFragment:])
		p.payload, p.end = int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[atLength4:]))
		p.proto, p.first, p.df = b[atProto4], word&fragmentOffset == 0, word&dontFragment != 0
		return p, p.payload >= sizeIPv4 && p.payload <= p.end && p.end <= len(b)
	case 6:
		if len(b) < sizeIPv6 {
			return p, false
		}
		p.six, p.first, p.df = true, true, true
		p.payload, p.end = sizeIPv6, sizeIPv6+int(binary.BigEndian.Uint16(b[atLength6:]))
		p.proto = b[atProto6]
		return p, p.end <= len(b) && p.extensions(b)
	}
	return p, false
}

// extensions goes over the extension headers of IPv6 that transport headers may be behind (RFC 8200 section 4.1). What
// stands behind others, authentication and encryption, cannot be read or must not be changed.
func (p *packet) extensions(b []byte) bool {
	for p.first {
		var n int
		switch p.proto {
		case hopByHop, routing, destination:
			if p.payload+8 > p.end {
				return false
			}
			n = 8 + 8*int(b[p.payload+1])
		case fragment:
			if p.payload+8 > p.end {
				return false
			}
			n = 8
			p.first = binary.BigEndian.Uint16(b[p.payload+2:])>>3 == 0
		default:
			return true
		}
		if p.payload+n > p.end {
			return false
		}
		p.proto = b[p.payload]
		p.payload += n
	}
	return true
}

// sum adds up 16-bit words (RFC 1071).
func sum(b []byte, s uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		s += uint32(b[0]) << 8
	}
	return s
}

func fold(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s)
}
