package stun

import (
	"math/rand/v2"
	"net/netip"
	"testing"

	"pgregory.net/rapid"

	"weft"
)

// mapped are what sockets at ports 40000, 40007 and so on got, in the order in which they sent.
func mapped(ports ...int) (list []Allocated) {
	for i, p := range ports {
		list = append(list, Allocated{Port: uint16(40000 + 7*i), Mapped: netip.AddrPortFrom(netip.MustParseAddr("203.0.113.9"), uint16(p))})
	}
	return list
}

func TestAllocationIsWhatThePortsLeave(t *testing.T) {
	const (
		unknown    = weft.AllocationUnknown
		preserving = weft.PreservingAllocation
		sequential = weft.SequentialAllocation
		random     = weft.RandomAllocation
	)
	for name, tc := range map[string]struct {
		list []Allocated
		want weft.Allocation
		step int16
	}{
		"nothing":                        {nil, unknown, 0},
		"one":                            {mapped(5000), unknown, 0},
		"one kept":                       {mapped(40000), unknown, 0},
		"two kept":                       {mapped(40000, 40007), preserving, 0},
		"kept but where it was taken":    {mapped(40000, 1234, 40014, 40021), preserving, 0},
		"mostly not kept":                {mapped(40000, 1234, 60000, 40021, 9999, 30000), unknown, 0},
		"one kept by chance":             {mapped(40000, 1234, 60000, 33000, 9999, 30000), unknown, 0},
		"two in a row":                   {mapped(5000, 5001), unknown, 0},
		"three in a row":                 {mapped(5000, 5001, 5002), sequential, 1},
		"three in a row, downwards":      {mapped(5000, 4998, 4996), sequential, -2},
		"three far apart, evenly":        {mapped(5000, 8000, 11000), unknown, 0},
		"four far apart, evenly":         {mapped(5000, 8000, 11000, 14000), sequential, 3000},
		"somebody took one":              {mapped(5000, 5001, 5003, 5004, 5005, 5006), sequential, 1},
		"somebody took many":             {mapped(5000, 5004, 5009, 5011, 5030, 5036), unknown, 0},
		"one was lost":                   {mapped(5000, 5004, 5012, 5016, 5020), sequential, 4},
		"half are alike":                 {mapped(5000, 5001, 5002, 5012, 5020), sequential, 1},
		"the less are alike":             {mapped(5000, 5001, 5002, 5012, 5020, 5033), unknown, 0},
		"no multiple":                    {mapped(5000, 5002, 5004, 5006, 5009), unknown, 0},
		"round the end":                  {mapped(65533, 65534, 65535, 1024, 1025), sequential, 1},
		"round the end of a small range": {mapped(60997, 60998, 60999, 49152, 49153), sequential, 1},
		"round the beginning, downwards": {mapped(1026, 1025, 1024, 65535, 65534), sequential, -1},
		"to and fro by one":              {mapped(5000, 5001, 5000, 5001, 5000), unknown, 0},
		"the same for all":               {mapped(5000, 5000, 5000), unknown, 0},
		"at random":                      {mapped(61712, 3312, 20991, 45021, 9987, 33318), random, 0},
		"at random, of a block":          {mapped(20100, 20400, 20020, 20311, 20077, 20250), random, 0},
		"at random, but few":             {mapped(61712, 3312, 20991), unknown, 0},
		"two addresses, one row": {[]Allocated{
			{1, ap("203.0.113.9:5000")}, {2, ap("203.0.113.10:5001")}, {3, ap("203.0.113.9:5002")}, {4, ap("203.0.113.10:5003")},
		}, sequential, 1},
		"two addresses, each a row": {[]Allocated{
			{1, ap("203.0.113.9:5000")}, {2, ap("203.0.113.10:30000")}, {3, ap("203.0.113.9:5003")}, {4, ap("203.0.113.10:30003")},
			{5, ap("203.0.113.10:30006")}, {6, ap("203.0.113.9:5006")},
		}, sequential, 3},
		"two addresses, each a row, and round the end": {[]Allocated{
			{1, ap("203.0.113.9:65535")}, {2, ap("203.0.113.10:65535")}, {3, ap("203.0.113.9:1024")}, {4, ap("203.0.113.10:1024")},
			{5, ap("203.0.113.10:1025")}, {6, ap("203.0.113.9:1025")},
		}, sequential, 1},
		"four addresses, each once": {[]Allocated{
			{1, ap("203.0.113.9:61712")}, {2, ap("203.0.113.10:3312")}, {3, ap("203.0.113.11:20991")}, {4, ap("203.0.113.12:45021")},
		}, unknown, 0},
	} {
		t.Run(name, func(t *testing.T) {
			if got, step := ClassifyAllocation(tc.list); got != tc.want || step != tc.step {
				t.Errorf("%v, %d; want %v, %d", got, step, tc.want, tc.step)
			}
		})
	}
}

// Neighbours take ports of a sequence in between, as many and as often as they like.
func TestABusySequenceIsNotTakenForRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		step := rapid.SampledFrom([]int{1, -1, 2, -2, 4}).Draw(t, "step")
		port := rapid.IntRange(1024, 65535).Draw(t, "first")
		var ports []int
		for range rapid.IntRange(0, 6).Draw(t, "sockets") {
			ports = append(ports, port)
			port += step * (1 + rapid.IntRange(0, 200).Draw(t, "taken"))
			port = 1024 + (port-1024+64512)%64512
		}
		switch got, found := ClassifyAllocation(mapped(ports...)); {
		case got == weft.AllocationUnknown, got == weft.SequentialAllocation && int(found)%step == 0 && int(found)/step > 0:
		default:
			t.Errorf("%v is %v, %d", ports, got, found)
		}
	})
}

func TestRandomPortsAreSeenToBeRandom(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const rounds = 200_000
	known := 0
	for range rounds {
		var ports []int
		for range DiscoverySockets - 1 {
			ports = append(ports, 1024+r.IntN(64512))
		}
		switch got, step := ClassifyAllocation(mapped(ports...)); got {
		case weft.RandomAllocation:
			known++
		case weft.AllocationUnknown:
		default:
			t.Errorf("%v is %v, %d", ports, got, step)
		}
	}
	if known < rounds*99/100 {
		t.Errorf("only %d of %d were seen", known, rounds)
	}
}
