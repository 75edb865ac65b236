package bench

import (
	"fmt"
	"slices"
	"strings"
)

// judge fills the goals in.
func (r *BondReport) judge(cases []*bondCase) {
	for _, control := range r.controls() {
		for _, c := range cases {
			c.judge(r, c, control)
		}
	}
	r.judgeOrder(cases)
}

func most(v float64) *float64 { return &v }

// of selects runs of a case.
func of(c *bondCase, s bondSubject, out bool, control string) func(*BondRun) bool {
	direction := (&bondUnit{out: out}).direction()
	return func(x *BondRun) bool {
		return x.Case == c.name && x.Subject == s && x.Direction == direction && x.Control == control
	}
}

// sumAlone is what a subject carries by each link of a case, added up; 0 where one was not measured.
func (r *BondReport) sumAlone(s bondSubject, links []BondLink, direction, control string) (sum float64) {
	for _, l := range links {
		v := r.alone(s, l, direction, control, loadTCP)
		if v == 0 {
			return 0
		}
		sum += v
	}
	return sum
}

// efficiencyGoal names what is carried by all links of the sum of what each carries alone.
const efficiencyGoal = "efficiency"

// judgeThroughput holds all links together against the sum of each alone.
func judgeThroughput(r *BondReport, c *bondCase, control string) {
	raw := 0.0
	for _, l := range c.links {
		raw += l.Mbit
	}
	for _, out := range directions {
		direction := (&bondUnit{out: out}).direction()
		sum := r.sumAlone(single, c.links, direction, control)
		var values, rates []float64
		for _, x := range r.runs(of(c, bonded, out, control)) {
			rates = append(rates, x.Mbit)
			if sum > 0 {
				values = append(values, x.Mbit/sum)
			}
		}
		slices.Sort(rates)
		beside := fmt.Sprintf("%.4g of %.4g Mbit/s alone; %.1f %% of the raw rate", quantile(rates, 0.5), sum, 100*quantile(rates, 0.5)/raw)
		if plain := r.sumAlone(plainTCP, c.links, direction, control); plain > 0 {
			var others []float64
			for _, x := range r.runs(of(c, mptcp, out, control)) {
				others = append(others, x.Mbit)
			}
			slices.Sort(others)
			if len(others) > 0 {
				beside += fmt.Sprintf("; MPTCP %.3f of plain TCP alone, %.1f %% of the raw rate", quantile(others, 0.5)/plain, 100*quantile(others, 0.5)/raw)
			}
		}
		r.goal(BondGoal{Case: c.name, Name: efficiencyGoal, Direction: direction, Control: control, Least: c.least, Beside: beside}, values)
	}
}

// judgeAdded holds both links against the better one alone.
func judgeAdded(r *BondReport, c *bondCase, control string) {
	for _, out := range directions {
		direction := (&bondUnit{out: out}).direction()
		best := r.alone(single, c.links[0], direction, control, loadTCP)
		quick := r.alone(single, c.links[0], direction, control, loadShort)
		var long, short, others []float64
		for _, x := range r.runs(of(c, bonded, out, control)) {
			switch {
			case len(x.Short) > 0 && quick > 0:
				short = append(short, quantile(x.Short, 0.5)/quick)
			case len(x.Short) == 0 && best > 0:
				long = append(long, x.Mbit/best)
			}
		}
		for _, x := range r.runs(of(c, mptcp, out, control)) {
			others = append(others, x.Mbit/c.links[0].Mbit)
		}
		beside := ""
		if len(others) > 0 {
			beside = fmt.Sprintf("MPTCP has %.1f %% of the good link's raw rate", 100*slices.Max(others))
		}
		r.goal(BondGoal{Case: c.name, Name: "x the best link alone", Direction: direction, Control: control, Least: 0.98, ByWorst: true, Beside: beside}, long)
		// A short transfer that the other link makes no slower: what differs below a twentieth is the noise of short times.
		r.goal(BondGoal{Case: c.name, Name: "time of short transfers, x alone", Direction: direction, Control: control, Most: most(1.05),
			Beside: fmt.Sprintf("%.0f ms alone", quick)}, short)
	}
}

