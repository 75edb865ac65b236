package relay

import (
	"encoding/binary"
	"net/netip"
	"sync/atomic"
	"time"

	"weft/host"
	"weft/wire"
)

// How much a node may ask. What it asks for goes to its own address only; the limits are for whoever sends
// recorded requests again, and for the neighbours behind the node's NAT, who share the address.
const (
	// locateEvery and locateBurst: a node asks before it sends a peer more than a few datagrams, once per peer.
	locateEvery = 250 * time.Millisecond
	locateBurst = 32
	// probeEvery and probeBurst: finding out what a NAT lets through takes some probes, seldom.
	probeEvery = time.Second
	probeBurst = 8
)

// pace bounds how often something is done, as the generic cell rate algorithm does (ITU-T I.371): a burst at
// first, then one per interval. The zero pace has done nothing yet. It may be used by many at once.
type pace struct{ until atomic.Int64 }

// spare reports whether it may be done now.
func (p *pace) spare(now, every time.Duration, burst int) bool {
	return time.Duration(p.until.Load())-now <= every*time.Duration(burst-1)
}

// take reports the same, and counts it.
func (p *pace) take(now, every time.Duration, burst int) bool {
	for {
		until := p.until.Load()
		if time.Duration(until)-now > every*time.Duration(burst-1) {
			return false
		}
		if p.until.CompareAndSwap(until, int64(max(time.Duration(until), now)+every)) {
			return true
		}
	}
}

// asker is the binding of the node at the address that a request came from, as long as that may ask.
func (l *loop) asker(m *host.UDPRead, p func(*node) *pace, every time.Duration, burst int) *binding {
	from := l.s.addrs.get(addrName(m.From))
	if from == nil || int64(l.now) >= from.ends.Load() {
		l.s.count.drop(DropStranger, 1)
		return nil
	}
	if !p(from.node).spare(l.now, every, burst) { // before it costs a decryption
		l.s.count.drop(DropLimited, 1)
		return nil
	}
	return from
}

func locates(n *node) *pace { return &n.locates }
func probes(n *node) *pace  { return &n.probes }

// locate tells a node where another of its network is bound.
func (l *loop) locate(m *host.UDPRead, b []byte) {
	s := l.s
	from := l.asker(m, locates, locateEvery, locateBurst)
	if from == nil {
		return
	}
	box := from.node.admission.Load().box
	q, err := wire.ParseLocate(l.scratch[:], b, box)
	if err != nil {
		s.count.drop(DropMalformed, 1)
		return
	}
	if !from.node.locates.take(l.now, locateEvery, locateBurst) {
		s.count.drop(DropLimited, 1)
		return
	}
	answer := wire.Located{Nonce: q.Nonce, Node: q.Node}
	if n := s.nodes.get(nodeName{network: from.node.name.network, id: q.Node}); n != nil {
		if at := n.binding(l.now); at != nil {
			answer.Addr = at.addr
		}
	}
	dest, text := l.reply(m)
	l.out.Add(dest, wire.AppendLocated(text, answer, box), 0)
	s.count.locates.Add(1)
}

// probe sends a STUN message to a port of the address that a node is bound at, and tells the node.
func (l *loop) probe(m *host.UDPRead, b []byte) {
	s := l.s
	from := l.asker(m, probes, probeEvery, probeBurst)
	if from == nil {
		return
	}
	box := from.node.admission.Load().box
	q, err := wire.ParseProbe(l.scratch[:], b, box)
	if err != nil {
		s.count.drop(DropMalformed, 1)
		return
	}
	if !from.node.probes.take(l.now, probeEvery, probeBurst) {
		s.count.drop(DropLimited, 1)
		return
	}
	to := netip.AddrPortFrom(m.From.Addr(), q.Port)
	answer := wire.Probed{Nonce: q.Nonce, Addr: to, Outcome: wire.ProbeNoPort}
	via := l.socket
	if q.Alternate {
		via = l.twin
	}
	if via != nil && l.sendSTUN(via, q.Tx, to, m.Local) {
		answer.Outcome = wire.ProbeSent
		s.count.probes.Add(1)
	}
	dest, text := l.reply(m)
	l.out.Add(dest, wire.AppendProbed(text, answer, box), 0)
}

// sendSTUN sends the answer to a binding request with this transaction that nobody sent, as if it had come from
// there: whoever speaks STUN knows what it is.
func (l *loop) sendSTUN(via *host.UDPSocket, tx [12]byte, to netip.AddrPort, local netip.Addr) bool {
	if l.respond == nil {
		return false
	}
	request := l.scratch[:stunHeader]
	binary.BigEndian.PutUint32(request, stunRequest)
	binary.BigEndian.PutUint32(request[4:], stunCookie)
	copy(request[8:], tx[:])
	dest, text := l.replyTo(via, to, local)
	r, ok := l.respond(text, request, to, localOf(via, local))
	if !ok || len(r.Packet) > wire.ProbePacket || r.To != to {
		return false
	}
	l.out.Add(dest, r.Packet, 0)
	return true
}

const (
	stunHeader  = 20         // bytes; RFC 8489 section 5
	stunRequest = 0x00010000 // type Binding request, length 0
	stunCookie  = 0x2112A442
)

// localOf is the address that a socket was hit at.
func localOf(socket *host.UDPSocket, hit netip.Addr) netip.AddrPort {
	at := socket.Local()
	if hit.IsValid() {
		at = netip.AddrPortFrom(hit, at.Port())
	}
	return at
}
