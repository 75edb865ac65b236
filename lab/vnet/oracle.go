package vnet

import (
	"cmp"
	"fmt"
	"strings"

	"weft"
)

// A Way is how two nodes can come to a direct path.
type Way uint8

// The ways, from none to the cheapest.
const (
	Never   Way = iota // by luck only
	Predict            // each side foretells the port that its NAT will give next
	Spray              // many sockets on one side, many probes from the other
	Plain              // each side sends to the other's addresses
)

var wayNames = [...]string{Never: "never", Predict: "predict", Spray: "spray", Plain: "plain"}

// String is the way in a word.
func (w Way) String() string {
	if int(w) < len(wayNames) {
		return wayNames[w]
	}
	return fmt.Sprintf("way %d", uint8(w))
}

// Direct reports whether there is one.
func (w Way) Direct() bool { return w != Never }

// What a spray is taken to consist of.
const (
	SprayOpeners = 256
	SprayProbes  = 2048
)

// sprayHits is how many hits a spray must have on average to count as a way: two, of which a spray has at least
// one in 86 % of all cases, and in 98 % if it is done twice.
const sprayHits = 2

// Side is where one of two nodes is: what stands between it and the internet. The zero Side is a host on the
// internet itself.
type Side struct {
	Name string // for the reason; empty: A or B
	// NATs are what its IPv4 packets pass, from the host outwards.
	NATs []NATConfig
	// Shared says how many of NATs, counted from the outermost, are the very ones that the other side has too.
	// Both sides say the same.
	Shared int
	// Isolated says that the segment in which both sides meet, inside the NATs that they share, lets its members
	// talk to its gateway only.
	Isolated bool
	// IPv6 says that it has a global address, and Firewalls6 what such packets pass.
	IPv6       bool
	Firewalls6 []NATConfig
	// UDPBlocked says that no UDP leaves the host, of either family.
	UDPBlocked bool

	// unseen says that no server sees the addresses that its NATs give.
	unseen bool
}

// Possible says how two sides can come to a direct path, of several ways by the cheapest, and why so, in one
// sentence.
func Possible(a, b Side) (Way, string) {
	a.Name, b.Name = cmp.Or(a.Name, "A"), cmp.Or(b.Name, "B")
	for _, s := range []Side{a, b} {
		if s.UDPBlocked {
			return Never, fmt.Sprintf("no UDP leaves %s", s.Name)
		}
	}
	shared := min(a.Shared, b.Shared, len(a.NATs), len(b.NATs))
	if a.IPv6 && b.IPv6 && !a.Isolated && !b.Isolated && !a.blocked6(shared) && !b.blocked6(shared) {
		return Plain, "both have IPv6, where each side's address is known and each firewall opens for where its own side has sent"
	}
	detour := ""
	if shared > 0 {
		if reason := within(a, b, shared); reason != "" {
			return Plain, reason
		}
		var reason string
		if detour, reason = around(&a, &b, shared); reason != "" {
			return Never, reason
		}
	}
	for _, s := range []Side{a, b} {
		if blocks(s.NATs) {
			return Never, fmt.Sprintf("no UDP passes the NAT of %s", s.Name)
		}
	}
	way, reason := apart(newReach(a), newReach(b))
	return way, reason + detour
}

// within says why two sides that share NATs reach each other inside of those; empty: they do not. No server sees
// what their own NATs do to addresses there, but each side knows its own address, and tells the other.
func within(a, b Side, shared int) string {
	a.NATs, b.NATs = a.NATs[:len(a.NATs)-shared], b.NATs[:len(b.NATs)-shared]
	a.unseen, b.unseen = true, true
	switch {
	case a.Isolated || b.Isolated || blocks(a.NATs) || blocks(b.NATs):
		return ""
	case len(a.NATs) == 0 && len(b.NATs) == 0:
		return fmt.Sprintf("%s and %s are in one network and reach each other's own addresses", a.Name, b.Name)
	}
	way, reason := apart(newReach(a), newReach(b))
	if way != Plain {
		return ""
	}
	return reason + ", inside of the NAT that they share"
}

