package control

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weft"
	"weft/policy"
)

// The administrator's side of the policy: one document, taken whole or not at all.

// policyDocument is the document's name in the store.
const policyDocument = "policy"

// unwritten is what an administrator begins with who has no policy yet. It is the default, but for networks behind
// routers, which need entries of their own.
const unwritten = `// No policy is set. Without one, a user's own machines reach each other and nothing else reaches anything; machines
// without a user count as one owner's. This document says the same, as something to begin with. What each part means:
// docs/policy.md.
{
	"groups": {},
	"tagOwners": {},
	"hosts": {},
	"acls": [
		{"action": "accept", "src": ["autogroup:member"], "dst": ["autogroup:self:*"]},
	],
	"tests": [],
}
`

// DefaultPolicy is the revision where no policy was ever set.
const DefaultPolicy = "default"

// revisionOf names a text, so that who changes it can say which one that was.
func revisionOf(text string) string {
	if text == "" {
		return DefaultPolicy
	}
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:8])
}

// Policy tells which policy is in force.
func (s *Server) Policy() PolicyAnswer {
	snap := s.now.Load()
	d := snap.documents[policyDocument]
	a := PolicyAnswer{Schema: weft.SchemaVersion, Revision: snap.law.revision, Changed: d.Changed, Text: d.Text, Problems: []policy.Problem{}}
	if d.Text == "" {
		a.Text = unwritten
	}
	return a
}

// CheckPolicy tells what is to be complained of in a policy.
func (s *Server) CheckPolicy(ctx context.Context, r PolicyRequest) (PolicyAnswer, error) {
	return s.takePolicy(ctx, r, false)
}

// SetPolicy puts a policy in force, if there is no more to complain of than warnings. All nodes that it changes anything for
// are told at once.
func (s *Server) SetPolicy(ctx context.Context, r PolicyRequest) (PolicyAnswer, error) {
	return s.takePolicy(ctx, r, true)
}

func (s *Server) takePolicy(ctx context.Context, r PolicyRequest, keep bool) (PolicyAnswer, error) {
	a := PolicyAnswer{Schema: weft.SchemaVersion, Text: r.Text, Revision: revisionOf(r.Text), Problems: []policy.Problem{}}
	document, problems := policy.Parse([]byte(r.Text)) // not in the writer's time
	a.Problems = append(a.Problems, problems...)
	if document == nil {
		return a, nil
	}
	err := s.do(ctx, func(t *tx) error {
		l := newLaw()
		var more []policy.Problem
		l.policy, more = document.Compile(t.facts())
		a.Problems = append(a.Problems[:len(problems):len(problems)], more...)
		if !keep || policy.Refused(more) {
			return nil
		}
		if now := t.law.revision; r.Revision != "" && r.Revision != now {
			return changedSince(now)
		}
		l.document, l.revision = document, a.Revision
		t.putDocument(policyDocument, r.Text)
		a.Changed = t.documents[policyDocument].Changed
		t.enact(l)
		t.after = append(t.after, func() { s.log.Info("policy set", "revision", l.revision) })
		return nil
	})
	return a, err
}

// UnsetPolicy takes the policy away, so that the default is in force again. All nodes that it changes anything for are told at once.
func (s *Server) UnsetPolicy(ctx context.Context, r PolicyRequest) (PolicyAnswer, error) {
	a := PolicyAnswer{Schema: weft.SchemaVersion, Revision: DefaultPolicy, Text: unwritten, Problems: []policy.Problem{}}
	err := s.do(ctx, func(t *tx) error {
		former := t.law.revision
		switch {
		case t.law.isDefault():
			return sentence(weft.CodeConflict, "no policy is set, so there is none to take away")
		case r.Revision != "" && r.Revision != former:
			return changedSince(former)
		}
		t.putDocument(policyDocument, "")
		a.Changed = t.documents[policyDocument].Changed
		t.enact(newLaw(t.net.IPv4, t.net.IPv6))
		t.after = append(t.after, func() { s.log.Warn("the policy was unset: "+weft.WithoutPolicy, "former", former) })
		return nil
	})
	return a, err
}

// changedSince refuses a change of a policy that is not the one that was read.
func changedSince(now string) error {
	return sentence(weft.CodeConflict, "somebody changed the policy since it was read: it is at revision %s now; read it again (weft admin policy get) and repeat the change", now)
}

// An end is what a person asks about: a node, or an address that a node speaks for.
type end struct {
	node  weft.Node
	addrs []netip.Addr
	name  string
	by    *weft.Carrier // of an address that is no node's own
}

// endNamed finds a node by name or number, or the one that speaks for an address, or would.
func (t *tx) endNamed(what string) (end, error) {
	if a, err := netip.ParseAddr(what); err == nil {
		a = a.Unmap()
		n, ok := t.speaker(a)
		if ok && slices.Contains(n.Addrs, a) {
			return end{n, []netip.Addr{a}, fmt.Sprintf("%s at %s", a, describe(n)), nil}, nil
		}
		e, c := t.carrier(a)
		if c == nil {
			return end{}, sentence(weft.CodeNotFound, "no node has the address %s, and none has it behind it: `weft admin node list` shows the nodes", a)
		}
		n = e.node()
		return end{n, []netip.Addr{a}, fmt.Sprintf("%s behind %s", a, describe(n)), c}, nil
	}
	e, err := t.nodeNamed(strings.TrimSuffix(what, "."+t.resolving.doc.domain()))
	if err != nil {
		return end{}, err
	}
	n := e.node()
	return end{n, n.Addrs, describe(n), nil}, nil
}

