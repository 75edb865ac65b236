package vnet

import (
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
)

// anyConfig draws a NAT with every knob.
func anyConfig(t *rapid.T) NATConfig {
	c := NATConfig{
		Mapping: rapid.SampledFrom([]weft.Mapping{weft.NoNAT, weft.EndpointIndependentMapping,
			weft.AddressDependentMapping, weft.AddressAndPortDependentMapping}).Draw(t, "mapping"),
		Filtering:      rapid.SampledFrom(filterings).Draw(t, "filtering"),
		Timeout:        time.Duration(rapid.IntRange(1, 60).Draw(t, "timeout")) * time.Second,
		RefreshInbound: rapid.Bool().Draw(t, "refresh"),
		MaxMappings:    rapid.SampledFrom([]int{0, 0, 3}).Draw(t, "max"),
		MaxPerHost:     rapid.SampledFrom([]int{0, 0, 2}).Draw(t, "per host"),
		OpensLate:      time.Duration(rapid.SampledFrom([]int{0, 0, 1500}).Draw(t, "late")) * time.Millisecond,
		BlockUDP:       rapid.IntRange(0, 30).Draw(t, "blocked") == 0,
		Seed:           rapid.Uint64().Draw(t, "seed"),
	}
	if c.Mapping == weft.NoNAT {
		return c
	}
	c.Allocation = rapid.SampledFrom([]weft.Allocation{weft.PreservingAllocation, weft.SequentialAllocation,
		weft.RandomAllocation}).Draw(t, "allocation")
	if c.Allocation == weft.SequentialAllocation {
		c.Step = rapid.SampledFrom([]int16{1, 2, 3, -1, -5, 21503}).Draw(t, "step")
	}
	c.Pooling = rapid.SampledFrom([]Pooling{PairedPooling, ArbitraryPooling}).Draw(t, "pooling")
	c.Spoils = rapid.Bool().Draw(t, "spoils")
	c.Hairpin = rapid.Bool().Draw(t, "hairpin")
	for i := range rapid.IntRange(1, 3).Draw(t, "pool") {
		c.Public = append(c.Public, netip.AddrFrom4([4]byte{198, 51, 100, byte(i + 1)}))
	}
	return c
}

func endpoints(addresses []string, ports ...uint16) (all []netip.AddrPort) {
	for _, a := range addresses {
		for _, p := range ports {
			all = append(all, netip.AddrPortFrom(netip.MustParseAddr(a), p))
		}
	}
	return all
}

var (
	insides = endpoints([]string{"10.0.0.2", "10.0.0.3"}, 5000, 5001)
	remotes = endpoints([]string{"203.0.113.1", "203.0.113.2", "203.0.113.3"}, 7000, 7001)
)

func TestTheNATIsTheOneThatIsObviouslyRight(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := anyConfig(t)
		n, err := NewNAT(c)
		if err != nil {
			t.Fatal(err)
		}
		slow := &slowNAT{c: n.Config(), last: map[netip.Addr]uint16{}}
		now := start
		seen := slices.Clone(insides)
		for _, a := range c.Public {
			seen = append(seen, netip.AddrPortFrom(a, 5000)) // where a port may be preserved
		}
		out := func(src, dst netip.AddrPort) netip.AddrPort {
			outside, v := n.Outbound(now, src, dst)
			if err := slow.outbound(now, src, dst, outside, v); err != nil {
				t.Fatalf("%v: %v", now.Sub(start), err)
			}
			if v == Forward && !slices.Contains(seen, outside) {
				seen = append(seen, outside)
			}
			return outside
		}
		in := func(src, dst netip.AddrPort) {
			inside, v := n.Inbound(now, src, dst)
			if want, wantV := slow.inbound(now, src, dst); inside != want || v != wantV {
				t.Fatalf("%v: from %v to %v: %v %v, want %v %v", now.Sub(start), src, dst, inside, v, want, wantV)
			}
		}
		anInside, aRemote := rapid.SampledFrom(insides), rapid.SampledFrom(remotes)
		t.Repeat(map[string]func(*rapid.T){
			"out": func(t *rapid.T) { out(anInside.Draw(t, "from"), aRemote.Draw(t, "to")) },
			"in":  func(t *rapid.T) { in(aRemote.Draw(t, "from"), rapid.SampledFrom(seen).Draw(t, "to")) },
			"again": func(t *rapid.T) {
				src, dst := anInside.Draw(t, "from"), aRemote.Draw(t, "to")
				if outside := out(src, dst); outside.IsValid() {
					in(dst, outside)
				}
			},
			"hairpin": func(t *rapid.T) {
				if c.Mapping == weft.NoNAT || c.BlockUDP {
					t.Skip()
				}
				src, dst := anInside.Draw(t, "from"), rapid.SampledFrom(seen).Draw(t, "to")
				if !n.Owns(dst.Addr()) {
					t.Skip()
				}
				newSrc, newDst, v := n.Hairpin(now, src, dst)
				if !c.Hairpin {
					if v != DropNoHairpin {
						t.Fatal(v)
					}
					return
				}
				hairpinned(t, n, slow, now, src, dst, newSrc, newDst, v)
			},
			"wait": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 70_000).Draw(t, "ms")) * time.Millisecond)
			},
			"hasten": func(t *rapid.T) {
				now = now.Add(time.Duration(rapid.IntRange(0, 1600).Draw(t, "ms")) * time.Millisecond)
			},
			"forget": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					n.Forget()
					slow.mappings, slow.replies, slow.spoiled, slow.last = nil, nil, nil, map[netip.Addr]uint16{}
				}
			},
			"rebind": func(t *rapid.T) {
				if rapid.IntRange(0, 9).Draw(t, "seldom") == 0 {
					rebound(t, n, slow, now)
				}
			},
			"": func(t *rapid.T) { counted(t, n, slow, now) },
		})
	})
}

