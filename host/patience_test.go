package host

import (
	"math/rand/v2"
	"testing"
)

// A pace is how often looking again finds something: once, and as often as Patience would at most.
type pace struct{ once, often float64 }

var (
	fast  = pace{0.45, 0.65} // a flow as fast as the machine, as counted
	paced = pace{0.07, 0.22} // by a line of 100 Mbit/s
)

// wait is n waits at a pace. It returns the share of those in which p looked as often as it does at most.
func (p *Patience) wait(rnd *rand.Rand, at pace, n int) float64 {
	often := 0
	for range n {
		found := at.once
		switch p.Looks() {
		case 0:
			continue
		case Looks:
			found = at.often
			often++
		}
		if rnd.Float64() < found {
			p.Found()
		} else {
			p.Missed()
		}
	}
	return float64(often) / float64(n)
}

func TestWhoFindsWhatItLooksForGoesOnLooking(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	var p Patience
	if p.Looks() != Looks {
		t.Errorf("at first it looks %d times, want %d", p.Looks(), Looks)
	}
	for range 20 {
		if share := p.wait(rnd, fast, 2000); share < 0.8 {
			t.Errorf("in a fast flow it looks often in %.2f of all waits", share)
		}
		p.wait(rnd, paced, 200)
		if share := p.wait(rnd, paced, 2000); share > 0.1 {
			t.Errorf("in a paced flow it looks often in %.2f of all waits", share)
		}
		p.wait(rnd, fast, 100)
	}
}

func TestWhoFindsNothingAtAllLearnsWithTheFirstThatItFinds(t *testing.T) {
	var p Patience
	for range 1 << 20 {
		p.Missed()
	}
	waits, finds := 0, 0
	for looks := p.Looks(); looks < Looks && waits < 100; looks = p.Looks() {
		if waits++; looks > 0 {
			p.Found()
			finds++
		}
	}
	if finds > 10 || waits > seldom*10 {
		t.Errorf("after an idle time it takes %d finds in %d waits until it looks as often as it can", finds, waits)
	}
}