// through says by which network an end is reached that is behind a node.
func (e end) through(from end) string {
	switch {
	case e.by == nil:
		return ""
	case weft.IsExit(e.by.Route):
		return fmt.Sprintf("; through the exit node %s, where %s has that as its own (weft set exit-node=%s)", e.by.By, from.node.Name, e.by.By)
	}
	return fmt.Sprintf("; through %s, which speaks for %s", e.by.By, e.by.Route)
}

// describe is a node with what policies know it by.
func describe(n weft.Node) string {
	switch {
	case len(n.Tags) > 0:
		return fmt.Sprintf("%s (%s)", n.Name, strings.Join(n.Tags, ", "))
	case n.User != "":
		return fmt.Sprintf("%s (%s)", n.Name, n.User)
	}
	return n.Name + " (nobody's)"
}

// ExplainPolicy tells whether one member may reach another, and which rules say so.
func (s *Server) ExplainPolicy(ctx context.Context, r ExplainRequest) (ExplainAnswer, error) {
	a := ExplainAnswer{Schema: weft.SchemaVersion}
	var port weft.PortRange
	if r.Port != "" {
		var err error
		if port, err = weft.ParsePortRange(r.Port); err != nil {
			return a, sentence(weft.CodeBadRequest, "%v", err)
		}
		a.Port = port.String()
		ported := port.Proto == weft.ProtoTCP || port.Proto == weft.ProtoUDP
		if port.Proto == 0 || ported && port.First != port.Last {
			return a, sentence(weft.CodeBadRequest, "%s is more than one thing to ask for: name one, for example tcp:22 or icmp", a.Port)
		}
	}
	err := s.do(ctx, func(t *tx) error {
		from, err := t.endNamed(r.From)
		if err != nil {
			return err
		}
		to, err := t.endNamed(r.To)
		if err != nil {
			return err
		}
		a.From, a.To, a.Node = from.name, to.name, to.node.Name
		if to.by != nil {
			a.Carrier = *to.by
		}
		a.Rules = t.between(from, to, port, r.Port != "")
		switch a.Allowed = len(a.Rules) > 0; {
		case from.node.ID == to.node.ID:
			a.Allowed, a.Rules = true, []weft.Rule{}
		case to.by != nil && !to.by.InUse:
			a.Allowed = false
		}
		a.Message = t.verdict(a, from, to)
		return nil
	})
	return a, err
}

// between are the rules by which one end may reach another, by whichever family of addresses both have. A flow to a
// particular port is let in by one.
func (t *tx) between(from, to end, port weft.PortRange, particular bool) []weft.Rule {
	rules := t.law.policy.Rules(to.node)
	var found []weft.Rule
	add := func(r weft.Rule) {
		for _, have := range found {
			if have.Equal(r) {
				return
			}
		}
		found = append(found, r)
	}
	for _, src := range from.addrs {
		for _, dst := range to.addrs {
			f := policy.Flow{Sender: from.node, From: src, To: dst, Proto: port.Proto, Port: port.First}
			if src.Is4() != dst.Is4() {
				continue
			}
			if !particular {
				for _, r := range policy.Between(rules, to.node, f) {
					add(r)
				}
				continue
			}
			if dst.Is6() && f.Proto == weft.ProtoICMP {
				f.Proto = weft.ProtoICMPv6
			}
			if r, ok := policy.Allows(rules, to.node, f); ok && len(found) == 0 {
				add(r)
			}
		}
	}
	if found == nil {
		found = []weft.Rule{}
	}
	return found
}

// verdict says it in words.
func (t *tx) verdict(a ExplainAnswer, from, to end) string {
	by := ""
	if a.Port != "" {
		by = " by " + a.Port
	}
	switch {
	case from.node.ID == to.node.ID:
		return fmt.Sprintf("%s is the same machine: what it says to itself passes no rule", from.name)
	case to.by != nil && !to.by.InUse:
		return fmt.Sprintf("%s does not reach %s%s: %s", from.name, to.name, by, to.by.Note)
	case a.Allowed && a.Port != "":
		return fmt.Sprintf("%s may reach %s%s: %s%s", from.name, to.name, by, a.Rules[0].Why, to.through(from))
	case a.Allowed:
		return fmt.Sprintf("%s may reach %s%s", from.name, to.name, to.through(from))
	case t.law.isDefault():
		return fmt.Sprintf("%s may not reach %s%s: %s (weft admin policy edit)", from.name, to.name, by, weft.WithoutPolicy)
	case t.law.broken != "":
		return t.law.broken
	}
	return fmt.Sprintf("%s may not reach %s%s: no rule of the policy says that it may", from.name, to.name, by)
}
