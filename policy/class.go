package policy

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"weft"
)

// OwnIPv4 and OwnIPv6 stand for a node's own addresses in what [Policy.Shape] returns: "this host" (RFC 1122 section 3.2.1.3, RFC 4291
// section 2.5.2), which no node has as its address.
var (
	OwnIPv4 = netip.PrefixFrom(netip.IPv4Unspecified(), 32)
	OwnIPv6 = netip.PrefixFrom(netip.IPv6Unspecified(), 128)
)

// Class is the same of two nodes that have the same rules, but for the addresses that are their own. Of a node that has rules
// of its own it is "".
func (p *Policy) Class(n weft.Node) string {
	four := slices.IndexFunc(n.Addrs, netip.Addr.Is4)
	six := slices.IndexFunc(n.Addrs, netip.Addr.Is6)
	if len(n.Routes) > 0 || len(n.Addrs) > 2 || len(n.Addrs) == 2 && (four < 0 || six < 0) {
		return ""
	}
	key := []byte("of " + n.User + " " + strings.Join(n.Tags, " "))
	for _, a := range n.Addrs {
		key = p.places.appendKey(key, a)
	}
	return string(key)
}

// Shape are the rules of all nodes of a node's class, with OwnIPv4 and OwnIPv6 in place of what is each one's own. It is for nodes that have a
// class.
func (p *Policy) Shape(n weft.Node) []weft.Rule {
	j := judge{Node: n, own: own(n)}
	for _, a := range n.Addrs {
		if a.Is4() {
			j.called = append(j.called, OwnIPv4)
		} else {
			j.called = append(j.called, OwnIPv6)
		}
	}
	return p.rules(j)
}

// places are prefixes, to be found by an address in them: a look-up for each length that there is, however many they are. The
// zero value is none.
type places struct {
	lengths [2][]int // of IPv4 and of IPv6
	numbers map[netip.Prefix]int
}

func (s *places) add(p netip.Prefix) {
	p = p.Masked()
	if s.numbers == nil {
		s.numbers = make(map[netip.Prefix]int)
	}
	if _, ok := s.numbers[p]; ok {
		return
	}
	s.numbers[p] = len(s.numbers)
	if of := &s.lengths[familyOf(p.Addr())]; !slices.Contains(*of, p.Bits()) {
		*of = append(*of, p.Bits())
	}
}

// appendKey adds what is the same of all addresses that are in the same of the prefixes.
func (s *places) appendKey(dst []byte, a netip.Addr) []byte {
	dst = append(dst, " at"...)
	for _, bits := range s.lengths[familyOf(a)] {
		p, err := a.Prefix(bits)
		if err != nil {
			continue // an address with a zone is in no prefix
		}
		if i, ok := s.numbers[p]; ok {
			dst = strconv.AppendInt(append(dst, ' '), int64(i), 10)
		}
	}
	return dst
}

func familyOf(a netip.Addr) int {
	if a.Is4() {
		return 0
	}
	return 1
}
