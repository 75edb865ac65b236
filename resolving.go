package weft

import (
	"maps"
	"net/netip"
	"slices"
)

// DNS is how the nodes of a network resolve names that are not the overlay's. The zero value leaves everything to what
// each machine used before.
type DNS struct {
	// Upstreams answer what is nobody else's, in place of what each machine used before; empty: that.
	Upstreams []netip.AddrPort `json:"upstreams,omitempty"`
	// Split says who answers for a domain and all below it: "corp.example" -> resolvers. No resolvers: nobody; such a name
	// does not exist.
	Split map[string][]netip.AddrPort `json:"split,omitempty"`
	// Search are domains that short names are tried in after the network's own.
	Search []string `json:"search,omitempty"`
	// Records are names that an administrator wrote down.
	Records []DNSRecord `json:"records,omitempty"`
}

// A DNSRecord is a name with its addresses.
type DNSRecord struct {
	Name  string       `json:"name"` // "printer" is below the network's domain, "printer.example." is as written
	Addrs []netip.Addr `json:"addrs"`
}

// Equal compares every field.
func (d DNS) Equal(o DNS) bool {
	return slices.Equal(d.Upstreams, o.Upstreams) && slices.Equal(d.Search, o.Search) &&
		maps.EqualFunc(d.Split, o.Split, slices.Equal) &&
		slices.EqualFunc(d.Records, o.Records, func(a, b DNSRecord) bool { return a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) })
}
