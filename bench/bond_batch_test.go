package bench

import (
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestBatchesFitIntoTheMachineAndRoundsFollowEachOther(t *testing.T) {
	t.Run("default", func(t *testing.T) { batchesFit(t, BondOptions{Rounds: BondRounds}, "cubic") })
	for _, control := range []string{"cubic", "bbr"} {
		t.Run("full, "+control, func(t *testing.T) { batchesFit(t, BondOptions{Rounds: BondFullRounds, Full: true}, control) })
	}
}

func batchesFit(t *testing.T, o BondOptions, control string) {
	o.Length, o.Worlds, o.Load = BondLength, BondWorlds, BondLoad
	r := &bondRun{BondOptions: o, congestion: control}
	units := r.units()
	seen := map[*bondUnit]bool{}
	round := 1
	for _, b := range r.batches(units) {
		if len(b) > 1 && !fit(b, BondWorlds, BondLoad) {
			t.Errorf("%d runs that need %.2f and carry %.0f Mbit/s at once, of %d, %.2f and %d", len(b), load(b), through(b...), BondWorlds, BondLoad, throughMost)
		}
		for _, u := range b {
			if u.round < round || u.round > round+1 || u.round != b[0].round {
				t.Errorf("a run of round %d in a batch of round %d", u.round, round)
			}
			seen[u] = true
		}
		round = b[0].round
	}
	if len(seen) != len(units) {
		t.Errorf("of %d runs %d are in batches", len(units), len(seen))
	}
}

// The default table, half of whose batches needed more than both cores have when they were packed by their Mbit/s.
func TestWhatIsComparedIsMeasuredWithinMinutes(t *testing.T) {
	r := &bondRun{BondOptions: BondOptions{Rounds: BondRounds, Length: BondLength, Worlds: BondWorlds, Load: BondLoad}}
	type part struct {
		c     *bondCase
		round int
	}
	first, last := map[part]time.Duration{}, map[part]time.Duration{}
	var at time.Duration
	for _, b := range r.batches(r.units()) {
		for _, u := range b {
			p := part{u.c, u.round}
			if _, ok := first[p]; !ok {
				first[p] = at
			}
			last[p] = at
		}
		at += length(b) + batchCost
	}
	var spans []time.Duration
	for p := range first {
		spans = append(spans, last[p]-first[p])
	}
	slices.Sort(spans)
	if middle, most := spans[len(spans)/2], spans[len(spans)-1]; middle > 90*time.Second || most > 8*time.Minute {
		t.Errorf("half of what is compared is within %v, all within %v", middle, most)
	}
}

// What is packed is what there was, and no two batches could be one.
func TestPackingLosesNothingAndLeavesNoTwoBatchesThatFitTogether(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var units []*bondUnit
		for range rapid.IntRange(0, 40).Draw(t, "units") {
			u := &bondUnit{subject: rapid.SampledFrom([]bondSubject{bonded, single, mptcp, plainTCP}).Draw(t, "subject"),
				length: time.Duration(rapid.IntRange(1, 3).Draw(t, "length")) * 10 * time.Second}
			for range rapid.IntRange(1, maxBondLinks).Draw(t, "links") {
				u.links = append(u.links, BondLink{Mbit: rapid.Float64Range(1, 300).Draw(t, "mbit")})
			}
			units = append(units, u)
		}
		worlds, most := rapid.IntRange(1, 8).Draw(t, "worlds"), rapid.Float64Range(0.2, 4).Draw(t, "most")
		count := map[*bondUnit]int{}
		list := pack(units, worlds, most)
		for i, b := range list {
			for _, u := range b {
				count[u]++
			}
			if len(b) > 1 && !fit(b, worlds, most) || len(b) == 0 {
				t.Fatalf("%d runs that need %.2f and carry %.0f Mbit/s, of %d, %.2f and %d", len(b), load(b), through(b...), worlds, most, throughMost)
			}
			for _, c := range list[:i] {
				if fit(slices.Concat(b, c), worlds, most) {
					t.Fatalf("%.2f and %.2f, %.0f and %.0f Mbit/s, could be one of %.2f", load(b), load(c), through(b...), through(c...), most)
				}
			}
		}
		for _, u := range units {
			if count[u] != 1 {
				t.Fatalf("a run is %d times there", count[u])
			}
		}
	})
}

