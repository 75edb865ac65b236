package stun

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
)

var (
	allMappings   = []weft.Mapping{weft.NoNAT, weft.EndpointIndependentMapping, weft.AddressDependentMapping, weft.AddressAndPortDependentMapping}
	allFilterings = []weft.Filtering{weft.EndpointIndependentFiltering, weft.AddressDependentFiltering, weft.AddressAndPortDependentFiltering}
)

var (
	simLocals = []netip.Addr{simLocal.Addr()}
	simPorts  = []uint16{simLocal.Port(), simLocal.Port() + 1}
)

// discover runs a discovery with the filtering tests in the world.
func discover(t testing.TB, w *world, servers ...netip.AddrPort) (Report, time.Duration) {
	t.Helper()
	r, took := w.run(NewDiscovery(w.now, DiscoveryConfig{Servers: servers, Local: simLocals, Ports: simPorts}))
	starts := []time.Time{}
	for _, at := range w.begun {
		starts = append(starts, at)
	}
	slices.SortFunc(starts, time.Time.Compare)
	for i := 1; i < len(starts); i++ {
		if gap := starts[i].Sub(starts[i-1]); gap < time.Second/10 {
			t.Errorf("transactions begun within %v: more than ten a second", gap)
		}
	}
	if w.twice != nil {
		t.Errorf("asked more than once: %v", w.twice)
	}
	return r, took
}

func TestEveryKindOfNATIsRecognized(t *testing.T) {
	for _, mapping := range allMappings {
		for _, filtering := range allFilterings {
			t.Run(fmt.Sprint(mapping, "/", filtering), func(t *testing.T) {
				r, took := discover(t, newWorld(mapping, filtering).four(&twoAddresses), server4)
				if r.Mapping != mapping || r.Filtering != filtering {
					t.Errorf("found %v, %v", r.Mapping, r.Filtering)
				}
				if want := mapping == weft.AddressDependentMapping || mapping == weft.AddressAndPortDependentMapping; r.Varies != want {
					t.Errorf("varies: %v", r.Varies)
				}
				// Silence takes 2.2 s once, everything else some round trips.
				limit := 3500 * time.Millisecond
				if filtering == weft.EndpointIndependentFiltering {
					limit = time.Second
				}
				if took > limit {
					t.Errorf("took %v, more than %v", took, limit)
				}
			})
		}
	}
}

func TestServersWithOneAddressEachTellTheMapping(t *testing.T) {
	a1, a2, b1, c1 := ap("192.0.2.1:1"), ap("192.0.2.1:2"), ap("192.0.2.2:1"), ap("192.0.2.3:1")
	unknown := [4]weft.Mapping{weft.NoNAT, weft.MappingUnknown, weft.MappingUnknown, weft.MappingUnknown}
	for name, tc := range map[string]struct {
		servers []netip.AddrPort
		want    [4]weft.Mapping // for each of allMappings
	}{
		"none":                {nil, [4]weft.Mapping{}},
		"one":                 {[]netip.AddrPort{a1}, unknown},
		"two addresses":       {[]netip.AddrPort{a1, b1}, [4]weft.Mapping{weft.NoNAT, weft.EndpointIndependentMapping, weft.MappingUnknown, weft.MappingUnknown}},
		"two ports":           {[]netip.AddrPort{a1, a2}, [4]weft.Mapping{weft.NoNAT, weft.MappingUnknown, weft.MappingUnknown, weft.AddressAndPortDependentMapping}},
		"ports and addresses": {[]netip.AddrPort{a1, b1, a2}, [4]weft.Mapping(allMappings)},
		"one of three dead":   {[]netip.AddrPort{a1, ap("192.0.2.9:1"), c1}, [4]weft.Mapping{weft.NoNAT, weft.EndpointIndependentMapping, weft.MappingUnknown, weft.MappingUnknown}},
		"the first dead":      {[]netip.AddrPort{ap("192.0.2.9:1"), a1, b1, a2}, [4]weft.Mapping(allMappings)},
		"all dead":            {[]netip.AddrPort{ap("192.0.2.9:1"), ap("192.0.2.8:1")}, [4]weft.Mapping{}},
	} {
		t.Run(name, func(t *testing.T) {
			for i, mapping := range allMappings {
				for _, filtering := range allFilterings {
					w := newWorld(mapping, filtering).single(a1, a2, b1, c1)
					r, took := discover(t, w, tc.servers...)
					if r.Mapping != tc.want[i] || r.Filtering != weft.FilteringUnknown {
						t.Errorf("%v, %v: found %v, %v", mapping, filtering, r.Mapping, r.Filtering)
					}
					if took > 4*time.Second {
						t.Errorf("took %v", took)
					}
				}
			}
		})
	}
}

