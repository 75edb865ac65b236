package control

import (
	"bytes"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"weft"
	"weft/policy"
)

// A law is the policy in force, with the rulings that were made by it. It is in snapshots, but what is in rulings is the
// writer's alone.
type law struct {
	policy   *policy.Policy
	document *policy.Document   // nil: the default is in force
	revision string             // of the document; see revisionOf
	broken   string             // what keeps the stored document from being understood: then nothing is let in
	settled  uint64             // version of maps with which it came about that a policy is set, or that none is
	rulings  map[string]*ruling // of policy.Class
}

// newLaw is the default, in an overlay with some ranges.
func newLaw(ranges ...netip.Prefix) *law {
	return &law{policy: policy.Default(ranges...), revision: revisionOf(""), rulings: make(map[string]*ruling)}
}

// isDefault reports whether the law is the one that nobody has set.
func (l *law) isDefault() bool { return l.document == nil && l.broken == "" }

// appendMap adds what a whole map has of it.
func (l *law) appendMap(dst []byte) []byte {
	if !l.isDefault() {
		return dst
	}
	return append(dst, `,"no_policy":true`...)
}

// appendChange adds what a change has of it.
func (l *law) appendChange(dst []byte) []byte {
	return strconv.AppendBool(append(dst, `,"no_policy":`...), l.isDefault())
}

// A ruling is what a node has to let in. Nodes alike share one, and so its encoding. It is never changed.
type ruling struct {
	list []weft.Rule
	// shared is one of a whole class, in which policy.OwnIPv4 and OwnIPv6 stand for each node's own addresses.
	shared bool
	json   lazyJSON
}

func (r *ruling) encoded() []byte { return r.json.of(func() any { return r.list }) }

// equal reports whether nodes are told the same by two rulings, as long as their addresses are the same.
func (r *ruling) equal(o *ruling) bool {
	return r == o || r.shared == o.shared && slices.EqualFunc(r.list, o.list, weft.Rule.Equal)
}

// destinations is where in the encoding of a rule its destinations begin. Nothing else looks so there: in texts, quotation marks
// have a backslash in front of them.
const destinations = `"to":[`

// maxDestinations is how long a node's own addresses may be there.
const maxDestinations = len(`"255.255.255.255/32","ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"`)

// size is the most that appendTo adds.
func (r *ruling) size() int {
	n := len(`,"rules":`) + len(r.encoded())
	if r.shared {
		n += maxDestinations * bytes.Count(r.encoded(), []byte(destinations))
	}
	return n
}

// appendTo adds what a node is told.
func (r *ruling) appendTo(dst []byte, e *entry) []byte {
	dst = append(dst, `,"rules":`...)
	rest := r.encoded()
	for r.shared {
		at := bytes.Index(rest, []byte(destinations))
		if at < 0 {
			break
		}
		at += len(destinations)
		dst, rest = append(dst, rest[:at]...), rest[at:]
		end := bytes.IndexByte(rest, ']')
		for i, p := range bytes.Split(rest[:end], []byte{','}) {
			if i > 0 {
				dst = append(dst, ',')
			}
			own := e.IPv4
			if string(p) == ownIPv6 {
				own = e.IPv6
			}
			dst = append(dst, '"')
			dst = netip.PrefixFrom(own, own.BitLen()).AppendTo(dst)
			dst = append(dst, '"')
		}
		rest = rest[end:]
	}
	return append(dst, rest...)
}

var ownIPv6 = strconv.Quote(policy.OwnIPv6.String())

// ruledAlike reports whether nothing that rules depend on is different in two states of a node.
func ruledAlike(x, y weft.Node) bool {
	return x.User == y.User && x.Gateway == y.Gateway && slices.Equal(x.Tags, y.Tags) && slices.Equal(x.Addrs, y.Addrs) &&
		slices.Equal(x.Routes, y.Routes)
}

