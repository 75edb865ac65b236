package fit

import (
	"encoding/binary"
	"net/netip"
)

// ICMP's messages: fragmentation needed (RFC 1191 section 4) and packet too big (RFC 4443 section 3.2), each with a header
// of 8 bytes in front of what it quotes.
const (
	sizeICMP          = 8
	unreachable       = 3
	fragmentingNeeded = 4
	tooBig6           = 2
)

const (
	// Longest messages in bytes: as much as can be quoted within what every host takes (RFC 1812 section 4.3.2.3,
	// RFC 4443 section 2.4 c).
	longest4 = 576
	longest6 = 1280

	hops = 64 // RFC 1340's default, for both versions
	// control is the type of service of ICMP errors: internetwork control (RFC 1812 section 4.3.2.5).
	control = 6 << 5
)

// TooBig appends to dst the ICMP message that tells the sender of packet that mtu bytes are the most. It is nil if there
// is nothing to tell: the packet fits, or may be fragmented, or is one that must not be answered so (RFC 1122 section
// 3.2.2, RFC 1812 section 4.3.2.7, RFC 4443 section 2.4 e).
//
// The message says that it comes from where the packet was to go. That is an address that is routed the way that the packet
// took, which no filter of spoofed sources objects to; and senders do not look at it.
func TooBig(dst, packet []byte, mtu int) []byte {
	p, ok := parse(packet)
	if !ok || !p.df {
		return nil
	}
	if p.six {
		mtu = max(mtu, least6)
	} else {
		mtu = min(max(mtu, least4), 1<<16-1)
	}
	if p.end <= mtu || !p.answerable(packet) {
		return nil
	}
	if p.six {
		return tooBigV6(dst, packet[:p.end], mtu)
	}
	return tooBigV4(dst, packet[:p.end], mtu)
}

// answerable reports whether an ICMP error may answer the packet.
func (p packet) answerable(b []byte) bool {
	var from, to netip.Addr
	if p.six {
		from, _ = netip.AddrFromSlice(b[atSource6 : atSource6+16])
		to, _ = netip.AddrFromSlice(b[atDest6 : atDest6+16])
	} else {
		from, _ = netip.AddrFromSlice(b[atSource4 : atSource4+4])
		to, _ = netip.AddrFromSlice(b[atDest4 : atDest4+4])
		if !p.first {
			return false // RFC 1122: only the first fragment is answered
		}
	}
	// RFC 4443 would have a packet to a group answered. Ours comes from the packet's destination, which no group can be.
	return oneHost(from) && oneHost(to) && !p.isError(b)
}

// oneHost reports whether an address is one host's, as far as one can tell from it.
func oneHost(ip netip.Addr) bool {
	if ip.IsUnspecified() || ip.IsMulticast() || ip.IsLoopback() {
		return false
	}
	return !ip.Is4() || ip.As4()[0] != 0 && ip.As4()[0] < 240 // "this network", reserved, broadcast (RFC 6890)
}

// isError reports whether a packet is an ICMP error itself, or one whose kind cannot be told. Of IPv4's messages, those that
// are none are known; of IPv6's, the number says it (RFC 4443 section 2.1), and a redirect counts as well.
func (p packet) isError(b []byte) bool {
	switch {
	case !p.six && p.proto == icmp4:
		if p.payload >= p.end {
			return true
		}
		switch b[p.payload] {
		case 0, 8, 9, 10, 13, 14, 15, 16, 17, 18, 42, 43: // echo, router discovery, timestamp, information, mask; RFC 8335
			return false
		}
		return true
	case p.six && p.proto == icmp6 && p.first:
		const informational, redirect = 128, 137
		return p.payload >= p.end || b[p.payload] < informational || b[p.payload] == redirect
	}
	return false
}

func tooBigV4(dst, packet []byte, mtu int) []byte {
	quoted := packet[:min(len(packet), longest4-sizeIPv4-sizeICMP)]
	at := len(dst)
	dst = append(dst, 0x45, control)
	dst = binary.BigEndian.AppendUint16(dst, uint16(sizeIPv4+sizeICMP+len(quoted)))
	dst = append(dst, 0, 0, dontFragment>>8, 0, hops, icmp4, 0, 0)
	dst = append(dst, packet[atDest4:atDest4+4]...)
	dst = append(dst, packet[atSource4:atSource4+4]...)
	binary.BigEndian.PutUint16(dst[at+atSum4:], ^fold(sum(dst[at:], 0)))

	message := len(dst)
	dst = append(dst, unreachable, fragmentingNeeded, 0, 0, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(mtu))
	dst = append(dst, quoted...)
	binary.BigEndian.PutUint16(dst[message+2:], ^fold(sum(dst[message:], 0)))
	return dst
}

func tooBigV6(dst, packet []byte, mtu int) []byte {
	quoted := packet[:min(len(packet), longest6-sizeIPv6-sizeICMP)]
	at := len(dst)
	dst = append(dst, 6<<4|control>>4, control&15<<4, 0, 0)
	dst = binary.BigEndian.AppendUint16(dst, uint16(sizeICMP+len(quoted)))
	dst = append(dst, icmp6, hops)
	dst = append(dst, packet[atDest6:atDest6+16]...)
	dst = append(dst, packet[atSource6:atSource6+16]...)

	message := len(dst)
	dst = append(dst, tooBig6, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, uint32(mtu))
	dst = append(dst, quoted...)
	pseudo := sum(dst[at+atSource6:message], uint32(sizeICMP+len(quoted)+icmp6))
	binary.BigEndian.PutUint16(dst[message+2:], ^fold(sum(dst[message:], pseudo)))
	return dst
}
