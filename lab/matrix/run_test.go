package matrix

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/lab/scenario"
)

// A fake backend answers by a function.
type fake struct {
	run func(ctx context.Context, s scenario.Scenario, o scenario.Options) (scenario.Result, error)

	mu     sync.Mutex
	traced []string // scenarios and seeds whose trace was asked for
}

func (f *fake) Name() string { return "fake" }

func (f *fake) Run(ctx context.Context, s scenario.Scenario, o scenario.Options) (scenario.Result, error) {
	if o.KeepTrace {
		f.mu.Lock()
		f.traced = append(f.traced, fmt.Sprint(s.Name, " ", o.Seed))
		f.mu.Unlock()
	}
	return f.run(ctx, s, o)
}

func direct(way Way, after time.Duration) scenario.Result {
	return scenario.Result{Pairs: []scenario.PairResult{{A: "a", B: "b", Path: weft.PathDirect, Way: string(way), DirectAfter: after, Packets: 7}}}
}

func relayed(packets int) scenario.Result {
	return scenario.Result{Pairs: []scenario.PairResult{{A: "a", B: "b", Path: weft.PathRelay, Packets: packets, Reason: "no"}}}
}

// four is a plan of the four cells of two NATs, one per thing that can be possible.
func four() Plan {
	p := Plan{Rows: []string{"x", "y"}, Cols: []string{"x", "y"}}
	for i, w := range Ways {
		row, col := p.Rows[i/2], p.Cols[i%2]
		p.Cells = append(p.Cells, Cell{Row: row, Col: col, Possible: w, Scenario: scenario.Scenario{Name: row + col}})
	}
	return p
}

func TestACellIsDirectWhenEnoughOfItsRunsAre(t *testing.T) {
	for _, c := range []struct {
		possible Way
		direct   int // of 100
		want     Verdict
	}{
		{Plain, 100, Direct}, {Plain, 99, Relay}, {Sprayed, 97, Direct}, {Sprayed, 96, Relay}, {Predicted, 90, Direct}, {Predicted, 89, Relay},
		{Relayed, 0, Relay}, {Relayed, 1, Relay}, {Relayed, 97, Direct},
	} {
		p := Plan{Rows: []string{"x"}, Cols: []string{"x"}, Cells: []Cell{{Row: "x", Col: "x", Possible: c.possible}}}
		b := &fake{run: func(_ context.Context, _ scenario.Scenario, o scenario.Options) (scenario.Result, error) {
			if int(o.Seed) < c.direct {
				return direct(Sprayed, time.Second), nil
			}
			return relayed(1), nil
		}}
		r, err := p.Run(t.Context(), b, Options{Seeds: 100, Jobs: 3})
		if err != nil {
			t.Fatal(err)
		}
		if got := r.Cells[0].Way; (got == Relayed) != (c.want == Relay) {
			t.Errorf("%d of 100 where %s is possible: the cell goes by %s", c.direct, c.possible, got)
		}
		if got := r.Cells[0].Verdict; got != c.want || r.Cells[0].Share != float64(c.direct)/100 {
			t.Errorf("%d of 100 where %s is possible: %s, %v", c.direct, c.possible, got, r.Cells[0].Share)
		}
	}
}

func TestNodesThatDoNotReachEachOtherAtAllAreNotCalledRelayed(t *testing.T) {
	b := &fake{run: func(_ context.Context, s scenario.Scenario, o scenario.Options) (scenario.Result, error) {
		if o.Seed == 3 {
			return scenario.Result{Pairs: []scenario.PairResult{{Path: weft.PathNone}}}, nil
		}
		return relayed(1), nil
	}}
	r, err := four().Run(t.Context(), b, Options{Seeds: 5, Seed: 1})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Table().Count(None); got != 4 {
		t.Errorf("%d cells are none:\n%s", got, r.Table())
	}
}

