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
	p.checkLans()
	p.checkPolicy()
	p.checkStory()
	p.checkExpectations()
}

// network reports whether a name is that of a network on the way to the internet, and fails if it is none.
func (p *parser) network(line int, name string) bool {
	if name == Internet || p.s.Router(name) != nil {
		return true
	}
	if p.s.Lan(name) != nil {
		p.fail(line, "%s is a lan, to which only hosts and machines have links, for good: expected a router, or %s", name, Internet)
		return false
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
		if !p.checkPlaces(h) {
			continue
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
	if len(servers) > 0 {
		p.checkMembers(servers[0])
	}
	if len(servers) > 1 {
		p.fail(servers[1].Line, "there is a server already, on line %d: expected one, and relays beside it", servers[0].Line)
	}
}

// checkPlaces looks at where a host is.
func (p *parser) checkPlaces(h Host) bool {
	six := false
	for i, g := range h.Legs() {
		lan := p.s.Lan(g.On)
		if lan != nil {
			p.checkLanOf(h, i, g)
			six = six || lan.Prefix6().IsValid()
		} else if !p.network(h.Line, g.On) {
			return false
		}
		if slices.ContainsFunc(h.Legs()[:i], func(o Leg) bool { return o.On == g.On }) {
			p.fail(h.Line, "%s has two links to %s: expected one to each network, and a router with nat=none for another way", h.Name, g.On)
		}
		outer := p.s.Router(g.On)
		six = six || lan == nil && (outer == nil || outer.IPv6)
	}
	if outer := p.s.Router(h.On); h.IPv6 && !six && outer != nil {
		p.fail(h.Line, "%s has IPv6 and the network of %s, which it is on, has none: expected ipv6=yes on line %d too", h.Name, h.On, outer.Line)
	}
	if len(h.Places) > 0 && h.Role != Node && h.Role != Plain {
		p.fail(h.Line, "%s is a %s: expected one network, and no metric", h.Name, h.Role)
	}
	return true
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
	for _, c := range p.s.Commands {
		p.checkCommand(c)
	}
	for _, f := range p.s.Flows {
		p.checkFlow(f)
	}
	for _, x := range p.s.Probes {
		if p.host(x.Line, x.A) != nil && p.host(x.Line, x.B) != nil && x.A == x.B {
			p.fail(x.Line, "%s and itself are no pair: expected two hosts", x.A)
		}
	}
	slices.SortStableFunc(p.s.Events, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	links, places := p.s.links(), map[string]string{}
	for _, h := range p.s.Hosts {
		places[h.Name] = h.On
	}
	for i := range p.s.Events {
		p.checkEvent(&p.s.Events[i], links, places)
	}
}

// checkFlow looks at the ends of a flow.
func (p *parser) checkFlow(f Flow) {
	a, b := p.host(f.Line, f.From), p.host(f.Line, f.To)
	if a == nil || b == nil {
		return
	}
	if a == b {
		p.fail(f.Line, "%s and itself are no pair: expected two hosts", f.From)
	}
	for _, h := range []*Host{a, b} {
		if h.Role != Node && h.Role != Plain {
			p.fail(f.Line, "%s is a %s: expected a host, or a machine", h.Name, h.Role)
			return
		}
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
		if h := p.host(e.Line, name); h == nil || !p.network(e.Line, e.Args[1]) || !p.network(e.Line, h.On) {
			return
		} else if h.Role == Server || h.Role == Relay {
			p.fail(e.Line, "%s is a %s and stays where everybody knows it: expected a host", name, h.Role)
		}
		if e.Every > 0 || len(p.s.Host(name).Legs()) > 1 {
			p.fail(e.Line, "%s moves once, and with one link: expected another event", name)
			return
		}
		if places[name] == e.Args[1] {
			p.fail(e.Line, "%s is on %s already: expected another network", name, e.Args[1])
		}
		places[name] = e.Args[1]
	case Restart, Stop, Start:
		p.host(e.Line, name)
	case Weft:
		p.checkCommand(e.Command())
	default: // of routers and hosts alike
		p.checkLinkEvent(e, links)
	}
}

// checkLinkEvent looks at one event of a link.
func (p *parser) checkLinkEvent(e *Event, links map[string]Link) {
	name := e.Args[0]
	link, ok := links[name]
	if _, _, all := p.s.Leg(name); !ok && !all {
		p.fail(e.Line, "%s", unknown(name, "router or host", p.s.linkNames()))
		return
	}
	h, r := p.s.Host(name), p.s.Router(name)
	switch {
	case e.Verb == Readdress && h != nil && p.s.Lan(h.On) != nil:
		p.fail(e.Line, "%s has its address of %s for good: expected another machine", name, h.On)
	case e.Verb == Readdress && h == nil && r == nil || (e.Verb == Readdress || e.Verb == Set) && !ok:
		host, _, _ := p.s.Leg(name)
		p.fail(e.Line, "%s has several links: expected %s", host.Name, map[Verb]string{Readdress: "the readdress of a router, or of a host with one link",
			Set: "set " + host.LegName(0) + ", or another of them"}[e.Verb])
	case e.Verb == Readdress && h != nil && (h.Role == Server || h.Role == Relay):
		p.fail(e.Line, "%s is a %s and stays where everybody knows it: expected a host or a router", name, h.Role)
	case e.Verb == Readdress && r != nil && !r.translates():
		p.fail(e.Line, "%s translates nothing, so it has no address of its own to change: expected another router, or a host", name)
	case e.Verb == Set:
		links[name] = e.change(link)
		e.Link = links[name]
	}
}

func (p *parser) checkExpectations() {
	var events []string
	for _, e := range p.s.Events {
		events = append(events, e.String())
		if last := e.last(); p.s.Limit > 0 && last > p.s.Limit {
			p.fail(e.Line, "this happens at %s, and the limit is %s: expected a later limit", formatDuration(last), formatDuration(p.s.Limit))
		}
	}
	for _, e := range p.s.Expect {
		switch {
		case e.Idle:
			if _, ok := p.s.links()[e.A]; !ok {
				p.fail(e.Line, "%s", unknown(e.A, "router, or link of a host", p.s.linkNames()))
			}
		case e.Reach.Service != "":
			p.checkReach(e)
		case e.data():
			p.checkData(e)
		default:
			p.checkPath(e)
		}
		if e.After != "" && !slices.Contains(events, e.After) {
			p.fail(e.Line, "%s does not happen: expected %s", quoted(e.After), oneOf(events))
			continue
		}
		p.checkEnd(e)
	}
	if p.s.Limit == 0 && p.s.last() > MaxLimit-time.Second {
		p.fail(1, "this takes longer than %s: expected a shorter story", formatDuration(MaxLimit))
	}
}

// checkPath looks at an expectation of how a pair reaches each other.
func (p *parser) checkPath(e Expectation) {
	probed := slices.ContainsFunc(p.s.Probes, func(x Probe) bool { return pairOf(x.A, x.B) == pairOf(e.A, e.B) })
	switch a, b := p.host(e.Line, e.A), p.host(e.Line, e.B); {
	case a == nil || b == nil || probed:
	case a.Role == Plain || b.Role == Plain:
		p.fail(e.Line, "nothing says how %s and %s reach each other: expected a probe of the two, for they do not run weft", e.A, e.B)
	case p.pair(e.Line, e.A, e.B, Node) && a.Member.Secret != b.Member.Secret:
		p.fail(e.Line, "%s and %s are in two networks, for their secrets differ: expected one secret", e.A, e.B)
	}
}

// checkData looks at an expectation of what a pair's flows bring.
func (p *parser) checkData(e Expectation) {
	flows := slices.ContainsFunc(p.s.Flows, func(f Flow) bool { return pairOf(f.From, f.To) == pairOf(e.A, e.B) })
	if a, b := p.host(e.Line, e.A), p.host(e.Line, e.B); a != nil && b != nil && !flows {
		p.fail(e.Line, "no data flows between %s and %s: expected a line such as: flow %s %s every=20ms", e.A, e.B, e.A, e.B)
	}
}

// checkEnd fails if an expectation would be decided after the limit.
func (p *parser) checkEnd(e Expectation) {
	for _, t := range e.Times(p.s) {
		if end := t + e.Within + e.Hold; p.s.Limit > 0 && end > p.s.Limit {
			p.fail(e.Line, "this is decided %s after the beginning, and the limit is %s: expected a later limit", formatDuration(end), formatDuration(p.s.Limit))
			return
		}
	}
}
