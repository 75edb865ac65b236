package stun

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weft"
)

// see is an observation: a server, and the outside port it saw.
func see(server string, mappedPort uint16) Observation {
	return Observation{ap(server), netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), mappedPort)}
}

func TestMappingIsWhatTheObservationsLeave(t *testing.T) {
	const (
		a1, a2 = "192.0.2.1:1", "192.0.2.1:2"
		b1, b2 = "192.0.2.2:1", "192.0.2.2:2"
		c3     = "192.0.2.3:3"
	)
	for name, tc := range map[string]struct {
		seen   []Observation
		want   weft.Mapping
		varies bool
	}{
		"nothing":                              {nil, weft.MappingUnknown, false},
		"one server":                           {[]Observation{see(a1, 7)}, weft.MappingUnknown, false},
		"one server twice":                     {[]Observation{see(a1, 7), see(a1, 7)}, weft.MappingUnknown, false},
		"two addresses agree":                  {[]Observation{see(a1, 7), see(b1, 7)}, weft.EndpointIndependentMapping, false},
		"two addresses and ports agree":        {[]Observation{see(a1, 7), see(b2, 7)}, weft.EndpointIndependentMapping, false},
		"two addresses differ":                 {[]Observation{see(a1, 7), see(b1, 8)}, weft.MappingUnknown, true},
		"three addresses differ":               {[]Observation{see(a1, 7), see(b1, 8), see(c3, 9)}, weft.MappingUnknown, true},
		"two ports agree":                      {[]Observation{see(a1, 7), see(a2, 7)}, weft.MappingUnknown, false},
		"two ports differ":                     {[]Observation{see(a1, 7), see(a2, 8)}, weft.AddressAndPortDependentMapping, true},
		"ports agree, addresses agree":         {[]Observation{see(a1, 7), see(a2, 7), see(b1, 7)}, weft.EndpointIndependentMapping, false},
		"ports agree, addresses differ":        {[]Observation{see(a1, 7), see(a2, 7), see(b1, 8)}, weft.AddressDependentMapping, true},
		"ports agree at the other":             {[]Observation{see(a1, 7), see(b1, 8), see(b2, 8)}, weft.AddressDependentMapping, true},
		"ports differ, addresses differ":       {[]Observation{see(a1, 7), see(a2, 8), see(b1, 9)}, weft.AddressAndPortDependentMapping, true},
		"addresses agree and differ":           {[]Observation{see(a1, 7), see(b1, 7), see(c3, 8)}, weft.MappingUnknown, true},
		"one server changed its mind":          {[]Observation{see(a1, 7), see(a1, 8), see(b1, 7)}, weft.MappingUnknown, false},
		"the outside address differs":          {[]Observation{see(a1, 7), {ap(b1), ap("203.0.113.10:7")}}, weft.MappingUnknown, true},
		"two families":                         {[]Observation{see(a1, 7), see("[2001:db8::1]:1", 7)}, weft.MappingUnknown, false},
		"two spellings of one address, agree":  {[]Observation{see(a1, 7), see("[::ffff:192.0.2.1]:1", 7)}, weft.MappingUnknown, false},
		"two spellings of one address, differ": {[]Observation{see(a1, 7), see("[::ffff:192.0.2.1]:1", 8)}, weft.MappingUnknown, false},
	} {
		t.Run(name, func(t *testing.T) {
			for range 2 {
				if got := ClassifyMapping(tc.seen, ap("10.0.0.1:7")); got != tc.want {
					t.Errorf("%v, want %v", got, tc.want)
				}
				if got := MappingVaries(tc.seen); got != tc.varies {
					t.Errorf("varies %v, want %v", got, tc.varies)
				}
				slices.Reverse(tc.seen) // the order must not matter
			}
		})
	}
}

func TestNoNATIsToBeSeenUnderOnesOwnAddress(t *testing.T) {
	seen := []Observation{see("192.0.2.1:1", 7), see("192.0.2.2:1", 7)}
	own := ap("203.0.113.9:7")
	if got := ClassifyMapping(seen, ap("10.0.0.1:7"), own); got != weft.NoNAT {
		t.Errorf("two servers, own address: %v", got)
	}
	if got := ClassifyMapping(seen[:1], own); got != weft.NoNAT {
		t.Errorf("one server, own address: %v", got)
	}
	if got := ClassifyMapping(seen); got != weft.EndpointIndependentMapping {
		t.Errorf("own address not known: %v; it must not be guessed", got)
	}
	if got := ClassifyMapping(append(seen, see("192.0.2.3:1", 8)), own); got == weft.NoNAT {
		t.Error("one server saw another address, and still no NAT")
	}
}

// Whatever the NAT does, any set of servers finds out that or nothing.
func TestAMappingIsFoundRightOrNotAtAll(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		truth := rapid.SampledFrom([]weft.Mapping{weft.EndpointIndependentMapping, weft.AddressDependentMapping, weft.AddressAndPortDependentMapping}).Draw(t, "truth")
		n := map[netip.AddrPort]uint16{} // outside ports by what they depend on
		var seen []Observation
		addrs, ports := map[netip.Addr]bool{}, map[netip.Addr]map[uint16]bool{}
		pairs := false
		for range rapid.IntRange(0, 6).Draw(t, "servers") {
			s := netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, rapid.ByteRange(1, 3).Draw(t, "address")}),
				rapid.Uint16Range(1, 3).Draw(t, "port"))
			key := s
			switch truth {
			case weft.AddressDependentMapping:
				key = netip.AddrPortFrom(s.Addr(), 0)
			case weft.EndpointIndependentMapping:
				key = netip.AddrPort{}
			}
			if n[key] == 0 {
				n[key] = uint16(61000 + len(n))
			}
			seen = append(seen, see(s.String(), n[key]))
			addrs[s.Addr()] = true
			if ports[s.Addr()] == nil {
				ports[s.Addr()] = map[uint16]bool{}
			}
			ports[s.Addr()][s.Port()] = true
			pairs = pairs || len(ports[s.Addr()]) > 1
		}
		got := ClassifyMapping(seen, ap("10.0.0.5:50000"))
		if got != weft.MappingUnknown && got != truth {
			t.Fatalf("%v, and it is %v", got, truth)
		}
		enough := map[weft.Mapping]bool{
			weft.EndpointIndependentMapping:     len(addrs) > 1,
			weft.AddressDependentMapping:        len(addrs) > 1 && pairs,
			weft.AddressAndPortDependentMapping: pairs,
		}[truth]
		if enough && got != truth {
			t.Fatalf("%v in spite of enough servers to see that it is %v: %v", got, truth, seen)
		}
	})
}