// The weights, beside what was measured, in processor seconds a second of the nodes and of the benchmark.
func TestWeightsAreNearWhatWasMeasured(t *testing.T) {
	links := func(n int, mbit ...float64) (list []BondLink) {
		for range n {
			for _, v := range mbit {
				list = append(list, BondLink{Mbit: v})
			}
		}
		return list
	}
	for _, c := range []struct {
		what string
		need float64
		all  []*bondUnit
	}{
		{"two bonds of 2 x 16, two links of 50 and one of 16 alone", 1.72, []*bondUnit{{subject: bonded, links: links(2, 16)}, {subject: bonded, links: links(2, 16)},
			{subject: single, links: links(1, 50)}, {subject: single, links: links(1, 50)}, {subject: single, links: links(1, 16)}}},
		{"a bond of 300 + 80, and one of 2 x 32", 1.64, []*bondUnit{{subject: bonded, links: links(1, 300, 80)}, {subject: bonded, links: links(2, 32)}}},
		{"a bond of 8 x 32, and plain TCP by 300", 1.48, []*bondUnit{{subject: bonded, links: links(8, 32)}, {subject: plainTCP, links: links(1, 300)}}},
		{"two connections by MPTCP over 300 + 80", 1.09, []*bondUnit{{subject: mptcp, links: links(1, 300, 80)}, {subject: mptcp, links: links(1, 300, 80)}}},
		{"two bonds with datagrams, four with short transfers", 1.15, []*bondUnit{{subject: bonded, links: links(2, 16), load: loadUDP, mbit: 11.8},
			{subject: bonded, links: links(2, 16), load: loadUDP, mbit: 11.8}, {subject: bonded, links: links(1, 50, 1), load: loadShort},
			{subject: bonded, links: links(1, 50, 1), load: loadShort}, {subject: single, links: links(1, 50), load: loadShort}, {subject: single, links: links(1, 50), load: loadShort}}},
	} {
		if got := load(c.all); got < c.need-0.15 || got > c.need+0.15 {
			t.Errorf("%s are taken to need %.2f, and needed %.2f", c.what, got, c.need)
		}
	}
}

func TestMPTCPWithBBRLeavesLessForOthersAtOnce(t *testing.T) {
	many := func(s bondSubject, paced bool) *bondUnit {
		return &bondUnit{subject: s, paced: paced, links: slices.Repeat([]BondLink{{Mbit: 32}}, 8)}
	}
	if got := through(many(mptcp, true), many(bonded, true), many(mptcp, false)); got != 256*3.5 {
		t.Errorf("they are held to be %.0f Mbit/s", got)
	}
}

func TestBatchesThatTheMachineSleptThroughAreNamed(t *testing.T) {
	run := func(batch int, stolen float64) *BondRun {
		return &BondRun{BondConditions: BondConditions{Batch: batch, Stolen: stolen}}
	}
	if got := stolenFrom([]*BondRun{run(1, 0.3), run(1, 0.3), run(2, 0.001), run(3, 0.01), run(3, 0.05)}); got != "1, 3" {
		t.Errorf("named are %q", got)
	}
	if got := stolenFrom([]*BondRun{run(1, 0)}); got != "" {
		t.Errorf("named are %q, and none was", got)
	}
}

func TestOfABatchThatWasMeasuredTwiceTheQuieterOneCounts(t *testing.T) {
	run := func(batch int, stolen float64, problem string) *BondRun {
		return &BondRun{Case: "x", Problem: problem, BondConditions: BondConditions{Batch: batch, Stolen: stolen}}
	}
	runs := []*BondRun{run(1, 0.05, ""), run(2, 0.3, ""), run(2, 0.2, ""), run(3, 0.001, ""), run(4, 0.1, "")}
	if got := worstStolen(runs); !slices.Equal(got, []int{2, 4, 1}) {
		t.Fatalf("measured again are %v", got)
	}
	quieter, noisier, failed := []*BondRun{run(2, 0.01, ""), run(2, 0.01, "")}, []*BondRun{run(4, 0.2, "")}, []*BondRun{run(1, 0, "it fell over")}
	supersede(ofBatch(runs, 2), quieter)
	supersede(ofBatch(runs, 4), noisier)
	supersede(ofBatch(runs, 1), failed)
	r := &BondReport{Runs: slices.Concat(runs, quieter, noisier, failed)}
	counts := r.runs(func(*BondRun) bool { return true })
	if want := []*BondRun{runs[0], runs[3], runs[4], quieter[0], quieter[1]}; !slices.Equal(counts, want) {
		t.Errorf("of %d runs %d count", len(r.Runs), len(counts))
	}
	if got := stolenFrom(r.Runs); got != "1, 4" {
		t.Errorf("named are %q", got)
	}
}

func TestConditionsAreThoseOfTheTimeBetweenTwoLooks(t *testing.T) {
	w := &bondWatch{pids: []int{os.Getpid()}}
	if err := w.look(); err != nil {
		t.Skip(err) // elsewhere than on Linux
	}
	for until := time.Now().Add(200 * time.Millisecond); time.Now().Before(until); {
	}
	c, err := w.read()
	if err != nil {
		t.Fatal(err)
	}
	// Others may have the processor for most of the time, and the collector may work beside. The process is read twice, as a node and as the benchmark, and the
	// kernel counts in hundredths of a second: each reading may miss one at either end.
	const tick = 0.01 / 0.2
	if c.Nodes < 0.05 || math.Abs(c.Nodes-c.Bench) > 2.5*tick || c.Busy <= 0 || c.Busy > 1.1 {
		t.Errorf("a process that never rests is %+v", c)
	}
}
