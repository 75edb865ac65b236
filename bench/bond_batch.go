package bench

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// BondConditions are under which a run was measured.
type BondConditions struct {
	Batch  int     `json:"batch"`      // those of one number were measured at once
	Load   float64 `json:"batch_load"` // processor seconds a second that the batch was taken to need, for all in it
	Busy   float64 `json:"busy"`       // the share of all processors that was
	Stolen float64 `json:"stolen"`     // the share of them that the host of a virtual machine kept from it though there was work
	// Superseded is a run whose batch was measured twice, and that does not count.
	Superseded bool    `json:"superseded,omitempty"`
	Nodes      float64 `json:"nodes_cpu"`     // processor seconds a second of the run's two nodes
	Bench      float64 `json:"benchmark_cpu"` // likewise, of the benchmark, with the links and flows of all runs of the batch
}

// A bondWatch looks at processors while a unit runs.
type bondWatch struct {
	pids         []int // of nodes
	began        time.Time
	machine      machineTime
	nodes, bench time.Duration
}

func (w *bondWorld) watch(u *bondUnit) (x *bondWatch, err error) {
	x = &bondWatch{}
	if u.subject.isWeft() {
		for _, n := range w.nodes {
			x.pids = append(x.pids, n.Process.PID())
		}
	}
	return x, x.look()
}

func (x *bondWatch) look() (err error) {
	x.began = time.Now()
	if x.machine, err = readMachine(); err != nil {
		return err
	}
	if x.bench, err = cpuOf(os.Getpid()); err != nil {
		return err
	}
	x.nodes = 0
	for _, pid := range x.pids {
		used, err := cpuOf(pid)
		if err != nil {
			return err
		}
		x.nodes += used
	}
	return nil
}

// read is how it was since it was begun.
func (x *bondWatch) read() (c BondConditions, err error) {
	now := *x
	if err := now.look(); err != nil {
		return c, err
	}
	took := now.began.Sub(x.began).Seconds()
	c.Busy, c.Stolen = now.machine.since(x.machine, now.began.Sub(x.began))
	c.Busy, c.Stolen = round(c.Busy), round(c.Stolen)
	c.Nodes = round((now.nodes - x.nodes).Seconds() / took)
	c.Bench = round((now.bench - x.bench).Seconds() / took)
	return c, nil
}

// stolenMost is what may be stolen before it is told: 0.001 is when both cores are busy and the host has enough.
const stolenMost = 0.02

// stolenText is what is said of it, where it shows.
func (c BondConditions) stolenText() string {
	if c.Stolen <= stolenMost {
		return ""
	}
	return fmt.Sprintf(", %.0f %% stolen", c.Stolen*100)
}

// again measures batches once more from which too much was stolen, the worst first, as long as there is time. Of the runs of a batch that was measured twice those count
// from which less was stolen; the others stay in the report.
func (r *bondRun) again(ctx context.Context, batches [][]*bondUnit, runs []*BondRun) error {
	for _, number := range worstStolen(runs) {
		b := batches[number-1]
		if time.Now().Add(length(b) + batchCost).After(r.until) {
			return nil
		}
		r.say("batch %d is measured again", number)
		from := len(r.report.Runs)
		if err := r.batch(ctx, number, len(batches), b); err != nil {
			return err
		}
		supersede(ofBatch(runs, number), r.report.Runs[from:])
	}
	return nil
}

// worstStolen are the batches of runs that count and from which more was stolen than may be, the worst first.
func worstStolen(runs []*BondRun) (numbers []int) {
	most := map[int]float64{}
	for _, x := range runs {
		if x.Stolen > stolenMost && !x.Superseded {
			most[x.Batch] = max(most[x.Batch], x.Stolen)
		}
	}
	return slices.SortedFunc(maps.Keys(most), func(a, b int) int { return cmp.Or(cmp.Compare(most[b], most[a]), cmp.Compare(a, b)) })
}

func ofBatch(runs []*BondRun, number int) (list []*BondRun) {
	for _, x := range runs {
		if x.Batch == number {
			list = append(list, x)
		}
	}
	return list
}

// supersede has the first or the second runs of a batch count no more: those from which more was stolen, or of which one went wrong.
func supersede(first, second []*BondRun) {
	rank := func(runs []*BondRun) (failed int, stolen float64) {
		for _, x := range runs {
			stolen = max(stolen, x.Stolen)
			if x.Problem != "" {
				failed++
			}
		}
		return failed, stolen
	}
	worse := first
	failed1, stolen1 := rank(first)
	if failed2, stolen2 := rank(second); cmp.Or(cmp.Compare(failed2, failed1), cmp.Compare(stolen2, stolen1)) > 0 {
		worse = second
	}
	for _, x := range worse {
		x.Superseded = true
	}
}

// stolenFrom names them in their order: "1, 19"; empty: none.
func stolenFrom(runs []*BondRun) string {
	var names []string
	for _, n := range slices.Sorted(slices.Values(worstStolen(runs))) {
		names = append(names, strconv.Itoa(n))
	}
	return strings.Join(names, ", ")
}

