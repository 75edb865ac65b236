package stun

import "net/netip"

const (
	// MaxReply is the most bytes that a Responder appends: dst with this much
	// capacity is never grown. It is the reply to a request with PADDING.
	MaxReply = 2048

	// maxReplyPadding is the most PADDING in a reply: the MTU of the outgoing
	// interface (RFC 5780, 6.1), of which Ethernet's is taken.
	maxReplyPadding = 1500

	// A reply is at most 3/2 of its request, both with IP and UDP headers (IPv4
	// 20 + 8, IPv6 40 + 8 bytes); see the package comment.
	replyNumerator, replyDenominator = 3, 2
	overheadIPv4, overheadIPv6       = 28, 48
)

// Alternates are the two addresses and two ports that RFC 5780 needs: four
// sockets, one for each address with each port. Addresses and ports must both
// differ and the family be the same; otherwise the Alternates are ignored. They are
// as clients see them: behind a one-to-one NAT, the public ones.
type Alternates struct {
	Primary, Alternate netip.AddrPort
}

func (a Alternates) valid() bool {
	p, q := a.Primary, a.Alternate
	return p.IsValid() && q.IsValid() && p.Port() != 0 && q.Port() != 0 &&
		!p.Addr().IsUnspecified() && !q.Addr().IsUnspecified() &&
		p.Addr() != q.Addr() && p.Port() != q.Port() && p.Addr().Is4() == q.Addr().Is4()
}

// other returns the address and port that local is not; false if local is none
// of the four sockets.
func (a Alternates) other(local netip.AddrPort) (netip.AddrPort, bool) {
	if !a.valid() {
		return netip.AddrPort{}, false
	}
	p, q := a.Primary, a.Alternate
	var addr netip.Addr
	switch local.Addr() {
	case p.Addr():
		addr = q.Addr()
	case q.Addr():
		addr = p.Addr()
	default:
		return netip.AddrPort{}, false
	}
	switch local.Port() {
	case p.Port():
		return netip.AddrPortFrom(addr, q.Port()), true
	case q.Port():
		return netip.AddrPortFrom(addr, p.Port()), true
	}
	return netip.AddrPort{}, false
}

// Responder answers binding requests. It keeps nothing between them, so any
// number of goroutines may use one as long as nobody changes it. The zero value
// is a responder with one address.
type Responder struct {
	Software string     // SOFTWARE, sent where it fits; empty for none
	IPv4     Alternates // zero where there is one address
	IPv6     Alternates
	// Ports are the two ports of a server with one address, as clients see them, each with its socket; zero where
	// there is one. They are named by AttrAlternatePort, and serve a CHANGE-REQUEST for the port alone.
	Ports [2]uint16
}

// otherPort is the port of a server with one address that local is not; 0 if it has none.
func (r *Responder) otherPort(local netip.AddrPort) uint16 {
	switch p := r.Ports; {
	case p[0] == p[1] || p[0] == 0 || p[1] == 0:
		return 0
	case local.Port() == p[0]:
		return p[1]
	case local.Port() == p[1]:
		return p[0]
	}
	return 0
}

// Reply is a datagram to send.
type Reply struct {
	Packet []byte         // dst, followed by the message
	From   netip.AddrPort // the socket that must send it: local, unless the client asked for another
	To     netip.AddrPort // where to: the client, at another port if it asked for that
}

