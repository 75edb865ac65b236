// Package gather finds out where this node may be reached: the addresses of its interfaces, what STUN servers
// see of its sockets, and what the NAT in between does with them. What it finds are weft.Candidates, for the
// peers, and words, for weft netcheck.
//
// [Hosts] is a pure filter over what the host says of its interfaces. [Reflexive] is pure too: it is given the
// socket's datagrams and the time, and says what to send. [Behaviour] does IO of its own, on sockets that
// carry nothing else, because the tests of RFC 5780 want a socket without history; it runs package stun's
// Discovery. [WatchNAT] does so in the background, for as long as the daemon runs.
package gather

import (
	"net/netip"
	"slices"

	"weft"
	"weft/host"
)

// Hosts returns the host candidates of a node whose UDP sockets listen on every address at the port. Left out
// are interfaces that are down or named in skip (the overlay's own), loopback, link-local addresses, which
// need a zone that means nothing to others, and addresses inside the overlay's ranges, since a tunnel through
// itself is none. Left out too are other tunnels: point-to-point interfaces whose MTU is below least, in bytes,
// so that each of our packets would be two of theirs. (A modem of that kind is still found, by STUN.) IPv6 comes
// first, then by address: the order is stable.
func Hosts(ifaces []host.Interface, port uint16, least int, ranges []netip.Prefix, skip ...string) []weft.Candidate {
	var out []weft.Candidate
	for _, i := range ifaces {
		if !i.Up || i.Loopback || i.PointToPoint && i.MTU < least || slices.Contains(skip, i.Name) {
			continue
		}
		for _, p := range i.Addrs {
			a := p.Addr().Unmap()
			if !usable(a) || slices.ContainsFunc(ranges, func(r netip.Prefix) bool { return r.Contains(a) }) {
				continue
			}
			c := weft.Candidate{Addr: netip.AddrPortFrom(a, port), Kind: weft.Host}
			if !slices.Contains(out, c) {
				out = append(out, c)
			}
		}
	}
	slices.SortFunc(out, func(a, b weft.Candidate) int {
		if is6 := b2i(b.Addr.Addr().Is6()) - b2i(a.Addr.Addr().Is6()); is6 != 0 {
			return is6
		}
		return a.Addr.Compare(b.Addr)
	})
	return out
}

func usable(a netip.Addr) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsUnspecified() && !a.IsLinkLocalUnicast() && !a.IsMulticast()
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Merge joins lists of candidates, best kind first where an address is in several, and cuts at the most that a
// node announces.
func Merge(most int, lists ...[]weft.Candidate) []weft.Candidate {
	at := map[netip.AddrPort]int{}
	var out []weft.Candidate
	for _, list := range lists {
		for _, c := range list {
			if i, ok := at[c.Addr]; ok {
				if c.Kind < out[i].Kind {
					out[i] = c
				}
				continue
			}
			at[c.Addr] = len(out)
			out = append(out, c)
		}
	}
	return out[:min(len(out), most)]
}
