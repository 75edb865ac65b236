package segment

import "encoding/binary"

// The ECN field: the low bits of IPv4's second byte and of IPv6's traffic class (RFC 3168 section 5).
const (
	ecnNotECT = 0
	ecnCE     = 3
)

// MarkCE says in a packet that it met congestion, if its sender said that it understands that; the IPv4 header's checksum is
// mended by what changed, so that a wrong one stays wrong (RFC 1624). It reports whether the packet is marked now. In a
// super-packet it marks all pieces.
func MarkCE(packet []byte) bool {
	if len(packet) < sizeIPv4 {
		return false
	}
	switch packet[0] >> 4 {
	case 4:
		old := packet[1]
		if old&ecnCE == ecnNotECT {
			return false
		}
		packet[1] = old | ecnCE
		// HC' = ~(~HC + ~m + m'): the first words differ in their low bytes by what was added.
		hc := uint32(^binary.BigEndian.Uint16(packet[atSum4:])) + uint32(packet[1]-old)
		binary.BigEndian.PutUint16(packet[atSum4:], ^uint16(hc+hc>>16))
		return true
	case 6:
		if packet[1]>>4&ecnCE == ecnNotECT {
			return false
		}
		packet[1] |= ecnCE << 4
		return true
	}
	return false
}
