package scenario

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft"
)

// carrierPrefix is what carriers use behind their NATs (RFC 6598); to the internet it is as private as the rest.
var carrierPrefix = netip.MustParsePrefix("100.64.0.0/10")

// Router finds a router by its name; nil: there is none.
func (s *Scenario) Router(name string) *Router {
	if i := slices.IndexFunc(s.Routers, func(r Router) bool { return r.Name == name }); i >= 0 {
		return &s.Routers[i]
	}
	return nil
}

// Host finds a host by its name; nil: there is none.
func (s *Scenario) Host(name string) *Host {
	if i := slices.IndexFunc(s.Hosts, func(h Host) bool { return h.Name == name }); i >= 0 {
		return &s.Hosts[i]
	}
	return nil
}

// Chain are the routers from a network outwards: the one whose inside it is first. The internet's is empty.
func (s *Scenario) Chain(network string) (chain []*Router) {
	for r := s.Router(network); r != nil && len(chain) <= len(s.Routers); r = s.Router(r.On) {
		chain = append(chain, r)
	}
	return chain
}

// check looks at what only the whole text tells, and puts things in order.
func (p *parser) check() {
	p.checkRouters()
	if len(p.errs) > 0 {
		return // what hangs on a cycle has no place
	}
	p.checkHosts()
	p.checkStory()
	p.checkExpectations()
}

// network reports whether a name is a network's, and fails if it is none.
func (p *parser) network(line int, name string) bool {
	if name == Internet || p.s.Router(name) != nil {
		return true
	}
	if h := p.s.Host(name); h != nil {
		p.fail(line, "%s is a %s, and nothing hangs on one: expected a router, or %s", name, h.Role, Internet)
		return false
	}
	names := []string{Internet}
	for _, r := range p.s.Routers {
		names = append(names, r.Name)
	}
	p.fail(line, "%s", unknown(name, "network", names))
	return false
}

func (p *parser) checkRouters() {
	depths := map[string]int{}
	for _, r := range p.s.Routers {
		if !p.network(r.Line, r.On) {
			continue
		}
		chain := p.s.Chain(r.Name)
		if len(chain) > len(p.s.Routers) {
			p.fail(r.Line, "%s hangs on itself: expected a way to the internet, and there is only %s", r.Name, cycle(chain))
			return // the others of the cycle are no other mistake
		}
		depths[r.Name] = len(chain)
		if len(chain) > MaxDepth {
			p.fail(r.Line, "%s has %d routers between its network and the internet: expected %d at most", r.Name, len(chain), MaxDepth)
		}
		p.checkPublic(r)
		if outer := p.s.Router(r.On); r.IPv6 && outer != nil && !outer.IPv6 {
			p.fail(r.Line, "%s has IPv6 and the network of %s, which it is on, has none: expected ipv6=yes on line %d too", r.Name, r.On, outer.Line)
		}
	}
	// Each after the one that it is on, and else as they were written.
	slices.SortStableFunc(p.s.Routers, func(a, b Router) int {
		return cmp.Compare(depths[a.Name], depths[b.Name])
	})
}

// cycle is the way round, as people say it.
func cycle(chain []*Router) string {
	words := []string{chain[0].Name}
	for _, r := range chain {
		words = append(words, r.On)
		if r.On == chain[0].Name || len(words) > MaxDepth+2 {
			break
		}
	}
	return strings.Join(words, " on ")
}

func (p *parser) checkPublic(r Router) {
	if len(r.NAT.Public) == 0 {
		return
	}
	if r.On != Internet {
		p.fail(r.Line, "%s gets its addresses from %s, which it is on: expected public= only with on=%s", r.Name, r.On, Internet)
		return
	}
	for i, a := range r.NAT.Public {
		if a.IsPrivate() || carrierPrefix.Contains(a) {
			p.fail(r.Line, "%s is no address of the internet: expected one that is neither of RFC 1918 nor of RFC 6598", a)
		}
		if slices.Contains(r.NAT.Public[:i], a) {
			p.fail(r.Line, "%s is there twice: expected every address once", a)
		}
		for _, o := range p.s.Routers {
			if o.Line < r.Line && slices.Contains(o.NAT.Public, a) {
				p.fail(r.Line, "%s is the address of %s already, on line %d", a, o.Name, o.Line)
			}
		}
	}
}

