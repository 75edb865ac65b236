package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"weft"
	"weft/lab/netns"
)

// BondOptions say how much is measured of several links as one.
type BondOptions struct {
	Binary  string // path of weft
	Out     io.Writer
	Only    []string      // names of [BondCases]; none: all
	Rounds  int           // runs of each subject of a case
	Full    bool          // all that bonds are measured once for as often as the rest, and with each of BondControls unless Control says otherwise
	Control []string      // congestion control of the inner flow, of BondControls; none: the first of them
	Length  time.Duration // of a run of throughput, with its beginning that does not count
	Worlds  int           // that measure at once, at most
	Load    float64       // processor seconds a second that they may be taken to need, all together
	Logs    string        // existing directory for the logs of what is started; "" keeps none
	Version string
}

// What BondOptions are unless somebody says otherwise.
const (
	BondRounds = 3
	// BondFullRounds is BondRounds for the full table.
	BondFullRounds = 5
	BondLength     = 20 * time.Second
	BondWorlds     = 7
	// BondLoad is what two cores carry, of what units are taken to need ([bondUnit.weight]), and the least by which the whole table takes
	// twenty minutes. Batches that are taken to need 1.83 to 1.90 kept both cores busy for 56 to 88 %. How busy processors are
	// says little by itself: whoever waits for a packet looks for it for a while as long as nobody else wants the processor.
	BondLoad = 1.7
)

// BondControls are the congestion controls that the inner flow may have.
var BondControls = []string{"cubic", "bbr"}

// While there is so much time left, for each congestion control, batches are measured again from which the host of the machine kept too much.
const (
	bondPatience     = 20 * time.Minute
	bondFullPatience = 55 * time.Minute
)

// bondWarm is the beginning of a run of throughput, which does not count.
const bondWarm = 5 * time.Second

// bondRun is one benchmark under way.
type bondRun struct {
	BondOptions
	report     *BondReport
	began      time.Time
	until      time.Time // batches are measured again
	congestion string
	worlds     []*bondWorld
}

// Bond measures several links as one, in worlds of their own side by side, beside each link alone and the kernel's MPTCP.
// When it fails, the report has what was measured until then.
func Bond(ctx context.Context, o BondOptions) (_ *BondReport, err error) {
	if err := netns.Available(); err != nil {
		return nil, fmt.Errorf("the benchmark needs network namespaces: %w", err)
	}
	names, _ := BondCases()
	for _, name := range o.Only {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("there is nothing called %q to measure: there are %s", name, strings.Join(names, ", "))
		}
	}
	r := &bondRun{BondOptions: o, began: time.Now()}
	r.report = &BondReport{Schema: weft.SchemaVersion, Name: "bond", Version: o.Version, Started: r.began, Machine: machine(), Full: o.Full}
	r.report.note("%s; %d runs of a case, %v each of which the first %v do not count, where throughput is measured", runtime.Version(), o.Rounds, o.Length, bondWarm)
	if problem := realTime(); problem != "" {
		r.report.note("%s", problem)
		r.say("%s", problem)
	}
	r.report.note("queue of every link, whoever uses it: a tenth of a second at its rate, at least 30,000 bytes, tail drop")
	defer func() { err = errors.Join(err, r.closeWorlds()) }()
	controls, patience := o.Control, bondPatience
	switch {
	case len(controls) == 0 && o.Full:
		controls = BondControls
	case len(controls) == 0:
		controls = BondControls[:1]
	}
	if o.Full {
		patience = bondFullPatience
	}
	for i, control := range controls {
		r.congestion, r.until = control, r.began.Add(patience*time.Duration(i+1))
		if err := r.all(ctx); err != nil {
			r.report.note("It ended early: %v", err)
			r.report.Seconds = time.Since(r.began).Seconds()
			return r.report, err
		}
		// The congestion control is a host's, and hosts are as old as their worlds.
		if err := r.closeWorlds(); err != nil {
			return r.report, err
		}
	}
	r.report.Seconds = time.Since(r.began).Seconds()
	r.report.judge(r.cases())
	return r.report, nil
}

func (r *bondRun) closeWorlds() (err error) {
	for _, w := range r.worlds {
		if w != nil {
			err = errors.Join(err, w.net.Close())
		}
	}
	r.worlds = nil
	return err
}

// cases are those that were asked for.
func (r *bondRun) cases() (list []*bondCase) {
	for _, c := range bondCases {
		if len(r.Only) == 0 || slices.Contains(r.Only, c.name) {
			list = append(list, c)
		}
	}
	return list
}

