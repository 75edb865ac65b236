package cli

import (
	"bytes"
	"net/netip"
	"testing"

	"weft"

	"weft/golden"
)

func TestANetcheckReadsAsAPersonWouldSayIt(t *testing.T) {
	addr := netip.MustParseAddrPort
	var got bytes.Buffer
	a := &app{out: &got}
	for _, n := range []weft.Netcheck{
		{
			UDP: true,
			IPv4: weft.NetcheckFamily{
				Works: true, Mapped: addr("203.0.113.9:61000"),
				Mapping: "Address and Port-Dependent Mapping", Filtering: "Address-Dependent Filtering",
				NAT: weft.NAT{
					Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressDependentFiltering,
					Allocation: weft.SequentialAllocation, Step: 2, Hairpin: weft.Unsupported,
				},
				Outside:   []netip.Addr{addr("203.0.113.9:61000").Addr()},
				Prospects: []string{"This is what it means.", "And this is not known."},
			},
			IPv6: weft.NetcheckFamily{
				Works: true, Mapped: addr("[2001:db8::7]:50000"), Mapping: "No NAT", Filtering: "Address and Port-Dependent Filtering",
				NAT: weft.NAT{Mapping: weft.NoNAT, Filtering: weft.AddressAndPortDependentFiltering}, Prospects: []string{"This is, too."},
			},
			Relays:    []weft.NetcheckRelay{{Name: "home", UDPms: 12.34, StreamMS: 13, Stream: "upgrade"}, {Name: "away", Error: "no such host"}},
			Interface: []string{"10.0.0.5", "2001:db8::7"},
		},
		{
			UDP: true,
			Links: []weft.NetcheckLink{
				{Link: 2, Interface: "eth1", IPv4: weft.NetcheckFamily{
					Works: true, Mapped: addr("203.0.113.9:61000"), Mapping: "Endpoint-Independent Mapping", Filtering: "unknown",
					NAT: weft.NAT{Mapping: weft.EndpointIndependentMapping}, Prospects: []string{"This is what it means."},
				}},
				{Link: 1, Interface: "wwan0"},
			},
			Relays: []weft.NetcheckRelay{{Name: "home", UDPms: 12.34, StreamMS: 13, Stream: "upgrade"}}, Interface: []string{"10.0.0.5"},
		},
		{
			IPv4: weft.NetcheckFamily{Mapping: "unknown", Filtering: "unknown"}, IPv6: weft.NetcheckFamily{Mapping: "unknown", Filtering: "unknown"},
			Relays:   []weft.NetcheckRelay{{Name: "home", StreamMS: 13, Stream: "websocket"}},
			Problems: []string{"no STUN server answers over UDP"},
		},
	} {
		a.printNetcheck(n)
		got.WriteString("\n----\n")
	}
	golden.Text(t, "netcheck.txt", got.String())
}
