package matrix

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"time"

	"weft"
)

// A Way is how a direct path was, or can be, found.
type Way string

// The ways, from the best.
const (
	Plain     Way = "plain"     // both sides' ordinary probes
	Sprayed   Way = "sprayed"   // many sockets on one side, many guesses on the other
	Predicted Way = "predicted" // the next ports of sequential allocators
	Relayed   Way = "relay"     // there is none
)

// Ways are all ways, from the best.
var Ways = []Way{Plain, Sprayed, Predicted, Relayed}

// need is the share of a cell's runs that must be direct for the cell to be, by what the oracle says is possible there.
var need = map[Way]float64{
	Plain:     1,
	Sprayed:   0.97,
	Predicted: 0.90,
	Relayed:   0.97, // the oracle is wrong then, and a single lucky run does not show that
}

// A Result is what came of a matrix: the document that --json prints and cells.json holds.
type Result struct {
	Schema      int          `json:"schema_version"`
	Version     string       `json:"version"` // of weft
	Command     string       `json:"command"` // that makes it again
	Started     time.Time    `json:"started"`
	Seconds     float64      `json:"seconds"` // that it took, by the clock
	Partial     bool         `json:"partial"` // it was interrupted: cells may lack runs
	Backend     string       `json:"backend"`
	Conditions  Conditions   `json:"conditions"`
	Seeds       int          `json:"seeds"`
	FirstSeed   uint64       `json:"first_seed"`
	Jobs        int          `json:"jobs"`
	Rows        []string     `json:"rows"`
	Cols        []string     `json:"cols"`
	Summary     Summary      `json:"summary"`
	Expected    string       `json:"expected,omitempty"` // the file it was compared with
	Differences []Difference `json:"differences"`        // from that file
	Surprises   []Difference `json:"surprises"`          // from what the oracle holds possible
	Cells       []CellResult `json:"cells"`              // by row, then column; those that were asked for
}

// Conditions are what Config asks for, in words of the command line.
type Conditions struct {
	Matrix  string  `json:"matrix"`
	Layout  string  `json:"layout"` // single, double, double-different, shared or hairpin
	Pool    int     `json:"pool"`   // outside addresses of each NAT
	Ports   string  `json:"ports"`
	Loss    float64 `json:"loss_percent"`
	Late    bool    `json:"late"`
	OneWay  float64 `json:"one_way_ms"` // from one side to the other
	Patient float64 `json:"limit_s"`    // how long a run may take
}

// A Summary is what a reader wants to know first.
type Summary struct {
	Cells    int        `json:"cells"` // that have a verdict
	Direct   int        `json:"direct"`
	Possible int        `json:"possible"` // by the oracle, of these
	Runs     int        `json:"runs"`
	Failed   int        `json:"failed"` // runs that a backend could not do
	Ways     []WayStats `json:"ways"`
}

// WayStats are the figures of all runs that ended by one way.
type WayStats struct {
	Way     Way          `json:"way"`
	Runs    int          `json:"runs"`
	Direct  Distribution `json:"direct_after_ms"`
	Packets Distribution `json:"packets"`
}

// A Distribution is told by its quantiles (nearest rank: each is a value that was measured).
type Distribution struct {
	P50 float64 `json:"p50"`
	P95 float64 `json:"p95"`
	Max float64 `json:"max"`
}

// A CellResult is one ordered pair of NATs.
type CellResult struct {
	Row      string  `json:"row"`
	Col      string  `json:"col"`
	Possible Way     `json:"possible"` // at best, by the oracle
	Why      string  `json:"why"`      // the oracle's reason
	Verdict  Verdict `json:"verdict"`
	Way      Way     `json:"way"`   // of most of the runs that went as the verdict says; "" without runs
	Share    float64 `json:"share"` // of runs that were direct
	Runs     []Run   `json:"runs"`  // by seed
	Sample   *Sample `json:"-"`
}

// A Run is one seed of a cell.
type Run struct {
	Seed          uint64        `json:"seed"`
	Path          weft.PathKind `json:"path"`
	Way           Way           `json:"way"`                       // "" where the nodes did not reach each other
	DirectAfterMS float64       `json:"direct_after_ms,omitempty"` // since both nodes know each other
	Packets       int           `json:"packets"`                   // that both spent on finding a path
	Reason        string        `json:"reason,omitempty"`
	Error         string        `json:"error,omitempty"` // the backend could not do it: nothing else is known
}

// A Sample is what one run of a cell looked like.
type Sample struct {
	Seed  uint64
	Lanes []string // machines, from left to right
	Steps []Step   // in the order in which they set out
	Logs  []Log    // by host
}

// A Log is what a host of the run wrote.
type Log struct{ Host, Text string }

