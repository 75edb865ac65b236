package router

import (
	"encoding/binary"
	"net/netip"
	"time"

	"weft"
	"weft/lab/vnet"
)

// route does with an IP packet what routers do. The frame is rewritten in place.
func (r *Router) route(now time.Time, from Leg, frame []byte) {
	p := parse(frame[etherLen:], binary.BigEndian.Uint16(frame[12:]) == typeIPv6, false)
	if p.shape == malformed {
		r.drop(now, from, p, malformedVerdict)
		return
	}
	if to := p.dst.Addr(); to.IsMulticast() || to == limitedBroadcast || p.src.Addr().IsUnspecified() || frame[0]&1 != 0 {
		return // the chatter of a segment
	}
	switch p.shape {
	case fragment:
		r.drop(now, from, p, fragmentVerdict)
		return
	case unsupported:
		r.drop(now, from, p, unsupportedVerdict)
		return
	}
	frame = frame[:etherLen+len(p.ip)] // without Ethernet's padding
	if from == Outside && !r.travels(now, from, p) {
		return
	}
	switch {
	case r.isLocal(from, p):
		r.local(now, from, frame, p)
	case p.shape == other:
		r.drop(now, from, p, unsupportedVerdict)
	case from == Inside:
		r.outward(now, frame, p)
	default:
		r.inward(now, frame, p)
	}
}

var limitedBroadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// translates reports whether packets of the family change their addresses here.
func (r *Router) translates(v6 bool) bool { return !v6 && r.config.NAT.Mapping != weft.NoNAT }

// nat is the NAT of a packet's protocol.
func (r *Router) nat(p packet) *vnet.NAT {
	n := &r.four
	if p.v6 {
		n = &r.six
	}
	switch p.proto {
	case protoUDP:
		return n.udp
	case protoTCP:
		return n.tcp
	}
	return n.echo
}

// blocked is about the packet as it is on the inner side, whose remote end is the other one.
func (r *Router) blocked(p packet, inner, remote netip.AddrPort) bool {
	b := &r.block
	if p.proto != protoUDP {
		return false
	}
	if b.All {
		return !b.ExceptDNS || inner.Port() != 53 && remote.Port() != 53
	}
	return b.A.IsValid() && (inner.Addr() == b.A && remote.Addr() == b.B || inner.Addr() == b.B && remote.Addr() == b.A)
}

// outward judges a packet from inside.
func (r *Router) outward(now time.Time, frame []byte, p packet) {
	if p.ttl() <= 1 {
		r.expire(now, Inside, frame, p)
		return
	}
	back := r.translates(p.v6) && r.four.udp.Owns(p.dst.Addr())
	if p.shape == report {
		r.reportOutward(now, frame, p, back)
		return
	}
	if r.blocked(p, p.src, p.dst) {
		r.drop(now, Inside, p, vnet.DropBlocked.String())
		return
	}
	var src netip.AddrPort
	var v vnet.Verdict
	dst := p.dst
	if back {
		src, dst, v = r.nat(p).Hairpin(now, p.src, p.dst)
	} else {
		src, v = r.nat(p).Outbound(now, p.src, p.dst)
	}
	if !v.Passed() {
		r.drop(now, Inside, p, v.String())
		return
	}
	to := Outside
	if back {
		to = Inside
	}
	r.forward(now, Inside, to, frame, p, src, dst, v)
}

// inward judges a packet from outside.
func (r *Router) inward(now time.Time, frame []byte, p packet) {
	if r.translates(p.v6) && !r.four.udp.Owns(p.dst.Addr()) || !r.translates(p.v6) && !r.hop(Inside, p.dst.Addr()).IsValid() {
		r.drop(now, Outside, p, vnet.DropNoRoute.String())
		return
	}
	if p.shape == report {
		r.reportInward(now, frame, p)
		return
	}
	dst, v := r.nat(p).Inbound(now, p.src, p.dst)
	if v.Passed() && r.blocked(p, dst, p.src) {
		v = vnet.DropBlocked
	}
	switch {
	case !v.Passed():
		r.drop(now, Outside, p, v.String())
	case p.ttl() <= 1:
		r.expire(now, Outside, frame, p)
	default:
		r.forward(now, Outside, Inside, frame, p, p.src, dst, v)
	}
}