// What a unit takes of the processors, in processor seconds a second, fitted to what 58 of them took ([BondConditions]) on two cores of an
// AMD EPYC on 2026-11-22, in 13 batches that kept both busy for 13 to 88 %: links of 8 to 300 Mbit/s alone and two to eight of them as
// one. What nodes take grows as the root of what they carry, for at higher rates more packets come at a time: one link of 8 Mbit/s
// takes 0.12, of 32 0.25, of 80 0.33, of 300 0.61; 2 x 8 take 0.23, 2 x 32 0.35, 8 x 8 0.40, 8 x 32 0.61, 300 + 80 0.67. The fit is wrong by
// 0.07 at most.
const (
	costOfNodes     = 0.015  // two nodes,
	costOfLink      = 0.015  // more for each link,
	costOfRoot      = 0.0335 // and more, times the root of the Mbit/s that the links have together
	costOfFlow      = 0.06   // the benchmark's, for both ends of a flow and for looking at it,
	costOfMbit      = 0.0012 // and more for each Mbit/s through the laboratory's routers, and through TCP where there are no nodes
	costOfDatagrams = 0.06   // more where each datagram is sent, received and written down by itself
	shareOfShort    = 0.35   // of all that: short transfers with pauses between them
)

// weight is how many processor seconds a second the unit is taken to need, all in all.
func (u *bondUnit) weight() float64 {
	mbit := 0.0
	for _, l := range u.links {
		mbit += l.Mbit
	}
	if u.load == loadUDP {
		mbit = u.mbit
		if u.mode == "redundant" {
			mbit *= float64(len(u.links))
		}
	}
	w := costOfFlow + costOfMbit*mbit
	if u.subject.isWeft() {
		w += costOfNodes + costOfLink*float64(len(u.links)) + costOfRoot*math.Sqrt(mbit)
	}
	switch u.load {
	case loadUDP:
		w += costOfDatagrams
	case loadBeside:
		w += costOfFlow
	case loadShort:
		w *= shareOfShort
	}
	return w
}

// load is what units take that run at once.
func load(units []*bondUnit) (sum float64) {
	for _, u := range units {
		sum += u.weight()
	}
	return sum
}

// throughMost is how much all links of a batch may carry together, in Mbit/s: one thread plays them all, whatever flows by them. With 444 to 464 every
// run had what it has alone; with 704 and 875 (MPTCP by 8 x 32 or 300 + 80, in both directions at once, which needs no nodes and so little else)
// that thread was late, and a bond of 4 x 8 or 8 x 8 beside it had 9 of 29 Mbit/s, 50 of 58, MPTCP 300 of 380, while the processors were busy
// for 64 and 70 %.
const throughMost = 480

// costOfPaced is how much more the laboratory has to do for a Mbit/s of TCP by itself, with BBR: it sends its packets one by one, and not many at a time as a node does. With 456 to
// 480 Mbit/s of it that one thread was busy all the time, and links had 0.54 to 0.88 of what they carry, nodes' beside it too; with 349 all had what they carry.
const costOfPaced = 1.5

// through is how much the links of units may carry together, in Mbit/s that are sent many packets at a time.
func through(units ...*bondUnit) (sum float64) {
	for _, u := range units {
		for _, l := range u.links {
			if u.paced && !u.subject.isWeft() {
				sum += costOfPaced * l.Mbit
			} else {
				sum += l.Mbit
			}
		}
	}
	return sum
}

// fit reports whether units may run at once.
func fit(units []*bondUnit, worlds int, most float64) bool {
	return len(units) <= worlds && load(units) <= most && through(units...) <= throughMost
}

// length is how long a batch takes: as long as its longest unit.
func length(batch []*bondUnit) (d time.Duration) {
	for _, u := range batch {
		d = max(d, u.length)
	}
	return d
}

// batches packs each round's units, so that rounds follow each other and what is compared was measured in minutes.
func (r *bondRun) batches(units []*bondUnit) (list [][]*bondUnit) {
	for len(units) > 0 {
		n := 0
		for n < len(units) && units[n].round == units[0].round {
			n++
		}
		list = append(list, pack(units[:n], r.Worlds, r.Load)...)
		units = units[n:]
	}
	return list
}

// pack puts units together so that no batch has more than worlds of them, takes more than most or carries too much, and there are few: the long
// ones first, and of equally long ones the heavy ones (any fit decreasing), each into the batch with room for it whose units were nearest to
// it in the order in which they were given. A unit that is too much by itself is alone. Short ones end before the others of their
// batch, which have the processors to themselves then.
func pack(units []*bondUnit, worlds int, most float64) (list [][]*bondUnit) {
	place := map[*bondUnit]int{}
	for i, u := range units {
		place[u] = i
	}
	middle := func(batch []*bondUnit) (sum int) {
		for _, u := range batch {
			sum += place[u]
		}
		return sum / len(batch)
	}
	for _, u := range slices.SortedStableFunc(slices.Values(units), func(a, b *bondUnit) int {
		return cmp.Or(cmp.Compare(b.length, a.length), cmp.Compare(b.weight(), a.weight()))
	}) {
		into, least := -1, 0
		for i, b := range list {
			if far := max(middle(b)-place[u], place[u]-middle(b)); (into < 0 || far < least) && fit(append(b[:len(b):len(b)], u), worlds, most) {
				into, least = i, far
			}
		}
		if into < 0 {
			list, into = append(list, nil), len(list)
		}
		list[into] = append(list[into], u)
	}
	slices.SortStableFunc(list, func(a, b []*bondUnit) int { return middle(a) - middle(b) })
	for _, b := range list {
		// The first worlds have got the most links, which they keep.
		slices.SortStableFunc(b, func(a, b *bondUnit) int { return len(b.links) - len(a.links) })
	}
	return list
}
