package filter

import (
	"encoding/binary"
	"net/netip"

	"weft"
)

// addr is an IPv6 address, or an IPv4 one as IPv6 writes it (RFC 4291 section 2.5.5.2).
type addr [16]byte

func addrOf(a netip.Addr) addr { return a.As16() }

func (a addr) netip() netip.Addr { return netip.AddrFrom16(a).Unmap() }

func addr4(b []byte) (a addr) {
	a[10], a[11] = 0xff, 0xff
	copy(a[12:], b[:4])
	return a
}

func (a *addr) mapped() bool {
	return binary.BigEndian.Uint64(a[:]) == 0 && binary.BigEndian.Uint32(a[8:]) == 0xffff
}

// A Packet is what is read of a packet.
type Packet struct {
	src, dst addr
	proto    uint8
	kind     kind
	fragment piece
	flags    uint8  // TCP's
	sport    uint16 // ICMP: the identifier, both
	dport    uint16
	id       uint32 // of a fragment
	at       int    // where a later fragment begins in the whole, and where a first one ends, in bytes
	// Of an ICMP error: the packet that it quotes.
	about struct {
		src, dst     addr
		proto        uint8
		sport, dport uint16
	}
}

// kind is what a packet is to a flow.
type kind uint8

const (
	data    kind = iota // of a flow, or the beginning of one
	begins              // can only begin one: TCP's SYN, ICMP's requests
	answers             // can only answer: ICMP's replies, a TCP segment that begins nothing
	reports             // an ICMP error
)

// piece is what a packet is of a larger one.
type piece uint8

const (
	whole piece = iota
	first
	later
)

// Protocols beside those that package weft names (IANA): those with ports where TCP has them, and IPv6's extension headers.
const (
	protoDCCP, protoUDPLite = 33, 136

	extHopByHop, extRouting, extFragment, extAuth, extOptions, extMobility, extHIP, extShim = 0, 43, 44, 51, 60, 135, 139, 140
)

const (
	size4, size6, sizeFragment = 20, 40, 8
	// mostExtensions is how many extension headers are looked through: RFC 8200 section 4.1 knows of seven.
	mostExtensions = 8

	optionEnd, optionNop, optionLSRR, optionSSRR = 0, 1, 131, 137

	flagFIN, flagSYN, flagRST, flagACK = 1, 2, 4, 16
)

// Parse reads a packet, which is as long as its header says. Other verdicts than Allowed say what is wrong with it.
func Parse(b []byte, p *Packet) Verdict {
	*p = Packet{}
	if len(b) < size4 {
		return Malformed
	}
	var rest []byte // from the transport header on
	var v Verdict
	switch b[0] >> 4 {
	case 4:
		rest, v = p.parse4(b)
	case 6:
		rest, v = p.parse6(b)
	default:
		v = Malformed
	}
	if v != Allowed || p.fragment == later {
		return v
	}
	return p.transport(rest)
}

func (p *Packet) parse4(b []byte) ([]byte, Verdict) {
	p.src, p.dst, p.proto = addr4(b[12:]), addr4(b[16:]), b[9]
	n := int(b[0]&15) * 4
	if n < size4 || n > len(b) {
		return nil, Malformed
	}
	for o := b[size4:n]; len(o) > 0 && o[0] != optionEnd; {
		switch {
		case o[0] == optionNop:
			o = o[1:]
			continue
		case o[0] == optionLSRR || o[0] == optionSSRR:
			return nil, SourceRoute
		case len(o) < 2 || o[1] < 2 || int(o[1]) > len(o):
			return nil, Malformed
		}
		o = o[o[1]:]
	}
	if f := binary.BigEndian.Uint16(b[6:]); f&0x3fff != 0 {
		p.id = uint32(binary.BigEndian.Uint16(b[4:])) | uint32(p.proto)<<16
		p.cut(int(f&0x1fff)*8, len(b)-n)
	}
	return b[n:], Allowed
}

// cut notes that the packet is a fragment, from this byte on, of so many.
func (p *Packet) cut(offset, n int) {
	if p.fragment, p.at = first, n; offset > 0 {
		p.fragment, p.at = later, offset
	}
}

// headerOf is how much of a transport header has to be in the first fragment, in bytes.
func headerOf(proto uint8) int {
	switch proto {
	case weft.ProtoTCP:
		return 20
	case weft.ProtoUDP, protoUDPLite, weft.ProtoICMP, weft.ProtoICMPv6:
		return 8
	case weft.ProtoSCTP, protoDCCP:
		return 12
	}
	return 0
}

func (p *Packet) parse6(b []byte) ([]byte, Verdict) {
	if len(b) < size6 {
		return nil, Malformed
	}
	p.src, p.dst = addr(b[8:24]), addr(b[24:40])
	if p.src.mapped() || p.dst.mapped() {
		return nil, Malformed // they would pass for IPv4's
	}
	x, v := extensions(b[6], b[size6:])
	if v != Allowed {
		return nil, v
	}
	p.proto = x.proto
	if x.cut != nil {
		p.id = binary.BigEndian.Uint32(x.cut[4:])
		p.cut(x.offset, len(x.cut)-sizeFragment)
	}
	return x.rest, Allowed
}

// chain is what IPv6's extension headers lead to.
type chain struct {
	proto  uint8
	rest   []byte // from the transport header on
	cut    []byte // from the fragment header on, of a packet that is a fragment; else nil
	offset int    // of a fragment, in bytes
}

