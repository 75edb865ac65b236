package vnet

import (
	"encoding/csv"
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
