// Package dns answers for the names of the overlay: NAME.weft.internal is the
// addresses of that node, and an overlay address is the name of its node.
//
// # How its parts meet
//
// A [Zone] is an immutable table made from the network map. A [Server] holds the
// current one behind an atomic pointer, so that no question ever waits for a change
// of the map. It listens on UDP and TCP on an overlay address, answers what is the
// zone's, and forwards all else to the servers that the machine used before us
// (host.Resolver knows them; with systemd-resolved there are none, because nothing
// else comes).
//
// Names that are not the zone's go to whoever the administrator says answers for their domain (a [Split]), else to
// those servers. What the administrator wrote down as a name with its addresses is the zone's, below its domain or not, and
// goes before a node of that name.
//
// # What it refuses
//
// A name below our domain, or of an address in the overlay's ranges, is never
// forwarded: it says who is in a private network.
// Nobody but this machine may ask (Config.Allow widens that), since a resolver that
// answers strangers is a reflector. A server that is ourselves is never asked, and a
// question that comes back to us while we are waiting for its answer, because some
// other forwarder on this machine points at us, waits for that same answer: a loop
// ends with the first question's deadline and does not multiply.
//
// It does not cache (whom it forwards to does), does not validate (the AD bit is
// passed on from upstreams that do), and does not transfer zones.
package dns

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	miekg "github.com/miekg/dns"
)

// TTL of all answers, positive and negative. Short, because a node may get another
// address or join at any moment; not zero, because a page with a hundred pictures
// would then ask a hundred times.
const TTL = 10 * time.Second

const ttlSeconds = uint32(TTL / time.Second)

// Record is a node, or a name that the administrator wrote down.
type Record struct {
	// Name below the domain, of a node as a rule one label ("laptop"). Of what is Written a final dot means that it is
	// complete ("printer.example."). Letters mean the same in upper and lower case.
	Name  string
	Addrs []netip.Addr
	// Written by the administrator: it goes before a node of the same name, wherever it stands in the list, and gives its
	// name to addresses that are no node's.
	Written bool
}

// Zone is the table of names. It does not change, so all its methods may be called
// at once.
type Zone struct {
	domain  string
	nodes   map[string]node // by canonical name: lower case, with the final dot
	apexes  map[string]bool // canonical names of the domains that are ours
	alone   map[string]bool // canonical names that are ours without what is below them
	refused []string
}

// node is what there is at a name. The zero value is a name that only has names below it
// (RFC 8020: it exists).
type node struct {
	addrs []netip.Addr
	host  string // canonical name, of an address
}

// NewZone makes a zone for a domain ("weft.internal") and the address ranges of the
// overlay, in which it answers for every address, known or not. A record whose name is
// no host name, or is taken by an earlier record, is left out and listed by
// Refused: one bad name must not take the others' away. Of several nodes with one
// address the first gives the address its name.
func NewZone(domain string, records []Record, ranges ...netip.Prefix) (*Zone, error) {
	domain = miekg.CanonicalName(domain)
	if !isHostName(strings.TrimSuffix(domain, ".")) {
		return nil, fmt.Errorf("names of the overlay: %q is not the name of a domain", domain)
	}
	z := &Zone{
		domain: domain,
		nodes:  map[string]node{domain: {}},
		apexes: map[string]bool{domain: true},
		alone:  make(map[string]bool),
	}
	for _, p := range ranges {
		for _, d := range ReverseDomains(p) {
			z.nodes[d+"."], z.apexes[d+"."] = node{}, true
		}
	}
	taken := make(map[string]bool, len(records))
	for _, written := range []bool{true, false} {
		for _, r := range records {
			if r.Written != written {
				continue
			}
			name := z.fullName(r)
			if !isHostName(strings.TrimSuffix(name, ".")) || taken[name] {
				z.refused = append(z.refused, r.Name)
				continue
			}
			taken[name] = true
			var n node
			for _, a := range r.Addrs {
				if a = a.Unmap().WithZone(""); a.IsValid() && !slices.Contains(n.addrs, a) {
					n.addrs = append(n.addrs, a)
				}
			}
			if _, ok := z.apex(name); !ok {
				z.alone[name] = true
			}
			z.put(name, n)
		}
	}
	for _, written := range []bool{false, true} {
		for _, r := range records {
			if r.Written == written {
				z.nameAddrs(z.fullName(r))
			}
		}
	}
	return z, nil
}

// fullName is the canonical name of a record.
func (z *Zone) fullName(r Record) string {
	if r.Written && strings.HasSuffix(r.Name, ".") {
		return miekg.CanonicalName(r.Name)
	}
	return strings.TrimSuffix(miekg.CanonicalName(r.Name), ".") + "." + z.domain
}

// nameAddrs gives the addresses at a name that name, where they have none.
func (z *Zone) nameAddrs(name string) {
	for _, a := range z.nodes[name].addrs {
		reverse := reverseName(a)
		if z.nodes[reverse].host != "" {
			continue
		}
		if _, ok := z.apex(reverse); !ok {
			z.alone[reverse] = true // an address outside the ranges
		}
		z.put(reverse, node{host: name})
	}
}

// put adds a node, and those above it that are not there yet.
func (z *Zone) put(name string, n node) {
	z.nodes[name] = n
	for !z.apexes[name] && !z.alone[name] {
		_, name, _ = strings.Cut(name, ".")
		if _, ok := z.nodes[name]; ok {
			return
		}
		z.nodes[name] = node{}
	}
}

// apex is the domain of ours that a name is in.
func (z *Zone) apex(name string) (apex string, ours bool) {
	if z.alone[name] {
		return name, true
	}
	for off, end := 0, false; !end; off, end = miekg.NextLabel(name, off) {
		if z.apexes[name[off:]] {
			return name[off:], true
		}
	}
	return "", false
}

