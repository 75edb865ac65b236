package control

import (
	"crypto/rand"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"weft"
	"weft/control/store"
)

// DefaultIPv4 is the range of a network that was not given one: the shared address space of RFC 6598, which
// neither homes nor offices use.
var DefaultIPv4 = netip.MustParsePrefix("100.64.0.0/10")

// The first numbers given. Relay 1 is the embedded relay.
const (
	firstNode  weft.NodeID  = 1
	embedded   weft.RelayID = 1
	firstRelay weft.RelayID = 2
	firstKey   uint32       = 1
)

// randomULA makes a range as RFC 4193 section 3.2.2 wants it, with true random bits for the global identifier.
func randomULA() netip.Prefix {
	a := [16]byte{0: 0xfd}
	_, _ = rand.Read(a[1:6]) // never fails (crypto/rand)
	return netip.PrefixFrom(netip.AddrFrom16(a), 48)
}

func randomHex() string {
	var b [8]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// checkRanges says what is wrong with the ranges of an overlay.
func checkRanges(v4, v6 netip.Prefix) error {
	bad := func(p netip.Prefix, why string) error {
		return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("%v cannot be the range of the overlay: %s", p, why)}
	}
	for _, p := range []netip.Prefix{v4, v6} {
		a := p.Addr()
		switch {
		case p != p.Masked():
			return bad(p, fmt.Sprintf("it has bits behind its length; meant is %v, perhaps", p.Masked()))
		case a.IsLoopback() || a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified() || a.Is4In6():
			return bad(p, "these addresses have another use (a private range is a good choice)")
		}
	}
	switch {
	case !v4.Addr().Is4() || v4.Bits() < 8 || v4.Bits() > 30:
		return bad(v4, "the first range must be of IPv4, with a length from 8 to 30")
	case !v6.Addr().Is6() || v6.Bits() < 16 || v6.Bits() > 96:
		return bad(v6, "the second range must be of IPv6, with a length from 16 to 96 (nodes are numbered in the last 32 bits)")
	}
	return nil
}

// serviceAddr is the address of the resolver on every node: the range's first, which no node gets.
func serviceAddr(v4 netip.Prefix) netip.Addr { return v4.Addr().Next() }

// lastAddr is the last address of a range. In IPv4 it is the broadcast address.
func lastAddr(p netip.Prefix) netip.Addr {
	b := p.Addr().As4()
	n := binary.BigEndian.Uint32(b[:]) | (1<<(32-p.Bits()) - 1)
	return netip.AddrFrom4([4]byte(binary.BigEndian.AppendUint32(nil, n)))
}

// giveAddrs takes the next addresses for the node of this number. The network's list of given ones is replaced, not
// changed.
func giveAddrs(n *store.Network, id weft.NodeID) (v4, v6 netip.Addr, err error) {
	b := n.IPv6.Addr().As16()
	binary.BigEndian.PutUint32(b[12:], uint32(id)) // behind a prefix of 96 bits at most
	v6 = netip.AddrFrom16(b)

	a := serviceAddr(n.IPv4).Next()
	at := 0 // of the first span behind a
	for at < len(n.Given) && !a.Less(n.Given[at].First) {
		if !n.Given[at].Last.Less(a) {
			a = n.Given[at].Last.Next()
		}
		at++
	}
	if !a.Less(lastAddr(n.IPv4)) {
		return v4, v6, &weft.Error{Code: weft.CodeExhausted, Message: fmt.Sprintf(
			"no address is left in %v, since none is ever given twice: start the server with a larger --range that contains it", n.IPv4)}
	}
	given := slices.Clone(n.Given)
	switch {
	case at > 0 && given[at-1].Last.Next() == a:
		given[at-1].Last = a
		if at < len(given) && a.Next() == given[at].First {
			given[at-1].Last = given[at].Last
			given = slices.Delete(given, at, at+1)
		}
	case at < len(given) && a.Next() == given[at].First:
		given[at].First = a
	default:
		given = slices.Insert(given, at, store.Span{First: a, Last: a})
	}
	n.Given = given
	return a, v6, nil
}

// outside says which nodes a change of the ranges would leave without an address; nil: none.
func outside(nodes []store.Node, v4, v6 netip.Prefix) error {
	var names []string
	for _, n := range nodes {
		if !v4.Contains(n.IPv4) || !v6.Contains(n.IPv6) || n.IPv4 == serviceAddr(v4) || n.IPv4 == lastAddr(v4) || n.IPv4 == v4.Addr() {
			names = append(names, n.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	listed := strings.Join(names[:min(len(names), 5)], ", ")
	if len(names) > 5 {
		listed += ", ..."
	}
	return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(
		"the ranges %v and %v leave out the addresses of %d nodes (%s): choose ranges that contain them, or remove these nodes first",
		v4, v6, len(names), listed)}
}
