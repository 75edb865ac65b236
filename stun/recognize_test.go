package stun_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/lab/vnet"
	"weft/stun"
)

var (
	mappings    = []weft.Mapping{weft.EndpointIndependentMapping, weft.AddressDependentMapping, weft.AddressAndPortDependentMapping}
	filterings  = []weft.Filtering{weft.EndpointIndependentFiltering, weft.AddressDependentFiltering, weft.AddressAndPortDependentFiltering}
	allocations = []weft.Allocation{weft.PreservingAllocation, weft.SequentialAllocation, weft.RandomAllocation}
	hairpins    = []bool{false, true}
)

// everyNAT calls f with all of RFC 4787's kinds.
func everyNAT(t *testing.T, f func(t *testing.T, c vnet.NATConfig)) {
	t.Helper()
	seed := uint64(0)
	for _, m := range mappings {
		for _, fl := range filterings {
			t.Run(m.Abbreviation()+"-"+fl.Abbreviation(), func(t *testing.T) {
				for _, a := range allocations {
					for _, h := range hairpins {
						steps := []int16{0}
						if a == weft.SequentialAllocation {
							steps = []int16{1, -1, 2, 7}
						}
						for _, s := range steps {
							seed++
							f(t, vnet.NATConfig{Mapping: m, Filtering: fl, Allocation: a, Step: s, Hairpin: h, Seed: seed})
						}
					}
				}
			})
		}
	}
}

// A fleet is which servers there are, and what can be known by them.
type fleet struct {
	servers []netip.AddrPort
	build   func(w *world) *world
	// knowable cuts what a NAT is down to what these servers can tell.
	knowable func(weft.NAT) weft.NAT
}

var fleets = map[string]fleet{
	"two relays": {
		[]netip.AddrPort{relayA, relayB},
		func(w *world) *world { return w.relay(relayA, 2).relay(relayB, 2).probing(relayA, relayB) },
		func(n weft.NAT) weft.NAT { return n },
	},
	"two relays of which one probes": {
		[]netip.AddrPort{relayA, relayB},
		func(w *world) *world { return w.relay(relayA, 2).relay(relayB, 2).probing(relayA) },
		func(n weft.NAT) weft.NAT { return n },
	},
	"two relays of which none probes": {
		[]netip.AddrPort{relayA, relayB},
		func(w *world) *world { return w.relay(relayA, 2).relay(relayB, 2) },
		onlyPortFiltering,
	},
	"a relay with two ports and one with one, which probes": {
		[]netip.AddrPort{relayB, relayA},
		func(w *world) *world { return w.relay(relayA, 2).relay(relayB, 1).probing(relayB) },
		func(n weft.NAT) weft.NAT { return n },
	},
	"two relays with one port each": {
		[]netip.AddrPort{relayA, relayB},
		func(w *world) *world { return w.relay(relayA, 1).relay(relayB, 1).probing(relayA, relayB) },
		func(n weft.NAT) weft.NAT {
			if n.Filtering != weft.EndpointIndependentFiltering {
				n.Filtering = weft.FilteringUnknown
			}
			if n.Mapping > weft.EndpointIndependentMapping {
				n.Mapping = weft.MappingUnknown
			}
			return n
		},
	},
	"one relay with two ports": {
		[]netip.AddrPort{relayA},
		func(w *world) *world { return w.relay(relayA, 2).probing(relayA) },
		func(n weft.NAT) weft.NAT {
			n = onlyPortFiltering(n)
			if n.Mapping == weft.EndpointIndependentMapping || n.Mapping == weft.AddressDependentMapping {
				n.Mapping = weft.MappingUnknown
			}
			return n
		},
	},
	"one relay with one port": {
		[]netip.AddrPort{relayA},
		func(w *world) *world { return w.relay(relayA, 1).probing(relayA) },
		func(n weft.NAT) weft.NAT {
			n.Filtering = weft.FilteringUnknown
			if n.Mapping != weft.NoNAT {
				n.Mapping = weft.MappingUnknown
			}
			return n
		},
	},
	"a server with two addresses": {
		[]netip.AddrPort{fourSockets.IPv4.Primary},
		func(w *world) *world { return w.four(&fourSockets) },
		func(n weft.NAT) weft.NAT { return n },
	},
}

var fourSockets = stun.Responder{IPv4: stun.Alternates{Primary: ap("192.0.2.1:3478"), Alternate: ap("192.0.2.2:3479")}}