// extensions goes through IPv6's extension headers.
func extensions(next uint8, b []byte) (x chain, v Verdict) {
	for range mostExtensions + 1 {
		switch next {
		case extHopByHop, extRouting, extOptions, extMobility, extHIP, extShim, extAuth, extFragment:
		default:
			x.proto, x.rest = next, b
			return x, Allowed
		}
		if len(b) < 8 {
			return x, Malformed
		}
		n := (int(b[1]) + 1) * 8
		switch next {
		case extRouting:
			if b[3] != 0 { // segments left
				return x, SourceRoute
			}
		case extAuth:
			n = (int(b[1]) + 2) * 4
		case extFragment:
			n = sizeFragment
			if f := binary.BigEndian.Uint16(b[2:]); f&^6 != 0 { // else it is an atomic fragment (RFC 6946): whole
				if x.cut != nil {
					return x, Malformed
				}
				if x.cut, x.offset = b, int(f&^7); x.offset != 0 { // what follows is in the middle of something
					x.proto = b[0]
					return x, Allowed
				}
			}
		}
		if n > len(b) {
			return x, Malformed
		}
		next, b = b[0], b[n:]
	}
	return x, Malformed
}

// transport reads ports and what else is told by the transport header.
func (p *Packet) transport(b []byte) Verdict {
	if len(b) < headerOf(p.proto) {
		return Malformed
	}
	switch p.proto {
	case weft.ProtoTCP:
		p.ports(b)
		p.flags = b[13]
		switch {
		case p.flags&(flagSYN|flagACK) == flagSYN:
			p.kind = begins
		case p.flags&(flagSYN|flagRST) != 0:
			p.kind = answers
		}
	case weft.ProtoUDP, protoUDPLite, weft.ProtoSCTP, protoDCCP:
		p.ports(b)
	case weft.ProtoICMP, weft.ProtoICMPv6:
		return p.icmp(b)
	}
	return Allowed
}

func (p *Packet) ports(b []byte) {
	p.sport, p.dport = binary.BigEndian.Uint16(b), binary.BigEndian.Uint16(b[2:])
}

// icmp reads a message of ICMP. Others than requests, replies and errors are judged by rules alone.
func (p *Packet) icmp(b []byte) Verdict {
	six := p.proto == weft.ProtoICMPv6
	p.kind = begins
	id := binary.BigEndian.Uint16(b[4:])
	if six {
		switch b[0] {
		case 128: // echo request (RFC 4443)
			p.sport, p.dport = id, id
		case 129:
			p.kind, p.sport, p.dport = answers, id, id
		case 1, 2, 3, 4: // unreachable, too big, time exceeded, parameter problem
			return p.quote(b[8:])
		}
		return Allowed
	}
	switch b[0] {
	case 8, 13: // echo, timestamp (RFC 792)
		p.sport, p.dport = id, id
	case 0, 14:
		p.kind, p.sport, p.dport = answers, id, id
	case 3, 11, 12: // unreachable, time exceeded, parameter problem
		return p.quote(b[8:])
	}
	return Allowed
}

// quote reads the beginning of the packet that an error is about.
func (p *Packet) quote(b []byte) Verdict {
	p.kind = reports
	q := &p.about
	var rest []byte
	if p.proto == weft.ProtoICMP {
		if len(b) < size4 || b[0]>>4 != 4 {
			return Malformed
		}
		n := int(b[0]&15) * 4
		if n < size4 || n > len(b) || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return Malformed
		}
		q.src, q.dst, q.proto, rest = addr4(b[12:]), addr4(b[16:]), b[9], b[n:]
	} else {
		if len(b) < size6 || b[0]>>4 != 6 {
			return Malformed
		}
		q.src, q.dst = addr(b[8:24]), addr(b[24:40])
		if q.src.mapped() || q.dst.mapped() {
			return Malformed
		}
		x, v := extensions(b[6], b[size6:])
		if v != Allowed || x.offset != 0 {
			return Malformed
		}
		q.proto, rest = x.proto, x.rest
	}
	if headerOf(q.proto) == 0 {
		return Allowed
	}
	if len(rest) < 8 { // RFC 792: the header and 64 bits
		return Malformed
	}
	if q.proto == weft.ProtoICMP || q.proto == weft.ProtoICMPv6 {
		q.sport = binary.BigEndian.Uint16(rest[4:])
		q.dport = q.sport
	} else {
		q.sport, q.dport = binary.BigEndian.Uint16(rest), binary.BigEndian.Uint16(rest[2:])
	}
	return Allowed
}

// port is what rules know as the destination port: zero where the protocol has none.
func (p *Packet) port() uint16 {
	if p.proto == weft.ProtoICMP || p.proto == weft.ProtoICMPv6 {
		return 0
	}
	return p.dport
}

// Shard spreads flows: all that has to do with two addresses is in one, whichever is the source.
func (p *Packet) Shard() uint {
	a, b := &p.src, &p.dst
	if p.kind == reports {
		a, b = &p.about.src, &p.about.dst
	}
	h := (fold(a) ^ fold(b)) * 0x9e3779b97f4a7c15
	return uint(h >> 40)
}

func fold(a *addr) uint64 {
	return binary.LittleEndian.Uint64(a[:]) + binary.LittleEndian.Uint64(a[8:])*0xbf58476d1ce4e5b9
}

// Destination is where the packet goes: for people.
func (p *Packet) Destination() (to netip.Addr, proto uint8, port uint16) {
	return p.dst.netip(), p.proto, p.port()
}