// judge fills in what follows from the runs.
func (c *CellResult) judge() {
	slices.SortFunc(c.Runs, func(a, b Run) int {
		switch {
		case a.Seed < b.Seed:
			return -1
		case a.Seed > b.Seed:
			return 1
		}
		return 0
	})
	c.Verdict, c.Way, c.Share = Open, "", 0
	n, direct, lost := 0, 0, 0
	for _, r := range c.Runs {
		if r.Error != "" {
			continue // the laboratory's failure says nothing of the cell
		}
		n++
		switch r.Path {
		case weft.PathDirect:
			direct++
		case weft.PathRelay:
		default:
			lost++
		}
	}
	if n == 0 {
		return
	}
	c.Share = float64(direct) / float64(n)
	switch {
	case c.Share >= need[c.Possible]:
		c.Verdict = Direct
	case lost > 0:
		c.Verdict = None // worse than a relay: some did not get through at all
	default:
		c.Verdict = Relay
	}
	count := map[Way]int{}
	for _, r := range c.Runs {
		if r.Way != "" && (r.Path == weft.PathDirect) == (c.Verdict == Direct) {
			count[r.Way]++
		}
	}
	for _, w := range Ways { // of two equally frequent ones the better
		if count[w] > count[c.Way] {
			c.Way = w
		}
	}
}

// Times are how long the runs that ended by this way took to a direct path, in milliseconds, ascending; of any way for "".
func (r *Result) Times(w Way) []float64 {
	return r.figures(func(x Run) (float64, bool) {
		return x.DirectAfterMS, x.Path == weft.PathDirect && (w == "" || x.Way == w)
	})
}

// PacketsOf are how many packets the runs that ended by this way spent, ascending.
func (r *Result) PacketsOf(w Way) []float64 {
	return r.figures(func(x Run) (float64, bool) { return float64(x.Packets), x.Way == w })
}

func (r *Result) figures(f func(Run) (float64, bool)) (out []float64) {
	for i := range r.Cells {
		for _, x := range r.Cells[i].Runs {
			if v, ok := f(x); ok && x.Error == "" {
				out = append(out, v)
			}
		}
	}
	slices.Sort(out)
	return out
}

// distribution tells of ascending values; zero of none.
func distribution(values []float64) Distribution {
	if len(values) == 0 {
		return Distribution{}
	}
	return Distribution{Quantile(values, 0.50), Quantile(values, 0.95), values[len(values)-1]}
}

// Quantile is the nearest-rank quantile of ascending values: the least one that a share q of them does not exceed.
func Quantile(values []float64, q float64) float64 {
	if len(values) == 0 {
		return 0
	}
	i := int(math.Ceil(q*float64(len(values)))) - 1
	return values[min(max(i, 0), len(values)-1)]
}

// Table is the verdicts alone. Cells that were not asked for, or not run, are open.
func (r *Result) Table() Table { return r.table(func(c *CellResult) Verdict { return c.Verdict }) }

// Oracle is what the table is at best.
func (r *Result) Oracle() Table {
	return r.table(func(c *CellResult) Verdict {
		if c.Possible == Relayed {
			return Relay
		}
		return Direct
	})
}

func (r *Result) table(f func(*CellResult) Verdict) Table {
	t := NewTable(r.Rows, r.Cols)
	for i := range r.Cells {
		c := &r.Cells[i]
		t.Cells[slices.Index(r.Rows, c.Row)][slices.Index(r.Cols, c.Col)] = f(c)
	}
	return t
}

// Cell finds a cell; nil where it was not asked for.
func (r *Result) Cell(row, col string) *CellResult {
	for i := range r.Cells {
		if c := &r.Cells[i]; c.Row == row && c.Col == col {
			return c
		}
	}
	return nil
}

// Compare holds the result against an expectation. Of cells that were not run nothing is known: they do not differ.
func (r *Result) Compare(expect Table, file string) {
	r.Expected, r.Differences = file, r.known(r.Table().Differences(expect))
}

func (r *Result) known(all []Difference) []Difference {
	return slices.DeleteFunc(append([]Difference{}, all...), func(d Difference) bool { return d.Got == Open })
}

// finish fills in what follows from all cells.
func (r *Result) finish() {
	r.Surprises = r.known(r.Table().Differences(r.Oracle()))
	if r.Conditions.Pool > 1 { // what the oracle calls impossible is then a matter of luck, and luck is no surprise
		r.Surprises = slices.DeleteFunc(r.Surprises, func(d Difference) bool { return d.Got == Direct })
	}
	if r.Differences == nil {
		r.Differences = []Difference{}
	}
	s := Summary{Ways: []WayStats{}}
	for i := range r.Cells {
		c := &r.Cells[i]
		s.Runs += len(c.Runs)
		for _, x := range c.Runs {
			if x.Error != "" {
				s.Failed++
			}
		}
		if c.Verdict == Open {
			continue
		}
		s.Cells++
		if c.Verdict == Direct {
			s.Direct++
		}
		if c.Possible != Relayed {
			s.Possible++
		}
	}
	for _, w := range Ways {
		packets := r.PacketsOf(w)
		if len(packets) > 0 {
			s.Ways = append(s.Ways, WayStats{w, len(packets), distribution(r.Times(w)), distribution(packets)})
		}
	}
	r.Summary = s
}

// WriteJSON writes the document.
func (r *Result) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	if err := e.Encode(r); err != nil {
		return fmt.Errorf("writing the result: %w", err)
	}
	return nil
}
