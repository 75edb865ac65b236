package vnet

import (
	"net/netip"
	"testing"
	"time"

	"weft"
)

var start = time.Unix(1_800_000_000, 0)

func ap(s string) netip.AddrPort { return netip.MustParseAddrPort(s) }

func newNAT(t testing.TB, c NATConfig) *NAT {
	t.Helper()
	if c.Public == nil && c.Mapping != weft.NoNAT {
		c.Public = []netip.Addr{netip.MustParseAddr("198.51.100.1")}
	}
	n, err := NewNAT(c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestAReplyToAnAcceptedPacketLeavesFromItsMapping(t *testing.T) {
	n := newNAT(t, NATConfig{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.EndpointIndependentFiltering})
	inside, server, peer := ap("10.0.0.2:5000"), ap("203.0.113.1:3478"), ap("203.0.113.2:7000")
	seen, v := n.Outbound(start, inside, server)
	if v != Forward {
		t.Fatal(v)
	}
	early, _ := n.Outbound(start, inside, peer)
	if early == seen {
		t.Fatal("two destinations share a mapping that depends on them")
	}
	if got, v := n.Inbound(start, peer, seen); v != Forward || got != inside {
		t.Fatal(got, v)
	}
	if got, _ := n.Outbound(start, inside, peer); got != seen {
		t.Errorf("the reply leaves from %v, not from %v where it was asked", got, seen)
	}
}
