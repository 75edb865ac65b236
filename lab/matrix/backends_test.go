package matrix_test

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"weft/lab/matrix"
	"weft/lab/sim"
)

// The reduced matrices of every test run: all of RFC 4787's cells in virtual time, with few seeds. The figures that are
// claimed come from `weft lab nat` with many (docs/lab).

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

// sees runs a matrix in virtual time and holds it against what is expected.
func sees(t *testing.T, c matrix.Config, o matrix.Options, expect matrix.Table) *matrix.Result {
	t.Helper()
	plan, err := c.Plan()
	if err != nil {
		t.Fatal(err)
	}
	o.Jobs = runtime.GOMAXPROCS(0)
	began := time.Now()
	r, err := plan.Run(t.Context(), sim.Backend{}, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s: %d of %d direct, %d runs in %.1f s", matrix.Title(r.Conditions), r.Summary.Direct, r.Summary.Cells, r.Summary.Runs, time.Since(began).Seconds())
	r.Compare(expect, "the expectation")
	for _, d := range r.Differences {
		t.Errorf("%s", d)
		for _, x := range r.Cell(d.Row, d.Col).Runs {
			t.Logf("    seed %d: %s, %s, %d packets: %s%s", x.Seed, x.Path, x.Way, x.Packets, x.Reason, x.Error)
		}
	}
	if r.Summary.Failed > 0 {
		t.Errorf("%d runs failed", r.Summary.Failed)
	}
	return r
}

func TestOf81PairsOfNATs77BecomeDirectInVirtualTime(t *testing.T) {
	r := sees(t, matrix.Config{}, matrix.Options{Seeds: 1, Seed: 1}, expected(t, "rfc4787-best.csv"))
	for _, c := range r.Cells {
		for _, x := range c.Runs {
			if x.Packets > 20_000 {
				t.Errorf("%s with %s, seed %d: %d packets spent", c.Row, c.Col, x.Seed, x.Packets)
			}
			if c.Possible == matrix.Plain && x.Way != matrix.Plain {
				t.Errorf("%s with %s, seed %d: it took %s where plain probes do", c.Row, c.Col, x.Seed, x.Way)
			}
		}
	}
}