// forward sends a packet on with new ends.
func (r *Router) forward(now time.Time, from, to Leg, frame []byte, p packet, src, dst netip.AddrPort, v vnet.Verdict) {
	hop := r.hop(to, dst.Addr())
	if !hop.IsValid() {
		r.drop(now, from, p, vnet.DropNoRoute.String())
		return
	}
	if r.config.Trace != nil {
		e := r.event(now, from, p, v.String())
		e.NewSrc, e.NewDst = src, dst
		r.config.Trace(e)
	}
	r.count(v.String())
	if src != p.src {
		p.setSource(src)
	}
	if dst != p.dst {
		p.setDestination(dst)
	}
	p.age(1)
	if to == Outside && !r.travels(now, from, p) {
		return
	}
	r.output(now, to, hop, frame)
}

// travels takes the hops off that the way outside counts for, and drops what does not get that far. The routers of
// the internet that it stands for say nothing.
func (r *Router) travels(now time.Time, from Leg, p packet) bool {
	if r.config.Hops == 0 {
		return true
	}
	if p.ttl() <= r.config.Hops {
		r.drop(now, from, p, vnet.DropTTL.String())
		return false
	}
	p.age(r.config.Hops)
	return true
}

// reportInward passes on an ICMP error about a packet that went out: whose it was, the packet that it quotes says
// (RFC 5508 section 4.2).
func (r *Router) reportInward(now time.Time, frame []byte, p packet) {
	quoted := parse(p.l4[8:], p.v6, true)
	if quoted.shape != flow || !p.sealed() {
		r.drop(now, Outside, p, strayVerdict)
		return
	}
	inside, v := r.nat(quoted).Inbound(now, quoted.dst, quoted.src)
	switch {
	case !v.Passed():
		r.drop(now, Outside, p, strayVerdict)
	case p.ttl() <= 1:
		r.drop(now, Outside, p, vnet.DropTTL.String()) // no error about an error
	default:
		if r.translates(p.v6) {
			quoted.setSource(inside)
			p.reseal()
		}
		r.forward(now, Outside, Inside, frame, p, p.src, netip.AddrPortFrom(inside.Addr(), 0), v)
	}
}

// reportOutward passes on an ICMP error about a packet that came in, or, when back is true, that was turned back.
func (r *Router) reportOutward(now time.Time, frame []byte, p packet, back bool) {
	quoted := parse(p.l4[8:], p.v6, true)
	if quoted.shape != flow || !p.sealed() {
		r.drop(now, Inside, p, strayVerdict)
		return
	}
	var outside netip.AddrPort
	var v vnet.Verdict
	dst, to := quoted.src, Outside
	if back {
		to = Inside
		outside, dst, v = r.nat(quoted).Hairpin(now, quoted.dst, quoted.src)
	} else {
		outside, v = r.nat(quoted).Outbound(now, quoted.dst, quoted.src)
	}
	if !v.Passed() {
		r.drop(now, Inside, p, strayVerdict)
		return
	}
	src := p.src
	if r.translates(p.v6) {
		quoted.setDestination(outside)
		if back {
			quoted.setSource(dst)
		}
		p.reseal()
		src = netip.AddrPortFrom(outside.Addr(), 0)
	}
	r.forward(now, Inside, to, frame, p, src, netip.AddrPortFrom(dst.Addr(), 0), v)
}

// isLocal reports whether a packet is for the router itself.
func (r *Router) isLocal(from Leg, p packet) bool {
	to := p.dst.Addr()
	if r.translates(p.v6) && r.four.udp.Owns(to) {
		// Its public addresses are its mappings'. Only who pings them means the router.
		return p.isEcho() && p.echo() == asks
	}
	return r.legs[Inside].owns(to) || r.legs[Outside].owns(to)
}

// local answers echoes, and says to who is inside that nothing else is served here.
func (r *Router) local(now time.Time, from Leg, frame []byte, p packet) {
	if r.config.Trace != nil {
		r.config.Trace(r.event(now, from, p, localVerdict))
	}
	r.count(localVerdict)
	switch {
	case p.isEcho() && p.echo() == asks:
		r.echo(now, from, frame, p)
	case p.shape == flow && !p.isEcho() && from == Inside:
		code, kind := uint8(3), uint8(icmpUnreachable) // port unreachable
		if p.v6 {
			code, kind = 4, icmp6Unreachable
		}
		r.complain(now, from, frame, p, kind, code)
	}
}
