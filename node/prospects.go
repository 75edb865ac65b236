package node

import (
	"weft"
	"weft/stun"
)

// prospects say what was found out means for direct connections, and which of it could not be found out, and why.
func prospects(r stun.Report) []string {
	out := []string{reachable(r.NAT, r.Varies)}
	if len(r.Outside) > 1 {
		out = append(out, "The NAT has several outside addresses and gives sockets now one, now another, so that peers may hear from an address that they were not told.")
	}
	if r.Hairpin == weft.Unsupported {
		out = append(out, "Machines behind the same NAT reach each other by their own addresses only, or through a relay: the NAT does not hairpin.")
	}
	if r.Mapping == weft.MappingUnknown || r.Filtering == weft.FilteringUnknown {
		out = append(out, unknown(r))
	}
	return out
}

// reachable says to which peers there may be direct connections. A peer is reached without guessing where one side
// knows by which address and port the other will send, or has a filter that lets it in all the same.
func reachable(n weft.NAT, varies bool) string {
	known := n.Mapping == weft.NoNAT || n.Mapping == weft.EndpointIndependentMapping
	hidden := n.Mapping > weft.EndpointIndependentMapping || varies
	switch {
	case n.Filtering == weft.EndpointIndependentFiltering:
		return "Direct connections are possible with every peer: whoever knows the address gets through."
	case known && n.Filtering == weft.AddressDependentFiltering:
		return "Direct connections are possible with every peer."
	case known:
		return "Direct connections are possible with every peer; where its NAT gives each destination another port, ports may have to be guessed, which takes some seconds."
	case hidden && n.Filtering == weft.AddressDependentFiltering:
		return "Direct connections are possible with every peer, with most of them after guessing ports for some seconds: this NAT gives each destination another port."
	case hidden && n.Filtering == weft.AddressAndPortDependentFiltering && n.Allocation == weft.SequentialAllocation:
		return "Direct connections are possible with most peers, with many of them after guessing ports for some seconds; where the peer's NAT hides its ports as this one does, both must give ports in a row, as this one does. " + help
	case hidden && n.Filtering == weft.AddressAndPortDependentFiltering:
		return "Direct connections are possible with peers whose NAT shows one port to everybody, or lets in by address, with many of them after guessing ports for some seconds; with others this NAT has to go through a relay. " + help
	case hidden:
		return "Direct connections are possible with peers whose NAT shows one port to everybody; this NAT gives each destination another. " + help
	}
	return "Which peers can be connected to directly is not known beforehand; it is tried."
}

const help = "A forwarded UDP port, UPnP or IPv6 would make all of them possible."

// unknown says why something is not known.
func unknown(r stun.Report) string {
	addrs := map[string]bool{}
	for _, o := range r.Seen {
		addrs[o.Server.Addr().Unmap().String()] = true
	}
	if len(addrs) < 2 {
		return "What is unknown would be told by a second relay at another address: one alone cannot show how the NAT treats others."
	}
	return "What is unknown could not be told apart: relays did not answer, answers were lost, or the NAT changed meanwhile; or the relays answer on one port only."
}
