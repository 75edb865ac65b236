// Package filter decides which packets of the overlay a node lets in: weft.Rules, put together with the map that says whose
// address is whose, and a memory of who began what.
//
//	Compile(map, rules) -> Policy, one table per peer          immutable, swapped as a whole
//	Parse(packet)       -> Packet: addresses, ports, what kind
//	Flows.Admit         what came from a peer: an answer to what was begun here, or allowed by a rule, or refused
//	Flows.Send          what goes to a peer: an answer to what the peer began, or the beginning of a flow
//	Cache               packets of flows that were judged a moment ago, told by their bytes
//
// # The receiver decides
//
// A packet is judged where it arrives, after WireGuard has proved which peer sent it and cryptokey routing that its source
// address is that peer's. So nothing that a sender does to its own program helps it. What a node sends is not judged; it only
// opens flows, so that answers come in. The exception are packets that only pass through: a network behind this node may begin
// nothing towards the overlay, but for the addresses of Config.Enter.
//
// Rules say what may be begun, and nothing else has to be said: an answer is a packet of a flow that was begun here. A flow
// that a peer began needs no memory to go on, its packets are judged by the rules each time anew, so that a rule that is withdrawn
// ends what it had allowed. It is remembered all the same, so that our answers to it are not taken for beginnings of our own.
//
// # Who enforces for whom
//
// Rules without destinations are about the node's own addresses. A node that forwards (router, exit node, gateway of plain
// WireGuard peers) has rules with the destinations behind it; for the rest nothing is let in, whatever the kernel would
// forward. The destination of an exit node, 0.0.0.0/0 or ::/0, is the world outside: no address of a member is in it. Packets of a gateway's guests to members elsewhere pass it: the member judges them, by the guest's address.
//
// Flows are known by addresses and ports, not by peers: of two routers to one network the other one may carry the answers
// from one moment to the next.
//
// # What is more than ports
//
// A TCP segment that begins a connection (SYN without ACK) and an ICMP request are beginnings, whatever flow there is. An ICMP
// error is let in if the packet that it quotes is of a flow between here and something that the peer speaks for. Of fragments
// the first is judged, and decides for those that follow it; one that comes before is refused, and so is a first one that does not
// hold the whole transport header (RFC 1858, RFC 7112). Source routes are refused (RFC 5095): a packet goes where its
// destination says.
//
// # Bounds
//
// Flows are kept in accounts: of this node, of each peer for what it began, of each guest. Each account has its own bound, and
// makes room among its own, first of what is not established; so nobody pushes out what is another's. Times are those that RFC 4787,
// RFC 5382 and RFC 5508 ask of NATs.
//
// Nothing here allocates for a packet, once there is room for as many flows as there are.
package filter

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft"
)

// Config is what a policy is made of.
type Config struct {
	Self  weft.Node
	Peers []weft.Node // with the plain ones that Self is not the gateway of
	// Rules are those of the map; nil: whoever gave the map knows no policy, and everything is let in.
	Rules []weft.Rule
	// Local are guests that the map does not know: what they speak for counts as the node's own as a destination.
	Local []weft.Node
	// Service is the node's resolver, which its guests may ask.
	Service netip.Addr
	// Enter are addresses behind this node that may begin flows towards the overlay; none: answers alone go that way.
	Enter []netip.Prefix
}

// A Policy is the rules of one node, resolved by one map. It is not changed once it is made.
type Policy struct {
	open    bool
	enter   []netip.Prefix
	rules   []weft.Rule
	own     []netip.Addr
	local   []netip.Prefix // of guests that the map does not know
	guests  map[addr]weft.NodeID
	members map[addr]bool // addresses of peers that are not guests here
	routes  []netip.Prefix
	service netip.Addr
	tables  map[weft.NodeID]*table
	nobody  table
}

// A table is what one peer may begin.
type table struct {
	lines  []line
	own    []span // lines that hold for each of the own addresses, whichever is the source: sorted, merged
	behind []behind
	speaks []netip.Prefix // what the peer and those behind it send from
	guest  bool
}

// behind is a plain node whose gateway the peer is.
type behind struct {
	addr  addr
	lines *table
}

// A line is a rule for one destination and one range of ports.
type line struct {
	ports weft.PortRange
	from  netip.Prefix // invalid: any
	to    netip.Prefix // invalid: the own addresses
}

// A span is a range of ports of a protocol: proto<<16 | port, both ends included.
type span struct{ first, last uint32 }

// anyPort is every port of every protocol.
var anyPort = []weft.PortRange{{Last: 65535}}