func (p *parser) checkHosts() {
	var servers []Host
	for i, h := range p.s.Hosts {
		if !p.network(h.Line, h.On) {
			continue
		}
		outer := p.s.Router(h.On)
		if h.IPv6 && outer != nil && !outer.IPv6 {
			p.fail(h.Line, "%s has IPv6 and the network of %s, which it is on, has none: expected ipv6=yes on line %d too", h.Name, h.On, outer.Line)
		}
		switch h.Role {
		case Server, Relay:
			for _, r := range p.s.Chain(h.On) {
				if r.translates() || r.NAT.Filtering != weft.FilteringUnknown {
					p.fail(h.Line, "nobody reaches %s behind %s: expected a %s on the internet, or behind routers with nat=none", h.Name, r.Name, h.Role)
				}
			}
			if h.Role == Server {
				servers = append(servers, h)
			}
		}
		for _, r := range p.runs {
			if r.host == h.Name {
				p.s.Hosts[i].Run = append(p.s.Hosts[i].Run, r.command)
			}
		}
	}
	for _, r := range p.runs {
		p.host(r.line, r.host)
	}
	for _, h := range p.s.Hosts {
		if h.Role != Plain && h.Role != Server && len(servers) == 0 {
			p.fail(h.Line, "%s has no server to join: expected a line such as: server hub on=%s", h.Name, Internet)
			break
		}
	}
	if len(servers) > 1 {
		p.fail(servers[1].Line, "there is a server already, on line %d: expected one, and relays beside it", servers[0].Line)
	}
}

// host finds a host by name, and fails if there is none.
func (p *parser) host(line int, name string) *Host {
	if h := p.s.Host(name); h != nil {
		return h
	}
	if r := p.s.Router(name); r != nil {
		p.fail(line, "%s is a router: expected a host", name)
		return nil
	}
	p.fail(line, "%s", unknown(name, "host", p.hostNames()))
	return nil
}

func (p *parser) hostNames() (names []string) {
	for _, h := range p.s.Hosts {
		names = append(names, h.Name)
	}
	return names
}

// pair checks that two names are of different hosts, of one role each.
func (p *parser) pair(line int, a, b string, role Role) bool {
	x, y := p.host(line, a), p.host(line, b)
	switch {
	case x == nil || y == nil:
		return false
	case x == y:
		p.fail(line, "%s and itself are no pair: expected two hosts", a)
		return false
	}
	for _, h := range []*Host{x, y} {
		if h.Role != role {
			p.fail(line, "%s is a %s: expected a %s", h.Name, h.Role, role)
			return false
		}
	}
	return true
}

