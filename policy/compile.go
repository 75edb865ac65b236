package policy

import (
	"maps"
	"net/netip"
	"slices"
	"strings"

	"weft"
)

// Facts are what a document is held against.
type Facts struct {
	Users  []User
	Ranges []netip.Prefix // the overlay's own

	// Speaker finds the node that an address is of, or that has it behind it. The document's tests ask for it; nil knows
	// nobody.
	Speaker func(netip.Addr) (weft.Node, bool)
}

// A User is a person as documents name people. Who comes from a provider of OpenID Connect has an issuer, and the groups that
// this one said.
type User struct {
	Name   string
	Issuer string
	Groups []string
}

// Compile holds the document against the facts. The policy leaves out what is complained of, and the document's tests
// are made with it.
func (d *Document) Compile(f Facts) (*Policy, []Problem) {
	c := &compiler{Document: d, facts: f, src: source{text: d.src.text, lines: d.src.lines}, users: make(map[string]bool), groups: make(map[string][]weft.Source)}
	for _, u := range f.Users {
		c.users[u.Name] = true
	}
	for _, name := range slices.Sorted(maps.Keys(d.hosts)) {
		if c.users[name] {
			c.src.complain(d.hosts[name].at, "%q is the name of a user, too: give the host another one", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.groups)) {
		c.groups[name] = []weft.Source{}
		for _, w := range d.groups[name].members {
			c.groups[name] = append(c.groups[name], c.member(w)...)
		}
	}
	p := &Policy{ranges: f.Ranges, owners: make(map[string][]weft.Source), names: c.named()}
	for _, tag := range slices.Sorted(maps.Keys(d.owners)) {
		p.owners[tag] = c.people(d.owners[tag])
	}
	for _, g := range d.grants {
		if l := c.line(g); len(l.from) > 0 && len(l.to) > 0 {
			p.lines = append(p.lines, l)
		}
	}
	for _, r := range d.routers {
		p.routers = append(p.routers, approvers{r.prefix, c.people(r.who)})
	}
	p.exits = c.people(d.exits)
	p.four, p.six = public(f.Ranges)
	for _, l := range p.lines {
		for _, t := range l.to {
			for _, a := range t.addrs {
				if len(f.Ranges) == 0 || slices.ContainsFunc(f.Ranges, a.Overlaps) {
					p.places.add(a)
				}
			}
		}
	}
	for _, t := range d.trials {
		c.try(p, t)
	}
	return p, slices.Clip(c.src.sorted())
}

// A compiler is one document on its way to a policy.
type compiler struct {
	*Document
	facts  Facts
	src    source // its own list of problems: a document may be compiled many times
	users  map[string]bool
	groups map[string][]weft.Source
}

// A meaning is what a word stands for.
type meaning struct {
	kind    kind
	sources []weft.Source  // of named
	addrs   []netip.Prefix // of placed
}

func someone(s weft.Source) (meaning, bool) {
	return meaning{kind: named, sources: []weft.Source{s}}, true
}

// mean finds out what a word stands for, or complains.
func (c *compiler) mean(w word) (meaning, bool) {
	kindOf, rest, _ := strings.Cut(w.text, ":")
	switch {
	case w.text == "*":
		return meaning{kind: everything}, true
	case kindOf == "autogroup":
		return c.autogroup(w, rest)
	case kindOf == "group":
		sources, ok := c.group(w)
		return meaning{kind: named, sources: sources}, ok
	case kindOf == "tag":
		if _, ok := c.owners[w.text]; !ok {
			c.src.complain(w.at, `there is no %s: name it and its owners in tagOwners, "%s": []`, w.text, w.text)
			return meaning{}, false
		}
		return someone(weft.SourceTag(w.text))
	case kindOf == "ipset":
		set, ok := c.ipsets[w.text]
		if !ok {
			c.src.complain(w.at, "there is no %s: name it in ipsets", w.text)
			return meaning{}, false
		}
		return meaning{kind: placed, addrs: set.prefixes}, true
	}
	if h, ok := c.hosts[w.text]; ok {
		return meaning{kind: placed, addrs: []netip.Prefix{h.prefix}}, true
	}
	if p, ok := parsePrefix(w.text); ok {
		return meaning{kind: placed, addrs: []netip.Prefix{p}}, true
	}
	if s, ok := c.user(w); ok {
		return someone(s)
	}
	return meaning{}, false
}

func (c *compiler) autogroup(w word, name string) (meaning, bool) {
	switch name {
	case "member":
		return someone(weft.Untagged)
	case "tagged":
		return someone(weft.Tagged)
	case "self":
		return meaning{kind: self}, true
	case "internet":
		return meaning{kind: internet}, true
	case "admin", "owner", "network-admin", "it-admin", "billing-admin", "auditor":
		c.src.complain(w.at, "weft has no %s: whoever runs the server may do everything there; name users or a group", w.text)
	default:
		c.src.complain(w.at, "weft has no %s: there are autogroup:member, autogroup:tagged, autogroup:self and autogroup:internet", w.text)
	}
	return meaning{}, false
}

// user finds a user; a trailing @, with which some write that a name is no address, is not part of the name.
func (c *compiler) user(w word) (weft.Source, bool) {
	for _, name := range []string{w.text, strings.TrimSuffix(w.text, "@")} {
		if c.users[name] && name != "" {
			return weft.SourceUser(name), true
		}
	}
	c.src.complain(w.at, "there is no user and no host %q: make the user (weft admin user create), have them sign in first, or name the host in hosts", w.text)
	return "", false
}

// group finds the users of a group of the document, or of a provider's: "group:NAME@ISSUER".
func (c *compiler) group(w word) ([]weft.Source, bool) {
	if sources, ok := c.groups[w.text]; ok {
		return sources, true
	}
	i := strings.LastIndexByte(w.text, '@')
	if i < 0 {
		c.src.complain(w.at, `there is no %s: name it in groups, or write "%s@ISSUER" for one of a provider's`, w.text, w.text)
		return nil, false
	}
	name, issuer := strings.TrimPrefix(w.text[:i], "group:"), issuerName(w.text[i+1:])
	known := false
	sources := []weft.Source{}
	for _, u := range c.facts.Users {
		if u.Issuer == "" || issuerName(u.Issuer) != issuer {
			continue
		}
		known = true
		if slices.Contains(u.Groups, name) {
			sources = append(sources, weft.SourceUser(u.Name))
		}
	}
	if !known {
		c.src.warn(w.at, "nobody has signed in by %s yet, so %s has no members", issuer, w.text)
	}
	return sources, true
}

// issuerName is an issuer as documents write it: its URL without scheme and without a last slash.
func issuerName(s string) string {
	s = strings.TrimPrefix(strings.TrimPrefix(s, "https://"), "http://")
	return strings.TrimSuffix(s, "/")
}

// member is what a member of a group stands for: a user, or the users of a provider's group.
func (c *compiler) member(w word) []weft.Source {
	switch {
	case strings.HasPrefix(w.text, "group:") && strings.Contains(w.text, "@"):
		sources, _ := c.group(w)
		return sources
	case strings.Contains(w.text, ":"), w.text == "*":
		c.src.complain(w.at, "%q cannot be a member of a group: its members are users, and groups of a provider (group:NAME@ISSUER)", w.text)
		return nil
	}
	if s, ok := c.user(w); ok {
		return []weft.Source{s}
	}
	return nil
}

// people are who may do something: users, groups, tags.
func (c *compiler) people(words []word) []weft.Source {
	out := []weft.Source{}
	for _, w := range words {
		m, ok := c.mean(w)
		if ok && m.kind != named {
			c.src.complain(w.at, "%q is nobody who could do that: name users, groups or tags", w.text)
		}
		out = append(out, m.sources...)
	}
	return out
}

// line is one grant as nodes are asked by it.
func (c *compiler) line(g grant) line {
	l := line{why: g.why, from: []weft.Source{}}
	for _, w := range g.src {
		m, ok := c.mean(w)
		switch {
		case !ok:
		case m.kind == everything:
			l.from = append(l.from, weft.Everybody)
		case m.kind == named:
			l.from = append(l.from, m.sources...)
		case m.kind == placed:
			for _, p := range m.addrs {
				l.from = append(l.from, weft.SourcePrefix(p))
			}
		default:
			c.src.complain(w.at, "%s can only be a destination", w.text)
		}
	}
	if slices.Contains(l.from, weft.Everybody) {
		l.from = []weft.Source{weft.Everybody}
	}
	slices.Sort(l.from)
	l.from = slices.Compact(l.from)
	for _, x := range g.dst {
		m, ok := c.mean(x.word)
		if !ok {
			continue
		}
		if m.kind == self {
			c.checkSelf(g, x)
		}
		l.to = append(l.to, target{kind: m.kind, words: m.sources, addrs: m.addrs, ports: x.ports})
	}
	return l
}

// checkSelf complains of sources that have no machines of their own.
func (c *compiler) checkSelf(g grant, x destination) {
	for _, w := range g.src {
		kindOf, _, _ := strings.Cut(w.text, ":")
		_, isHost := c.hosts[w.text]
		_, isPrefix := parsePrefix(w.text)
		if kindOf == "tag" || kindOf == "ipset" || isHost || isPrefix || w.text == "autogroup:tagged" {
			c.src.complain(x.at, "autogroup:self is a user's own machines, and %s is no user: name users, groups or autogroup:member in src", w.text)
		}
	}
}

// named are the users that the document names, with the line of the first time.
func (c *compiler) named() map[string]int {
	lines := make(map[string]int)
	note := func(words ...word) {
		for _, w := range words {
			for _, name := range []string{w.text, strings.TrimSuffix(w.text, "@")} {
				if _, isHost := c.hosts[w.text]; isHost || !c.users[name] {
					continue
				}
				if line, ok := lines[name]; !ok || c.src.line(w.at) < line {
					lines[name] = c.src.line(w.at)
				}
			}
		}
	}
	for _, g := range c.Document.groups {
		note(g.members...)
	}
	for _, words := range c.owners {
		note(words...)
	}
	for _, r := range c.routers {
		note(r.who...)
	}
	note(c.exits...)
	for _, g := range c.grants {
		note(g.src...)
		for _, x := range g.dst {
			note(x.word)
		}
	}
	for _, t := range c.trials {
		note(t.src)
	}
	return lines
}