func TestADeadServerHardlyHoldsUpTheOthers(t *testing.T) {
	w := newWorld(weft.EndpointIndependentMapping, weft.EndpointIndependentFiltering).four(&twoAddresses)
	d := NewDiscovery(w.now, DiscoveryConfig{
		Servers: []netip.AddrPort{ap("198.51.100.9:9"), server4}, Ports: simPorts,
		Transaction: TransactionConfig{RTO: 10 * time.Second}, // nothing else wakes it up
	})
	r, took := w.run(d)
	if r.Mapping != weft.EndpointIndependentMapping || r.Filtering != weft.EndpointIndependentFiltering || took > 2*time.Second {
		t.Errorf("found %v, %v after %v", r.Mapping, r.Filtering, took)
	}
}

func TestASingleAddressServerBesideARealOneIsNoHindrance(t *testing.T) {
	plain := ap("198.51.100.1:3478")
	for _, mapping := range allMappings {
		for _, filtering := range allFilterings {
			w := newWorld(mapping, filtering).four(&twoAddresses).single(plain)
			if r, _ := discover(t, w, plain, ap("198.51.100.9:9"), server4); r.Mapping != mapping || r.Filtering != filtering {
				t.Errorf("%v, %v: found %v, %v", mapping, filtering, r.Mapping, r.Filtering)
			}
		}
	}
}

// Whoever lists both addresses of one server must not have the second asked
// before the filtering tests: that would open the filter for it.
func TestListingBothAddressesOfAServerDoesNotOpenTheFilter(t *testing.T) {
	for _, mapping := range allMappings {
		for _, filtering := range allFilterings {
			w := newWorld(mapping, filtering).four(&twoAddresses)
			if r, _ := discover(t, w, server4, twoAddresses.IPv4.Alternate); r.Mapping != mapping || r.Filtering != filtering {
				t.Errorf("%v, %v: found %v, %v", mapping, filtering, r.Mapping, r.Filtering)
			}
		}
	}
}

// A slow server's answer comes while the next one, its own alternate address, is
// held back by the pace.
func TestAServerHeldBackDoesNotOpenTheFilter(t *testing.T) {
	plain := ap("198.51.100.1:3478")
	d := NewDiscovery(epoch, DiscoveryConfig{Servers: []netip.AddrPort{server4, plain, twoAddresses.IPv4.Alternate}, Ports: simPorts})
	begin, _, _ := d.Poll(epoch)
	first := begin.Packet
	now := epoch.Add(discoveryStagger)
	var second []byte
	for {
		a, _, _ := d.Poll(now)
		pkt, to := a.Packet, a.To
		if pkt == nil {
			break
		}
		if to == plain {
			second = pkt
		}
	}
	if second == nil {
		t.Fatal("the second server was not asked")
	}
	now = now.Add(time.Millisecond)
	reply, _ := (&Responder{}).Respond(nil, second, client4, plain)
	d.Handle(now, 0, reply.Packet, plain)
	if a, _, _ := d.Poll(now); a.Packet != nil {
		t.Fatalf("%v was asked at once, faster than the pace", a.To)
	}
	reply, _ = twoAddresses.Respond(nil, first, client4, server4)
	d.Handle(now, 0, reply.Packet, server4)
	now = now.Add(time.Second)
	for {
		a, _, _ := d.Poll(now)
		pkt, to := a.Packet, a.To
		if pkt == nil {
			break
		}
		if m := mustParse(t, pkt); to != server4 && to != plain || to == server4 && m.ID != mustParse(t, first).ID && m.Change == 0 {
			t.Errorf("asked %v, change %d, before the filtering tests", to, m.Change)
		}
	}
}

func TestAFilterThatWasOpenedBeforeIsNotJudged(t *testing.T) {
	p, q := twoAddresses.IPv4.Primary, twoAddresses.IPv4.Alternate
	second := Responder{IPv4: Alternates{ap("198.51.100.1:3478"), ap("198.51.100.2:3479")}}
	for name, first := range map[string]netip.AddrPort{
		"another service of the alternate address": netip.AddrPortFrom(q.Addr(), 9999),
		"the alternate port":                       netip.AddrPortFrom(p.Addr(), q.Port()),
	} {
		t.Run(name, func(t *testing.T) {
			for _, mapping := range allMappings {
				for _, filtering := range allFilterings {
					w := newWorld(mapping, filtering).four(&twoAddresses).single(first)
					if r, _ := discover(t, w, first, server4); r.Mapping != mapping || r.Filtering != weft.FilteringUnknown {
						t.Errorf("%v, %v: found %v, %v", mapping, filtering, r.Mapping, r.Filtering)
					}
					// Another server, not tainted, comes to the rescue.
					w = newWorld(mapping, filtering).four(&twoAddresses).single(first).four(&second)
					if r, _ := discover(t, w, first, server4, second.IPv4.Primary); r.Mapping != mapping || r.Filtering != filtering {
						t.Errorf("%v, %v, with a second server: found %v, %v", mapping, filtering, r.Mapping, r.Filtering)
					}
				}
			}
		})
	}
}