func onlyPortFiltering(n weft.NAT) weft.NAT {
	if n.Filtering != weft.AddressAndPortDependentFiltering {
		n.Filtering = weft.FilteringUnknown
	}
	return n
}

// told is what a fleet can tell of a NAT: the fleet's part, and what can be known of hairpinning by the rest. A
// packet by hairpin arrives where it is known by which port it leaves, or the filter does not mind. That none
// arrives means something where that is known to be so.
func (f fleet) told(n weft.NAT) weft.NAT {
	known := f.knowable(n)
	arrives := n.Mapping == weft.EndpointIndependentMapping || n.Filtering == weft.EndpointIndependentFiltering
	expected := known.Filtering == weft.EndpointIndependentFiltering ||
		known.Mapping == weft.EndpointIndependentMapping && known.Filtering != weft.FilteringUnknown
	switch {
	case n.Hairpin == weft.Supported && !arrives, n.Hairpin == weft.Unsupported && !expected, n.Mapping == weft.NoNAT:
		known.Hairpin = weft.SupportUnknown
	}
	return known
}

func TestWhatAFleetCanTellOfANATIsFoundAndNothingElseClaimed(t *testing.T) {
	for name, f := range fleets {
		t.Run(name, func(t *testing.T) {
			everyNAT(t, func(t *testing.T, c vnet.NATConfig) {
				w := f.build(newWorld(t, c))
				r, took := w.discover(t, f.servers...)
				if want := f.told(w.nat.Config().NAT()); r.NAT != want {
					t.Errorf("%v: found %+v, want %+v", w.nat, r.NAT, want)
				}
				if want := c.Mapping != weft.EndpointIndependentMapping; r.Varies != want && len(r.Seen) > 2 && r.Mapping != weft.MappingUnknown {
					t.Errorf("%v: varies: %v", w.nat, r.Varies)
				}
				if !slices.Equal(r.Outside, publics[:1]) {
					t.Errorf("%v: outside %v", w.nat, r.Outside)
				}
				if took > 6*time.Second || w.sent > 90 {
					t.Errorf("%v: %d packets in %v", w.nat, w.sent, took)
				}
			})
		})
	}
}

func TestWithoutANATTheFilterIsFoundAllTheSame(t *testing.T) {
	for name, f := range fleets {
		for _, fl := range filterings {
			t.Run(name+"/"+fl.Abbreviation(), func(t *testing.T) {
				w := f.build(newWorld(t, vnet.NATConfig{Mapping: weft.NoNAT, Filtering: fl}))
				r, _ := w.discover(t, f.servers...)
				if want := f.told(weft.NAT{Mapping: weft.NoNAT, Filtering: fl}); r.NAT != want {
					t.Errorf("found %+v, want %+v", r.NAT, want)
				}
			})
		}
	}
}

func TestThePublicInternetLooksLikeAnOpenFilter(t *testing.T) {
	w := newWorld(t, vnet.NATConfig{Mapping: weft.NoNAT})
	w = fleets["two relays"].build(w)
	r, took := w.discover(t, relayA, relayB)
	if want := (weft.NAT{Mapping: weft.NoNAT, Filtering: weft.EndpointIndependentFiltering}); r.NAT != want || took > 3*time.Second {
		t.Errorf("found %v in %v", r.NAT, took)
	}
}

// wrong is what of a finding is not so.
func wrong(found, truth weft.NAT) (list []string) {
	if found.Mapping != weft.MappingUnknown && found.Mapping != truth.Mapping {
		list = append(list, fmt.Sprint("mapping ", found.Mapping))
	}
	if found.Filtering != weft.FilteringUnknown && found.Filtering != truth.Filtering {
		list = append(list, fmt.Sprint("filtering ", found.Filtering))
	}
	if found.Allocation != weft.AllocationUnknown && (found.Allocation != truth.Allocation || found.Step != truth.Step) {
		list = append(list, fmt.Sprint("allocation ", found.Allocation, " ", found.Step))
	}
	if found.Hairpin != weft.SupportUnknown && found.Hairpin != truth.Hairpin {
		list = append(list, fmt.Sprint("hairpin ", found.Hairpin))
	}
	return list
}

