package path

import (
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/lab/vnet"
)

// A natKind is one of the nine NATs of RFC 4787.
type natKind struct {
	mapping   weft.Mapping
	filtering weft.Filtering
}

func (k natKind) String() string {
	return weft.NAT{Mapping: k.mapping, Filtering: k.filtering}.String()
}

func allNATs() (kinds []natKind) {
	for m := weft.EndpointIndependentMapping; m <= weft.AddressAndPortDependentMapping; m++ {
		for f := weft.EndpointIndependentFiltering; f <= weft.AddressAndPortDependentFiltering; f++ {
			kinds = append(kinds, natKind{m, f})
		}
	}
	return kinds
}

// config is the NAT of a home, with ports at random.
func (k natKind) config() vnet.NATConfig {
	return vnet.NATConfig{
		Mapping: k.mapping, Filtering: k.filtering, Allocation: weft.RandomAllocation, Timeout: 30 * time.Second,
		RefreshInbound: true,
	}
}

// behind puts a host behind a NAT of its own.
func (w *world) behind(h *host, c vnet.NATConfig) {
	c.Seed = w.rng.Uint64()
	if len(c.Public) == 0 {
		c.Public = []netip.Addr{netip.AddrFrom4([4]byte{203, 0, 113, byte(10 + slices.Index(w.hosts, h))})}
	}
	n, err := vnet.NewNAT(c)
	if err != nil {
		w.t.Fatal(err)
	}
	h.nat = n
}

// out is where a packet of the host's comes out; false if its NAT does not let it.
func (h *host) out(from, to netip.AddrPort) (netip.AddrPort, bool) {
	if u := h.uplink(from.Addr()); u != nil {
		outside, v := u.nat.Outbound(h.w.now, from, to)
		return outside, v.Passed() && !u.cut
	}
	if h.nat == nil {
		return from, true
	}
	outside, v := h.nat.Outbound(h.w.now, from, to)
	return outside, v.Passed()
}

// in is which of the host's sockets a packet comes to.
func (h *host) in(from, to netip.AddrPort) (netip.AddrPort, bool) {
	for _, u := range h.uplinks {
		if u.nat.Owns(to.Addr()) {
			inside, v := u.nat.Inbound(h.w.now, from, to)
			return inside, v.Passed() && !u.cut
		}
	}
	if h.nat == nil {
		return to, true
	}
	inside, v := h.nat.Inbound(h.w.now, from, to)
	return inside, v.Passed()
}

// owns reports whether packets to an address get to the host, or its NAT.
func (h *host) owns(ip netip.Addr) bool {
	if slices.ContainsFunc(h.uplinks, func(u *uplink) bool { return u.nat.Owns(ip) }) {
		return true
	}
	if h.nat == nil {
		return h.inside.Addr() == ip
	}
	return h.nat.Owns(ip)
}
