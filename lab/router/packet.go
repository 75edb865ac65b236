package router

import (
	"encoding/binary"
	"net/netip"
)

// Ethernet (IEEE 802.3) and the protocols that the router knows by number.
const (
	etherLen  = 14 // destination, source, type
	typeIPv4  = 0x0800
	typeARP   = 0x0806
	typeIPv6  = 0x86dd
	protoICMP = 1
	protoTCP  = 6
	protoUDP  = 17
	protoICM6 = 58 // ICMPv6

	ipv4Len = 20 // without options
	ipv6Len = 40
)

// Types of ICMP (RFC 792) and ICMPv6 (RFC 4443).
const (
	icmpEchoReply    = 0
	icmpUnreachable  = 3
	icmpEcho         = 8
	icmpTimeExceeded = 11
	icmpParameter    = 12

	icmp6Unreachable  = 1
	icmp6TooBig       = 2
	icmp6TimeExceeded = 3
	icmp6Parameter    = 4
	icmp6Echo         = 128
	icmp6EchoReply    = 129
	icmp6Solicit      = 135 // neighbour solicitation, RFC 4861
	icmp6Advertise    = 136
)

// echoPort stands for the port of an echo's remote end, which has none: the NAT of echoes is asked with it.
const echoPort = 7

// A shape is what the router makes of a packet.
type shape uint8

const (
	malformed   shape = iota // no packet at all
	unsupported              // a protocol without ports, or an extension header
	fragment                 // of something larger: only the first has ports
	flow                     // UDP, TCP or an echo
	report                   // an ICMP error about a packet of a flow
	other                    // other ICMP: for the router itself, or for nobody
)

// A packet is a parsed view of an IPv4 or IPv6 packet; it refers to the bytes that it was parsed from.
type packet struct {
	ip    []byte // from the IP header to the packet's end
	l4    []byte // from the transport header on
	v6    bool
	proto uint8
	shape shape
	icmp  uint8 // type, of ICMP
	// src and dst are the ends of a flow. An echo has its identifier at the end that asks, and echoPort at the
	// one that replies; a report has no ports.
	src, dst netip.AddrPort
	// port places, in l4, of the two ends; -1: that end has none.
	srcAt, dstAt int
	sumAt        int // place in l4 of the checksum; -1: cut off, as the inner packet of a report may be
	inner        bool
}

// parse reads a packet. An inner one is what an ICMP error quotes: it may be cut off behind the first 8 bytes of
// its transport header (RFC 792), and its checksums are taken as they are.
func parse(b []byte, v6, inner bool) packet {
	if v6 {
		return parse6(b, inner)
	}
	if len(b) < ipv4Len || b[0]>>4 != 4 {
		return packet{}
	}
	head, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if head < ipv4Len || head > len(b) || total < head {
		return packet{}
	}
	if !inner && (total > len(b) || checksum(0, b[:head]) != 0) {
		return packet{}
	}
	b = b[:min(total, len(b))]
	p := packet{ip: b, l4: b[head:], proto: b[9], inner: inner}
	src, dst := netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
	if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 { // more fragments, or an offset
		p.shape = fragment
		p.src, p.dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
		return p
	}
	return p.withTransport(src, dst)
}

func parse6(b []byte, inner bool) packet {
	if len(b) < ipv6Len || b[0]>>4 != 6 {
		return packet{}
	}
	total := ipv6Len + int(binary.BigEndian.Uint16(b[4:]))
	if !inner && total > len(b) {
		return packet{}
	}
	b = b[:min(total, len(b))]
	p := packet{ip: b, l4: b[ipv6Len:], v6: true, proto: b[6], inner: inner}
	src, dst := netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
	const fragmentHeader = 44 // RFC 8200 section 4.5
	if p.proto == fragmentHeader {
		p.shape = fragment
		p.src, p.dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
		return p
	}
	return p.withTransport(src, dst)
}

// withTransport reads the transport header.
func (p packet) withTransport(src, dst netip.Addr) packet {
	var sport, dport uint16
	p.shape, p.srcAt, p.dstAt = flow, 0, 2
	least := 8 // what is needed at least, of every protocol here but TCP
	switch {
	case p.proto == protoUDP:
		p.sumAt = 6
	case p.proto == protoTCP:
		p.sumAt = 16
		if !p.inner {
			least = 20
		}
	case p.proto == protoICMP && !p.v6 || p.proto == protoICM6 && p.v6:
		p.sumAt, p.srcAt, p.dstAt = 2, -1, -1
	default:
		p.shape = unsupported
		p.src, p.dst = netip.AddrPortFrom(src, 0), netip.AddrPortFrom(dst, 0)
		return p
	}
	if len(p.l4) < least {
		return packet{}
	}
	if p.sumAt+2 > len(p.l4) {
		p.sumAt = -1
	}
	if p.srcAt == 0 {
		sport, dport = binary.BigEndian.Uint16(p.l4), binary.BigEndian.Uint16(p.l4[2:])
	} else {
		p.icmp = p.l4[0]
		id := binary.BigEndian.Uint16(p.l4[4:])
		switch p.echo() {
		case asks:
			sport, dport, p.srcAt = id, echoPort, 4
		case replies:
			sport, dport, p.dstAt = echoPort, id, 4
		default:
			if p.shape = other; p.reports() {
				p.shape = report
			}
		}
	}
	p.src, p.dst = netip.AddrPortFrom(src, sport), netip.AddrPortFrom(dst, dport)
	return p
}

