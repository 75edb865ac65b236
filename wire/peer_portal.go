package wire

import "net/netip"

// A PortalWord is what a [Portal] says.
type PortalWord uint8

// The words: the end at the client asks, the end with the public address answers; or says by itself that it is over.
const (
	PortalAsks PortalWord = iota + 1
	PortalOffers
	PortalRefuses // it is no portal, or another node's
)

// portalSize is the length of a Portal without name servers of IPv6, in bytes.
const portalSize = 4 + 4 + 4 + 16 + 4*MaxPortalResolvers

// MaxPortalResolvers is how many name servers of either family an offer names at most: as many as a resolv.conf has.
const MaxPortalResolvers = 3

// Portal is what the two ends of a portal agree by: which addresses of the one the client behind the other has. What is asked
// for is answered as often as it is asked; nothing is kept of it.
//
//	| 8 | word (1) | IPv4 prefix length (1) | 0 | IPv4 address (4) | IPv4 gateway (4) | IPv6 address (16) |
//	| IPv4 name server (4) | another (4) | another (4) |
//	| IPv6 name server (16) | ... as many as there are
//
// Zeros are no address. Prefix and gateway are those of the network that the address is on, which the client is told that
// it is on, too. Without an address, and in words other than the offer, they are zero.
type Portal struct {
	Word    PortalWord
	Addr4   netip.Prefix // not masked
	Gateway netip.Addr   // of Addr4
	Addr6   netip.Addr
	// Resolvers are the name servers that answer at that place, those of IPv4 first.
	Resolvers []netip.Addr
}

func (p Portal) append(dst []byte) []byte {
	at := len(dst)
	dst = append(dst, make([]byte, portalSize)...)
	b := dst[at:]
	b[0], b[1] = typePortal, byte(p.Word)
	if p.Word != PortalOffers {
		return dst
	}
	if p.Addr4.IsValid() && p.Addr4.Addr().Is4() && !p.Addr4.Addr().IsUnspecified() {
		b[2] = byte(p.Addr4.Bits())
		copy(b[4:], p.Addr4.Addr().AsSlice())
		if p.Gateway.Is4() {
			copy(b[8:], p.Gateway.AsSlice())
		}
	}
	if p.Addr6.Is6() && !p.Addr6.Is4In6() {
		copy(b[12:], p.Addr6.AsSlice())
	}
	n := 28
	for _, r := range p.Resolvers {
		if r.Is4() && !r.IsUnspecified() && n < portalSize {
			n += copy(b[n:], r.AsSlice())
		}
	}
	left := MaxPortalResolvers
	for _, r := range p.Resolvers {
		if r.Is6() && !r.Is4In6() && !r.IsUnspecified() && left > 0 {
			dst, left = append(dst, r.AsSlice()...), left-1
		}
	}
	return dst
}

func parsePortal(b []byte) (PeerMessage, error) {
	six := len(b) - portalSize
	if six < 0 || six > 16*MaxPortalResolvers || six%16 != 0 || b[1] < byte(PortalAsks) || b[1] > byte(PortalRefuses) || b[2] > 32 {
		return nil, ErrFrame
	}
	p := Portal{Word: PortalWord(b[1])}
	if p.Word != PortalOffers {
		return p, nil
	}
	if a := netip.AddrFrom4([4]byte(b[4:])); !a.IsUnspecified() {
		p.Addr4 = netip.PrefixFrom(a, int(b[2]))
		if g := netip.AddrFrom4([4]byte(b[8:])); !g.IsUnspecified() {
			p.Gateway = g
		}
	}
	if a := netip.AddrFrom16([16]byte(b[12:])); !a.IsUnspecified() && !a.Is4In6() {
		p.Addr6 = a
	}
	for at := 28; at < portalSize; at += 4 {
		if a := netip.AddrFrom4([4]byte(b[at:])); !a.IsUnspecified() {
			p.Resolvers = append(p.Resolvers, a)
		}
	}
	for at := portalSize; at < len(b); at += 16 {
		if a := netip.AddrFrom16([16]byte(b[at:])); !a.IsUnspecified() && !a.Is4In6() {
			p.Resolvers = append(p.Resolvers, a)
		}
	}
	return p, nil
}