// Compile puts rules and map together.
func Compile(c Config) *Policy {
	p := &Policy{open: c.Rules == nil, enter: slices.Clone(c.Enter), rules: c.Rules, own: slices.Clone(c.Self.Addrs), service: c.Service}
	if p.open {
		return p
	}
	p.guests, p.members = make(map[addr]weft.NodeID), make(map[addr]bool, 2*len(c.Peers))
	p.tables = make(map[weft.NodeID]*table, len(c.Peers)+len(c.Local))
	words := indexWords(c.Rules)
	same := make(map[string]*table) // peers whom the same rules are for have one table's lines
	var local []weft.Node
	for _, n := range c.Local {
		p.local = append(p.local, n.Routes...)
		n.Gateway = c.Self.ID
		local = append(local, n)
	}
	gateways := make(map[weft.NodeID][]weft.Node)
	for _, n := range c.Peers {
		mine := n.Gateway == c.Self.ID && n.Plain()
		for _, a := range n.Addrs {
			if mine {
				p.guests[addrOf(a)] = n.ID
			} else {
				p.members[addrOf(a)] = true
			}
		}
		switch {
		case mine:
			local = append(local, n)
			continue
		case n.Plain():
			gateways[n.Gateway] = append(gateways[n.Gateway], n)
			continue
		}
		p.routes = append(p.routes, n.Routes...)
		p.tables[n.ID] = p.compile(n, words, same)
	}
	for _, n := range local {
		t := *p.compile(n, words, same)
		t.guest = true
		p.tables[n.ID] = &t
	}
	for id, list := range gateways {
		t := p.tables[id]
		if t == nil {
			continue
		}
		for _, n := range list {
			lines := p.compile(n, words, same)
			for _, a := range n.Addrs {
				t.behind = append(t.behind, behind{addrOf(a), lines})
			}
			t.speaks = append(t.speaks, lines.speaks...)
		}
	}
	return p
}

// wordIndex tells of which rules a word is a source. Prefixes are looked at for each peer.
type wordIndex struct {
	rules    []weft.Rule
	by       map[weft.Source][]int
	classes  []weft.Source // words for many nodes, few as they are: those of no user, tag or number
	prefixes []prefixWord
}

type prefixWord struct {
	prefix netip.Prefix
	rule   int
}

func indexWords(rules []weft.Rule) *wordIndex {
	w := &wordIndex{rules: rules, by: make(map[weft.Source][]int)}
	for i, r := range rules {
		for _, s := range r.From {
			if prefix, ok := s.Prefix(); ok {
				w.prefixes = append(w.prefixes, prefixWord{prefix, i})
				continue
			}
			if !strings.Contains(string(s), ":") && !slices.Contains(w.classes, s) {
				w.classes = append(w.classes, s)
			}
			w.by[s] = append(w.by[s], i)
		}
	}
	return w
}

// known lists the words of the rules that a node is.
func (w *wordIndex) known(n weft.Node) (list []weft.Source) {
	some := func(s weft.Source) {
		if len(w.by[s]) > 0 {
			list = append(list, s)
		}
	}
	for _, s := range w.classes {
		if s.Includes(n) {
			some(s)
		}
	}
	some(weft.SourceNode(n.ID))
	if len(n.Tags) == 0 {
		some(weft.SourceUser(n.User))
	}
	for _, t := range n.Tags {
		some(weft.SourceTag(t))
	}
	return list
}

// compile makes a node's table, of lines that it may share with others.
func (p *Policy) compile(n weft.Node, words *wordIndex, same map[string]*table) *table {
	speaks := make([]netip.Prefix, 0, len(n.Addrs)+len(n.Routes))
	for _, a := range n.Addrs {
		speaks = append(speaks, netip.PrefixFrom(a, a.BitLen()))
	}
	speaks = append(speaks, n.Routes...)
	var some []prefixWord
	for _, x := range words.prefixes {
		if slices.ContainsFunc(speaks, x.prefix.Overlaps) {
			some = append(some, x)
		}
	}
	known := words.known(n)
	var name strings.Builder
	for _, word := range known {
		name.WriteString(string(word))
		name.WriteByte('\n')
	}
	for _, x := range some {
		name.WriteString(strconv.Itoa(x.rule))
		name.WriteString(x.prefix.String())
		name.WriteByte('\n')
	}
	lines := same[name.String()]
	if lines == nil {
		lines = new(table)
		var all []int
		for _, word := range known {
			all = append(all, words.by[word]...)
		}
		slices.Sort(all)
		for _, i := range slices.Compact(all) {
			lines.add(words.rules[i], netip.Prefix{})
		}
		for _, x := range some {
			lines.add(words.rules[x.rule], x.prefix)
		}
		lines.own = merge(lines.own)
		same[name.String()] = lines
	}
	return &table{lines: lines.lines, own: lines.own, speaks: speaks}
}

