package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft"
)

// The tests that a document has of itself. They are made with machines that are thought of: one of a user, one with a
// tag, one behind a router. So a document can be tested before there is any.

// nobody is the tag of a machine that is thought of and no word means.
const nobody = "tag:"

// A party is one end of a flow in a test.
type party struct {
	name string
	node weft.Node
	addr netip.Addr // invalid: the node's own, whichever that is
	// foreign is set of an address that no node is known to speak for: only rules for addresses, or for all, are about it.
	foreign bool
}

// try makes one test and complains where it fails.
func (c *compiler) try(p *Policy, t trial) {
	senders := c.senders(t.src)
	for _, w := range t.accept {
		c.tryOne(p, t, senders, w, true)
	}
	for _, w := range t.deny {
		c.tryOne(p, t, senders, w, false)
	}
}

func (c *compiler) tryOne(p *Policy, t trial, senders []party, w word, accept bool) {
	host, ports, ok := cutPorts(w.text)
	port, err := strconv.ParseUint(ports, 10, 16)
	if portless := ports == "*" && !hasPorts(t.protos); ok && portless {
		port, err = 0, nil
	}
	if !ok || err != nil {
		if !ok {
			host = w.text
		}
		c.src.complain(w.at, `%q does not say which port: write "%s:22"`, w.text, bracketed(host))
		return
	}
	for _, from := range senders {
		for _, to := range c.receivers(word{host, w.at}, from) {
			why, allowed := p.asks(from, to, t.protos, uint16(port))
			switch {
			case allowed && !accept:
				c.src.complain(w.at, "the test fails: %s is not to reach %s, and %s lets it", from.name, w.text, why)
			case !allowed && accept:
				c.src.complain(w.at, "the test fails: %s is to reach %s, and nothing lets it", from.name, w.text)
			}
		}
	}
}

func hasPorts(protos []uint8) bool {
	return slices.ContainsFunc(protos, func(p uint8) bool { return slices.Contains(withPorts, p) })
}

// asks reports whether one party may reach another by one of some protocols, and which line says so.
func (p *Policy) asks(from, to party, protos []uint8, port uint16) (why string, ok bool) {
	rules := p.Rules(to.node)
	if from.foreign {
		for i := range rules {
			var left []weft.Source
			for _, s := range rules[i].From {
				if _, is := s.Prefix(); is || s == weft.Everybody {
					left = append(left, s)
				}
			}
			rules[i].From = left
		}
	}
	for _, proto := range protos {
		if r, ok := Allows(rules, to.node, Flow{Sender: from.node, From: from.addr, To: to.addr, Proto: proto, Port: port}); ok {
			return r.Why, true
		}
	}
	return "", false
}

// thought is a machine that is thought of. The zero address is its own, and in no prefix.
func thought(name string, n weft.Node) party {
	n.Addrs = []netip.Addr{{}}
	return party{name: name, node: n}
}

// machines are what a word for people or tags stands for.
func (c *compiler) machines(m meaning) []party {
	var out []party
	for _, s := range m.sources {
		name := strings.TrimPrefix(string(s), "user:")
		switch {
		case strings.HasPrefix(string(s), "tag:"):
			out = append(out, thought(name, weft.Node{Tags: []string{name}}))
		case s != weft.Untagged && s != weft.Tagged:
			out = append(out, thought(name, weft.Node{User: name}))
		}
	}
	return out
}

// senders are whom a test speaks of.
func (c *compiler) senders(w word) []party {
	if w.text == "" {
		return nil
	}
	m, ok := c.mean(w)
	if !ok {
		return nil
	}
	var out []party
	if m.kind == placed {
		out = c.placed(w, m.addrs)
	} else {
		out = c.machines(m)
	}
	if len(out) == 0 && (m.kind != named || w.text == "autogroup:member" || w.text == "autogroup:tagged") {
		c.src.complain(w.at, "%q cannot be the src of a test: name a user, a group, a tag or an address", w.text)
	} else if len(out) == 0 {
		c.src.warn(w.at, "%s has no members, so this test says nothing", w.text)
	}
	return out
}

// placed is the first of some addresses, of whoever speaks for it.
func (c *compiler) placed(w word, addrs []netip.Prefix) []party {
	if len(addrs) == 0 {
		return nil
	}
	a := party{name: w.text, addr: addrs[0].Addr()}
	if c.facts.Speaker != nil {
		if n, ok := c.facts.Speaker(a.addr); ok {
			a.node = n
			return []party{a}
		}
	}
	a.foreign = true
	a.node = weft.Node{Tags: []string{nobody}, Addrs: []netip.Addr{a.addr}}
	if !c.overlay(a.addr) { // behind some router
		a.node.Addrs, a.node.Routes = nil, []netip.Prefix{netip.PrefixFrom(a.addr, a.addr.BitLen())}
	}
	return []party{a}
}

func (c *compiler) overlay(a netip.Addr) bool {
	return slices.ContainsFunc(c.facts.Ranges, func(r netip.Prefix) bool { return r.Contains(a) })
}

// receivers are what a test's destination stands for.
func (c *compiler) receivers(w word, from party) []party {
	m, ok := c.mean(w)
	if !ok {
		return nil
	}
	var out []party
	switch m.kind {
	case placed:
		out = c.placed(w, m.addrs)
	case self:
		if len(from.node.Tags) == 0 {
			out = []party{thought(w.text, weft.Node{User: from.node.User})}
		}
	case internet:
		four, _ := public(c.facts.Ranges)
		exit := thought(w.text, weft.Node{Tags: []string{nobody}, Routes: []netip.Prefix{default4, default6}})
		exit.addr = four[0].Addr()
		out = []party{exit}
	default:
		out = c.machines(m)
	}
	if len(out) == 0 {
		c.src.complain(w.at, "%q cannot be the destination of a test from %s: name a user, a group, a tag or an address", w.text, from.name)
	}
	return out
}
