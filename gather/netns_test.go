package gather

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
	"weft/lab/vnet"
	"weft/stun"
)

// natLab is a laboratory with two relays of two ports each.
func natLab(t *testing.T) (*netns.Lab, [2]*testRelay) {
	t.Helper()
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	l, err := netns.New(t.Context(), "weftgather")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	var relays [2]*testRelay
	for i := range relays {
		h, err := l.AddHost(fmt.Sprint("relay", i))
		if err != nil {
			t.Fatal(err)
		}
		relays[i] = serveRelay(t, func(port uint16) *net.UDPConn {
			c, err := h.ListenUDP(netip.AddrPortFrom(h.Addr(), port))
			if err != nil {
				t.Fatal(err)
			}
			return c
		})
	}
	return l, relays
}

// behindOf runs a discovery on a host behind a router.
func behindOf(t *testing.T, r *netns.Router, host string, relays [2]*testRelay) (stun.Report, error) {
	h, err := r.AddHost(host)
	if err != nil {
		return stun.Report{}, err
	}
	outside := r.Addr() // by a binding of long ago, as it were
	cfg := BehaviourConfig{Local: []netip.Addr{h.Addr()}}
	for _, relay := range relays {
		cfg.Servers = append(cfg.Servers, relay.addr)
		cfg.Probers = append(cfg.Probers, stun.Prober{Server: relay.addr, Seen: outside})
	}
	cfg.Probe = func(_ context.Context, server netip.AddrPort, p stun.Probe) bool {
		for _, relay := range relays {
			if relay.addr == server {
				return relay.probe(t, outside, p)
			}
		}
		return false
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var report stun.Report
	err = h.Do(func() (err error) { // the sockets are made here, in the host's namespace
		report, err = Behaviour(ctx, cfg)
		return err
	})
	return report, err
}

// The kernel's sockets and clock, and the laboratory's NAT between them: what a node finds is what the router does.
func TestTheLaboratorysRoutersAreRecognizedByRealSockets(t *testing.T) {
	t.Parallel()
	l, relays := natLab(t)
	allocations := []weft.Allocation{weft.PreservingAllocation, weft.SequentialAllocation, weft.RandomAllocation}
	var wg sync.WaitGroup
	i := 0
	for m := weft.EndpointIndependentMapping; m <= weft.AddressAndPortDependentMapping; m++ {
		for f := weft.EndpointIndependentFiltering; f <= weft.AddressAndPortDependentFiltering; f++ {
			c := vnet.NATConfig{Mapping: m, Filtering: f, Allocation: allocations[(i+i/3)%3], Hairpin: i%2 == 0, Seed: uint64(i)}
			if c.Allocation == weft.SequentialAllocation {
				c.Step = 2
			}
			name := fmt.Sprint("r", i)
			r, err := l.AddNATRouter(name, c)
			if err != nil {
				t.Fatal(err)
			}
			i++
			wg.Go(func() {
				report, err := behindOf(t, r, name+"-pc", relays)
				want := c.NAT()
				if m != weft.EndpointIndependentMapping && f != weft.EndpointIndependentFiltering {
					want.Hairpin = weft.SupportUnknown // who knows by which port they leave
				}
				if err != nil || report.NAT != want {
					t.Errorf("found %v, %v; want %v", report.NAT, err, want)
				}
			})
		}
	}
	wg.Wait()
}

// The kernel's own NATs, named by what the laboratory knows of them.
func TestTheKernelsNATsAreRecognized(t *testing.T) {
	t.Parallel()
	l, relays := natLab(t)
	var wg sync.WaitGroup
	for kind, want := range map[netns.NAT]weft.NAT{
		netns.PortRestrictedCone: {
			Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressAndPortDependentFiltering,
			Allocation: weft.PreservingAllocation, Hairpin: weft.Unsupported,
		},
		netns.Symmetric: {
			Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressAndPortDependentFiltering,
			Allocation: weft.RandomAllocation,
		},
		netns.FullCone: {
			Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering,
			Allocation: weft.PreservingAllocation, Hairpin: weft.Unsupported,
		},
	} {
		r, err := l.AddRouter(string(kind), kind)
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			report, err := behindOf(t, r, string(kind)+"-pc", relays)
			if err != nil || report.NAT != want {
				t.Errorf("%s: found %v, %v; want %v", kind, report.NAT, err, want)
			}
		})
	}
	wg.Wait()
}