// after are what the events of a kind did, in runs of a mode.
func (r *BondReport) after(c *bondCase, out bool, control, mode string, what ...bondHappening) (gaps, lost []float64) {
	for _, x := range r.runs(of(c, bonded, out, control)) {
		for _, e := range x.Events {
			if x.Mode == mode && e.Disturbance != nil && slices.Contains(what, e.What) {
				gaps, lost = append(gaps, e.GapMS), append(lost, float64(e.Lost))
			}
		}
	}
	return gaps, lost
}

// judgeDark is about links that fall silent.
func judgeDark(r *BondReport, c *bondCase, control string) {
	for _, out := range directions {
		direction := (&bondUnit{out: out}).direction()
		for _, how := range []struct {
			name, mode string
			what       bondHappening
			lost       float64
		}{{"silent", "", goesDark, 5}, {"silent, redundant", "redundant", goesDark, 0}, {"silent outwards", "", goesDarkOut, 5}, {"silent inwards", "", goesDarkIn, 5}} {
			gaps, lost := r.after(c, out, control, how.mode, how.what)
			r.goal(BondGoal{Case: c.name, Name: how.name + ", gap", Direction: direction, Control: control, Unit: "ms", Most: most(150)}, gaps)
			r.goal(BondGoal{Case: c.name, Name: how.name + ", datagrams lost", Direction: direction, Control: control, Most: most(how.lost)}, lost)
		}
		gaps, lost := r.after(c, out, control, "", isLight)
		r.goal(BondGoal{Case: c.name, Name: "back, gap", Direction: direction, Control: control, Unit: "ms", Told: true, Most: most(150), Beside: lostWords(lost)}, gaps)
	}
}

func lostWords(lost []float64) string {
	if len(lost) == 0 {
		return ""
	}
	return fmt.Sprintf("at most %.0f datagrams lost", slices.Max(lost))
}

// judgeDown is about interfaces that go.
func judgeDown(r *BondReport, c *bondCase, control string) {
	for _, out := range directions {
		direction := (&bondUnit{out: out}).direction()
		gaps, lost := r.after(c, out, control, "", goesDown)
		r.goal(BondGoal{Case: c.name, Name: "datagrams lost", Direction: direction, Control: control, Most: most(1)}, lost)
		r.goal(BondGoal{Case: c.name, Name: "gap", Direction: direction, Control: control, Unit: "ms", Told: true, Most: most(150)}, gaps)
		_, lost = r.after(c, out, control, "", comesUp)
		r.goal(BondGoal{Case: c.name, Name: "up again, datagrams lost", Direction: direction, Control: control, Told: true, Most: most(1)}, lost)
	}
}

// stretch is how long a stretch is over which a rate is told: long enough for bursts to even out, short beside what is asked.
const stretch = 5 // of sampleEvery

// mean of what the program got from one time to another, in seconds.
func (x *BondRun) mean(from, to float64) float64 { return x.over(x.Curve, from, to) }

// over is the mean of a curve from one time to another.
func (x *BondRun) over(curve []float64, from, to float64) float64 {
	i, j := int(from/x.Step+0.5), min(int(to/x.Step+0.5), len(curve))
	if i >= j {
		return 0
	}
	sum := 0.0
	for _, v := range curve[i:j] {
		sum += v
	}
	return sum / float64(j-i)
}

// settled is how long after a time, in seconds, a connection is for good (until the other time) above a rate, by what comes out of the
// overlay. What the program gets stops for a round trip at each loss by which TCP looks for its share: by that, a plain connection on
// one link that does not change is settled after three seconds.
func (x *BondRun) settled(from, to, rate float64) float64 {
	curve := x.Curve
	if x.TCP != nil && len(x.TCP.Came) > 0 {
		curve = x.TCP.Came
	}
	last := 0.0
	for at := from; at+stretch*x.Step <= to+x.Step/2; at += x.Step {
		if x.over(curve, at, at+stretch*x.Step) < rate {
			last = at + stretch*x.Step - from
		}
	}
	return last
}

