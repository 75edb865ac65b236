package lab

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"weft"
	"weft/lab/netns"
	"weft/lab/vnet"
)

// Two relays tell all that there is to know of a NAT, to weft netcheck and to the daemon itself: the second one's
// address, the second ports, and the packets that relays send when they are asked to.
func TestNodesBehindAnyNATKnowWhatItDoes(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	host := w.must(w.net.AddHost("relay"))
	token, err := w.server.Token(w.ctx, "--relay")
	if err != nil {
		t.Fatal(err)
	}
	cmd := host.Command(w.ctx, w.fleet.Binary, "relay", "--data", filepath.Join(w.fleet.Dir, "relay"),
		"--listen", ":443", "--stun", ":3478", "--url", "https://"+host.Addr().String(), "--name", "elsewhere")
	cmd.Env = append(cmd.Environ(), "WEFT_TOKEN="+token)
	if _, err := host.Start(cmd); err != nil {
		t.Fatal(err)
	}
	homes := map[string]vnet.NATConfig{
		"ann": {Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering, Allocation: weft.PreservingAllocation},
		"bob": {Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressDependentFiltering, Allocation: weft.RandomAllocation, Hairpin: true},
		"cid": {Mapping: weft.AddressDependentMapping, Filtering: weft.AddressDependentFiltering, Allocation: weft.RandomAllocation},
		"dot": {Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation},
	}
	var nodes []*Node
	for name, nat := range homes {
		_, h := w.behind(name, nat)
		nodes = append(nodes, w.node(h))
	}
	var wg sync.WaitGroup
	for i, n := range nodes {
		w.up(n)
		peer := nodes[(i+1)%len(nodes)].Name
		want := homes[n.Name].NAT()
		if want.Mapping != weft.EndpointIndependentMapping && want.Filtering != weft.EndpointIndependentFiltering {
			want.Hairpin = weft.SupportUnknown // nobody knows by which port packets to the NAT itself leave
		}
		wg.Go(func() {
			if err := netns.WaitFor(w.ctx, n.Name+" to know its NAT", func() error {
				e, err := n.Explain(w.ctx, peer)
				if err == nil && e.Self.NAT != want {
					err = fmt.Errorf("it knows %v, want %v", e.Self.NAT, want)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
			if err := netns.WaitFor(w.ctx, n.Name+"'s netcheck to find its NAT", func() error {
				c, err := n.Netcheck(w.ctx)
				if err == nil && (c.IPv4.NAT != want || len(c.IPv4.Prospects) == 0 || len(c.IPv4.Outside) != 1) {
					err = fmt.Errorf("it finds %+v, want %v", c.IPv4, want)
				}
				return err
			}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}