func TestWithoutFilteringTestsOnlyTheMappingIsFound(t *testing.T) {
	for _, mapping := range allMappings {
		w := newWorld(mapping, weft.AddressAndPortDependentFiltering).four(&twoAddresses)
		r, took := w.run(NewDiscovery(w.now, DiscoveryConfig{Servers: []netip.AddrPort{server4}, Local: simLocals, Ports: simPorts[:1]}))
		if r.Mapping != mapping || r.Filtering != weft.FilteringUnknown || took > time.Second {
			t.Errorf("%v: found %v, %v in %v", mapping, r.Mapping, r.Filtering, took)
		}
	}
}

func TestADeadAlternateIsNotTakenForAFilter(t *testing.T) {
	p, q := twoAddresses.IPv4.Primary, twoAddresses.IPv4.Alternate
	otherPort := netip.AddrPortFrom(p.Addr(), q.Port())
	otherAddr := netip.AddrPortFrom(q.Addr(), p.Port())
	for name, tc := range map[string]struct {
		dead []netip.AddrPort
		want func(m weft.Mapping, f weft.Filtering) (weft.Mapping, weft.Filtering)
	}{
		"the alternate address": {[]netip.AddrPort{q, otherAddr}, func(m weft.Mapping, f weft.Filtering) (weft.Mapping, weft.Filtering) {
			// Left: two ports of one address.
			if m == weft.EndpointIndependentMapping || m == weft.AddressDependentMapping {
				m = weft.MappingUnknown
			}
			if f != weft.AddressAndPortDependentFiltering {
				f = weft.FilteringUnknown
			}
			return m, f
		}},
		"the alternate port": {[]netip.AddrPort{q, otherPort}, func(m weft.Mapping, f weft.Filtering) (weft.Mapping, weft.Filtering) {
			if m == weft.AddressDependentMapping || m == weft.AddressAndPortDependentMapping {
				m = weft.MappingUnknown
			}
			return m, weft.FilteringUnknown
		}},
		"all alternates": {[]netip.AddrPort{q, otherPort, otherAddr}, func(m weft.Mapping, f weft.Filtering) (weft.Mapping, weft.Filtering) {
			if m != weft.NoNAT {
				m = weft.MappingUnknown
			}
			return m, weft.FilteringUnknown
		}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, mapping := range allMappings {
				for _, filtering := range allFilterings {
					w := newWorld(mapping, filtering).four(&twoAddresses)
					for _, a := range tc.dead {
						w.servers[a] = nil
					}
					r, _ := discover(t, w, server4)
					if m, f := tc.want(mapping, filtering); r.Mapping != m || r.Filtering != f {
						t.Errorf("%v, %v: found %v, %v; want %v, %v", mapping, filtering, r.Mapping, r.Filtering, m, f)
					}
				}
			}
		})
	}
}

func TestADeadAlternateIsMadeUpForByTheOtherServers(t *testing.T) {
	plain := ap("198.51.100.1:3478")
	w := newWorld(weft.EndpointIndependentMapping, weft.EndpointIndependentFiltering).four(&twoAddresses).single(plain)
	w.servers[twoAddresses.IPv4.Alternate] = nil
	w.servers[netip.AddrPortFrom(twoAddresses.IPv4.Alternate.Addr(), server4.Port())] = nil
	if r, _ := discover(t, w, server4, plain); r.Mapping != weft.EndpointIndependentMapping {
		t.Errorf("found %v", r.Mapping)
	}
}