// rule gives a node, of which a new state is made, the rules that this asks for.
func (t *tx) rule(e *entry) {
	r := t.rulingOf(e)
	if old, had := t.nodes.get(uint32(e.ID)); had && e.rules != nil && old.IPv4 == e.IPv4 && old.IPv6 == e.IPv6 && e.rules.equal(r) {
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
		r = &ruling{list: t.law.policy.Shape(n), shared: true}
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

// enact puts a law in force: every node whose rules it changes is told.
func (t *tx) enact(l *law) {
	if l.settled = t.law.settled; l.isDefault() != t.law.isDefault() {
		t.version++
		l.settled = t.version
	}
	t.law = l
	for _, e := range t.nodes.all() {
		if n := *e; t.approveRoutes(&n) {
			t.putNode(n, true)
		} else {
			t.ruleAnew(e)
		}
	}
}

// lawNow makes a law of the stored document and the users that there are. Of a document that this version does not
// understand, though one took it once, nothing is let in: that is said aloud, and is better than to guess.
func (t *tx) lawNow() *law {
	text := t.documents[policyDocument].Text
	l := newLaw(t.net.IPv4, t.net.IPv6)
	if text == "" {
		return l
	}
	l.revision = revisionOf(text)
	var problems []policy.Problem
	if l.document, problems = policy.Parse([]byte(text)); l.document == nil {
		l.policy, l.broken = new(policy.Policy), fmt.Sprintf("the stored policy is not understood, so nothing is let in anywhere: %s (weft admin policy edit)", problems[0])
		t.s.log.Error("the stored policy is not understood, so nothing is let in anywhere", "problem", problems[0])
		return l
	}
	l.policy, _ = l.document.Compile(t.facts())
	return l
}

// usersChanged holds the policy against the users that there are now.
func (t *tx) usersChanged() {
	if t.law.document == nil {
		return
	}
	l := *t.law
	l.policy, _ = l.document.Compile(t.facts())
	l.rulings = make(map[string]*ruling)
	t.enact(&l)
}

// unnamed refuses to do away with a name that the policy has: whoever is called so next would have what it says.
func (t *tx) unnamed(user string) error {
	if line := t.law.policy.Names(user); line > 0 {
		return sentence(weft.CodeDenied, "the policy names %s in line %d: take the name out there first (weft admin policy edit)", user, line)
	}
	return nil
}

// facts are what policies are held against.
func (t *tx) facts() policy.Facts {
	f := policy.Facts{Ranges: []netip.Prefix{t.net.IPv4, t.net.IPv6}, Speaker: t.speaker}
	for _, name := range slices.Sorted(maps.Keys(t.users)) {
		u := t.users[name]
		f.Users = append(f.Users, policy.User{Name: name, Issuer: u.Issuer, Groups: u.Groups})
	}
	return f
}

// speaker finds the node that an address is of, or else the one with the narrowest network that it is in, the first of
// several.
func (t *tx) speaker(a netip.Addr) (weft.Node, bool) {
	var found *entry
	bits := -1
	for _, e := range t.nodes.all() {
		if e.IPv4 == a || e.IPv6 == a {
			return e.node(), true
		}
		for _, r := range e.node().Routes {
			if r.Contains(a) && r.Bits() > bits {
				found, bits = e, r.Bits()
			}
		}
	}
	if found == nil {
		return weft.Node{}, false
	}
	return found.node(), true
}

// mayTag refuses tags that a user does not own by the policy in force. Whoever administers the server, the user "", may give
// every tag, and so may everybody while there is no policy.
func (t *tx) mayTag(user string, tags []string) error {
	if user == "" {
		return nil
	}
	for _, tag := range tags {
		switch defined, owns := t.law.policy.Owns(weft.Node{User: user}, tag); {
		case !defined:
			return sentence(weft.CodeDenied, "the policy has no %s: name it and its owners in tagOwners (weft admin policy edit)", tag)
		case !owns:
			return sentence(weft.CodeDenied, "%s does not own %s: tagOwners in the policy says who does (weft admin policy edit)", user, tag)
		}
	}
	return nil
}
