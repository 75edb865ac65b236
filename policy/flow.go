package policy

import (
	"net/netip"
	"slices"

	"weft"
)

// A Flow is something that a node begins towards another one, or towards what is behind that one.
type Flow struct {
	Sender weft.Node  // whose tunnel it comes by
	From   netip.Addr // an address that the sender speaks for
	To     netip.Addr
	Proto  uint8
	Port   uint16 // the destination's; 0 of a protocol without ports
}

// Allows finds the first of a node's rules that lets a flow in.
func Allows(rules []weft.Rule, node weft.Node, f Flow) (weft.Rule, bool) {
	for _, r := range rules {
		if comesFrom(r, f) && goesTo(r, node, f.To) && portOf(r, f) {
			return r, true
		}
	}
	return weft.Rule{}, false
}

// Between finds the rules that are about a flow's two ends, whatever is begun between them.
func Between(rules []weft.Rule, node weft.Node, f Flow) []weft.Rule {
	found := []weft.Rule{}
	for _, r := range rules {
		if comesFrom(r, f) && goesTo(r, node, f.To) {
			found = append(found, r)
		}
	}
	return found
}

func comesFrom(r weft.Rule, f Flow) bool {
	return slices.ContainsFunc(r.From, func(s weft.Source) bool {
		p, ok := s.Prefix()
		return s.Includes(f.Sender) || ok && p.Contains(f.From)
	})
}

func goesTo(r weft.Rule, node weft.Node, to netip.Addr) bool {
	if r.To == nil {
		return slices.Contains(node.Addrs, to)
	}
	return slices.ContainsFunc(r.To, func(p netip.Prefix) bool { return p.Contains(to) })
}

func portOf(r weft.Rule, f Flow) bool {
	return len(r.Ports) == 0 || slices.ContainsFunc(r.Ports, func(p weft.PortRange) bool { return p.Contains(f.Proto, f.Port) })
}