func TestAMatrixTellsEveryRunAndWhatFollows(t *testing.T) {
	b := &fake{run: func(_ context.Context, s scenario.Scenario, o scenario.Options) (scenario.Result, error) {
		switch s.Name {
		case "xx":
			return direct(Plain, time.Duration(o.Seed)*10*time.Millisecond), nil
		case "xy":
			return direct(Sprayed, time.Duration(o.Seed)*time.Second), nil
		case "yx":
			return relayed(20000), nil
		}
		return relayed(0), nil
	}}
	var seen []Progress
	r, err := four().Run(t.Context(), b, Options{Seeds: 3, Seed: 5, Jobs: 2, Samples: true, Replays: true, Progress: func(p Progress) { seen = append(seen, p) }})
	if err != nil {
		t.Fatal(err)
	}
	if got, want := r.Table().String(), "nat,x,y\nx,direct,direct\ny,relay,relay"; got != want {
		t.Errorf("the table is\n%s", got)
	}
	if got, want := r.Oracle().String(), "nat,x,y\nx,direct,direct\ny,direct,relay"; got != want {
		t.Errorf("the oracle's is\n%s", got)
	}
	want := []Run{{Seed: 5, Path: "direct", Way: Plain, DirectAfterMS: 50, Packets: 7}, {Seed: 6, Path: "direct", Way: Plain, DirectAfterMS: 60, Packets: 7},
		{Seed: 7, Path: "direct", Way: Plain, DirectAfterMS: 70, Packets: 7}}
	if diff := cmp.Diff(want, r.Cell("x", "x").Runs); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]Difference{{"y", "x", Direct, Relay}}, r.Surprises); diff != "" {
		t.Errorf("surprises: %s", diff)
	}
	summary := Summary{Cells: 4, Direct: 2, Possible: 3, Runs: 12, Ways: []WayStats{
		{Plain, 3, Distribution{60, 70, 70}, Distribution{7, 7, 7}}, {Sprayed, 3, Distribution{6000, 7000, 7000}, Distribution{7, 7, 7}},
		{Relayed, 6, Distribution{}, Distribution{0, 20000, 20000}},
	}}
	if diff := cmp.Diff(summary, r.Summary); diff != "" {
		t.Errorf("summary: %s", diff)
	}
	if last := seen[len(seen)-1]; len(seen) != 12 || last.Runs != 12 || last.OfRuns != 12 || last.Cells != 4 || last.OfCells != 4 || last.Direct != 2 {
		t.Errorf("%d reports, the last %+v", len(seen), last)
	}
	traced := map[string]bool{}
	for _, x := range b.traced {
		traced[x] = true
	}
	if diff := cmp.Diff(map[string]bool{"xx 6": true, "xy 6": true, "yx 6": true, "yy 6": true}, traced); diff != "" {
		t.Errorf("the runs in the middle are not those that were traced: %s", diff)
	}
}

// The oracle counts on what holds for good; with pools of addresses a draw may do better. Without, better is as wrong as worse.
func TestBetterThanPossibleIsASurpriseButWithPools(t *testing.T) {
	for pool, want := range map[int]int{1: 2, 4: 1} {
		p := four()
		p.Conditions.Pool = pool
		b := &fake{run: func(_ context.Context, s scenario.Scenario, _ scenario.Options) (scenario.Result, error) {
			if s.Name == "xx" { // plain is possible
				return relayed(1), nil
			}
			return direct(Sprayed, time.Second), nil // also in yy, where nothing is
		}}
		r, err := p.Run(t.Context(), b, Options{})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Surprises) != want {
			t.Errorf("with pools of %d: %v", pool, r.Surprises)
		}
	}
}

