package report

import (
	"fmt"
	"html/template"
	"slices"
	"strings"

	"weft"
	"weft/lab/matrix"
)

// A cell is what the page tells of one.
type cell struct {
	*matrix.CellResult
	ID       string
	Shape    string
	Wrong    string
	Times    string // of the runs that were direct
	Packets  string
	Listed   []matrix.Run // runs that are told one by one
	Unlisted int
	Diagram  template.HTML
}

// anchor is the name of a cell's place in the page.
func anchor(row, col string) string {
	return "c-" + strings.NewReplacer("/", ".", " ", "_").Replace(row+"_"+col)
}

func newCell(r *matrix.Result, c *matrix.CellResult, draw bool) cell {
	out := cell{CellResult: c, ID: anchor(c.Row, c.Col), Shape: shape(c), Wrong: wrong(r, c)}
	var times, packets []float64
	for _, x := range c.Runs {
		if x.Error != "" {
			continue
		}
		packets = append(packets, float64(x.Packets))
		if x.Path == weft.PathDirect {
			times = append(times, x.DirectAfterMS)
		}
	}
	slices.Sort(times)
	slices.Sort(packets)
	if n := len(times); n > 0 {
		out.Times = fmt.Sprintf("p50 %s, p95 %s, max %s", matrix.Millis(matrix.Quantile(times, 0.5)), matrix.Millis(matrix.Quantile(times, 0.95)),
			matrix.Millis(times[n-1]))
	}
	if n := len(packets); n > 0 {
		out.Packets = fmt.Sprintf("p50 %.0f, p95 %.0f, max %.0f", matrix.Quantile(packets, 0.5), matrix.Quantile(packets, 0.95), packets[n-1])
	}
	out.Listed = listed(c)
	out.Unlisted = len(c.Runs) - len(out.Listed)
	if draw && c.Sample != nil {
		out.Diagram = diagram(c.Sample)
	}
	return out
}

// listed are the runs to tell one by one: all of few; of many those that failed, that went otherwise than the cell, and the slowest, by seed.
func listed(c *matrix.CellResult) []matrix.Run {
	if len(c.Runs) <= maxRuns {
		return c.Runs
	}
	rank := func(x matrix.Run) float64 {
		switch {
		case x.Error != "":
			return 3e9
		case x.Way != c.Way:
			return 2e9 + x.DirectAfterMS
		case x.DirectAfterMS > 0:
			return x.DirectAfterMS
		}
		return float64(x.Packets)
	}
	runs := slices.Clone(c.Runs)
	slices.SortStableFunc(runs, func(a, b matrix.Run) int {
		switch d := rank(b) - rank(a); {
		case d < 0:
			return -1
		case d > 0:
			return 1
		}
		return 0
	})
	runs = runs[:maxRuns]
	slices.SortFunc(runs, func(a, b matrix.Run) int {
		if a.Seed < b.Seed {
			return -1
		}
		return 1
	})
	return runs
}
