package policy

import (
	"net/netip"
	"slices"
)

// exclude takes a prefix away from others.
func exclude(from []netip.Prefix, p netip.Prefix) []netip.Prefix {
	var out []netip.Prefix
	for _, have := range from {
		switch {
		case !have.Overlaps(p):
			out = append(out, have)
		case have.Bits() < p.Bits(): // what is left of it are the other halves on the way down to p
			for have.Bits() < p.Bits() {
				low, high := halves(have)
				if low.Overlaps(p) {
					out, have = append(out, high), low
				} else {
					out, have = append(out, low), high
				}
			}
		}
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

// halves are the two prefixes that one is made of.
func halves(p netip.Prefix) (low, high netip.Prefix) {
	bits := p.Bits()
	raw := p.Addr().AsSlice()
	raw[bits/8] |= 0x80 >> (bits % 8)
	second, _ := netip.AddrFromSlice(raw)
	return netip.PrefixFrom(p.Addr(), bits+1), netip.PrefixFrom(second, bits+1)
}

// common is what two prefixes have in common.
func common(a, b netip.Prefix) (netip.Prefix, bool) {
	if !a.Overlaps(b) {
		return netip.Prefix{}, false
	}
	if a.Bits() > b.Bits() {
		return a, true
	}
	return b, true
}

// private are the IPv4 networks that are somebody's own, or no single host's: RFC 1918, 6598, 1122, 3927, 5771, 1112. Of
// IPv6, what is not in 2000::/3 is (RFC 4291 section 2.4).
var private = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("100.64.0.0/10"),
	netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("172.16.0.0/12"),
	netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("224.0.0.0/3"),
}

// Default routes, which stand for an exit node.
var (
	default4 = netip.MustParsePrefix("0.0.0.0/0")
	default6 = netip.MustParsePrefix("::/0")
)

// public are the addresses of everybody's Internet: neither private nor the overlay's.
func public(ranges []netip.Prefix) (four, six []netip.Prefix) {
	four, six = []netip.Prefix{default4}, []netip.Prefix{netip.MustParsePrefix("2000::/3")}
	for _, p := range slices.Concat(private, ranges) {
		if p.Addr().Is4() {
			four = exclude(four, p)
		} else {
			six = exclude(six, p)
		}
	}
	return four, six
}
