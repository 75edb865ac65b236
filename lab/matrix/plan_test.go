package matrix

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"weft"
	"weft/golden"
	"weft/lab/scenario"
)

// configs are one of each kind of matrix.
func configs() (all []Config) {
	for _, m := range []string{"rfc4787", "rfc3489"} {
		for _, l := range []Layout{Single, Double, Shared, Hairpin} {
			all = append(all, Config{Matrix: m, Layout: l})
		}
		all = append(all, Config{Matrix: m, Pool: 4}, Config{Matrix: m, Ports: weft.SequentialAllocation}, Config{Matrix: m, Ports: weft.PreservingAllocation},
			Config{Matrix: m, Late: true, Loss: 0.05})
	}
	return append(all, Config{Matrix: "rfc3489", Layout: DoubleDifferent})
}

func planned(t testing.TB, c Config) Plan {
	t.Helper()
	p, err := c.Plan()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// best is what the oracle says of a plan.
func best(p Plan) Table {
	r := &Result{Rows: p.Rows, Cols: p.Cols}
	for _, c := range p.Cells {
		r.Cells = append(r.Cells, CellResult{Row: c.Row, Col: c.Col, Possible: c.Possible})
	}
	return r.Oracle()
}

func TestTheOracleHoldsPossibleWhatTheExpectationsSay(t *testing.T) {
	for _, c := range []struct {
		name string
		file string
		Config
	}{
		{"RFC 4787", "rfc4787-best.csv", Config{}},
		{"RFC 3489", "rfc3489-best.csv", Config{Matrix: "rfc3489"}},
		{"double NAT of the same type is as single NAT", "rfc3489-best.csv", Config{Matrix: "rfc3489", Layout: Double}},
		{"and so it is with nine types", "rfc4787-best.csv", Config{Layout: Double}},
		{"by a carrier's hairpin, too", "rfc4787-best.csv", Config{Layout: Hairpin}},
		{"loss changes no cell", "rfc4787-best.csv", Config{Loss: 0.05}},
		{"nor do filters that open late", "rfc4787-best.csv", Config{Late: true}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if d := best(planned(t, c.Config)).Differences(expectation(t, c.file)); len(d) > 0 {
				t.Errorf("%v", d)
			}
		})
	}
	sequential := best(planned(t, Config{Ports: weft.SequentialAllocation}))
	if n := sequential.Count(Direct); n != 81 {
		t.Errorf("with sequential ports %d of 81 are possible", n)
	}
}

// The order of a side's two NATs does not matter, and the more restrictive decides.
func TestOfTwoDifferentNATsTheMoreRestrictiveDecides(t *testing.T) {
	single, double := best(planned(t, Config{Matrix: "rfc3489"})), best(planned(t, Config{Matrix: "rfc3489", Layout: DoubleDifferent}))
	if len(double.Rows) != 12 || len(double.Cols) != 12 {
		t.Fatalf("%d by %d", len(double.Rows), len(double.Cols))
	}
	rank := map[string]int{}
	for i, x := range RFC3489() {
		rank[x.Name] = i
	}
	worse := func(name string) string {
		inner, outer, _ := strings.Cut(name, "/")
		if rank[inner] > rank[outer] {
			return inner
		}
		return outer
	}
	for _, r := range double.Rows {
		for _, c := range double.Cols {
			got, _ := double.At(r, c)
			if want, _ := single.At(worse(r), worse(c)); got != want {
				t.Errorf("%s with %s: %s, and %s with %s: %s", r, c, got, worse(r), worse(c), want)
			}
		}
	}
}

func TestOneNATSharedByBothHasOneColumnPerPlaceOfTheOther(t *testing.T) {
	got := best(planned(t, Config{Matrix: "rfc3489", Layout: Shared}))
	want := `nat,one-lan,two-lans,two-lans-no-hairpin
full-cone,direct,direct,relay
restricted-cone,direct,direct,relay
port-restricted-cone,direct,direct,relay
symmetric,direct,relay,relay`
	if got.String() != want {
		t.Errorf("it is\n%s", got)
	}
}

