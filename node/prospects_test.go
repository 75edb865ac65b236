package node

import (
	"net/netip"
	"strings"
	"testing"

	"weft"
	"weft/lab/vnet"
	"weft/stun"
)

// The oracle says what is possible between two kinds of NAT; what a person is told of one must hold for all others.
func TestWhatIsSaidOfDirectConnectionsIsWhatTheOracleSays(t *testing.T) {
	var kinds []vnet.NATConfig
	for m := weft.EndpointIndependentMapping; m <= weft.AddressAndPortDependentMapping; m++ {
		for f := weft.EndpointIndependentFiltering; f <= weft.AddressAndPortDependentFiltering; f++ {
			for a := weft.PreservingAllocation; a <= weft.RandomAllocation; a++ {
				kinds = append(kinds, vnet.NATConfig{Mapping: m, Filtering: f, Allocation: a, Public: []netip.Addr{netip.MustParseAddr("203.0.113.9")}})
			}
		}
	}
	for _, own := range kinds {
		never, guessed := 0, 0
		for _, other := range kinds {
			switch way, _ := vnet.Possible(vnet.Side{NATs: []vnet.NATConfig{own}}, vnet.Side{NATs: []vnet.NATConfig{other}}); way {
			case vnet.Never:
				never++
			case vnet.Spray, vnet.Predict:
				guessed++
			}
		}
		said := prospects(stun.Report{NAT: own.NAT(), Outside: own.Public})[0]
		if every := strings.Contains(said, "every peer"); every != (never == 0) {
			t.Errorf("%v: %d of %d kinds of peer are never reached, and it says: %s", own.NAT(), never, len(kinds), said)
		}
		if guess := strings.Contains(said, "guess"); guess != (guessed > 0) {
			t.Errorf("%v: %d of %d kinds of peer are reached by guessing, and it says: %s", own.NAT(), guessed, len(kinds), said)
		}
	}
}

func TestWhatIsNotKnownIsSaidWithTheReason(t *testing.T) {
	addr := netip.MustParseAddrPort
	one := []stun.Observation{{Server: addr("192.0.2.1:1"), Mapped: addr("203.0.113.9:7")}}
	two := append(one, stun.Observation{Server: addr("192.0.2.2:1"), Mapped: addr("203.0.113.9:7")})
	outside := []netip.Addr{netip.MustParseAddr("203.0.113.9")}
	full := weft.NAT{Mapping: weft.EndpointIndependentMapping, Filtering: weft.AddressDependentFiltering, Hairpin: weft.Supported}
	for name, tc := range map[string]struct {
		report stun.Report
		want   []string // words of each sentence but the first
	}{
		"all is known":        {stun.Report{NAT: full, Seen: two, Outside: outside}, nil},
		"one relay":           {stun.Report{Seen: one, Outside: outside}, []string{"second relay"}},
		"two relays":          {stun.Report{NAT: weft.NAT{Mapping: full.Mapping}, Seen: two, Outside: outside}, []string{"could not be told apart"}},
		"no hairpin":          {stun.Report{NAT: weft.NAT{Mapping: full.Mapping, Filtering: full.Filtering, Hairpin: weft.Unsupported}, Seen: two, Outside: outside}, []string{"does not hairpin"}},
		"addresses are mixed": {stun.Report{NAT: full, Seen: two, Outside: append(outside, netip.MustParseAddr("203.0.113.10"))}, []string{"several outside addresses"}},
	} {
		t.Run(name, func(t *testing.T) {
			said := prospects(tc.report)[1:]
			if len(said) != len(tc.want) {
				t.Fatalf("said %q", said)
			}
			for i, want := range tc.want {
				if !strings.Contains(said[i], want) {
					t.Errorf("%q does not say %q", said[i], want)
				}
			}
		})
	}
}