// lowest is the lowest stretch between two times.
func (x *BondRun) lowest(from, to float64) float64 {
	low := x.mean(from, from+stretch*x.Step)
	for at := from; at+stretch*x.Step <= to+x.Step/2; at += x.Step {
		low = min(low, x.mean(at, at+stretch*x.Step))
	}
	return low
}

// judgeBack is about a link that comes back beside a TCP flow.
func judgeBack(r *BondReport, c *bondCase, control string) {
	gone, back := goneAt.Seconds(), backAt.Seconds()
	for _, out := range directions {
		direction := (&bondUnit{out: out}).direction()
		for _, how := range []bondHappening{isLight, comesUp} {
			var rates, dips, took []float64
			for _, x := range r.runs(of(c, bonded, out, control)) {
				if len(x.Events) != 2 || x.Events[1].What != how {
					continue
				}
				full, half := x.mean(flowWarm.Seconds(), gone), x.mean(aloneFrom.Seconds(), back)
				if full == 0 || half == 0 {
					continue
				}
				rates = append(rates, x.mean(back+2, backLength.Seconds())/full)
				took = append(took, x.settled(back, backLength.Seconds(), 0.95*full))
				dips = append(dips, max(0, 1-x.lowest(back, backLength.Seconds())/half))
			}
			name := map[bondHappening]string{isLight: "after silence", comesUp: "after down"}[how]
			r.goal(BondGoal{Case: c.name, Name: name + ", x the full rate from 2 s on", Direction: direction, Control: control, Least: 0.95}, rates)
			r.goal(BondGoal{Case: c.name, Name: name + ", dip", Direction: direction, Control: control, Most: most(0.10)}, dips)
			r.goal(BondGoal{Case: c.name, Name: name + ", last half second below 95 %", Direction: direction, Control: control, Unit: "s", Told: true, Most: most(2)}, took)
		}
	}
}

// judgeCapacity is about how soon a flow has what links that change have.
func judgeCapacity(r *BondReport, c *bondCase, control string) {
	narrow, wide := narrowAt.Seconds(), wideAt.Seconds()
	for _, out := range directions {
		direction := (&bondUnit{out: out}).direction()
		full, less := r.alone(single, c.links[0], direction, control, loadTCP), r.alone(single, halved, direction, control, loadTCP)
		var down, up, rates []float64
		for _, x := range r.runs(of(c, bonded, out, control)) {
			if full == 0 || less == 0 {
				continue
			}
			down = append(down, x.settled(narrow, wide, 0.9*(full+less)))
			up = append(up, x.settled(wide, narrowLength.Seconds(), 0.9*2*full))
			rates = append(rates, x.mean(narrow+1, wide)/(full+less))
		}
		r.goal(BondGoal{Case: c.name, Name: "16 to 8, settled at 90 % of the links alone", Direction: direction, Control: control, Unit: "s", Most: most(1)}, down)
		r.goal(BondGoal{Case: c.name, Name: "8 to 16, settled at 90 % of the links alone", Direction: direction, Control: control, Unit: "s", Most: most(1)}, up)
		r.goal(BondGoal{Case: c.name, Name: "efficiency while narrow", Direction: direction, Control: control, Told: true}, rates)
	}
}