// What a matrix runs can be written down, read and run by itself.
func TestEveryCellIsAScenarioThatCanBeWrittenDown(t *testing.T) {
	for _, c := range configs() {
		p := planned(t, c)
		if len(p.Cells) != len(p.Rows)*len(p.Cols) {
			t.Errorf("%+v: %d cells of %d by %d", c, len(p.Cells), len(p.Rows), len(p.Cols))
		}
		seen := map[string]bool{}
		for _, cell := range p.Cells {
			if seen[cell.Scenario.Name] {
				t.Errorf("%+v: two cells are called %s", c, cell.Scenario.Name)
			}
			seen[cell.Scenario.Name] = true
			if cell.Why == "" || cell.Possible == "" {
				t.Errorf("%s has no oracle", cell.Scenario.Name)
			}
			text := scenario.Format(cell.Scenario)
			back, err := scenario.Parse(cell.Scenario.Name, text)
			if err != nil {
				t.Fatalf("%v\n%s", err, text)
			}
			if again := scenario.Format(back); !bytes.Equal(again, text) {
				t.Fatalf("it reads\n%s\nand is\n%s", again, text)
			}
		}
	}
}

// The whole of what a Config asks for, as it is written down.
func TestTheConditionsAreThoseThatWereAskedFor(t *testing.T) {
	var text strings.Builder
	for _, c := range []Config{
		{Matrix: "rfc3489", Row: "full-cone", Col: "symmetric"},
		{Matrix: "rfc3489", Row: "full-cone", Col: "symmetric", Layout: Double, Pool: 4, Loss: 0.05, Late: true, Ports: weft.SequentialAllocation},
		{Matrix: "rfc3489", Row: "full-cone/symmetric", Col: "symmetric/restricted-cone", Layout: DoubleDifferent, Pool: 2},
		{Matrix: "rfc3489", Row: "full-cone", Col: "symmetric", Layout: Hairpin, Pool: 4, Loss: 0.05, Late: true},
		{Matrix: "rfc3489", Row: "symmetric", Col: "two-lans", Layout: Shared, Ports: weft.PreservingAllocation},
		{Matrix: "rfc3489", Row: "symmetric", Col: "one-lan", Layout: Shared},
	} {
		cell := planned(t, c).Cells[0]
		fmt.Fprintf(&text, "# %s\n%s\n", cell.Scenario.Name, scenario.Format(cell.Scenario))
	}
	golden.Text(t, "cells.txt", text.String())
}

func TestOneCellCanBeAskedFor(t *testing.T) {
	p := planned(t, Config{Row: "EIM-APDF", Col: "ADM-ADF"})
	if len(p.Cells) != 1 || p.Cells[0].Row != "EIM-APDF" || p.Cells[0].Col != "ADM-ADF" || len(p.Rows) != 9 || p.Cells[0].Possible != Sprayed {
		t.Errorf("%+v", p.Cells)
	}
	n := p.Cells[0].Scenario.Routers
	if fmt.Sprint(n[0].Name, n[0].NAT.Mapping, n[0].NAT.Filtering) != fmt.Sprint("nat-a", weft.EndpointIndependentMapping, weft.AddressAndPortDependentFiltering) {
		t.Errorf("the row's NAT is %+v", n[0])
	}
}

func TestWhatCannotBeAskedForIsSaidInWords(t *testing.T) {
	for _, c := range []struct {
		Config
		words string
	}{
		{Config{Matrix: "rfc1"}, "rfc4787 or rfc3489"},
		{Config{Pool: MaxPool + 1}, "at most 16"},
		{Config{Loss: 1}, "less than 100 percent"},
		{Config{Loss: -0.1}, "0 or more"},
		{Config{Row: "EIM-EIF", Col: "EIM"}, `no cell "EIM-EIF","EIM": the rows are EIM-EIF, EIM-ADF`},
		{Config{Layout: Shared, Row: "EIM-EIF", Col: "EIM-EIF"}, "the columns one-lan, two-lans"},
	} {
		if _, err := c.Plan(); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("%+v: %v", c.Config, err)
		}
	}
}
