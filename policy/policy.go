// Package policy says who may reach whom: it reads the one document in which an administrator writes that down, and
// makes of it the rules that each node has to enforce.
//
// # From a text to packets
//
//	text --Parse--> Document --Compile, with Facts--> Policy --Rules, of a node--> []weft.Rule --> policy/filter
//
// A [Document] is the text as it was understood, each word with its line and column. Which of its names exist is not known
// to it. [Document.Compile] holds it against [Facts], what the coordinator knows of people, and gives a [Policy]. A policy
// is asked for one node at a time: [Policy.Rules] are what may be begun towards that node and what is behind it. Nobody
// gets another one's rules.
//
// What Compile does not understand it complains about, and leaves out: rules only allow, so what is left out is refused.
// A coordinator takes no document that has complaints; but one that it took must go on meaning something when a user in it
// is gone.
//
// # Rules name, nodes resolve
//
// The sources of a rule are words (weft.Source), which the node holds against the map that it has anyway. So a machine that
// joins, leaves or changes its address changes no rule. The destinations are resolved here: they are the node itself, or
// addresses. Rules of a node change when the document does, when the node's own user, tags or routes do, and when somebody's
// groups at an identity provider do.
//
// Nodes with the same user and tags that are in the same of the document's networks have the same rules, but for the addresses that
// are their own, as long as they have no networks behind them: see [Policy.Class]. A coordinator of 10,000 nodes compiles some tens of
// lists, and fills each node's addresses in when it tells them.
//
// # What is meant where nothing is written
//
// [Default] is what holds without a document: all between a user's own untagged machines, and nothing else. Machines
// without user and tags are one owner's: whoever runs the network.
//
// # Verdicts
//
// [Allows] is the slow and obvious judge of one flow. It is what explanations and the document's own tests are made with;
// package policy/filter judges packets, and is held against it.
//
// The package is pure: it opens nothing, and asks no clock.
package policy

import (
	"net/netip"
	"slices"

	"weft"
)

// A Policy is a document that was held against the facts. It is never changed; any number of goroutines may ask it.
type Policy struct {
	lines     []line
	places    places         // all that lines have as destinations in the overlay
	ranges    []netip.Prefix // the overlay's own
	four, six []netip.Prefix // the Internet, without them

	owners  map[string][]weft.Source // of tags; nil without a document
	routers []approvers
	exits   []weft.Source
	names   map[string]int // users that the document names -> line
}

type approvers struct {
	prefix netip.Prefix
	who    []weft.Source
}

// A line is one entry of the document: who may begin what towards whom.
type line struct {
	from []weft.Source
	to   []target
	why  string
}

// A target is one destination of a line.
type target struct {
	kind  kind
	words []weft.Source  // of named: a node is meant that one of them includes
	addrs []netip.Prefix // of placed
	ports []weft.PortRange
}

// A kind says what a target means to a node.
type kind uint8

const (
	everything kind = iota + 1 // the node and all that is behind it
	named                      // the node, where the words mean it
	placed                     // the addresses among its own and those behind it
	self                       // the node, for machines of its own user
	selfAndAll                 // the same, with what is behind it
	internet                   // what is behind an exit node and is nobody's
)

// Default is what holds where no document was ever set, in an overlay with some ranges.
func Default(ranges ...netip.Prefix) *Policy {
	return &Policy{ranges: ranges, lines: []line{{
		from: []weft.Source{weft.Untagged},
		to:   []target{{kind: selfAndAll}},
		why:  DefaultWhy,
	}}}
}

// DefaultWhy is the reason of the default's only rule.
const DefaultWhy = "default: a user's own machines"

// Rules are what a node has to let in. The result is never nil: without rules nothing is let in. Its parts are shared
// between calls and must not be changed.
func (p *Policy) Rules(n weft.Node) []weft.Rule {
	addrs := own(n)
	return p.rules(judge{n, addrs, addrs, p.behind(n)})
}

func (p *Policy) rules(j judge) []weft.Rule {
	rules := []weft.Rule{}
	var meant []weft.Rule
	for _, l := range p.lines {
		first := len(rules)
		for _, t := range l.to {
			meant = p.meant(meant[:0], j, l, t)
			for _, r := range meant {
				// Ports of one line to one place are one rule.
				i := slices.IndexFunc(rules[first:], func(o weft.Rule) bool {
					return slices.Equal(o.From, r.From) && slices.Equal(o.To, r.To)
				})
				if i < 0 {
					rules = append(rules, r)
					continue
				}
				o := &rules[first+i]
				if o.Ports == nil || r.Ports == nil {
					o.Ports = nil
				} else {
					o.Ports = union(o.Ports, r.Ports)
				}
			}
		}
	}
	return rules
}

