package matrix

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/lab/scenario"
)

// Options say how a plan is run.
type Options struct {
	Seeds   int    // runs of each cell; 0: 1
	Seed    uint64 // of the first run; the others count up from it
	Jobs    int    // runs at once; 0: 1. More than 1 only with a backend that may be run at once
	Samples bool   // keep what a run of each cell looked like
	// Replays is for a backend whose runs of the same seed are the same: the run in the middle is run again for its
	// sample. Of others, the first run of the cell is kept.
	Replays  bool
	Binary   string
	Dir      string         // for what the backend keeps
	Progress func(Progress) // called after each run, by one goroutine at a time; nil: never
}

// Progress is how far a matrix has come.
type Progress struct {
	Runs, OfRuns   int
	Cells, OfCells int // done
	Direct         int // of the cells that are done
	Elapsed        time.Duration
}

// patience is how many runs may fail in the laboratory itself before any succeeds: what fails ten times in a row will
// go on to.
const patience = 10

// maxLog is how much of a host's log a sample keeps, in bytes, from its end.
const maxLog = 8 << 10

// Run runs every cell of a plan with every seed. When ctx ends it returns what it has, marked as partial, and the
// context's error. A run that fails in the backend is kept with its error; where nothing but such runs comes, or the
// backend cannot do what the plan asks for, Run gives up and returns that error.
func (p Plan) Run(ctx context.Context, b scenario.Backend, o Options) (*Result, error) {
	o.Seeds, o.Jobs = max(o.Seeds, 1), max(o.Jobs, 1)
	r := &runner{plan: p, backend: b, Options: o, began: time.Now(), left: make([]int, len(p.Cells))}
	r.result = &Result{
		Schema: weft.SchemaVersion, Version: weft.Version, Started: r.began.UTC().Truncate(time.Second), Backend: b.Name(),
		Conditions: p.Conditions, Seeds: o.Seeds, FirstSeed: o.Seed, Jobs: o.Jobs, Rows: p.Rows, Cols: p.Cols,
		Cells: make([]CellResult, len(p.Cells)),
	}
	for i, c := range p.Cells {
		r.left[i] = o.Seeds
		r.result.Cells[i] = CellResult{Row: c.Row, Col: c.Col, Possible: c.Possible, Why: c.Why, Verdict: Open, Runs: []Run{}}
	}
	ctx, r.giveUp = context.WithCancelCause(ctx)
	defer r.giveUp(nil)
	var workers sync.WaitGroup
	work := make(chan unit)
	for range o.Jobs {
		workers.Go(func() {
			for u := range work {
				r.run(ctx, u)
			}
		})
	}
feed:
	for i := range p.Cells {
		for s := range o.Seeds {
			select {
			case work <- unit{i, o.Seed + uint64(s)}:
			case <-ctx.Done():
				break feed
			}
		}
	}
	close(work)
	workers.Wait()
	for i := range r.result.Cells {
		r.result.Cells[i].judge()
		r.result.Partial = r.result.Partial || r.left[i] > 0
	}
	r.result.Seconds = time.Since(r.began).Seconds()
	r.result.finish()
	return r.result, context.Cause(ctx)
}

// A unit is one run.
type unit struct {
	cell int
	seed uint64
}

type runner struct {
	Options
	plan    Plan
	backend scenario.Backend
	began   time.Time
	giveUp  context.CancelCauseFunc

	mu       sync.Mutex // guards what follows
	result   *Result
	left     []int // runs to come, by cell
	progress Progress
	failed   int // runs, before any succeeded
	proven   bool
}

