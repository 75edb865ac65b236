package path

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/vnet"
)

// How a pair of NATs is got through, of the 81 ordered pairs of RFC 4787 with ports at random.
const (
	plainly   = 'D'
	sprayed   = 's'
	predicted = 'p'
	hard      = '.'
)

// kindOf is what the oracle says of a pair.
func kindOf(a, b vnet.NATConfig) (rune, string) {
	way, why := vnet.Possible(vnet.Side{NATs: []vnet.NATConfig{a}}, vnet.Side{NATs: []vnet.NATConfig{b}})
	return map[vnet.Way]rune{vnet.Plain: plainly, vnet.Spray: sprayed, vnet.Predict: predicted, vnet.Never: hard}[way], why
}

// cells are the pairs, which the oracle has to say too: rows and columns EIM-EIF, EIM-ADF, EIM-APDF, ADM-EIF, ...
var cells = [9]string{
	"DDDDDDDDD",
	"DDDDDDDDD",
	"DDDDssDss",
	"DDDDDDDDD",
	"DDsDssDss",
	"DDsDs.Ds.",
	"DDDDDDDDD",
	"DDsDssDss",
	"DDsDs.Ds.",
}

// matrixSeeds is how many seeds each cell has unless -path.seeds says otherwise, and twistedSeeds with a twist.
const matrixSeeds, twistedSeeds = 5, 2

// A tally is what became of one kind of cell.
type tally struct {
	runs, direct int
	after        []time.Duration // both were up, until both were direct
	packets      int             // the most in one run, of attempts, both sides
}

func (t *tally) String() string {
	if len(t.after) == 0 {
		return fmt.Sprintf("%d of %d direct, at most %d packets", t.direct, t.runs, t.packets)
	}
	slices.Sort(t.after)
	at := func(q float64) time.Duration {
		return t.after[min(len(t.after)-1, int(q*float64(len(t.after))))].Round(time.Millisecond)
	}
	return fmt.Sprintf("%d of %d direct (%.2f %%), after p50 %v, p95 %v, p99 %v, max %v, at most %d packets", t.direct, t.runs,
		100*float64(t.direct)/float64(t.runs), at(0.5), at(0.95), at(0.99), at(1), t.packets)
}

func (t *tally) share() float64 { return float64(t.direct) / float64(t.runs) }

func (t *tally) quantile(q float64) time.Duration {
	slices.Sort(t.after)
	return t.after[min(len(t.after)-1, int(q*float64(len(t.after))))]
}

// A twist changes a world of the matrix before it begins.
type twist func(w *world, a, b *vnet.NATConfig)