func TestLossNeverMakesAnAnswerWrong(t *testing.T) {
	for _, tc := range []struct {
		loss  float64
		seeds uint64
		whole float64 // how many of a hundred discoveries find all, at least
	}{{0.05, 12, 90}, {0.15, 6, 40}} {
		t.Run(fmt.Sprint(tc.loss), func(t *testing.T) {
			for name, f := range fleets {
				whole, all := 0, 0
				everyNAT(t, func(t *testing.T, c vnet.NATConfig) {
					for seed := range tc.seeds {
						c := c
						c.Seed = c.Seed*1000 + seed
						w := f.build(newWorld(t, c))
						w.loss = tc.loss
						r, _ := w.discover(t, f.servers...)
						if bad := wrong(r.NAT, w.nat.Config().NAT()); bad != nil {
							t.Errorf("%s, %v, seed %d: %v", name, w.nat, c.Seed, bad)
						}
						all++
						if r.NAT == f.told(w.nat.Config().NAT()) {
							whole++
						}
					}
				})
				share := 100 * float64(whole) / float64(all)
				t.Logf("%s: %.1f %% of %d discoveries found all there is to know", name, share, all)
				if share < tc.whole {
					t.Errorf("%s: only %.1f %% of the discoveries found all there is to know", name, share)
				}
			}
		})
	}
}

// So much is lost that silence can be told from a filter by luck only, and what is seen to be lost says so.
func TestWhereMuchIsLostSilenceIsHardlyBelieved(t *testing.T) {
	all, bad := 0, 0
	for _, name := range []string{"two relays", "a server with two addresses"} {
		f := fleets[name]
		everyNAT(t, func(t *testing.T, c vnet.NATConfig) {
			for seed := range uint64(6) {
				c := c
				c.Seed = c.Seed*1000 + seed
				w := f.build(newWorld(t, c))
				w.loss = 0.35
				r, _ := w.discover(t, f.servers...)
				if all++; wrong(r.NAT, w.nat.Config().NAT()) != nil {
					bad++
				}
			}
		})
	}
	t.Logf("%d of %d discoveries said something wrong", bad, all)
	if bad*200 > all {
		t.Errorf("%d of %d discoveries said something wrong", bad, all)
	}
}

func TestAnyNATAndAnyLossIsFoundRightOrNotAtAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := vnet.NATConfig{
			Mapping:    rapid.SampledFrom(mappings).Draw(t, "mapping"),
			Filtering:  rapid.SampledFrom(filterings).Draw(t, "filtering"),
			Allocation: rapid.SampledFrom(allocations).Draw(t, "allocation"),
			Hairpin:    rapid.Bool().Draw(t, "hairpin"),
			Spoils:     rapid.Bool().Draw(t, "spoils"),
			OpensLate:  time.Duration(rapid.IntRange(0, 500).Draw(t, "opens late, ms")) * time.Millisecond,
			Public:     publics[:rapid.IntRange(1, 4).Draw(t, "addresses")],
			Pooling:    rapid.SampledFrom([]vnet.Pooling{vnet.PairedPooling, vnet.ArbitraryPooling}).Draw(t, "pooling"),
			Seed:       rapid.Uint64().Draw(t, "seed"),
		}
		if c.Allocation == weft.SequentialAllocation {
			c.Step = int16(rapid.SampledFrom([]int{1, 2, 3, -1, -2, 64, 1000, -3000, 9999}).Draw(t, "step"))
		}
		n, err := vnet.NewNAT(c)
		if err != nil {
			t.Fatal(err)
		}
		f := fleets[rapid.SampledFrom([]string{"two relays", "two relays with one port each", "one relay with two ports", "a server with two addresses"}).Draw(t, "fleet")]
		w := newWorld(noTB, vnet.NATConfig{Mapping: weft.NoNAT, Seed: c.Seed})
		w.nat = n
		w = f.build(w)
		w.loss = rapid.SampledFrom([]float64{0, 0.02, 0.1}).Draw(t, "loss")
		w.rtt = time.Duration(rapid.IntRange(1, 700).Draw(t, "RTT, ms")) * time.Millisecond
		r, took := w.discover(noTB, f.servers...)
		if bad := wrong(r.NAT, n.Config().NAT()); bad != nil {
			t.Errorf("%v: %v", n, bad)
		}
		if took > 40*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// noTB fails by panic, where rapid catches it.
var noTB = fatal{}

type fatal struct{ testing.TB }

func (fatal) Helper()                        {}
func (fatal) Errorf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
func (fatal) Fatalf(format string, v ...any) { panic(fmt.Sprintf(format, v...)) }
func (fatal) Fatal(v ...any)                 { panic(fmt.Sprint(v...)) }