// around takes away from both sides that share NATs what packets between them do not pass, or says why there are
// no such packets. A server sees addresses at the outermost NAT that translates; those further in are known to
// nobody.
func around(a, b *Side, shared int) (detour, reason string) {
	turn := 0 // how many shared ones are outside of that NAT, and itself
	for i := 1; i <= shared && turn == 0; i++ {
		if a.NATs[len(a.NATs)-i].Mapping != weft.NoNAT {
			turn = i
		}
	}
	beyond := a.NATs[len(a.NATs)-shared:]
	if turn > 0 {
		beyond = a.NATs[len(a.NATs)-turn+1:]
	}
	a.unseen, b.unseen = blocks(beyond), blocks(beyond)
	switch {
	case turn == 0 && (a.Isolated || b.Isolated):
		return "", fmt.Sprintf("the network that %s and %s share keeps them apart", a.Name, b.Name)
	case turn == 0: // firewalls only, outside of where they meet
		a.NATs, b.NATs = a.NATs[:len(a.NATs)-shared], b.NATs[:len(b.NATs)-shared]
		return "", ""
	case !a.NATs[len(a.NATs)-turn].Hairpin:
		return "", fmt.Sprintf("the NAT that %s and %s share does not hairpin, and no server sees their addresses inside of it", a.Name, b.Name)
	}
	a.NATs, b.NATs = a.NATs[:len(a.NATs)-turn+1], b.NATs[:len(b.NATs)-turn+1]
	return ", by way of the shared NAT's hairpin", ""
}

// blocked6 reports whether no UDP passes those of the firewalls for IPv6 that are not shared.
func (s Side) blocked6(shared int) bool {
	return blocks(s.Firewalls6[:max(len(s.Firewalls6)-shared, 0)])
}

func blocks(nats []NATConfig) bool {
	for _, c := range nats {
		if c.BlockUDP {
			return true
		}
	}
	return false
}

func translates(nats []NATConfig) bool {
	for _, c := range nats {
		if c.Mapping != weft.NoNAT {
			return true
		}
	}
	return false
}

// reach is what counts of a chain of NATs.
type reach struct {
	name string
	// independent: the known address is the source of everything that the socket sends.
	independent bool
	// sameIP: the source's IP address, at least, is known.
	sameIP bool
	// admits is whom the known address lets in, once the socket has sent to what it knows of them.
	admits admission
	// strictest is the strictest filter, to a socket that has sent through it.
	strictest weft.Filtering
	// predictable: the outside port that a fresh socket has towards the peer can be foretold. preserves: it is
	// the socket's own, if nothing was sent from it before. Otherwise a server is asked from it, and says which
	// port came before the one in question.
	predictable, preserves bool
	// fixed: where ports last came in an order, every socket has one for all destinations.
	fixed bool
	// onKnown is the share of new mappings that have the known IP address outside, varies whether a socket's own
	// mappings differ in that.
	onKnown float64
	varies  bool
	// openers and probes are how many its tables hold.
	openers, probes int
}

// An admission is whom a known address lets in.
type admission uint8

const (
	anybody        admission = iota
	knownAddresses           // who has an IP address that can be known beforehand
	knownEndpoints           // who has an IP address and port that can
	servers                  // nobody but who was asked for the address
)

func newReach(s Side) reach {
	r := reach{name: s.Name, independent: true, sameIP: true, preserves: true, strictest: weft.EndpointIndependentFiltering,
		onKnown: 1, openers: SprayOpeners, probes: SprayProbes}
	portDependent := false
	for _, c := range s.NATs {
		own := c.Mapping <= weft.EndpointIndependentMapping
		r.independent = r.independent && own
		portDependent = portDependent || c.Mapping == weft.AddressAndPortDependentMapping
		r.pool(c)
		// A packet to a peer opens the filter of the known mapping only if it leaves by it.
		a := anybody
		switch {
		case c.Filtering <= weft.EndpointIndependentFiltering:
		case !r.independent:
			a = servers
		case c.Filtering == weft.AddressDependentFiltering:
			a = knownAddresses
		default:
			a = knownEndpoints
		}
		r.admits = max(r.admits, a)
		r.strictest = max(r.strictest, c.Filtering)
		r.foretell(c)
		limit := SprayProbes
		for _, l := range []int{c.MaxMappings, c.MaxPerHost} {
			if l > 0 {
				limit = min(limit, l)
			}
		}
		r.openers = min(r.openers, limit)
		if portDependent {
			r.probes = min(r.probes, limit)
		}
	}
	r.varies = portDependent
	if s.unseen && translates(s.NATs) {
		r.independent, r.sameIP, r.admits, r.onKnown = false, false, servers, 0
	}
	return r
}

