package scenario

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// A Lan is a network of its own, as that of an office: it leads out by the hosts that have a link to it, and only as far
// as these pass packets on.
type Lan struct {
	Name string `json:"name"`
	// Prefixes are its addresses: one of IPv4, and perhaps one of IPv6 behind it. Its gateway has the first address of
	// each; the others come in the order of the text.
	Prefixes []netip.Prefix `json:"prefixes"`
	Gateway  string         `json:"gateway,omitempty"` // the host by which its machines leave; empty: the first with a link to it
	Line     int            `json:"-"`
}

const (
	// minLan and maxLan are how many bits an IPv4 prefix of a lan has: room for a dozen machines at least.
	minLan, maxLan = 8, 28
	// lanBits6 is what an IPv6 prefix of a lan has (RFC 4291, section 2.5.1).
	lanBits6 = 64
)

const prefixExpected = "a private network (RFC 1918) of 8 to 28 bits such as 192.168.142.0/24, and perhaps an IPv6 /64 (RFC 4193) " +
	"behind a comma: 192.168.142.0/24,fd00:142::/64"

var lanFields = fields[Lan]{
	{"prefix", prefixExpected, func(l *Lan, s string) (ok bool) {
		l.Prefixes, ok = parseLan(s)
		return ok
	}, func(l *Lan) (string, bool) { return formatPrefixes(l.Prefixes), true }},
	{"gateway", "the name of a host with a link to the lan", func(l *Lan, s string) bool {
		l.Gateway = s
		return validName(s)
	}, func(l *Lan) (string, bool) { return l.Gateway, l.Gateway != "" }},
}

// parseLan reads the addresses of a lan.
func parseLan(s string) (list []netip.Prefix, ok bool) {
	for i, word := range strings.Split(s, ",") {
		p, ok := parsePrefix(word)
		switch {
		case !ok || p != p.Masked() || !p.Addr().IsPrivate() || i > 1:
			return nil, false
		case i == 0 && (!p.Addr().Is4() || p.Bits() < minLan || p.Bits() > maxLan):
			return nil, false
		case i == 1 && (!p.Addr().Is6() || p.Bits() != lanBits6):
			return nil, false
		}
		list = append(list, p)
	}
	return list, true
}

func formatPrefixes(list []netip.Prefix) string {
	words := make([]string, len(list))
	for i, p := range list {
		words[i] = p.String()
	}
	return strings.Join(words, ",")
}

// parsePrefix reads an address with a length, in its usual spelling.
func parsePrefix(s string) (netip.Prefix, bool) {
	p, err := netip.ParsePrefix(s)
	return p, err == nil && !p.Addr().Is4In6()
}

// Prefix6 is the IPv6 prefix; the zero one where there is none.
func (l *Lan) Prefix6() netip.Prefix {
	if len(l.Prefixes) > 1 {
		return l.Prefixes[1]
	}
	return netip.Prefix{}
}

// Lan finds a lan by its name; nil: there is none.
func (s *Scenario) Lan(name string) *Lan {
	if i := slices.IndexFunc(s.Lans, func(l Lan) bool { return l.Name == name }); i >= 0 {
		return &s.Lans[i]
	}
	return nil
}

// Gateway is the host by which machines of a lan leave; nil: there is none.
func (s *Scenario) Gateway(l *Lan) *Host {
	for i := range s.Hosts {
		h := &s.Hosts[i]
		further := h.Legs()[1:]
		if cmp.Or(l.Gateway, h.Name) == h.Name && slices.ContainsFunc(further, func(g Leg) bool { return g.On == l.Name }) {
			return h
		}
	}
	return nil
}

func (p *parser) readLan(line int, words []string, _ string) {
	name, words, ok := p.named(line, "a lan", words)
	if !ok {
		return
	}
	l := Lan{Name: name, Line: line}
	if said, ok := apply(p, line, lanFields, &l, words); ok && !said["prefix"] {
		p.fail(line, "which addresses has %s? expected prefix= and %s", name, prefixExpected)
	}
	p.s.Lans = append(p.s.Lans, l)
}

// checkLans looks at what only the hosts tell, and checkLanOf at one link of a host to a lan.
func (p *parser) checkLans() {
	for i, l := range p.s.Lans {
		if p.s.Gateway(&p.s.Lans[i]) == nil {
			if l.Gateway != "" && p.host(l.Line, l.Gateway) == nil {
				continue
			}
			p.fail(l.Line, "%s leads nowhere: expected a host with a further link to it, such as: host %s on=%s,%s", l.Name, cmp.Or(l.Gateway, "hq"), Internet, l.Name)
		}
		for _, o := range p.s.Lans[:i] {
			for _, a := range l.Prefixes {
				if slices.ContainsFunc(o.Prefixes, a.Overlaps) {
					p.fail(l.Line, "%v is a part of %s already, on line %d: expected another network", a, o.Name, o.Line)
				}
			}
		}
	}
}

func (p *parser) checkLanOf(h Host, index int, g Leg) {
	switch {
	case g.Metric > 0:
		p.fail(h.Line, "%s is a lan, by which nobody reaches peers: expected no metric", g.On)
	case h.Role == Server || h.Role == Relay:
		p.fail(h.Line, "nobody reaches %s in %s: expected a %s on the internet, or behind routers with nat=none", h.Name, g.On, h.Role)
	case h.Role == Node && index == 0:
		p.fail(h.Line, "%s has no way to the server by %s: expected a router or %s first, as in on=%s,%s", h.Name, g.On, Internet, Internet, g.On)
	}
}