// checkStory looks at flows, events and probes.
func (p *parser) checkStory() {
	for _, f := range p.s.Flows {
		p.pair(f.Line, f.From, f.To, Node)
	}
	for _, x := range p.s.Probes {
		if p.host(x.Line, x.A) != nil && p.host(x.Line, x.B) != nil && x.A == x.B {
			p.fail(x.Line, "%s and itself are no pair: expected two hosts", x.A)
		}
	}
	slices.SortStableFunc(p.s.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	links, places := map[string]Link{}, map[string]string{}
	for _, r := range p.s.Routers {
		links[r.Name] = r.Link
	}
	for _, h := range p.s.Hosts {
		links[h.Name], places[h.Name] = h.Link, h.On
	}
	for i := range p.s.Events {
		p.checkEvent(&p.s.Events[i], links, places)
	}
}

// checkEvent looks at one event, given how links and places are before it.
func (p *parser) checkEvent(e *Event, links map[string]Link, places map[string]string) {
	name := e.Args[0]
	switch e.Verb {
	case Block, Allow, Forget, Rebind:
		r := p.s.Router(name)
		if r == nil {
			var names []string
			for _, r := range p.s.Routers {
				names = append(names, r.Name)
			}
			p.fail(e.Line, "%s", unknown(name, "router", names))
		} else if e.Verb == Rebind && !r.translates() {
			p.fail(e.Line, "%s translates nothing, so it has no mappings to move: expected another router", name)
		}
	case Move:
		if h := p.host(e.Line, name); h == nil || !p.network(e.Line, e.Args[1]) {
			return
		} else if h.Role == Server || h.Role == Relay {
			p.fail(e.Line, "%s is a %s and stays where everybody knows it: expected a host", name, h.Role)
		}
		if places[name] == e.Args[1] {
			p.fail(e.Line, "%s is on %s already: expected another network", name, e.Args[1])
		}
		places[name] = e.Args[1]
	case Restart, Stop, Start:
		p.host(e.Line, name)
	default: // of routers and hosts alike
		link, ok := links[name]
		if !ok {
			p.fail(e.Line, "%s", unknown(name, "router or host", p.allNames()))
			return
		}
		if h := p.s.Host(name); e.Verb == Readdress && h != nil && (h.Role == Server || h.Role == Relay) {
			p.fail(e.Line, "%s is a %s and stays where everybody knows it: expected a host or a router", name, h.Role)
		}
		if r := p.s.Router(name); e.Verb == Readdress && r != nil && !r.translates() {
			p.fail(e.Line, "%s translates nothing, so it has no address of its own to change: expected another router, or a host", name)
		}
		if e.Verb == Set {
			seen := map[string]bool{}
			for _, w := range e.Args[1:] {
				setFields.apply(&link, w, seen)
			}
			links[name], e.Link = link, link
		}
	}
}

func (p *parser) allNames() []string {
	names := p.hostNames()
	for _, r := range p.s.Routers {
		names = append(names, r.Name)
	}
	return names
}

func (p *parser) checkExpectations() {
	var events []string
	for _, e := range p.s.Events {
		events = append(events, e.String())
		if p.s.Limit > 0 && e.At > p.s.Limit {
			p.fail(e.Line, "this happens at %s, and the limit is %s: expected a later limit", formatDuration(e.At), formatDuration(p.s.Limit))
		}
	}
	for _, e := range p.s.Expect {
		probed := slices.ContainsFunc(p.s.Probes, func(x Probe) bool { return x.A == e.A && x.B == e.B || x.A == e.B && x.B == e.A })
		flows := slices.ContainsFunc(p.s.Flows, func(f Flow) bool { return f.From == e.A && f.To == e.B || f.From == e.B && f.To == e.A })
		switch a, b := p.host(e.Line, e.A), p.host(e.Line, e.B); {
		case a == nil || b == nil:
			continue
		case (a.Role == Plain || b.Role == Plain) && !probed:
			p.fail(e.Line, "nothing says how %s and %s reach each other: expected a probe of the two, for they do not run weft", e.A, e.B)
			continue
		case !probed && !p.pair(e.Line, e.A, e.B, Node):
			continue
		case (e.Whole || e.Gap > 0) && !flows:
			p.fail(e.Line, "no data flows between %s and %s: expected a line such as: flow %s %s every=20ms", e.A, e.B, e.A, e.B)
		case e.After != "" && !slices.Contains(events, e.After):
			p.fail(e.Line, "%s does not happen: expected %s", quoted(e.After), oneOf(events))
			continue
		}
		for _, t := range e.Times(p.s) {
			if end := t + e.Within + e.Hold; p.s.Limit > 0 && end > p.s.Limit {
				p.fail(e.Line, "this is decided %s after the beginning, and the limit is %s: expected a later limit", formatDuration(end), formatDuration(p.s.Limit))
				break
			}
		}
	}
	if p.s.Limit == 0 && p.s.last() > MaxLimit-time.Second {
		p.fail(1, "this takes longer than %s: expected a shorter story", formatDuration(MaxLimit))
	}
}
