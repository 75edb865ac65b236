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
// # What it refuses
//
// A name below our domain is never forwarded: it says who is in a private network.
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

// Record is a node.
type Record struct {
	// Name of the node below the domain, as a rule one label ("laptop"). Letters
	// mean the same in upper and lower case.
	Name  string
	Addrs []netip.Addr
}

// Zone is the table of names. It does not change, so all its methods may be called
// at once.
type Zone struct {
	domain  string                  // canonical: lower case, with the final dot
	addrs   map[string][]netip.Addr // by canonical name; empty for a name that only has names below it
	names   map[string]string       // by canonical reverse name
	refused []string
}

// NewZone makes a zone for a domain ("weft.internal"). A record whose name is no host
// name, or is taken by an earlier record, is left out and listed by
// Refused: one bad name must not take the others' away. Of several nodes with one
// address the first gives the address its name.
func NewZone(domain string, records []Record) (*Zone, error) {
	domain = miekg.CanonicalName(domain)
	if !isHostName(strings.TrimSuffix(domain, ".")) {
		return nil, fmt.Errorf("names of the overlay: %q is not the name of a domain", domain)
	}
	z := &Zone{
		domain: domain,
		addrs:  map[string][]netip.Addr{domain: nil},
		names:  make(map[string]string),
	}
	taken := make(map[string]bool, len(records))
	for _, r := range records {
		label := strings.TrimSuffix(miekg.CanonicalName(r.Name), ".")
		name := label + "." + domain
		if !isHostName(strings.TrimSuffix(name, ".")) || taken[name] {
			z.refused = append(z.refused, r.Name)
			continue
		}
		taken[name] = true
		z.addrs[name] = nil
		for _, a := range r.Addrs {
			if a = a.Unmap().WithZone(""); !a.IsValid() || slices.Contains(z.addrs[name], a) {
				continue
			}
			z.addrs[name] = append(z.addrs[name], a)
			if reverse := reverseName(a); z.names[reverse] == "" {
				z.names[reverse] = name
			}
		}
		// RFC 8020: what has a name below it exists.
		for i := strings.IndexByte(name, '.') + 1; i < len(label); i += strings.IndexByte(name[i:], '.') + 1 {
			if _, ok := z.addrs[name[i:]]; !ok {
				z.addrs[name[i:]] = nil
			}
		}
	}
	return z, nil
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
	return slices.Clone(z.addrs[name])
}

// owns reports whether a name is for us alone to answer.
func (z *Zone) owns(name string) bool {
	return miekg.IsSubDomain(z.domain, name) || z.names[name] != ""
}

// answer fills in the reply to its own question, if that is for us to answer. The
// records carry the name as it was asked, upper and lower case too, by which some
// resolvers know a forged reply.
func (z *Zone) answer(reply *miekg.Msg) (ours bool) {
	q := reply.Question[0]
	name := miekg.CanonicalName(q.Name)
	if !z.owns(name) {
		return false
	}
	reply.Authoritative = true
	host := z.names[name]
	addrs, exists := z.addrs[name]
	if !exists && host == "" {
		reply.Rcode = miekg.RcodeNameError
	}
	header := func(rrtype uint16) miekg.RR_Header {
		return miekg.RR_Header{Name: q.Name, Rrtype: rrtype, Class: miekg.ClassINET, Ttl: ttlSeconds}
	}
	add := func(rr miekg.RR) { reply.Answer = append(reply.Answer, rr) }
	switch q.Qtype {
	case miekg.TypeA:
		for _, a := range addrs {
			if a.Is4() {
				add(&miekg.A{Hdr: header(miekg.TypeA), A: a.AsSlice()})
			}
		}
	case miekg.TypeAAAA:
		for _, a := range addrs {
			if a.Is6() {
				add(&miekg.AAAA{Hdr: header(miekg.TypeAAAA), AAAA: a.AsSlice()})
			}
		}
	case miekg.TypePTR:
		if host != "" {
			add(&miekg.PTR{Hdr: header(miekg.TypePTR), Ptr: host})
		}
	case miekg.TypeSOA:
		if name == z.domain {
			soa := z.soa()
			soa.Hdr.Name = q.Name
			add(soa)
		}
	case miekg.TypeANY:
		// RFC 8482 section 4.2: the one record that says no to such questions.
		if exists || host != "" {
			add(&miekg.HINFO{Hdr: header(miekg.TypeHINFO), Cpu: "RFC8482"})
		}
	}
	if len(reply.Answer) == 0 {
		soa := z.soa() // RFC 2308: how long that may be remembered
		if host != "" {
			soa.Hdr.Name = name // each reverse name is a zone of its own
		}
		reply.Ns = append(reply.Ns, soa)
	}
	return true
}

// soa is the start of authority. Nobody transfers this zone, so only the last number,
// the life of a negative answer, is ever read.
func (z *Zone) soa() *miekg.SOA {
	return &miekg.SOA{
		Hdr:     miekg.RR_Header{Name: z.domain, Rrtype: miekg.TypeSOA, Class: miekg.ClassINET, Ttl: ttlSeconds},
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