// Respond answers req, which came from `from` and arrived at the local address
// `local` (invalid or unspecified where that is not known: then the reply does
// not name its origin and no other socket can be asked for). It is false where
// nothing must be sent. With MaxReply spare bytes in dst it allocates nothing.
func (r *Responder) Respond(dst, req []byte, from, local netip.AddrPort) (Reply, bool) {
	classic := IsClassic(req)
	if !classic && !Is(req) || from.Port() == 0 || !from.Addr().IsValid() {
		return Reply{}, false
	}
	m, err := parse(req, classic)
	if err != nil || m.Class != ClassRequest || m.Method != MethodBinding {
		return Reply{}, false
	}
	origin := netip.AddrPortFrom(local.Addr().Unmap(), local.Port())
	alternates := &r.IPv6
	if origin.Addr().Is4() {
		alternates = &r.IPv4
	}
	other, hasOther := alternates.other(origin)
	var port uint16
	if !hasOther {
		port = r.otherPort(local)
	}
	if m.hasChange && !hasOther {
		if !classic && port != 0 && m.Change&ChangeIP == 0 {
			// The one change that one address can make.
		} else if !classic {
			// Any CHANGE-REQUEST, whatever its flags: RFC 5780, section 6.
			m.addUnknown(AttrChangeRequest)
		} else if m.Change != 0 {
			return Reply{}, false // see the package comment
		}
	}
	room := allowed(len(req), from.Addr())
	via, to := local, from
	if m.hasResponsePort {
		if m.hasPadding || m.ResponsePort == 0 {
			return Reply{refuse(dst, &m, room, CodeBadRequest), via, to}, true
		}
		// A refusal goes there too: a client that asks for another port may
		// have stopped listening on its own.
		to = netip.AddrPortFrom(from.Addr(), m.ResponsePort)
	}
	if m.unknowns > 0 {
		return Reply{refuse(dst, &m, room, CodeUnknownAttribute), via, to}, true
	}

	if m.Change&ChangeIP != 0 {
		origin = netip.AddrPortFrom(other.Addr(), origin.Port())
	}
	switch {
	case m.Change&ChangePort == 0:
	case hasOther:
		origin = netip.AddrPortFrom(origin.Addr(), other.Port())
	default:
		origin = netip.AddrPortFrom(origin.Addr(), port)
	}
	if m.Change != 0 {
		via = origin
	}
	seen := addresses{
		mapped: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()),
		origin: origin, hasOrigin: origin.IsValid() && !origin.Addr().IsUnspecified(),
		other: other, hasOther: hasOther, port: port,
	}
	return Reply{accept(dst, &m, room, seen, r.Software), via, to}, true
}

// allowed is how many bytes a reply to n bytes may have.
func allowed(n int, client netip.Addr) int {
	overhead := overheadIPv6
	if client.Unmap().Is4() {
		overhead = overheadIPv4
	}
	return min((n+overhead)*replyNumerator/replyDenominator-overhead, MaxReply)
}

// addresses are what a success response tells.
type addresses struct {
	mapped, origin, other netip.AddrPort
	hasOrigin, hasOther   bool
	port                  uint16 // the alternate one of a server with one address; 0 is none
}

// accept appends a success response to m of about room bytes: optional
// attributes are left out where they do not fit.
func accept(dst []byte, m *Message, room int, a addresses, software string) []byte {
	padding := min(m.Padding, maxReplyPadding)
	if m.hasPadding {
		room -= 4 + (padding+3)&^3
	}
	if m.hasFingerprint {
		room -= 8
	}
	mapped, origin, other := AttrXORMappedAddress, AttrResponseOrigin, AttrOtherAddress
	if m.classic {
		mapped, origin, other = AttrMappedAddress, AttrSourceAddress, AttrChangedAddress
	}
	w := newReply(dst, ClassSuccess, m.raw)
	w.address(mapped, a.mapped)
	if a.port != 0 && !m.classic && w.size()+8 <= room {
		w.port(AttrAlternatePort, a.port)
	}
	if a.hasOther || a.hasOrigin && w.size()+addressSize(a.origin.Addr()) <= room {
		w.address(origin, a.origin)
	}
	if a.hasOther {
		w.address(other, a.other)
	}
	if !m.classic && (a.hasOther || w.size()+addressSize(a.mapped.Addr()) <= room) {
		w.address(AttrMappedAddress, a.mapped)
	}
	if n := len(software); n > 0 && n <= maxSoftware && !m.classic && w.size()+4+(n+3)&^3 <= room {
		w.text(AttrSoftware, software)
	}
	if m.hasPadding {
		w.padding(padding)
	}
	if m.hasFingerprint {
		w.fingerprint()
	}
	return w.done()
}

// refuse appends an error response to m, with a reason if it fits.
func refuse(dst []byte, m *Message, room, code int) []byte {
	if m.hasFingerprint {
		room -= 8
	}
	reason := "Bad Request"
	if code == CodeUnknownAttribute {
		reason = "Unknown Attribute"
		room -= 4 + (2*m.unknowns+3)&^3
	}
	w := newReply(dst, ClassError, m.raw)
	// RFC 3489 wants the phrase to fill whole words: it gets none.
	if m.classic || w.size()+8+(len(reason)+3)&^3 > room {
		reason = ""
	}
	w.errorCode(code, reason)
	if code == CodeUnknownAttribute {
		w.unknownAttributes(m.Unknown(), m.classic)
	}
	if m.hasFingerprint {
		w.fingerprint()
	}
	return w.done()
}