// union adds ranges to others, without changing either.
func union(have, more []weft.PortRange) []weft.PortRange {
	have = slices.Clip(have)
	for _, r := range more {
		if !slices.Contains(have, r) {
			have = append(have, r)
		}
	}
	return have
}

// A judge is a node that is to let in or not, with its own addresses, what rules call them, and the networks behind it.
type judge struct {
	weft.Node
	own, called, behind []netip.Prefix
}

// meant adds what a target of a line means for a node.
func (p *Policy) meant(dst []weft.Rule, n judge, l line, t target) []weft.Rule {
	rule := weft.Rule{From: l.from, Ports: t.ports, Why: l.why}
	switch t.kind {
	case self, selfAndAll:
		if len(n.Tags) > 0 || !l.covers(n.Node) {
			return dst
		}
		rule.From = []weft.Source{weft.SourceUser(n.User)}
		if t.kind == selfAndAll && len(n.behind) > 0 {
			rule.To = slices.Concat(n.own, n.behind)
		}
	case everything:
		if len(n.behind) > 0 {
			rule.To = slices.Concat(n.own, n.behind)
		}
	case named:
		if !includes(t.words, n.Node) {
			return dst
		}
	case placed:
		if rule.To = n.places(t.addrs); len(rule.To) == 0 {
			return dst
		}
	case internet:
		rule.To = p.beyond(n.Node)
		if len(rule.To) == 0 {
			return dst
		}
		// Who leaves by an exit node asks it for names, too.
		dns := weft.Rule{From: l.from, Why: l.why, Ports: []weft.PortRange{{Proto: weft.ProtoUDP, First: 53, Last: 53}, {Proto: weft.ProtoTCP, First: 53, Last: 53}}}
		return append(dst, rule, dns)
	}
	return append(dst, rule)
}

func includes(words []weft.Source, n weft.Node) bool {
	return slices.ContainsFunc(words, func(s weft.Source) bool { return s.Includes(n) })
}

// behind are the networks behind a node. What is the overlay's is behind nobody: an exit node is no way to other members.
func (p *Policy) behind(n weft.Node) []netip.Prefix {
	routes := n.Routes
	for _, r := range p.ranges {
		if slices.ContainsFunc(routes, r.Overlaps) {
			routes = exclude(routes, r)
		}
	}
	return routes
}

// places are those of the addresses that are a node's own or behind it.
func (n judge) places(addrs []netip.Prefix) (to []netip.Prefix) {
	add := func(found netip.Prefix) {
		if !slices.Contains(to, found) {
			to = append(to, found)
		}
	}
	for _, a := range addrs {
		for i, o := range n.own {
			switch {
			case !a.Contains(o.Addr()):
			case to == nil:
				to = n.called[i : i+1 : i+1]
			default:
				add(n.called[i])
			}
		}
		for _, r := range n.behind {
			if both, ok := common(a, r); ok {
				add(both)
			}
		}
	}
	return to
}

// beyond is the Internet, as far as a node is the way to it.
func (p *Policy) beyond(n weft.Node) (to []netip.Prefix) {
	if slices.Contains(n.Routes, default4) {
		to = append(to, p.four...)
	}
	if slices.Contains(n.Routes, default6) {
		to = append(to, p.six...)
	}
	return to
}

// Owns reports whether whoever has a node, or is one, may give it a tag; defined is false of a tag that the document does not
// name. Without a document every tag is whoever's gives it.
func (p *Policy) Owns(n weft.Node, tag string) (defined, owns bool) {
	if p.owners == nil {
		return true, true
	}
	who, ok := p.owners[tag]
	return ok, includes(who, n)
}

// Approves reports whether a node may have a network behind it without an administrator's word. 0.0.0.0/0 and ::/0 stand for
// an exit node.
func (p *Policy) Approves(n weft.Node, route netip.Prefix) bool {
	if route.Bits() == 0 {
		return includes(p.exits, n)
	}
	return slices.ContainsFunc(p.routers, func(a approvers) bool {
		return a.prefix.Bits() <= route.Bits() && a.prefix.Overlaps(route) && includes(a.who, n)
	})
}

// Names is the line in which the document names a user; 0: it does not.
func (p *Policy) Names(user string) int { return p.names[user] }

// covers reports whether the machines of a node's user are among a line's sources.
func (l line) covers(n weft.Node) bool {
	return includes(l.from, weft.Node{User: n.User})
}

func own(n weft.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range n.Addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}