func TestAPathThatIsDirectAtOnceHasATime(t *testing.T) {
	b := &fake{run: func(context.Context, scenario.Scenario, scenario.Options) (scenario.Result, error) {
		return direct(Plain, 1), nil
	}}
	r, err := four().Run(t.Context(), b, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Cells[0].Runs[0].DirectAfterMS; got != 0.001 {
		t.Errorf("%v ms", got)
	}
}

func TestABackendThatCannotReplayIsAskedForTheFirstRunsTrace(t *testing.T) {
	b := &fake{run: func(context.Context, scenario.Scenario, scenario.Options) (scenario.Result, error) {
		return relayed(1), nil
	}}
	r, err := four().Run(t.Context(), b, Options{Seeds: 2, Seed: 9, Samples: true})
	if err != nil {
		t.Fatal(err)
	}
	if len(b.traced) != 4 || r.Cells[3].Sample == nil || r.Cells[3].Sample.Seed != 9 {
		t.Errorf("traced are %v", b.traced)
	}
}

func TestAnInterruptedMatrixKeepsWhatItKnows(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	b := &fake{run: func(ctx context.Context, s scenario.Scenario, o scenario.Options) (scenario.Result, error) {
		if s.Name == "yx" {
			cancel()
			<-ctx.Done()
			return scenario.Result{}, ctx.Err()
		}
		return direct(Plain, time.Millisecond), nil
	}}
	r, err := four().Run(ctx, b, Options{Seeds: 2})
	if !errors.Is(err, context.Canceled) || !r.Partial {
		t.Fatalf("error %v, partial %v", err, r.Partial)
	}
	if got := r.Table().String(); got != "nat,x,y\nx,direct,direct\ny,?,?" {
		t.Errorf("the table is\n%s", got)
	}
	if r.Compare(Table{Rows: r.Rows, Cols: r.Cols, Cells: [][]Verdict{{Direct, Relay}, {Direct, Direct}}}, "f"); len(r.Differences) != 1 {
		t.Errorf("cells that were not run differ: %v", r.Differences)
	}
	if r.Summary.Runs != 4 || r.Summary.Cells != 2 || r.Summary.Failed != 0 {
		t.Errorf("summary %+v", r.Summary)
	}
	var text strings.Builder
	if err := r.Print(&text, false); err != nil || !strings.Contains(text.String(), "partial") {
		t.Errorf("it is not marked (%v):\n%s", err, text.String())
	}
}

func TestWhatABackendCannotDoEndsTheMatrixAtOnce(t *testing.T) {
	calls := 0
	b := &fake{run: func(context.Context, scenario.Scenario, scenario.Options) (scenario.Result, error) {
		calls++
		return scenario.Result{}, &scenario.Unsupported{Backend: "fake", What: "do that"}
	}}
	r, err := four().Run(t.Context(), b, Options{Seeds: 100})
	var unsupported *scenario.Unsupported
	if !errors.As(err, &unsupported) || calls != 1 || r.Summary.Runs != 0 {
		t.Errorf("after %d calls: %v", calls, err)
	}
}

func TestALaboratoryInWhichNothingWorksIsGivenUp(t *testing.T) {
	calls := 0
	b := &fake{run: func(context.Context, scenario.Scenario, scenario.Options) (scenario.Result, error) {
		calls++
		return scenario.Result{}, errors.New("no such device")
	}}
	if _, err := four().Run(t.Context(), b, Options{Seeds: 100}); err == nil || !strings.Contains(err.Error(), "no such device") || calls > patience+1 {
		t.Errorf("after %d calls: %v", calls, err)
	}
}

func TestARunThatFailsInTheLaboratoryIsNotHeldAgainstTheCell(t *testing.T) {
	b := &fake{run: func(_ context.Context, s scenario.Scenario, o scenario.Options) (scenario.Result, error) {
		if o.Seed == 1 {
			return scenario.Result{}, errors.New("no such device")
		}
		return direct(Plain, time.Second), nil
	}}
	r, err := four().Run(t.Context(), b, Options{Seeds: 3})
	if err != nil {
		t.Fatal(err)
	}
	c := r.Cells[0]
	if c.Verdict != Direct || c.Share != 1 || c.Runs[1].Error != "no such device" || r.Summary.Failed != 4 {
		t.Errorf("%+v, %d failed", c, r.Summary.Failed)
	}
}
