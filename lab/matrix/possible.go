package matrix

import (
	"net/netip"
	"slices"

	"weft/lab/scenario"
	"weft/lab/vnet"
)

// ways are the oracle's.
var ways = map[vnet.Way]Way{vnet.Plain: Plain, vnet.Spray: Sprayed, vnet.Predict: Predicted, vnet.Never: Relayed}

// possible asks the oracle what the scenario's nodes a and b can have at best, and why.
func possible(s *scenario.Scenario) (Way, string) {
	a, onA := side(s, "a")
	b, onB := side(s, "b")
	slices.Reverse(onA)
	slices.Reverse(onB)
	for i := 0; i < min(len(onA), len(onB)) && onA[i] == onB[i]; i++ {
		a.Shared, b.Shared = i+1, i+1
	}
	way, why := vnet.Possible(a, b)
	return ways[way], why
}

// side is what stands between a host and the internet, with the names of the routers, from the host outwards.
func side(s *scenario.Scenario, host string) (out vnet.Side, names []string) {
	out.Name = host
	i := slices.IndexFunc(s.Hosts, func(h scenario.Host) bool { return h.Name == host })
	for on := s.Hosts[i].On; on != scenario.Internet; {
		r := s.Routers[slices.IndexFunc(s.Routers, func(r scenario.Router) bool { return r.Name == on })]
		c := r.NAT
		if len(c.Public) == 0 { // the oracle only counts them
			a := netip.AddrFrom4([4]byte{203, 0, 113, 1}) // RFC 5737
			for range max(r.PoolSize, 1) {
				c.Public = append(c.Public, a)
				a = a.Next()
			}
		}
		out.NATs, names, on = append(out.NATs, c), append(names, on), r.On
	}
	return out, names
}
