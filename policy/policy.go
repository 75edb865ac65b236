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
// Nodes with the same user and tags have the same rules, as long as no rule is about addresses of theirs and they have no
// networks behind them: see [Policy.Class]. A coordinator of 10,000 nodes compiles some tens of lists.
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
	"strings"

	"weft"
)

// A Policy is a document that was held against the facts. It is never changed; any number of goroutines may ask it.
type Policy struct {
	lines []line
	// addresses are all that lines have as destinations: a node that has none of them is like others of its class.
	addresses []netip.Prefix
	ranges    []netip.Prefix // the overlay's own
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

// Default is what holds where no document was ever set.
func Default() *Policy {
	return &Policy{lines: []line{{
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
	rules := []weft.Rule{}
	for _, l := range p.lines {
		first := len(rules)
		for _, t := range l.to {
			for _, r := range p.meant(n, l, t) {
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

// meant is what a target of a line means for a node.
func (p *Policy) meant(n weft.Node, l line, t target) []weft.Rule {
	rule := weft.Rule{From: l.from, Ports: t.ports, Why: l.why}
	switch t.kind {
	case self, selfAndAll:
		if len(n.Tags) > 0 || !l.covers(n) {
			return nil
		}
		rule.From = []weft.Source{weft.SourceUser(n.User)}
		if t.kind == selfAndAll && len(n.Routes) > 0 {
			rule.To = slices.Concat(own(n), n.Routes)
		}
	case everything:
		if len(n.Routes) > 0 {
			rule.To = slices.Concat(own(n), n.Routes)
		}
	case named:
		if !slices.ContainsFunc(t.words, func(s weft.Source) bool { return s.Includes(n) }) {
			return nil
		}
	}
	if len(rule.From) == 0 {
		return nil
	}
	return []weft.Rule{rule}
}

// covers reports whether the machines of a node's user are among a line's sources.
func (l line) covers(n weft.Node) bool {
	return slices.ContainsFunc(l.from, func(s weft.Source) bool { return s.Includes(weft.Node{User: n.User}) })
}

func own(n weft.Node) []netip.Prefix {
	var out []netip.Prefix
	for _, a := range n.Addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// Class is the same of two nodes that have the same rules. Of a node that has rules of its own it is "".
func (p *Policy) Class(n weft.Node) string {
	if len(n.Routes) > 0 {
		return ""
	}
	for _, a := range p.addresses {
		if slices.ContainsFunc(n.Addrs, a.Contains) {
			return ""
		}
	}
	return "of " + n.User + " " + strings.Join(n.Tags, " ")
}