type echoKind uint8

const (
	noEcho echoKind = iota
	asks
	replies
)

func (p packet) echo() echoKind {
	switch {
	case !p.v6 && p.icmp == icmpEcho, p.v6 && p.icmp == icmp6Echo:
		return asks
	case !p.v6 && p.icmp == icmpEchoReply, p.v6 && p.icmp == icmp6EchoReply:
		return replies
	}
	return noEcho
}

// isEcho reports whether the packet is a flow of ICMP.
func (p packet) isEcho() bool {
	return p.shape == flow && (p.proto == protoICMP || p.proto == protoICM6)
}

func (p packet) reports() bool {
	if p.v6 {
		return p.icmp >= icmp6Unreachable && p.icmp <= icmp6Parameter
	}
	return p.icmp == icmpUnreachable || p.icmp == icmpTimeExceeded || p.icmp == icmpParameter
}

// ttl is the time to live, or the hop limit.
func (p packet) ttl() uint8 {
	if p.v6 {
		return p.ip[7]
	}
	return p.ip[8]
}

// age takes hops off. The TTL shares a 16-bit word with the protocol (RFC 1141).
func (p packet) age(hops uint8) {
	if p.v6 {
		p.ip[7] -= hops
		return
	}
	old := binary.BigEndian.Uint16(p.ip[8:])
	p.ip[8] -= hops
	p.fixHeader(delta(0, old, binary.BigEndian.Uint16(p.ip[8:])))
}

// setSource and setDestination rewrite an end of an IPv4 packet: address, port or echo identifier, and the
// checksums over them, incrementally (RFC 1624).
func (p *packet) setSource(to netip.AddrPort) {
	p.rewrite(12, p.srcAt, to)
	p.src = to
}

func (p *packet) setDestination(to netip.AddrPort) {
	p.rewrite(16, p.dstAt, to)
	p.dst = to
}

func (p *packet) rewrite(addrAt, portAt int, to netip.AddrPort) {
	addr := to.Addr().As4()
	var d uint32
	for i := 0; i < 4; i += 2 {
		d = delta(d, binary.BigEndian.Uint16(p.ip[addrAt+i:]), binary.BigEndian.Uint16(addr[i:]))
	}
	copy(p.ip[addrAt:], addr[:])
	p.fixHeader(d)
	if p.proto == protoICMP { // its checksum covers no addresses
		d = 0
	}
	if portAt >= 0 {
		d = delta(d, binary.BigEndian.Uint16(p.l4[portAt:]), to.Port())
		binary.BigEndian.PutUint16(p.l4[portAt:], to.Port())
	}
	p.fixTransport(d)
}

func (p *packet) fixHeader(d uint32) {
	binary.BigEndian.PutUint16(p.ip[10:], applied(binary.BigEndian.Uint16(p.ip[10:]), d))
}

func (p *packet) fixTransport(d uint32) {
	if p.sumAt < 0 || d == 0 {
		return
	}
	old := binary.BigEndian.Uint16(p.l4[p.sumAt:])
	if p.proto == protoUDP && old == 0 { // sent without one (RFC 768), and that it stays
		return
	}
	sum := applied(old, d)
	if p.proto == protoUDP && sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(p.l4[p.sumAt:], sum)
}

// delta adds to d what replacing one 16-bit word by another does to a checksum: ~m + m' of RFC 1624 equation 3.
func delta(d uint32, old, new uint16) uint32 { return d + uint32(^old) + uint32(new) }

// applied is HC' = ~(~HC + ~m + m').
func applied(sum uint16, d uint32) uint16 { return ^folded(uint32(^sum) + d) }

// folded adds the carries back in, until there are none.
func folded(sum uint32) uint16 {
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// checksum is the internet checksum (RFC 1071) of b, begun with the sum of what is not in b.
func checksum(sum uint32, b []byte) uint16 {
	for len(b) >= 2 {
		sum += uint32(binary.BigEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return ^folded(sum)
}

// pseudo6 is the sum of IPv6's pseudo-header (RFC 8200 section 8.1).
func pseudo6(ip []byte, length int, proto uint8) (sum uint32) {
	for i := 8; i < ipv6Len; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(ip[i:]))
	}
	return sum + uint32(length) + uint32(proto)
}