// pool is about which public address a mapping gets.
func (r *reach) pool(c NATConfig) {
	n := float64(len(c.Public))
	switch {
	case c.Mapping == weft.NoNAT:
	case n <= 1:
		r.sameIP, r.onKnown = true, 1
	case c.Pooling == ArbitraryPooling:
		r.sameIP, r.onKnown = r.independent, 1/n
	case r.onKnown < 1: // paired, but with an inside address that is not always the same
		r.onKnown = 1 / n
	}
}

// foretell is about the ports that a NAT further out gives to new mappings.
func (r *reach) foretell(c NATConfig) {
	switch {
	case c.Mapping == weft.NoNAT:
	case c.Allocation == weft.PreservingAllocation:
		// Over ports that come in an order, it keeps the order. But if asking a server took the one port that a
		// socket has inside of here, the peer's mapping gets another.
		r.predictable = r.preserves || r.predictable && !r.fixed
	default:
		r.preserves = false
		r.predictable = c.Allocation == weft.SequentialAllocation && r.sameIP // every address counts for itself
		r.fixed = r.independent
	}
}

// apart is about two sides that meet outside of all their NATs.
func apart(a, b reach) (Way, string) {
	for _, p := range [2][2]reach{{a, b}, {b, a}} {
		if reason := hears(p[0], p[1]); reason != "" {
			return Plain, reason
		}
	}
	best, reason := 0.0, ""
	for _, p := range [2][2]reach{{a, b}, {b, a}} {
		if hits, why := sprays(p[0], p[1]); hits > best {
			best, reason = hits, why
		}
	}
	if best >= sprayHits {
		return Spray, reason
	}
	if a.predictable && b.predictable && a.sameIP && b.sameIP {
		return Predict, "each NAT gives every destination another port, but gives them in an order that can be foretold on both sides"
	}
	return Never, never(a, b, best)
}

// hears says why a's known address lets in what b sends; empty: it does not.
func hears(a, b reach) string {
	switch {
	case a.admits == anybody:
		return fmt.Sprintf("%s is reached by anybody at its known address", a.name)
	case a.admits == knownAddresses && b.sameIP:
		return fmt.Sprintf("%s opens its known address for the IP address of %s by sending there", a.name, b.name)
	case a.admits == knownEndpoints && b.independent:
		return fmt.Sprintf("%s opens its known address for the known address and port of %s by sending there", a.name, b.name)
	}
	return ""
}

// sprays is how many hits probes of p's can be expected to have on openers of o's, and what it takes.
func sprays(o, p reach) (hits float64, reason string) {
	hits = float64(o.openers) * float64(p.probes) / portCount * o.onKnown
	what := "whose known address is the source of all that it sends"
	if !p.independent {
		if o.strictest > weft.AddressDependentFiltering {
			return 0, ""
		}
		what = fmt.Sprintf("as the filter of %s asks for the right IP address only", o.name)
		switch {
		case p.sameIP:
		case p.varies:
			hits *= p.onKnown // every probe is a draw of its own
		default:
			return 0, "" // one draw decides about all of them
		}
	}
	return hits, fmt.Sprintf("%s opens %d sockets and %s, %s, probes %d ports for %.1f hits on average",
		o.name, o.openers, p.name, what, p.probes, hits)
}

func never(a, b reach, hits float64) string {
	var why []string
	for _, r := range []reach{a, b} {
		switch {
		case r.independent:
		case !r.sameIP:
			why = append(why, fmt.Sprintf("the NAT of %s gives every destination another port at an IP address of several", r.name))
		case r.predictable:
			why = append(why, fmt.Sprintf("the NAT of %s gives every destination another port", r.name))
		default:
			why = append(why, fmt.Sprintf("the NAT of %s gives every destination another port, that cannot be foretold", r.name))
		}
	}
	why = append(why, "and no filter lets in what comes from a port that was not guessed on both sides at once")
	if hits > 0 {
		why[len(why)-1] = fmt.Sprintf("and spraying hits %.1f times only on average", hits)
	}
	return strings.Join(why, ", ")
}
