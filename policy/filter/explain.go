package filter

import (
	"net/netip"
	"slices"

	"weft"
)

// Own reports whether a packet's source is this node or a guest of its.
func (p *Policy) Own(k *Packet) bool {
	_, own := p.sender(k.src)
	return own
}

// Matches lists the rules, by their place in Config.Rules, that let a node begin something towards an address; port is zero for
// protocols without ports. It is for people: the filter itself does not go by it.
func (p *Policy) Matches(n weft.Node, from, to netip.Addr, proto uint8, port uint16) (list []int) {
	for i, r := range p.rules {
		if !p.reaches(r, n, from, to) {
			continue
		}
		ports := r.Ports
		if len(ports) == 0 {
			ports = anyPort
		}
		for _, x := range ports {
			if x.Contains(proto, port) {
				list = append(list, i)
				break
			}
		}
	}
	return list
}

// Rules lists the rules that are about what a node may begin towards an address, whatever the port.
func (p *Policy) Rules(n weft.Node, from, to netip.Addr) (list []weft.Rule) {
	for _, r := range p.rules {
		if p.reaches(r, n, from, to) {
			list = append(list, r)
		}
	}
	return list
}

func (p *Policy) reaches(r weft.Rule, n weft.Node, from, to netip.Addr) bool {
	meant := false
	for _, s := range r.From {
		prefix, ok := s.Prefix()
		meant = meant || s.Includes(n) || ok && prefix.Contains(from)
	}
	if len(r.To) == 0 {
		return meant && p.isOwn(to)
	}
	return meant && slices.ContainsFunc(r.To, func(x netip.Prefix) bool {
		return x.Contains(to) && (x.Bits() > 0 || !p.isOwn(to) && !p.isMember(addrOf(to)))
	})
}

// Judges reports whether it is this node that decides what reaches an address: it is its own, a guest's, or of a network that
// rules are about.
func (p *Policy) Judges(to netip.Addr) bool {
	if _, guest := p.guests[addrOf(to)]; guest || p.isOwn(to) {
		return true
	}
	for _, r := range p.rules {
		if within(r.To, to) {
			return true
		}
	}
	return false
}
