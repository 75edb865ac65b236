package bond_test

import (
	"fmt"
	"math"
	"testing"
	"time"
)

// best is the goodput of the best link alone, and which it is.
func best(t *testing.T, seed uint64, back bool, lines []line) (most float64, which int) {
	for i, l := range lines {
		if m := transfer(t, seed, false, nil, back, l); m.mbit > most {
			most, which = m.mbit, i
		}
	}
	return most, which
}

func TestNoLinkMakesAFlowSlowerThanTheBestLinkAlone(t *testing.T) {
	good := line{mbit: 20, rtt: 20 * time.Millisecond}
	for name, other := range map[string]line{
		"a slow one":                    {mbit: 1, rtt: 20 * time.Millisecond},
		"a slow, long, lossy one":       {mbit: 1, rtt: 300 * time.Millisecond, loss: 0.05},
		"a long one":                    {mbit: 20, rtt: 600 * time.Millisecond},
		"a lossy one":                   {mbit: 5, rtt: 100 * time.Millisecond, loss: 0.02},
		"one that loses a tenth":        {mbit: 20, rtt: 20 * time.Millisecond, loss: 0.1},
		"one of much jitter":            {mbit: 20, rtt: 20 * time.Millisecond, jitter: 30 * time.Millisecond},
		"one of a very deep queue":      {mbit: 4, rtt: 20 * time.Millisecond, queue: 2 * time.Second},
		"one of hardly any queue":       {mbit: 10, rtt: 20 * time.Millisecond, queue: 5 * time.Millisecond},
		"one that is hardly one at all": {mbit: 0.1, rtt: 500 * time.Millisecond, loss: 0.2},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(max(1, *seeds)) {
				lines := []line{good, other}
				most, _ := best(t, seed, seed%2 == 1, lines)
				all := transfer(t, seed, true, nil, seed%2 == 1, lines...)
				t.Logf("seed %d: %.1f %% of the best alone (%.2f): %v", seed, all.mbit/most*100, most, all)
				t.Logf("   %+v", all.receiver)
				if all.mbit < 0.98*most {
					t.Errorf("seed %d: %.1f %% of the best link alone", seed, all.mbit/most*100)
				}
			}
		})
	}
}

// TestALinkThatLosesAThirdCostsLittle is where the law does not hold: one direction in two has 93 to 98 % of the clean link alone. It had 24 to 50.
func TestALinkThatLosesAThirdCostsLittle(t *testing.T) {
	lines := []line{{mbit: 20, rtt: 20 * time.Millisecond}, {mbit: 20, rtt: 20 * time.Millisecond, loss: 0.3}}
	for seed := range uint64(max(2, *seeds)) {
		back := seed%2 == 1
		most := transfer(t, seed, false, nil, back, lines[0]).mbit
		all := transfer(t, seed, true, nil, back, lines...)
		t.Logf("seed %d: %.1f %% of the clean one alone (%.2f): %v", seed, all.mbit/most*100, most, all)
		if all.mbit < 0.85*most {
			t.Errorf("seed %d: %.1f %% of the clean link alone", seed, all.mbit/most*100)
		}
	}
}

// drawLines draws two to five links, from modems to fibre.
func drawLines(w *world) (all []line) {
	for range 2 + w.rnd.IntN(4) {
		l := line{
			mbit: math.Exp(math.Log(0.5) + w.rnd.Float64()*math.Log(100)), // 0.5 to 50
			rtt:  time.Duration(math.Exp(math.Log(2)+w.rnd.Float64()*math.Log(150)) * float64(time.Millisecond)),
		}
		l.queue = time.Duration(20+w.rnd.IntN(300)) * time.Millisecond
		if w.rnd.IntN(3) == 0 {
			l.loss = []float64{0.0001, 0.001, 0.01, 0.05}[w.rnd.IntN(4)]
		}
		if w.rnd.IntN(3) == 0 {
			l.jitter = time.Duration(w.rnd.Int64N(int64(l.rtt / 3)))
		}
		all = append(all, l)
	}
	return all
}

// TestWhateverTheLinksOneFlowIsNotSlowerThanByTheBest draws links at random.
func TestWhateverTheLinksOneFlowIsNotSlowerThanByTheBest(t *testing.T) {
	n, worst := 4, math.Inf(1)
	if *seeds > 0 {
		n = *seeds
	}
	for seed := range uint64(n) {
		if *only >= 0 && seed != uint64(*only) {
			continue
		}
		lines := drawLines(newWorld(t, seed+1000))
		back := seed%2 == 1
		most, which := best(t, seed, back, lines)
		all := transfer(t, seed, true, nil, back, lines...)
		if ratio := all.mbit / most; ratio < 0.98 {
			t.Errorf("seed %d: %.1f %% of link %d alone (%.2f Mbit/s): %v\n%+v\n%v", seed, ratio*100, which+1, most, all, all.receiver, show(lines))
		} else if *verbose {
			t.Logf("seed %d: %.1f %%", seed, ratio*100)
		}
		worst = min(worst, all.mbit/most)
	}
	t.Logf("the worst of %d: %.1f %% of the best link alone", n, worst*100)
}

func show(lines []line) (s string) {
	for i, l := range lines {
		s += fmt.Sprintf("   %d: %.2f Mbit/s, RTT %v, jitter %v, loss %g, queue %v\n", i+1, l.mbit, l.rtt.Round(time.Millisecond), l.jitter.Round(time.Millisecond), l.loss, l.queue)
	}
	return s
}
