package filter

import (
	"encoding/binary"
	"net/netip"

	"weft"
)

// A drawn packet, in words; bytes makes it one. Checksums are nobody's business here.
type packet struct {
	src, dst     netip.Addr
	proto        uint8
	sport, dport uint16 // ICMP: sport is the identifier
	flags        uint8
	icmp         uint8   // type
	about        *packet // of an ICMP error
	fragment     piece
	id           uint32
	at           int // where a later fragment begins
	options      int // v4: 4-byte words of options; v6: extension headers
	route        bool
	short        int // bytes that are missing at the end of the headers
	payload      int
}

func (p packet) reversed() packet {
	p.src, p.dst, p.sport, p.dport = p.dst, p.src, p.dport, p.sport
	return p
}

// transport draws the transport header and what follows it.
func (p packet) transport() []byte {
	var b []byte
	switch p.proto {
	case weft.ProtoTCP:
		b = make([]byte, 20)
		b[12], b[13] = 5<<4, p.flags
	case weft.ProtoUDP:
		b = make([]byte, 8)
	case weft.ProtoICMP, weft.ProtoICMPv6:
		b = make([]byte, 8)
		b[0] = p.icmp
		if p.about != nil {
			return append(b, p.about.quoted()...)
		}
		binary.BigEndian.PutUint16(b[4:], p.sport)
		return append(b, make([]byte, p.payload)...)
	case weft.ProtoSCTP:
		b = make([]byte, 12)
	default:
		return make([]byte, 16+p.payload)
	}
	binary.BigEndian.PutUint16(b, p.sport)
	binary.BigEndian.PutUint16(b[2:], p.dport)
	return append(b, make([]byte, p.payload)...)
}

// quoted is the packet as an error quotes it: its IP header and eight bytes.
func (p packet) quoted() []byte {
	b := p.bytes()
	n := size4 + 4*p.options
	if p.src.Is6() {
		n = size6 + 8*p.options
	}
	return b[:min(len(b), n+8)]
}

func (p packet) bytes() []byte {
	rest := p.transport()
	if p.fragment == later {
		rest = make([]byte, 24)
	}
	rest = rest[:len(rest)-p.short]
	if p.src.Is4() {
		b := make([]byte, size4)
		b[8], b[9] = 64, p.proto
		copy(b[12:], p.src.AsSlice())
		copy(b[16:], p.dst.AsSlice())
		switch {
		case p.route:
			b = append(b, optionLSRR, 7, 4, 1, 2, 3, 4, optionEnd)
		case p.options > 0:
			b = append(b, make([]byte, 4*p.options)...)
			for i := size4; i < len(b); i++ {
				b[i] = optionNop
			}
		}
		b[0] = 0x40 | byte(len(b)/4)
		switch p.fragment {
		case first:
			b[6] = 0x20
		case later:
			binary.BigEndian.PutUint16(b[6:], uint16(p.at/8))
		}
		if p.fragment != whole {
			binary.BigEndian.PutUint16(b[4:], uint16(p.id))
		}
		binary.BigEndian.PutUint16(b[2:], uint16(len(b)+len(rest)))
		return append(b, rest...)
	}
	b := make([]byte, size6)
	b[0], b[7] = 0x60, 64
	copy(b[8:], p.src.AsSlice())
	copy(b[24:], p.dst.AsSlice())
	next := 6 // where the next header is named
	add := func(kind uint8, header ...byte) {
		b[next] = kind
		next = len(b)
		b = append(b, header...)
	}
	for range p.options {
		add(extOptions, 0, 0, 1, 4, 0, 0, 0, 0)
	}
	if p.route {
		add(extRouting, 0, 2, 4, 1, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16)
		b[next+1] = 2
	}
	if p.fragment != whole {
		f := make([]byte, 8)
		switch p.fragment {
		case first:
			f[3] = 1
		case later:
			binary.BigEndian.PutUint16(f[2:], uint16(p.at))
		}
		binary.BigEndian.PutUint32(f[4:], p.id)
		add(extFragment, f...)
	}
	b[next] = p.proto
	b = append(b, rest...)
	binary.BigEndian.PutUint16(b[4:], uint16(len(b)-size6))
	return b
}
