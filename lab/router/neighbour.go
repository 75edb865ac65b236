package router

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"time"
)

const (
	// solicitEvery and solicitations bound the search for a neighbour. RFC 1122 and RFC 4861 wait a second
	// between tries; in a laboratory's switch the answer takes microseconds or never comes.
	solicitEvery  = 250 * time.Millisecond
	solicitations = 4
	// maxWaiting is how many frames wait for one neighbour; Linux keeps about as many (unres_qlen_bytes).
	maxWaiting = 128
)

// A MAC is an Ethernet address.
type MAC [6]byte

// String is the usual form, 02:00:00:00:00:01.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText writes it.
func (m MAC) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads it.
func (m *MAC) UnmarshalText(b []byte) error {
	a, err := net.ParseMAC(string(b))
	if err != nil || len(a) != len(m) || a[0]&1 != 0 {
		return fmt.Errorf("%q is no Ethernet address of a machine, such as 02:00:00:00:00:01", b)
	}
	copy(m[:], a)
	return nil
}

var broadcast = MAC{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}

// A neighbour is one on the same segment. What is once known stays known until another answer comes: no machine
// of a laboratory takes another's address over without saying so.
type neighbour struct {
	mac     MAC
	known   bool
	tries   int
	again   time.Time
	waiting [][]byte
}

// output sends the IP packet in frame (whose Ethernet header is written here) to a neighbour on a leg, as soon
// as it is known where that is.
func (r *Router) output(now time.Time, leg Leg, to netip.Addr, frame []byte) {
	l := &r.legs[leg]
	n := l.neighbours[to]
	if n == nil {
		n = &neighbour{}
		l.neighbours[to] = n
	}
	if n.known {
		r.transmit(now, leg, n.mac, frame)
		return
	}
	if len(n.waiting) >= maxWaiting {
		r.count(unresolvedVerdict)
		return
	}
	n.waiting = append(n.waiting, append([]byte(nil), frame...))
	if n.tries == 0 {
		r.solicit(now, leg, to, n)
	}
}

// transmit puts a frame on a leg; outside it goes over the wire.
func (r *Router) transmit(now time.Time, leg Leg, to MAC, frame []byte) {
	copy(frame, to[:])
	copy(frame[6:], r.legs[leg].MAC[:])
	if leg == Inside {
		r.out(leg, frame)
		return
	}
	if p := r.up.push(now, frame); p != passes {
		r.stopped(now, Inside, p, frame)
		return
	}
	r.out(leg, frame)
}

func (r *Router) solicit(now time.Time, leg Leg, who netip.Addr, n *neighbour) {
	n.tries++
	n.again = now.Add(solicitEvery)
	r.searching = true
	if who.Is4() {
		r.out(leg, r.arp(leg, 1, broadcast, who, r.legs[leg].addr4()))
	} else {
		r.out(leg, r.solicitation(leg, who))
	}
}

// search asks again for neighbours that have not answered, gives up on some, and says when to look again.
func (r *Router) search(now time.Time) (next time.Time) {
	if !r.searching {
		return next
	}
	r.searching = false
	for leg := range r.legs {
		for who, n := range r.legs[leg].neighbours {
			switch {
			case n.known:
				continue
			case !n.again.After(now) && n.tries >= solicitations:
				for range n.waiting {
					r.count(unresolvedVerdict)
				}
				delete(r.legs[leg].neighbours, who)
				continue
			case !n.again.After(now):
				r.solicit(now, Leg(leg), who, n)
			}
			r.searching = true
			next = earliest(next, n.again)
		}
	}
	return next
}

// learn notes where a neighbour is and sends what waited for it.
func (r *Router) learn(now time.Time, leg Leg, who netip.Addr, at MAC) {
	if !r.legs[leg].reaches(who) || r.legs[leg].owns(who) {
		return
	}
	n := r.legs[leg].neighbours[who]
	if n == nil {
		n = &neighbour{}
		r.legs[leg].neighbours[who] = n
	}
	n.mac, n.known, n.tries = at, true, 0
	waiting := n.waiting
	n.waiting = nil
	for _, frame := range waiting {
		r.transmit(now, leg, at, frame)
	}
}

// ARP for IPv4 over Ethernet (RFC 826):
//
//	| ethernet 14 | hw 1 | proto 0x0800 | 6 | 4 | op 2 | sender MAC 6, IP 4 | target MAC 6, IP 4 |
const arpLen = etherLen + 28