// Elsewhere are the names, without the final dot, that the zone answers for and that are neither below its domain nor of
// addresses in its ranges. For routing them to our server; those of addresses come last.
func (z *Zone) Elsewhere() []string {
	names := make([]string, 0, len(z.alone))
	for name := range z.alone {
		names = append(names, strings.TrimSuffix(name, "."))
	}
	slices.Sort(names)
	slices.SortStableFunc(names, func(a, b string) int {
		switch ra, rb := strings.HasSuffix(a, ".arpa"), strings.HasSuffix(b, ".arpa"); {
		case ra == rb:
			return 0
		case rb:
			return -1
		}
		return 1
	})
	return names
}

// Domain is the zone's domain, without the final dot.
func (z *Zone) Domain() string { return strings.TrimSuffix(z.domain, ".") }

// Refused are the names that could not be taken.
func (z *Zone) Refused() []string { return z.refused }

// Lookup returns the addresses of a node by its full name or its first label alone;
// nil if there is no such node.
func (z *Zone) Lookup(name string) []netip.Addr {
	name = miekg.CanonicalName(name)
	if strings.Count(name, ".") == 1 {
		name += z.domain
	}
	return slices.Clone(z.nodes[name].addrs)
}

// answer fills in the reply to its own question, if that is for us to answer. The
// records carry the name as it was asked, upper and lower case too, by which some
// resolvers know a forged reply.
func (z *Zone) answer(reply *miekg.Msg) (ours bool) {
	q := reply.Question[0]
	name := miekg.CanonicalName(q.Name)
	apex, ours := z.apex(name)
	if !ours {
		return false
	}
	reply.Authoritative = true
	n, exists := z.nodes[name]
	if !exists {
		reply.Rcode = miekg.RcodeNameError
	}
	header := func(rrtype uint16) miekg.RR_Header {
		return miekg.RR_Header{Name: q.Name, Rrtype: rrtype, Class: miekg.ClassINET, Ttl: ttlSeconds}
	}
	add := func(rr miekg.RR) { reply.Answer = append(reply.Answer, rr) }
	switch q.Qtype {
	case miekg.TypeA:
		for _, a := range n.addrs {
			if a.Is4() {
				add(&miekg.A{Hdr: header(miekg.TypeA), A: a.AsSlice()})
			}
		}
	case miekg.TypeAAAA:
		for _, a := range n.addrs {
			if a.Is6() {
				add(&miekg.AAAA{Hdr: header(miekg.TypeAAAA), AAAA: a.AsSlice()})
			}
		}
	case miekg.TypePTR:
		if n.host != "" {
			add(&miekg.PTR{Hdr: header(miekg.TypePTR), Ptr: n.host})
		}
	case miekg.TypeSOA:
		if name == apex {
			add(z.soa(q.Name))
		}
	case miekg.TypeANY:
		// RFC 8482 section 4.2: the one record that says no to such questions.
		if exists {
			add(&miekg.HINFO{Hdr: header(miekg.TypeHINFO), Cpu: "RFC8482"})
		}
	}
	if len(reply.Answer) == 0 {
		reply.Ns = append(reply.Ns, z.soa(apex)) // RFC 2308: how long that may be remembered
	}
	return true
}

// soa is the start of authority of an apex. Nobody transfers this zone, so only the last
// number, the life of a negative answer, is ever read.
func (z *Zone) soa(apex string) *miekg.SOA {
	return &miekg.SOA{
		Hdr:     miekg.RR_Header{Name: apex, Rrtype: miekg.TypeSOA, Class: miekg.ClassINET, Ttl: ttlSeconds},
		Ns:      z.domain,
		Mbox:    "hostmaster." + z.domain,
		Serial:  1,
		Refresh: ttlSeconds,
		Retry:   ttlSeconds,
		Expire:  ttlSeconds,
		Minttl:  ttlSeconds,
	}
}

// reverseName is the name below in-addr.arpa or ip6.arpa of an address.
func reverseName(a netip.Addr) string {
	name, err := miekg.ReverseAddr(a.String())
	if err != nil {
		panic("dns: an address has no reverse name: " + err.Error()) // the one case is text that is no address
	}
	return name
}

// ReverseDomains are the domains below in-addr.arpa or ip6.arpa, without the final dot,
// that the names of the addresses in a range are in: one where the range ends at a
// label's border (every 8 bits of IPv4, every 4 of IPv6), else as many as it takes,
// 128 or 8 at most. For routing them to our server along with the domain itself.
func ReverseDomains(p netip.Prefix) []string {
	if p = p.Masked(); !p.IsValid() || p.Addr().Is4In6() {
		return nil
	}
	bits := 8
	if p.Addr().Is6() {
		bits = 4
	}
	labels := (p.Bits() + bits - 1) / bits
	out := make([]string, 1<<(labels*bits-p.Bits()))
	for i := range out {
		// The last label that counts takes all values that the range leaves open.
		a := p.Addr().AsSlice()
		if labels > 0 {
			at := (labels - 1) * bits
			a[at/8] |= byte(i << (8 - bits - at%8))
		}
		addr, _ := netip.AddrFromSlice(a)
		name := reverseName(addr)
		for range p.Addr().BitLen()/bits - labels {
			_, name, _ = strings.Cut(name, ".")
		}
		out[i] = strings.TrimSuffix(name, ".")
	}
	return out
}

// isHostName: RFC 1123 section 2.1, and the underscore, which people use.
func isHostName(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, c := range []byte(label) {
			if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
				return false
			}
		}
	}
	return true
}