// judgeFlaps is about stalls, by the worst of all.
func judgeFlaps(r *BondReport, c *bondCase, control string) {
	for _, out := range directions {
		direction := (&bondUnit{out: out}).direction()
		for _, how := range []struct {
			name string
			what bondHappening
		}{{"silent", goesDark}, {"down", goesDown}} {
			var datagrams, flow, lost, rate []float64
			for _, x := range r.runs(of(c, bonded, out, control)) {
				switch {
				case len(x.Events) == 0 || x.Events[0].What != how.what:
				case x.UDP != nil:
					datagrams, lost = append(datagrams, x.StallMS), append(lost, float64(x.UDP.Lost))
				default:
					flow, rate = append(flow, x.StallMS), append(rate, x.Mbit)
				}
			}
			// By default each is measured in one direction.
			if len(datagrams) > 0 || len(flow) == 0 {
				r.goal(BondGoal{Case: c.name, Name: how.name + ", datagrams' longest gap", Direction: direction, Control: control, Unit: "ms", Most: most(300), ByWorst: true,
					Beside: lostWords(lost)}, datagrams)
			}
			if len(flow) == 0 {
				continue
			}
			beside := ""
			if len(rate) > 0 {
				beside = fmt.Sprintf("%.4g Mbit/s", slices.Min(rate))
			}
			r.goal(BondGoal{Case: c.name, Name: how.name + ", a TCP flow's longest stall", Direction: direction, Control: control, Unit: "ms", Most: most(300), ByWorst: true,
				Beside: beside}, flow)
		}
	}
}

// judgeMetric is about a link that is kept for when it is needed.
func judgeMetric(r *BondReport, c *bondCase, control string) {
	for _, out := range directions {
		direction := (&bondUnit{out: out}).direction()
		var idle []float64
		for _, x := range r.runs(of(c, bonded, out, control)) {
			if len(x.Events) == 0 || len(x.ByLink) < 2 {
				continue
			}
			from, to := int(x.Warm/x.Step), int(x.Events[0].At/x.Step)
			sum := 0
			for _, v := range x.ByLink[1][from:min(to, len(x.ByLink[1]))] {
				sum += v
			}
			idle = append(idle, float64(sum)/float64(to-from))
		}
		gaps, lost := r.after(c, out, control, "", goesDark)
		// Probes, and the feedback that also goes by the next way: a frame of some 200 bytes 40 times a second is 64 kbit/s.
		r.goal(BondGoal{Case: c.name, Name: "the second link while it is not needed", Direction: direction, Control: control, Unit: "kbit/s", Most: most(64)}, idle)
		r.goal(BondGoal{Case: c.name, Name: "takes over, gap", Direction: direction, Control: control, Unit: "ms", Most: most(150), Beside: lostWords(lost)}, gaps)
	}
}

// plainShare is how much of a full TCP packet on Ethernet is payload: 1448 of 1514 bytes, with timestamps.
const plainShare = 1448.0 / 1514

// judgeBeside is about the share of a link that the bond takes from a plain connection.
func judgeBeside(r *BondReport, c *bondCase, control string) {
	for _, out := range directions {
		var shares, used []float64
		for _, x := range r.runs(of(c, bonded, out, control)) {
			if x.Beside > 0 && len(x.Carried) > 0 && x.Carried[0] > 0 {
				all := float64(x.Carried[0]) * 8 / 1e6 / x.Seconds
				shares = append(shares, 1-x.Beside/plainShare/all)
				used = append(used, all/c.links[0].Mbit)
			}
		}
		r.goal(BondGoal{Case: c.name, Name: "share of the link that both use", Direction: (&bondUnit{out: out}).direction(), Control: control, Least: 0.3, Most: most(0.7),
			Beside: besideWords(used)}, shares)
	}
}

// judgeOrder looks at all connections over several links that were not disturbed.
func (r *BondReport) judgeOrder(cases []*bondCase) {
	for _, control := range r.controls() {
		var shares []float64
		worst := ""
		for _, x := range r.runs(func(x *BondRun) bool {
			return x.Subject == bonded && x.Control == control && len(x.Events) == 0 && x.Order != nil && x.Order.Packets > 0
		}) {
			share := float64(x.Order.Late) / float64(x.Order.Packets)
			if len(shares) == 0 || share > slices.Max(shares) {
				worst = fmt.Sprintf("worst: %s %s", x.Case, x.Direction)
			}
			shares = append(shares, share)
		}
		if len(shares) > 0 {
			r.goal(BondGoal{Case: "reordering", Name: "packets that come after a later one", Control: control, Most: most(0.001), Beside: strings.TrimSpace(worst)}, shares)
		}
	}
}

func besideWords(used []float64) string {
	if len(used) == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %% of the link's rate is used", 100*slices.Min(used))
}