// Some servers name an alternate address and can't use it.
func TestAServerThatDoesNotHonourChangesTellsNothingOfTheFilter(t *testing.T) {
	ignore := func(change simServer) func(req []byte, from, local netip.AddrPort) (Reply, bool) {
		return func(req []byte, from, local netip.AddrPort) (Reply, bool) {
			if m, _ := Parse(req); m.Change != 0 {
				return change(req, from, local)
			}
			return twoAddresses.Respond(nil, req, from, local)
		}
	}
	for name, change := range map[string]simServer{
		"answers as if not asked to": func(req []byte, from, local netip.AddrPort) (Reply, bool) {
			r, ok := twoAddresses.Respond(nil, AppendBindingRequest(nil, TransactionID(req[8:headerLen]), Request{}), from, local)
			return r, ok
		},
		"refuses": serverOf(&Responder{}),
		"changes its port only": func(req []byte, from, local netip.AddrPort) (Reply, bool) {
			if m, _ := Parse(req); m.Change&ChangeIP != 0 {
				return (&Responder{}).Respond(nil, req, from, local)
			}
			return twoAddresses.Respond(nil, req, from, local)
		},
		"answers nonsense": func(req []byte, from, local netip.AddrPort) (Reply, bool) {
			b := newReply(nil, ClassSuccess, req)
			b.address(AttrXORMappedAddress, from)
			b.head(0x7f01, 0)
			return Reply{b.done(), local, from}, true
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, filtering := range allFilterings {
				w := newWorld(weft.EndpointIndependentMapping, filtering).four(&twoAddresses)
				w.servers[server4] = ignore(change)
				r, _ := discover(t, w, server4)
				want := weft.FilteringUnknown
				if name == "changes its port only" && filtering == weft.AddressAndPortDependentFiltering {
					want = filtering // the port is filtered, so the address is
				}
				if r.Mapping != weft.EndpointIndependentMapping || r.Filtering != want {
					t.Errorf("%v: found %v, %v", filtering, r.Mapping, r.Filtering)
				}
			}
		})
	}
}

func TestAnAlternateAddressThatMakesNoSenseIsNotFollowed(t *testing.T) {
	for name, other := range map[string]string{
		"the same address": "192.0.2.1:9",
		"the same port":    "192.0.2.2:3478",
		"loopback":         "127.0.0.1:9",
		"nowhere":          "0.0.0.0:9",
		"port 0":           "192.0.2.2:0",
		"multicast":        "224.0.0.1:9",
		"another family":   "[2001:db8::1]:9",
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(weft.EndpointIndependentMapping, weft.EndpointIndependentFiltering)
			w.servers[server4] = func(req []byte, from, local netip.AddrPort) (Reply, bool) {
				b := newReply(nil, ClassSuccess, req)
				b.address(AttrXORMappedAddress, from)
				b.address(AttrOtherAddress, ap(other))
				return Reply{b.done(), local, from}, true
			}
			r, _ := discover(t, w, server4)
			if r.Mapping != weft.MappingUnknown || r.Filtering != weft.FilteringUnknown || len(w.asked) != 1 {
				t.Errorf("found %v, %v; asked %v", r.Mapping, r.Filtering, w.asked)
			}
		})
	}
}

func TestLossMakesTheAnswerUnknownOrTheFilterLookClosedButNeverOpen(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		mapping := rapid.SampledFrom(allMappings).Draw(t, "mapping")
		filtering := rapid.SampledFrom(allFilterings).Draw(t, "filtering")
		w := newWorld(mapping, filtering).four(&twoAddresses).single(ap("198.51.100.1:3478"))
		w.loss = rapid.Float64Range(0, 0.9).Draw(t, "loss")
		w.rand = rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		servers := rapid.SampledFrom([][]netip.AddrPort{
			{server4},
			{server4, ap("198.51.100.1:3478")},
			{ap("198.51.100.1:3478"), server4, twoAddresses.IPv4.Alternate},
		}).Draw(t, "servers")
		r, took := w.run(NewDiscovery(w.now, DiscoveryConfig{Servers: servers, Local: simLocals, Ports: simPorts}))
		if r.Mapping != weft.MappingUnknown && r.Mapping != mapping {
			t.Errorf("found %v, and it is %v", r.Mapping, mapping)
		}
		if r.Filtering != weft.FilteringUnknown && r.Filtering < filtering {
			t.Errorf("found %v, and it is %v", r.Filtering, filtering)
		}
		if took > 15*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestADiscoveryHearsOnlyItsOwnAnswers(t *testing.T) {
	d := NewDiscovery(epoch, DiscoveryConfig{Servers: []netip.AddrPort{server4}, Ports: simPorts})
	a, _, _ := d.Poll(epoch)
	pkt, to := a.Packet, a.To
	if pkt == nil || to != server4 {
		t.Fatalf("first packet to %v", to)
	}
	stray, _ := twoAddresses.Respond(nil, AppendBindingRequest(nil, testID, Request{}), client4, server4)
	for _, b := range [][]byte{nil, {0}, pkt, stray.Packet, make([]byte, 148)} {
		if d.Handle(epoch, 0, b, server4) {
			t.Errorf("took % x", b)
		}
	}
	reply, _ := twoAddresses.Respond(nil, pkt, client4, server4)
	if !d.Handle(epoch, 0, reply.Packet, server4) {
		t.Error("did not take its answer")
	}
	if seen := d.Report().Seen; len(seen) != 1 || seen[0] != (Observation{server4, client4}) {
		t.Errorf("Seen = %v", seen)
	}
}