func (r *Router) arp(leg Leg, op uint16, to MAC, target, sender netip.Addr) []byte {
	b := make([]byte, 0, arpLen)
	b = append(append(b, to[:]...), r.legs[leg].MAC[:]...)
	b = binary.BigEndian.AppendUint16(b, typeARP)
	b = append(b, 0, 1, 8, 0, 6, 4)
	b = binary.BigEndian.AppendUint16(b, op)
	s, t := sender.As4(), target.As4()
	b = append(append(b, r.legs[leg].MAC[:]...), s[:]...)
	if to == broadcast {
		to = MAC{}
	}
	return append(append(b, to[:]...), t[:]...)
}

func (r *Router) handleARP(now time.Time, leg Leg, frame []byte) {
	if len(frame) < arpLen || [6]byte(frame[etherLen:]) != [6]byte{0, 1, 8, 0, 6, 4} {
		r.count(malformedVerdict)
		return
	}
	b := frame[etherLen:]
	op, mac := binary.BigEndian.Uint16(b[6:]), MAC(b[8:14])
	sender, target := netip.AddrFrom4([4]byte(b[14:])), netip.AddrFrom4([4]byte(b[24:]))
	if mac[0]&1 != 0 { // a group is nobody's address
		return
	}
	r.learn(now, leg, sender, mac)
	if op == 1 && r.legs[leg].owns(target) {
		r.out(leg, r.arp(leg, 2, mac, sender, target))
	}
}

// solicitation is a neighbour solicitation (RFC 4861 section 4.3) with our link-layer address, to the target's
// solicited-node multicast group (RFC 4291 section 2.7.1).
func (r *Router) solicitation(leg Leg, target netip.Addr) []byte {
	t := target.As16()
	group := [16]byte{0: 0xff, 1: 2, 11: 1, 12: 0xff, 13: t[13], 14: t[14], 15: t[15]}
	to := MAC{0x33, 0x33, group[12], group[13], group[14], group[15]}
	return r.discovery(leg, icmp6Solicit, 0, to, netip.AddrFrom16(group), r.legs[leg].Prefix6.Addr(), target, 1)
}

// discovery is a message of neighbour discovery: type, flags, target and one link-layer address option.
func (r *Router) discovery(leg Leg, kind uint8, flags uint8, mac MAC, to, from, target netip.Addr, option uint8) []byte {
	const length = 24 + 8
	b := make([]byte, etherLen+ipv6Len+length)
	copy(b, mac[:])
	copy(b[6:], r.legs[leg].MAC[:])
	binary.BigEndian.PutUint16(b[12:], typeIPv6)
	m := header6(b[etherLen:], length, protoICM6, 255, from, to)
	m[0], m[4] = kind, flags
	t := target.As16()
	copy(m[8:], t[:])
	m[24], m[25] = option, 1
	copy(m[26:], r.legs[leg].MAC[:])
	sum6(b[etherLen:])
	return b
}

// handleDiscovery answers who asks for us, and learns. RFC 4861 section 7.1: a hop limit other than 255 came
// from afar.
func (r *Router) handleDiscovery(now time.Time, leg Leg, frame []byte, p packet) {
	if len(p.l4) < 24 || p.ttl() != 255 || p.l4[1] != 0 {
		return
	}
	target, mac := netip.AddrFrom16([16]byte(p.l4[8:])), MAC(frame[6:12])
	option := uint8(1) // source link-layer address
	if p.icmp == icmp6Advertise {
		option = 2 // target link-layer address
	}
	for o := p.l4[24:]; len(o) >= 8 && o[1] != 0 && int(o[1])*8 <= len(o); o = o[int(o[1])*8:] {
		if o[0] == option {
			mac = MAC(o[2:8])
		}
	}
	if mac[0]&1 != 0 {
		return
	}
	if p.icmp == icmp6Advertise {
		r.learn(now, leg, target, mac)
		return
	}
	asker := p.src.Addr()
	r.learn(now, leg, asker, mac)
	if !r.legs[leg].owns(target) || asker.IsUnspecified() {
		return
	}
	const router, solicited, override = 0x80, 0x40, 0x20
	r.out(leg, r.discovery(leg, icmp6Advertise, router|solicited|override, mac, asker, target, target, 2))
}