// matrix runs all cells of the kinds that are asked for, which the oracle tells, and says per kind what became of
// them.
func matrix(t *testing.T, kinds string, limit time.Duration, twists ...twist) map[rune]*tally {
	t.Helper()
	seeds, first := matrixSeeds, uint64(1)
	if len(twists) > 0 {
		seeds = twistedSeeds
	}
	if kinds == string(predicted) {
		seeds *= 10 // four cells, which take no time
	}
	if *seedsFlag > 0 {
		seeds = *seedsFlag
	} else if testing.Short() {
		seeds = 1
	}
	if *seedFlag != 0 {
		seeds, first = 1, *seedFlag
	}
	got := map[rune]*tally{}
	for i, ka := range allNATs() {
		for j, kb := range allNATs() {
			kind, cell := rune(0), &tally{}
			for seed := first; seed < first+uint64(seeds); seed++ {
				w := newWorld(t, seed*81+uint64(9*i+j))
				w.oneWay, w.relayLeg, w.jitter = 20*time.Millisecond, time.Duration(10+w.rng.IntN(15))*time.Millisecond, time.Millisecond
				a, b := ka.config(), kb.config()
				for _, f := range twists {
					f(w, &a, &b)
				}
				var why string
				kind, why = kindOf(a, b)
				if len(twists) == 0 && kind != rune(cells[i][j]) {
					t.Fatalf("%v x %v: the oracle says %c, and the table %c", ka, kb, kind, cells[i][j])
				}
				if !strings.ContainsRune(kinds, kind) {
					break
				}
				w.behind(w.a, a)
				w.behind(w.b, b)
				w.a.eager, w.b.eager = true, true
				w.bootBoth()
				begin := w.now
				for w.now.Sub(begin) < limit && !w.bothDirect() {
					w.run(5 * time.Millisecond)
				}
				cell.runs++
				cell.packets = max(cell.packets, w.a.attempted()+w.b.attempted())
				if w.bothDirect() {
					cell.direct++
					cell.after = append(cell.after, w.now.Sub(begin))
					w.run(10 * time.Second)
					if !w.bothDirect() {
						w.failf("%v x %v, seed %d: did not stay direct", ka, kb, seed)
					}
				} else if *seedFlag != 0 && kind != hard {
					w.failf("%v x %v, seed %d: %s\n%+v\n%+v", ka, kb, seed, why, w.a.agent.Snapshot(w.now).Attempts, w.b.agent.Snapshot(w.now).Attempts)
				}
				w.run(40 * time.Second)
				for _, h := range w.hosts {
					if n := len(h.spares); n > 2 {
						w.failf("%v x %v, seed %d: %s holds %d sockets afterwards", ka, kb, seed, h.name, n)
					}
				}
			}
			if cell.runs == 0 {
				continue
			}
			if got[kind] == nil {
				got[kind] = &tally{}
			}
			all := got[kind]
			all.runs, all.direct, all.packets = all.runs+cell.runs, all.direct+cell.direct, max(all.packets, cell.packets)
			all.after = append(all.after, cell.after...)
			if kind == plainly && cell.direct < cell.runs || kind == sprayed && cell.share() < 0.9 {
				t.Errorf("%v x %v: %v", ka, kb, cell)
			}
		}
	}
	for _, kind := range kinds {
		if got[kind] != nil {
			t.Logf("%c: %v", kind, got[kind])
		}
	}
	return got
}

// attempted is how many packets a host has spent on attempts.
func (h *host) attempted() (n int) {
	for _, x := range h.agent.Snapshot(h.w.now).Attempts {
		if x.Way != "plain" {
			n += x.Packets
		}
	}
	return n
}

// needMatrix checks what the matrix has to reach under any circumstances.
func needMatrix(t *testing.T, got map[rune]*tally) {
	t.Helper()
	if len(got) == 0 {
		t.Error("there are no such cells")
	}
	if d := got[plainly]; d != nil && d.direct != d.runs {
		t.Errorf("plain cells: %v", d)
	}
	if s := got[sprayed]; s != nil && s.share() < 0.97 {
		t.Errorf("sprayed cells: %v", s)
	}
	if p := got[predicted]; p != nil && p.share() < 0.9 {
		t.Errorf("predicted cells: %v", p)
	}
	if h := got[hard]; h != nil && (h.direct > 0 || h.packets > 20_000) {
		t.Errorf("hard cells: %v", h)
	}
}

func TestAllPairsOfNATsButFourAreDirect(t *testing.T) {
	t.Parallel()
	got := matrix(t, "Ds.", 12*time.Second)
	needMatrix(t, got)
	for _, want := range []struct {
		kind     rune
		p50, p95 time.Duration
	}{{plainly, 200 * time.Millisecond, time.Second}, {sprayed, 3 * time.Second, 10 * time.Second}} {
		if g := got[want.kind]; g.quantile(0.5) > want.p50 || g.quantile(0.95) > want.p95 {
			t.Errorf("%c: %v, want %v and %v", want.kind, g, want.p50, want.p95)
		}
	}
}

func TestTheFourHardPairsAreDirectWherePortsAreGivenInOrder(t *testing.T) {
	t.Parallel()
	for _, step := range []int16{1, 2, -1} {
		needMatrix(t, matrix(t, "p", 12*time.Second, func(_ *world, a, b *vnet.NATConfig) {
			a.Allocation, b.Allocation = weft.SequentialAllocation, weft.SequentialAllocation
			a.Step, b.Step = step, 1
		}))
	}
}

func TestTheFourHardPairsAreDirectWherePortsArePreserved(t *testing.T) {
	t.Parallel()
	needMatrix(t, matrix(t, "p", 12*time.Second, func(w *world, a, b *vnet.NATConfig) {
		a.Allocation, b.Allocation = weft.PreservingAllocation, weft.PreservingAllocation
		if w.rng.IntN(2) == 0 {
			b.Allocation = weft.SequentialAllocation
		}
	}))
}
