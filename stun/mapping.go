package stun

import (
	"net/netip"
	"slices"

	"weft"
)

// Observation is what one server saw of our socket.
type Observation struct {
	Server netip.AddrPort // who was asked, and answered
	Mapped netip.AddrPort // the address it saw
}

// ClassifyMapping derives the mapping behaviour from what servers saw of one
// socket, in one address family, within the life of a mapping. Which servers does not
// matter, only how they differ: two addresses show whether the mapping depends
// on the address, two ports of one address whether it depends on the port. The
// local addresses are the socket's own: one if it is bound to an address, one
// for each interface if it is not; without them NoNAT can't be found.
//
// The answer is Unknown where the observations leave more than one possibility,
// and where they contradict each other.
func ClassifyMapping(seen []Observation, local ...netip.AddrPort) weft.Mapping {
	if len(seen) == 0 || contradictory(seen) {
		return weft.MappingUnknown
	}
	if !slices.ContainsFunc(seen, func(o Observation) bool { return !containsAddr(local, o.Mapped) }) {
		return weft.NoNAT
	}
	var portsAgree, portsDiffer, addrsAgree, addrsDiffer bool
	for i, a := range seen {
		for _, b := range seen[:i] {
			agree := same(a.Mapped, b.Mapped)
			switch {
			case plainAddr(a.Server) != plainAddr(b.Server):
				addrsAgree = addrsAgree || agree
				addrsDiffer = addrsDiffer || !agree
			case a.Server.Port() != b.Server.Port():
				portsAgree = portsAgree || agree
				portsDiffer = portsDiffer || !agree
			}
		}
	}
	switch {
	case portsDiffer: // neither of the others does that
		return weft.AddressAndPortDependentMapping
	case addrsDiffer && portsAgree:
		return weft.AddressDependentMapping
	case addrsAgree && !addrsDiffer:
		return weft.EndpointIndependentMapping
	}
	return weft.MappingUnknown
}

// MappingVaries reports whether different destinations saw different mappings:
// the NAT is not endpoint-independent, even where ClassifyMapping can't say more.
func MappingVaries(seen []Observation) bool {
	if contradictory(seen) {
		return false
	}
	return slices.ContainsFunc(seen, func(o Observation) bool { return !same(o.Mapped, seen[0].Mapped) })
}

// contradictory reports whether one server saw two mappings, which is time's
// doing and not the destination's, or the address families are mixed.
func contradictory(seen []Observation) bool {
	for i, a := range seen {
		for _, b := range seen[:i] {
			if same(a.Server, b.Server) && !same(a.Mapped, b.Mapped) ||
				plainAddr(a.Server).Is4() != plainAddr(b.Server).Is4() {
				return true
			}
		}
	}
	return false
}

func containsAddr(list []netip.AddrPort, a netip.AddrPort) bool {
	return slices.ContainsFunc(list, func(b netip.AddrPort) bool { return same(a, b) })
}