// run does one unit and, after a cell's last, what remains to be done for the cell.
func (r *runner) run(ctx context.Context, u unit) {
	if ctx.Err() != nil {
		return
	}
	sampled := r.Samples && !r.Replays && u.seed == r.Seed
	res, err := r.backend.Run(ctx, r.plan.Cells[u.cell].Scenario, r.options(u.seed, sampled))
	if ctx.Err() != nil {
		return // it was cut short: what it says means nothing
	}
	run := Run{Seed: u.seed, Path: weft.PathNone}
	if err == nil {
		run, err = read(u.seed, res)
	}
	var unsupported *scenario.Unsupported
	switch {
	case errors.As(err, &unsupported):
		r.giveUp(err)
		return
	case err != nil:
		run.Error = err.Error()
	}
	var sample *Sample
	if sampled {
		sample = newSample(r.plan.Cells[u.cell].Scenario, u.seed, res)
	}
	if done := r.keep(u, run, sample, err); done && r.Samples && r.Replays {
		r.replay(ctx, u.cell)
	}
}

// options are those of one run.
func (r *runner) options(seed uint64, trace bool) scenario.Options {
	return scenario.Options{Seed: seed, Binary: r.Binary, KeepTrace: trace, Dir: r.Dir}
}

// keep adds a run to its cell, and tells whether it was the cell's last.
func (r *runner) keep(u unit, run Run, sample *Sample, err error) (last bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.result.Cells[u.cell]
	c.Runs = append(c.Runs, run)
	if sample != nil {
		c.Sample = sample
	}
	r.proven = r.proven || err == nil
	if !r.proven {
		if r.failed++; r.failed == patience {
			r.giveUp(fmt.Errorf("the first %d runs failed; the last one: %w", patience, err))
		}
	}
	r.left[u.cell]--
	last = r.left[u.cell] == 0
	p := &r.progress
	p.Runs++
	if last {
		c.judge()
		p.Cells++
		if c.Verdict == Direct {
			p.Direct++
		}
	}
	if r.Progress != nil {
		p.OfRuns, p.OfCells, p.Elapsed = r.Seeds*len(r.left), len(r.left), time.Since(r.began)
		r.Progress(*p)
	}
	return last
}

// replay runs a cell's middle run again, for its sample.
func (r *runner) replay(ctx context.Context, cell int) {
	c := &r.result.Cells[cell] // all its runs are in: nobody else touches it
	seed, ok := c.middle()
	if !ok || ctx.Err() != nil {
		return
	}
	res, err := r.backend.Run(ctx, r.plan.Cells[cell].Scenario, r.options(seed, true))
	if err == nil && ctx.Err() == nil {
		c.Sample = newSample(r.plan.Cells[cell].Scenario, seed, res)
	}
}

// middle is the seed of the run that is typical of the cell: of those that went as the verdict says, the one in
// the middle by time or, where no path was found, by packets.
func (c *CellResult) middle() (seed uint64, ok bool) {
	var typical []Run
	for _, r := range c.Runs {
		if r.Error == "" && (r.Path == weft.PathDirect) == (c.Verdict == Direct) && r.Way == c.Way {
			typical = append(typical, r)
		}
	}
	if len(typical) == 0 {
		return 0, false
	}
	slices.SortStableFunc(typical, func(a, b Run) int {
		switch {
		case a.DirectAfterMS < b.DirectAfterMS:
			return -1
		case a.DirectAfterMS > b.DirectAfterMS:
			return 1
		}
		return a.Packets - b.Packets
	})
	return typical[(len(typical)-1)/2].Seed, true
}

// read takes from a backend's result what is kept of every run.
func read(seed uint64, res scenario.Result) (Run, error) {
	run := Run{Seed: seed, Path: weft.PathNone}
	if len(res.Pairs) != 1 {
		return run, fmt.Errorf("the backend told of %d pairs of nodes, not of one", len(res.Pairs))
	}
	pair := res.Pairs[0]
	run.Path, run.Packets, run.Reason = pair.Path, pair.Packets, pair.Reason
	switch pair.Path {
	case weft.PathDirect:
		run.Way = Way(pair.Way)
		if !slices.Contains(Ways[:3], run.Way) {
			return run, fmt.Errorf("the backend said of a direct path that it was found by %q", pair.Way)
		}
		run.DirectAfterMS = max(float64(pair.DirectAfter.Microseconds()), 1) / 1000 // 0 is for those that never were
	case weft.PathRelay:
		run.Way = Relayed
	}
	return run, nil
}