// hairpinned holds a hairpin against its two halves.
func hairpinned(t *rapid.T, n *NAT, slow *slowNAT, now time.Time, src, dst, newSrc, newDst netip.AddrPort, v Verdict) {
	slow.expire(now)
	if v == DropTableFull {
		if err := slow.outbound(now, src, dst, netip.AddrPort{}, v); err != nil {
			t.Fatal(err)
		}
		return
	}
	left := newSrc
	if v != HairpinBack { // it left before it was refused, but only the NAT knows by what
		s := n.replies[flow{src, dst}]
		if s == nil {
			t.Fatalf("%v to %v: %v, without a mapping", src, dst, v)
		}
		left = s.m.outside
	}
	if err := slow.outbound(now, src, dst, left, Forward); err != nil {
		t.Fatal(err)
	}
	inside, want := slow.inbound(now, left, dst)
	if want == Forward {
		want = HairpinBack
	}
	if v != want || newDst != inside {
		t.Fatalf("hairpin from %v to %v: %v %v, want %v %v", src, dst, newDst, v, inside, want)
	}
}

// rebound moves the mappings of both, and sees that they have moved.
func rebound(t *rapid.T, n *NAT, slow *slowNAT, now time.Time) {
	was := maps.Clone(n.outside)
	n.Rebind(now)
	slow.expire(now)
	if n.config.Mapping == weft.NoNAT {
		return
	}
	for old, m := range was {
		for _, s := range slow.mappings {
			if s.outside == old && s.inside == m.inside && m.sessions > 0 {
				if m.outside == old {
					t.Fatalf("%v has not moved", old)
				}
			}
		}
	}
	moved := map[netip.AddrPort]netip.AddrPort{}
	for old, m := range was {
		moved[old] = m.outside
	}
	for _, s := range slow.mappings {
		s.outside = moved[s.outside]
	}
	for i, a := range n.config.Public {
		slow.last[a] = stepFrom(n.next[i], -int(n.config.Step))
	}
}

// counted holds against the model how much is in the tables.
func counted(t *rapid.T, n *NAT, slow *slowNAT, now time.Time) {
	n.tick(now)
	slow.expire(now)
	sessions, used := 0, 0
	for _, m := range slow.mappings {
		sessions += len(m.sessions)
	}
	for _, u := range n.used {
		used += u
	}
	if n.config.Mapping == weft.NoNAT {
		used = len(n.outside)
	}
	if len(n.outside) != len(slow.mappings) || used != len(slow.mappings) || len(n.sessions) != sessions ||
		len(n.replies) != len(slow.replies) || len(n.spoiled) != len(slow.spoiled) {
		t.Fatalf("%d mappings, %d ports, %d sessions, %d replies, %d spoiled; want %d, %d, %d, %d, %d", len(n.outside),
			used, len(n.sessions), len(n.replies), len(n.spoiled), len(slow.mappings), len(slow.mappings), sessions,
			len(slow.replies), len(slow.spoiled))
	}
	var last time.Duration
	for s := n.order.next; s != &n.order; s = s.next {
		if s.expires < last {
			t.Fatal("sessions are out of order")
		}
		last = s.expires
	}
}
