package router

import (
	"encoding/binary"
	"net/netip"
	"time"

	"weft/lab/vnet"
)

// initialTTL is that of what the router itself sends (RFC 1700).
const initialTTL = 64

// mostQuoted is how much of a packet an error quotes at most: an IPv4 error is up to 576 bytes long (RFC 1812
// section 4.3.2.3), and IPv6's, up to 1280, need not be longer.
const mostQuoted = 576 - ipv4Len - 8

// expire drops a packet whose time to live is over, and tells its sender.
func (r *Router) expire(now time.Time, from Leg, frame []byte, p packet) {
	r.drop(now, from, p, vnet.DropTTL.String())
	kind := uint8(icmpTimeExceeded)
	if p.v6 {
		kind = icmp6TimeExceeded
	}
	r.complain(now, from, frame, p, kind, 0)
}

// complain sends an ICMP error about a packet back by the leg on which it came: never about an ICMP error, and no
// more than errorRate a second.
func (r *Router) complain(now time.Time, by Leg, frame []byte, p packet, kind, code uint8) {
	if p.shape != flow || !r.mayComplain(now) {
		return
	}
	quoted := p.ip[:min(len(p.ip), mostQuoted)]
	l := &r.legs[by]
	from, head := l.Prefix4.Addr(), ipv4Len
	if p.v6 {
		from, head = l.Prefix6.Addr(), ipv6Len
	}
	hop := r.hop(by, p.src.Addr())
	if !from.IsValid() || !hop.IsValid() {
		return
	}
	b := make([]byte, etherLen+head+8+len(quoted))
	var m []byte
	if p.v6 {
		binary.BigEndian.PutUint16(b[12:], typeIPv6)
		m = header6(b[etherLen:], 8+len(quoted), protoICM6, initialTTL, from, p.src.Addr())
	} else {
		binary.BigEndian.PutUint16(b[12:], typeIPv4)
		m = header4(b[etherLen:], 8+len(quoted), protoICMP, from, p.src.Addr())
	}
	m[0], m[1] = kind, code
	copy(m[8:], quoted)
	if p.v6 {
		sum6(b[etherLen:])
	} else {
		binary.BigEndian.PutUint16(m[2:], checksum(0, m))
	}
	r.output(now, by, hop, b)
}

func (r *Router) mayComplain(now time.Time) bool {
	if !r.errorsAt.IsZero() {
		r.errors = min(errorBurst, r.errors+now.Sub(r.errorsAt).Seconds()*errorRate)
	}
	r.errorsAt = now
	if r.errors < 1 {
		return false
	}
	r.errors--
	return true
}

// echo turns an echo request into its reply.
func (r *Router) echo(now time.Time, by Leg, frame []byte, p packet) {
	hop := r.hop(by, p.src.Addr())
	if !hop.IsValid() {
		return
	}
	old := binary.BigEndian.Uint16(p.l4)
	if p.v6 {
		p.l4[0] = icmp6EchoReply
		p.ip[7] = initialTTL
		src, dst := p.src.Addr().As16(), p.dst.Addr().As16()
		copy(p.ip[8:], dst[:])
		copy(p.ip[24:], src[:])
	} else {
		p.l4[0] = icmpEchoReply
		src, dst := p.src.Addr().As4(), p.dst.Addr().As4()
		copy(p.ip[12:], dst[:])
		copy(p.ip[16:], src[:])
		oldTTL := binary.BigEndian.Uint16(p.ip[8:])
		p.ip[8] = initialTTL
		p.fixHeader(delta(0, oldTTL, binary.BigEndian.Uint16(p.ip[8:])))
	}
	// Swapping addresses leaves sums what they are.
	p.fixTransport(delta(0, old, binary.BigEndian.Uint16(p.l4)))
	r.output(now, by, hop, frame)
}

// sealed reports whether an ICMP message's checksum is right. Translating what an error quotes makes it anew, which
// must not mend one that was broken on its way.
func (p packet) sealed() bool { return p.v6 || checksum(0, p.l4) == 0 }

// reseal makes the checksum anew.
func (p packet) reseal() {
	p.l4[2], p.l4[3] = 0, 0
	binary.BigEndian.PutUint16(p.l4[2:], checksum(0, p.l4))
}

// header4 writes an IPv4 header before length bytes, and returns the place for them.
func header4(b []byte, length int, proto uint8, from, to netip.Addr) []byte {
	b[0], b[8], b[9] = 4<<4|ipv4Len/4, initialTTL, proto
	binary.BigEndian.PutUint16(b[2:], uint16(ipv4Len+length))
	src, dst := from.As4(), to.As4()
	copy(b[12:], src[:])
	copy(b[16:], dst[:])
	binary.BigEndian.PutUint16(b[10:], checksum(0, b[:ipv4Len]))
	return b[ipv4Len : ipv4Len+length]
}

// header6 writes an IPv6 header before length bytes, and returns the place for them.
func header6(b []byte, length int, proto, hops uint8, from, to netip.Addr) []byte {
	b[0], b[6], b[7] = 6<<4, proto, hops
	binary.BigEndian.PutUint16(b[4:], uint16(length))
	src, dst := from.As16(), to.As16()
	copy(b[8:], src[:])
	copy(b[24:], dst[:])
	return b[ipv6Len : ipv6Len+length]
}

// sum6 writes the checksum of an ICMPv6 packet.
func sum6(ip []byte) {
	m := ip[ipv6Len:]
	m[2], m[3] = 0, 0
	binary.BigEndian.PutUint16(m[2:], checksum(pseudo6(ip, len(m), protoICM6), m))
}
