package vnet

import (
	"encoding/csv"
	"net/netip"
	"os"
	"testing"

	"weft"
)

var mappings = []weft.Mapping{weft.EndpointIndependentMapping, weft.AddressDependentMapping,
	weft.AddressAndPortDependentMapping}
var filterings = []weft.Filtering{weft.EndpointIndependentFiltering, weft.AddressDependentFiltering,
	weft.AddressAndPortDependentFiltering}

// kinds are the nine NATs of RFC 4787, by their names.
func kinds() (names []string, configs map[string]NATConfig) {
	configs = map[string]NATConfig{}
	for _, m := range mappings {
		for _, f := range filterings {
			name := m.Abbreviation() + "-" + f.Abbreviation()
			names = append(names, name)
			configs[name] = NATConfig{Mapping: m, Filtering: f, Allocation: weft.RandomAllocation}
		}
	}
	return names, configs
}

// oldNames are RFC 3489's words for some of them.
var oldNames = map[string]string{"full-cone": "EIM-EIF", "restricted-cone": "EIM-ADF",
	"port-restricted-cone": "EIM-APDF", "symmetric": "APDM-APDF"}

func readTable(t *testing.T, file string) [][]string {
	t.Helper()
	f, err := os.Open("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rows, err := csv.NewReader(f).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return rows
}

func TestTheOracleSaysWhatTheExpectationTablesSay(t *testing.T) {
	_, configs := kinds()
	for _, rfc := range []string{"rfc3489", "rfc4787"} {
		plain, best := readTable(t, rfc+"-plain.csv"), readTable(t, rfc+"-best.csv")
		cells := 0
		for i := 1; i < len(best); i++ {
			for j := 1; j < len(best[i]); j++ {
				name := [2]string{best[i][0], best[0][j]}
				var sides [2]Side
				for k, n := range name {
					if old, ok := oldNames[n]; ok {
						n = old
					}
					c, ok := configs[n]
					if !ok {
						t.Fatalf("%s: no NAT is called %q", rfc, n)
					}
					sides[k] = Side{NATs: []NATConfig{c}}
				}
				want := Never
				switch {
				case plain[i][j] == "direct":
					want = Plain
				case best[i][j] == "direct":
					want = Spray
				}
				if got, why := Possible(sides[0], sides[1]); got != want {
					t.Errorf("%s: %v: %v (%s), want %v", rfc, name, got, why, want)
				}
				cells++
			}
		}
		t.Logf("%s: %d cells", rfc, cells)
	}
}

func TestOnlyPredictablePortsOpenTheHardCells(t *testing.T) {
	for _, m := range mappings[1:] {
		for _, o := range mappings[1:] {
			for _, x := range []weft.Allocation{weft.PreservingAllocation, weft.SequentialAllocation, weft.RandomAllocation} {
				for _, y := range []weft.Allocation{weft.PreservingAllocation, weft.SequentialAllocation, weft.RandomAllocation} {
					a := Side{NATs: []NATConfig{{Mapping: m, Filtering: weft.AddressAndPortDependentFiltering, Allocation: x}}}
					b := Side{NATs: []NATConfig{{Mapping: o, Filtering: weft.AddressAndPortDependentFiltering, Allocation: y}}}
					want := Predict
					if x == weft.RandomAllocation || y == weft.RandomAllocation {
						want = Never
					}
					if got, why := Possible(a, b); got != want {
						t.Errorf("%v %v with %v %v: %v (%s), want %v", m, x, o, y, got, why, want)
					}
				}
			}
		}
	}
}

// pool is that many public addresses, arbitrarily given.
func (c NATConfig) pool(n int) NATConfig {
	c.Pooling = ArbitraryPooling
	for i := range n {
		c.Public = append(c.Public, netip.AddrFrom4([4]byte{198, 51, 100, byte(1 + i)}))
	}
	return c
}

func TestArbitraryPoolsTakeAwayWhatTheDesignSaysTheyDo(t *testing.T) {
	names, configs := kinds()
	count := map[Way]int{}
	for _, x := range names {
		for _, y := range names {
			a, b := configs[x], configs[y]
			want := Never
			switch {
			case a.Filtering == eif || b.Filtering == eif || a.Mapping == eim && b.Mapping == eim:
				want = Plain
			case a.Mapping == eim || b.Mapping == eim:
				want = Spray
			}
			got, why := Possible(Side{NATs: []NATConfig{a.pool(4)}}, Side{NATs: []NATConfig{b.pool(4)}})
			if got != want {
				t.Errorf("%s with %s: %v (%s), want %v", x, y, got, why, want)
			}
			count[got]++
		}
	}
	t.Logf("four addresses on both sides: %v", count)
}

func TestTheOracleKnowsWhatSpraysAndPredictionsTake(t *testing.T) {
	random := func(m weft.Mapping, f weft.Filtering) NATConfig {
		return NATConfig{Mapping: m, Filtering: f, Allocation: weft.RandomAllocation}
	}
	limited := func(c NATConfig, perHost int) NATConfig { c.MaxPerHost = perHost; return c }
	with := func(c NATConfig, a weft.Allocation) NATConfig { c.Allocation = a; return c }
	const sequential, preserving = weft.SequentialAllocation, weft.PreservingAllocation
	ordered := []NATConfig{with(random(apdm, apdf), sequential)}
	chain := func(c ...NATConfig) []NATConfig { return c }
	for _, c := range []struct {
		what string
		a, b []NATConfig
		want Way
	}{
		{"a prober with all its mappings", chain(random(adm, adf)), chain(random(apdm, apdf)), Spray},
		{"a prober with 100 mappings", chain(random(adm, adf)), chain(limited(random(apdm, apdf), 100)), Never},
		{"a prober that needs one mapping", chain(random(apdm, apdf)), chain(limited(random(eim, apdf), 1)), Spray},
		{"an opener with 100 mappings", chain(limited(random(apdm, apdf), 100)), chain(random(eim, apdf)), Spray},
		{"an opener with 20 mappings", chain(limited(random(apdm, apdf), 20)), chain(random(eim, apdf)), Never},
		{"probes from two addresses", chain(random(adm, adf)), chain(random(apdm, apdf).pool(2)), Spray},
		{"probes from eight addresses", chain(random(adm, adf)), chain(random(apdm, apdf).pool(8)), Never},
		{"all probes from one of two addresses", chain(random(adm, adf)), chain(random(adm, apdf).pool(2)), Never},
		{"openers on eight addresses", chain(random(apdm, apdf).pool(8)), chain(random(eim, apdf)), Never},
		{"ports in order", ordered, ordered, Predict},
		{"ports in order inside of preserving ones", ordered,
			chain(with(random(adm, eif), sequential), with(random(apdm, apdf), preserving)), Predict},
		{"a port for all destinations inside of preserving ones", ordered,
			chain(with(random(eim, eif), sequential), with(random(apdm, apdf), preserving)), Never},
		{"random ports inside of preserving ones", ordered, chain(random(adm, eif), with(random(apdm, apdf), preserving)), Never},
		{"random ports inside of ones in order", ordered, chain(random(adm, eif), with(random(apdm, apdf), sequential)), Predict},
		{"ports in order at each of two addresses", ordered, chain(with(random(apdm, apdf), sequential).pool(2)), Never},
		{"ports in order at each of two addresses inside", ordered,
			chain(with(random(apdm, apdf), sequential).pool(2), with(random(apdm, apdf), preserving)), Never},
	} {
		for _, swap := range []bool{false, true} {
			a, b := Side{NATs: c.a}, Side{NATs: c.b}
			if swap {
				a, b = b, a
			}
			if got, why := Possible(a, b); got != c.want {
				t.Errorf("%s: %v (%s), want %v", c.what, got, why, c.want)
			}
		}
	}
}