// add adds a rule for one source.
func (t *table) add(r weft.Rule, from netip.Prefix) {
	ports := r.Ports
	if len(ports) == 0 {
		ports = anyPort
	}
	for _, x := range ports {
		switch {
		case len(r.To) == 0 && !from.IsValid():
			t.own = append(t.own, spansOf(x)...)
		case len(r.To) == 0:
			t.lines = append(t.lines, line{ports: x, from: from})
		}
		for _, to := range r.To {
			t.lines = append(t.lines, line{ports: x, from: from, to: to.Masked()})
		}
	}
}

// spansOf is a range as spans: one, or of every protocol one each.
func spansOf(r weft.PortRange) []span {
	if r.Proto != 0 {
		return []span{{uint32(r.Proto)<<16 | uint32(r.First), uint32(r.Proto)<<16 | uint32(r.Last)}}
	}
	if r.First == 0 && r.Last == 65535 {
		return []span{{0, 1<<24 - 1}}
	}
	all := make([]span, 0, 256)
	for proto := range uint32(256) {
		all = append(all, span{proto<<16 | uint32(r.First), proto<<16 | uint32(r.Last)})
	}
	return all
}

// merge sorts spans and joins those that touch.
func merge(list []span) []span {
	slices.SortFunc(list, func(a, b span) int { return int(a.first) - int(b.first) })
	var out []span
	for _, s := range list {
		if n := len(out); n > 0 && s.first <= out[n-1].last+1 {
			out[n-1].last = max(out[n-1].last, s.last)
			continue
		}
		out = append(out, s)
	}
	return out
}

// Open reports whether everything is let in: there is no policy.
func (p *Policy) Open() bool { return p.open }

// table is a peer's.
func (p *Policy) table(id weft.NodeID) *table {
	if t := p.tables[id]; t != nil {
		return t
	}
	return &p.nobody
}

// isOwn reports whether a destination is the node itself.
func (p *Policy) isOwn(a netip.Addr) bool {
	return slices.Contains(p.own, a) || len(p.local) > 0 && within(p.local, a)
}

func within(list []netip.Prefix, a netip.Addr) bool {
	for _, x := range list {
		if x.Contains(a) {
			return true
		}
	}
	return false
}

// allows reports whether a rule lets a peer begin this.
func (p *Policy) allows(t *table, src, dst addr, proto uint8, port uint16) bool {
	rules := t
	for i := range t.behind {
		if t.behind[i].addr == src {
			rules = t.behind[i].lines
			break
		}
	}
	to := dst.netip()
	own := p.isOwn(to)
	if own && rules.everywhere(uint32(proto)<<16|uint32(port)) {
		return true
	}
	if len(rules.lines) > 0 {
		from := src.netip()
		for i := range rules.lines {
			l := &rules.lines[i]
			if !l.ports.Contains(proto, port) || l.from.IsValid() && !l.from.Contains(from) {
				continue
			}
			switch {
			case !l.to.IsValid():
				if own {
					return true
				}
			case l.to.Bits() == 0:
				if l.to.Contains(to) && !own && !p.isMember(dst) {
					return true
				}
			case l.to.Contains(to):
				return true
			}
		}
	}
	if !t.guest {
		return false
	}
	if to == p.service {
		return port == portDNS && (proto == weft.ProtoUDP || proto == weft.ProtoTCP)
	}
	return !own && p.passes(dst)
}

// portDNS is where a guest asks the node's resolver.
const portDNS = 53

// isMember reports whether an address is another node's.
func (p *Policy) isMember(a addr) bool {
	_, guest := p.guests[a]
	return guest || p.members[a]
}

// passes reports whether a guest's packet goes to a member that judges it itself.
func (p *Policy) passes(dst addr) bool {
	if _, guest := p.guests[dst]; guest {
		return false
	}
	return p.members[dst] || within(p.routes, dst.netip())
}

// everywhere reports whether a port of a protocol is in a span.
func (t *table) everywhere(x uint32) bool {
	low, high := 0, len(t.own)
	for low < high {
		mid := int(uint(low+high) >> 1)
		if t.own[mid].last < x {
			low = mid + 1
		} else {
			high = mid
		}
	}
	return low < len(t.own) && t.own[low].first <= x
}
