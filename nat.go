package weft

import "fmt"

// NAT is what is known of the NATs between a link of a node and the internet, in RFC 4787's words. It is
// comparable; the zero NAT is one of which nothing is known.
type NAT struct {
	Mapping    Mapping    `json:"mapping"`
	Filtering  Filtering  `json:"filtering"`
	Allocation Allocation `json:"allocation"`
	// Step is by how much a sequential allocator's next port differs from its last; 0 for the others.
	Step int16 `json:"step,omitempty"`
	// Hairpin tells whether a host behind the NAT reaches another by its outside address.
	Hairpin Support `json:"hairpin"`
}

// A LinkNAT is what is known of the NATs behind one of a node's links. It is comparable.
type LinkNAT struct {
	Link LinkID `json:"link"`
	NAT  NAT    `json:"nat"`
}

// Mapping is how a NAT chooses the outside address and port for a socket (RFC 4787 section 4.1).
type Mapping uint8

// The mapping behaviours, from the kindest to peers to the least kind.
const (
	MappingUnknown Mapping = iota
	NoNAT                  // the socket's own address is what servers see
	EndpointIndependentMapping
	AddressDependentMapping
	AddressAndPortDependentMapping
)

// Filtering is which packets from outside a NAT or firewall lets through to a socket that has sent somewhere
// (RFC 4787 section 5). A firewall filters without translating.
type Filtering uint8

// The filtering behaviours, from the kindest to the least kind.
const (
	FilteringUnknown Filtering = iota
	EndpointIndependentFiltering
	AddressDependentFiltering
	AddressAndPortDependentFiltering
)

// Allocation is how a NAT chooses the outside port of a new mapping (RFC 4787 section 4.2).
type Allocation uint8

// The port allocations.
const (
	AllocationUnknown    Allocation = iota
	PreservingAllocation            // the socket's own port, where it is free
	SequentialAllocation            // the last one's, and a step
	RandomAllocation
)

// Support is a yes or no that may be unknown.
type Support uint8

// The answers.
const (
	SupportUnknown Support = iota
	Supported
	Unsupported
)

var (
	mappingNames = [...]string{"unknown", "none", "endpoint-independent", "address-dependent",
		"address-and-port-dependent"}
	mappingAbbreviations = [...]string{"?", "none", "EIM", "ADM", "APDM"}
	filteringNames       = [...]string{"unknown", "endpoint-independent", "address-dependent",
		"address-and-port-dependent"}
	filteringAbbreviations = [...]string{"?", "EIF", "ADF", "APDF"}
	allocationNames        = [...]string{"unknown", "preserving", "sequential", "random"}
	supportNames           = [...]string{"unknown", "yes", "no"}
)

// String is the behaviour in RFC 4787's words.
func (m Mapping) String() string { return name(mappingNames[:], m) }

// Abbreviation is EIM, ADM or APDM, "none" without a NAT, "?" where it is not known.
func (m Mapping) Abbreviation() string { return name(mappingAbbreviations[:], m) }

// MarshalText writes the behaviour's name.
func (m Mapping) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the name; one that this version does not know is unknown.
func (m *Mapping) UnmarshalText(b []byte) error { *m = named[Mapping](mappingNames[:], b); return nil }

// String is the behaviour in RFC 4787's words.
func (f Filtering) String() string { return name(filteringNames[:], f) }

// Abbreviation is EIF, ADF or APDF, "?" where it is not known.
func (f Filtering) Abbreviation() string { return name(filteringAbbreviations[:], f) }

// MarshalText writes the behaviour's name.
func (f Filtering) MarshalText() ([]byte, error) { return []byte(f.String()), nil }

// UnmarshalText reads the name; one that this version does not know is unknown.
func (f *Filtering) UnmarshalText(b []byte) error {
	*f = named[Filtering](filteringNames[:], b)
	return nil
}

// String is the allocation's name.
func (a Allocation) String() string { return name(allocationNames[:], a) }

// MarshalText writes the allocation's name.
func (a Allocation) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText reads the name; one that this version does not know is unknown.
func (a *Allocation) UnmarshalText(b []byte) error {
	*a = named[Allocation](allocationNames[:], b)
	return nil
}

// String is yes, no or unknown.
func (s Support) String() string { return name(supportNames[:], s) }

// MarshalText writes yes, no or unknown.
func (s Support) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// UnmarshalText reads it; anything else is unknown.
func (s *Support) UnmarshalText(b []byte) error { *s = named[Support](supportNames[:], b); return nil }

// String is the usual short form: "EIM-APDF", and what is known of the rest.
func (n NAT) String() string {
	s := n.Mapping.Abbreviation() + "-" + n.Filtering.Abbreviation()
	switch n.Allocation {
	case SequentialAllocation:
		s += fmt.Sprintf(", sequential ports (%+d)", n.Step)
	case PreservingAllocation, RandomAllocation:
		s += ", " + n.Allocation.String() + " ports"
	}
	if n.Hairpin != SupportUnknown {
		s += ", hairpin " + n.Hairpin.String()
	}
	return s
}

// name is the i-th of a list of names; the first where there is none.
func name[T ~uint8](names []string, i T) string {
	if int(i) < len(names) {
		return names[i]
	}
	return names[0]
}

// named is the place of a name in a list; 0 where it is in none.
func named[T ~uint8](names []string, b []byte) T {
	for i, n := range names {
		if n == string(b) {
			return T(i)
		}
	}
	return 0
}
