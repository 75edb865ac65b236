package matrix_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"weft"
	"weft/lab/matrix"
	"weft/lab/netns"
	"weft/lab/real"
	"weft/lab/scenario"
	"weft/lab/sim"
)

// The reduced matrices of every test run: all of RFC 4787's cells in virtual time with few seeds, a dozen of them with the
// real program in namespaces. The figures that are claimed come from `weft lab nat` with many seeds (docs/lab).

// mostPackets is what a pair may spend on a path that it does not find.
const mostPackets = 20_000

// expected is an expectation file.
func expected(t *testing.T, name string) matrix.Table {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	table, err := matrix.ParseTable(f, name)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func planned(t *testing.T, c matrix.Config) matrix.Plan {
	t.Helper()
	plan, err := c.Plan()
	if err != nil {
		t.Fatal(err)
	}
	return plan
}

// comes runs a plan and holds it against what is expected.
func comes(t *testing.T, ctx context.Context, plan matrix.Plan, b scenario.Backend, o matrix.Options, expect matrix.Table) *matrix.Result {
	t.Helper()
	began := time.Now()
	r, err := plan.Run(ctx, b, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s in %s: %d of %d direct, %d runs in %.1f s", matrix.Title(r.Conditions), b.Name(), r.Summary.Direct, r.Summary.Cells, r.Summary.Runs,
		time.Since(began).Seconds())
	r.Compare(expect, "the expectation")
	for _, d := range r.Differences {
		t.Errorf("%s", d)
	}
	for _, c := range r.Cells {
		differs := slices.ContainsFunc(r.Differences, func(d matrix.Difference) bool { return d.Row == c.Row && d.Col == c.Col })
		for _, x := range c.Runs {
			if differs || x.Error != "" || x.Packets > mostPackets {
				t.Errorf("%s with %s, seed %d: %s by %q after %.0f ms, %d packets: %s%s", c.Row, c.Col, x.Seed, x.Path, x.Way, x.DirectAfterMS, x.Packets, x.Reason, x.Error)
			}
		}
	}
	return r
}

func virtually(seeds int) matrix.Options {
	return matrix.Options{Seeds: seeds, Seed: 1, Jobs: runtime.GOMAXPROCS(0)}
}

func TestOf81PairsOfNATs77BecomeDirectInVirtualTime(t *testing.T) {
	r := comes(t, t.Context(), planned(t, matrix.Config{}), sim.Backend{}, virtually(2), expected(t, "rfc4787-best.csv"))
	for _, c := range r.Cells {
		if c.Possible == matrix.Plain && (c.Way != matrix.Plain || c.Share < 1) {
			t.Errorf("%s with %s: %v of the runs are direct, by %s; plain probes do for all", c.Row, c.Col, c.Share, c.Way)
		}
	}
}

func TestWhatMakesPunchingHardChangesNoCell(t *testing.T) {
	best := expected(t, "rfc3489-best.csv")
	for name, c := range map[string]matrix.Config{
		"double NAT": {Layout: matrix.Double}, "a carrier's hairpin": {Layout: matrix.Hairpin},
		"filters that open late": {Late: true}, "loss": {Loss: 0.05},
	} {
		t.Run(name, func(t *testing.T) {
			c.Matrix = "rfc3489"
			comes(t, t.Context(), planned(t, c), sim.Backend{}, virtually(2), best)
		})
	}
}

// What the oracle holds possible is reached, whatever the layout; where it holds little possible, luck may do better.
func TestNothingIsWorseThanTheOracleHoldsPossible(t *testing.T) {
	for name, c := range map[string]matrix.Config{
		"double NAT of different types": {Layout: matrix.DoubleDifferent}, "one NAT shared by both": {Layout: matrix.Shared}, "pools of 4 addresses": {Pool: 4},
		"ports that can be foretold": {Ports: weft.SequentialAllocation},
	} {
		t.Run(name, func(t *testing.T) {
			c.Matrix = "rfc3489"
			plan := planned(t, c)
			expect := matrix.NewTable(plan.Rows, plan.Cols)
			for _, cell := range plan.Cells {
				if cell.Possible != matrix.Relayed {
					expect.Cells[slices.Index(plan.Rows, cell.Row)][slices.Index(plan.Cols, cell.Col)] = matrix.Direct
				}
			}
			comes(t, t.Context(), plan, sim.Backend{}, virtually(1), expect)
		})
	}
}

func TestARunOfTheSameSeedIsTheSame(t *testing.T) {
	plan := planned(t, matrix.Config{Row: "EIM-APDF", Col: "APDM-APDF"})
	var first string
	for range 2 {
		r, err := plan.Run(t.Context(), sim.Backend{}, virtually(3))
		if err != nil {
			t.Fatal(err)
		}
		runs := fmt.Sprint(r.Cells[0].Runs)
		if first != "" && first != runs {
			t.Errorf("first\n%s\nthen\n%s", first, runs)
		}
		first = runs
	}
}

// program is the weft program under test: $WEFT_BINARY where the caller has built it, else our own.
func program(t *testing.T) string {
	t.Helper()
	if path := os.Getenv("WEFT_BINARY"); path != "" {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	path := filepath.Join(t.TempDir(), "weft")
	cmd := exec.Command("go", "build", "-o", path, "weft/cmd/weft")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return path
}

// A dozen cells of every kind: they mostly wait, so that several run at once.
func TestADozenPairsOfNATsInNamespacesAreAsInVirtualTime(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes a minute: run without -short")
	}
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	cells := [][2]string{
		{"EIM-EIF", "EIM-EIF"}, {"EIM-ADF", "APDM-APDF"}, {"EIM-APDF", "EIM-APDF"}, {"EIM-APDF", "ADM-EIF"}, {"ADM-EIF", "APDM-APDF"}, {"APDM-EIF", "ADM-APDF"},
		{"EIM-APDF", "ADM-ADF"}, {"APDM-APDF", "EIM-APDF"}, {"ADM-ADF", "ADM-ADF"}, {"ADM-ADF", "APDM-APDF"}, {"APDM-ADF", "APDM-ADF"},
		{"APDM-APDF", "ADM-APDF"},
	}
	plan := planned(t, matrix.Config{})
	plan.Cells = slices.DeleteFunc(plan.Cells, func(c matrix.Cell) bool { return !slices.Contains(cells, [2]string{c.Row, c.Col}) })
	if len(plan.Cells) != len(cells) {
		t.Fatalf("%d cells", len(plan.Cells))
	}
	ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Minute, errors.New("it takes too long"))
	defer cancel()
	o := matrix.Options{Seeds: 1, Seed: 1, Jobs: 4, Binary: program(t)}
	comes(t, ctx, plan, real.Backend{}, o, expected(t, "rfc4787-best.csv"))
}