// all measures every unit once.
func (r *bondRun) all(ctx context.Context) error {
	units := r.units()
	var total time.Duration
	batches := r.batches(units)
	for _, b := range batches {
		total += length(b) + batchCost
	}
	if len(batches) == 0 {
		return r.fast(ctx)
	}
	r.say("%s: %d runs in %d batches, about %.0f min", r.congestion, len(units), len(batches), total.Minutes())
	lightest, heaviest := load(batches[0]), 0.0
	for _, b := range batches {
		lightest, heaviest = min(lightest, load(b)), max(heaviest, load(b))
	}
	r.report.note("%s: %d runs in %d batches, those of one at once, each of which was taken to need %.2f to %.2f processor seconds a second",
		r.congestion, len(units), len(batches), lightest, heaviest)
	first := len(r.report.Runs)
	for i, b := range batches {
		if err := r.batch(ctx, i+1, len(batches), b); err != nil {
			return err
		}
	}
	if err := r.again(ctx, batches, r.report.Runs[first:]); err != nil {
		return err
	}
	if slow := stolenFrom(r.report.Runs[first:]); len(slow) > 0 {
		r.report.note("%s: the host of this machine kept more than %.0f %% of its processors' time from it in batches %s, and there was no time to measure them again: "+
			"links and flows had less in them, all alike", r.congestion, stolenMost*100, slow)
	}
	return r.fast(ctx)
}

// slowStart is when preparing a batch takes so long that somebody who waits is told.
const slowStart = 15 * time.Second

// settling is for what preparing has left to do. Every unit begins with a time that does not count, besides.
const settling = 200 * time.Millisecond

// batchCost is about what preparing up to seven worlds takes: 1.8 s in the mean of seven batches with settling of 1 s.
const batchCost = 1200 * time.Millisecond

// units are all runs, round by round, so that what is compared was measured close together. A link alone is measured
// once a round, whatever cases it is part of.
func (r *bondRun) units() (list []*bondUnit) {
	for round := 1; round <= r.Rounds; round++ {
		alone := map[string]bool{}
		for _, c := range r.cases() {
			for _, u := range c.units(r, c) {
				u.c, u.round, u.paced = c, round, r.congestion == "bbr"
				if u.subject == single || u.subject == plainTCP {
					key := fmt.Sprint(u.subject, u.links[0], u.out, u.load)
					if alone[key] {
						continue
					}
					alone[key] = true
				}
				if round > 1 && u.once && !(r.Full && (u.subject == bonded || u.load == loadShort)) {
					continue
				}
				list = append(list, u)
			}
		}
	}
	return list
}

// batch prepares a world for each unit, and runs them all at once.
func (r *bondRun) batch(ctx context.Context, number, of int, units []*bondUnit) error {
	for len(r.worlds) < len(units) {
		w, err := r.newWorld(ctx, len(r.worlds))
		if err != nil {
			return err
		}
		r.worlds = append(r.worlds, w)
	}
	runs, errs := make([]*BondRun, len(units)), make([]error, len(units))
	var wg sync.WaitGroup
	before, err := readMachine()
	if err != nil {
		return err
	}
	began := time.Now()
	for i, u := range units {
		wg.Go(func() { errs[i] = r.worlds[i].prepare(ctx, u) })
	}
	wg.Wait()
	if took := time.Since(began); took > slowStart {
		now, err := readMachine()
		if err != nil {
			return err
		}
		busy, _ := now.since(before, took)
		r.say("batch %d took %.0f s to prepare, with the processors %.0f %% busy", number, took.Seconds(), busy*100)
	}
	// Worlds that are not part of this batch are at rest, too.
	for _, w := range r.worlds[len(units):] {
		if err := w.stopNodes(); err != nil {
			return err
		}
	}
	if err := pause(ctx, settling); err != nil {
		return err
	}
	conditions := make([]BondConditions, len(units))
	for i, u := range units {
		if errs[i] == nil {
			wg.Go(func() {
				watch, err := r.worlds[i].watch(u)
				if err == nil {
					runs[i], err = r.worlds[i].run(ctx, u)
					var failed error
					conditions[i], failed = watch.read()
					err = errors.Join(err, failed)
				}
				errs[i] = err
			})
		}
	}
	wg.Wait()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	for i, u := range units {
		x := runs[i]
		if x == nil {
			x = &BondRun{Case: u.c.name, Subject: u.subject, Links: u.links, Direction: u.direction(), Round: u.round}
		}
		x.Control, x.BondConditions = r.congestion, conditions[i]
		x.Batch, x.Load = number, round(load(units))
		if errs[i] != nil {
			x.Problem = errs[i].Error()
			// Whatever it is, the next unit shall not have it.
			if err := errors.Join(r.worlds[i].net.Close()); err != nil {
				return err
			}
			w, err := r.newWorld(ctx, i)
			if err != nil {
				return err
			}
			r.worlds[i] = w
		}
		r.report.Runs = append(r.report.Runs, x)
		r.say("batch %d of %d, %3.0f %% busy%s: %s", number, of, x.Busy*100, x.stolenText(), x)
	}
	return nil
}

func (r *bondRun) say(format string, args ...any) {
	fmt.Fprintf(r.Out, "%6.1f s  %s\n", time.Since(r.began).Seconds(), fmt.Sprintf(format, args...))
}
