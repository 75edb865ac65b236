package dns

import (
	"maps"
	"net/netip"
	"slices"

	miekg "github.com/miekg/dns"
)

// A Split says who answers for a domain and all below it. It does not change; the zero value has no domains.
type Split struct {
	domains map[string][]netip.AddrPort // by canonical name
}

// NewSplit makes a split of domains ("corp.example") and those who answer for them, best first; nobody: such names do
// not exist.
func NewSplit(domains map[string][]netip.AddrPort) Split {
	s := Split{make(map[string][]netip.AddrPort, len(domains))}
	for d, list := range domains {
		s.domains[miekg.CanonicalName(d)] = slices.Clone(list)
	}
	return s
}

// For returns who answers for a name: those of the longest domain that it is in. ok is false if it is in none.
func (s Split) For(name string) (upstreams []netip.AddrPort, ok bool) {
	if len(s.domains) == 0 {
		return nil, false
	}
	name = miekg.CanonicalName(name)
	for off, end := 0, false; !end; off, end = miekg.NextLabel(name, off) {
		if list, ok := s.domains[name[off:]]; ok {
			return list, true
		}
	}
	return nil, false
}

// Domains are the domains, without the final dot.
func (s Split) Domains() []string {
	out := slices.Sorted(maps.Keys(s.domains))
	for i, d := range out {
		out[i] = d[:len(d)-1]
	}
	return out
}
