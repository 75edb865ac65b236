package vnet

import (
	"net/netip"
	"testing"
	"time"

	"weft"
)

func TestARouterThatIsReaddressedIsReachedAtItsNewAddressOnly(t *testing.T) {
	n := New(1)
	r, err := n.Internet().AddRouter("home", NATConfig{Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering}, LinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	inside, _ := r.Inside().AddHost("ann", LinkConfig{})
	outside, _ := n.Internet().AddHost("bob", LinkConfig{})
	a, _ := inside.Listen(1000)
	b, _ := outside.Listen(2000)
	var seen, back []netip.AddrPort
	b.Handle(func(_ time.Time, from netip.AddrPort, _ []byte) { seen = append(seen, from) })
	a.Handle(func(_ time.Time, from netip.AddrPort, _ []byte) { back = append(back, from) })
	ask := func() {
		a.Send(netip.AddrPortFrom(outside.Addr(), 2000), []byte("x"), 0)
		n.Run(time.Second)
	}
	ask()
	if err := r.Readdress(); err != nil {
		t.Fatal(err)
	}
	ask()
	if len(seen) != 2 || seen[0].Addr() == seen[1].Addr() || !r.NAT().Owns(seen[1].Addr()) || r.NAT().Owns(seen[0].Addr()) {
		t.Fatalf("seen from %v", seen)
	}
	for i, to := range seen {
		b.Send(to, []byte("y"), 0)
		n.Run(time.Second)
		if len(back) != i {
			t.Fatalf("%d answers after one to %v", len(back), to)
		}
	}
	r.SetBlockUDP(true)
	ask()
	if len(seen) != 2 {
		t.Error("a packet passed a router that blocks UDP")
	}
	r.SetBlockUDP(false)
	ask()
	if len(seen) != 3 {
		t.Error("nothing passes after the block was taken away")
	}
	plain, err := n.Internet().AddRouter("wall", NATConfig{Mapping: weft.NoNAT}, LinkConfig{})
	if err != nil || plain.Readdress() == nil {
		t.Errorf("a router that translates nothing got another address: %v", err)
	}
}
