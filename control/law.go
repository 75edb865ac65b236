package control

import (
	"net/netip"
	"slices"

	"weft"
	"weft/policy"
)

// A law is the policy in force, with the rulings that were made by it. It is in snapshots, but what is in rulings is the
// writer's alone.
type law struct {
	policy  *policy.Policy
	rulings map[string]*ruling // of policy.Class
}

func newLaw(p *policy.Policy) *law { return &law{policy: p, rulings: make(map[string]*ruling)} }

// A ruling is what a node has to let in. Nodes alike share one, and so its encoding. It is never changed.
type ruling struct {
	list []weft.Rule
	json lazyJSON
}

func (r *ruling) encoded() []byte { return r.json.of(func() any { return r.list }) }

func (r *ruling) appendTo(dst []byte) []byte {
	return append(append(dst, `,"rules":`...), r.encoded()...)
}

// ruledAlike reports whether nothing that rules depend on is different in two states of a node.
func ruledAlike(x, y weft.Node) bool {
	return x.User == y.User && x.Gateway == y.Gateway && slices.Equal(x.Tags, y.Tags) && slices.Equal(x.Addrs, y.Addrs) &&
		slices.Equal(x.Routes, y.Routes)
}

// rule gives a node, of which a new state is made, the rules that this asks for.
func (t *tx) rule(e *entry) {
	r := t.rulingOf(e)
	if e.rules != nil && slices.EqualFunc(e.rules.list, r.list, weft.Rule.Equal) {
		return
	}
	t.version++
	e.rules, e.ruled = r, t.version
}

// rulingOf is what the law says of a node. A gateway enforces for the plain members behind it, who have nothing to
// enforce rules with.
func (t *tx) rulingOf(e *entry) *ruling {
	behind := t.behind(e.ID)
	n := e.node()
	class := t.law.policy.Class(n)
	if class == "" || len(behind) > 0 {
		list := t.law.policy.Rules(n)
		for _, id := range behind {
			if p, ok := t.nodes.get(uint32(id)); ok {
				list = append(list, t.rulesOfPlain(p.node())...)
			}
		}
		return &ruling{list: list}
	}
	r, ok := t.law.rulings[class]
	if !ok {
		r = &ruling{list: t.law.policy.Rules(n)}
		t.law.rulings[class] = r
	}
	return r
}

// rulesOfPlain are a plain member's rules as its gateway has them, whose own addresses are others.
func (t *tx) rulesOfPlain(n weft.Node) []weft.Rule {
	list := t.law.policy.Rules(n)
	for i := range list {
		if list[i].To != nil {
			continue
		}
		for _, a := range n.Addrs {
			list[i].To = append(list[i].To, netip.PrefixFrom(a, a.BitLen()))
		}
	}
	return list
}

// ruleGateway has the gateway of a plain member, of which something has changed, enforce what is so now.
func (t *tx) ruleGateway(plain *entry) {
	if found, ok := t.nodes.get(uint32(plain.Gateway)); ok && plain.Gateway != 0 {
		t.ruleAnew(found)
	}
}

// ruleAnew looks whether other rules are for a node now.
func (t *tx) ruleAnew(found *entry) {
	e := *found
	if t.rule(&e); e.ruled != found.ruled {
		t.nodes = t.nodes.set(uint32(e.ID), &e)
	}
}

// ruleAll does so for every node.
func (t *tx) ruleAll() {
	for _, e := range t.nodes.all() {
		t.ruleAnew(e)
	}
}
