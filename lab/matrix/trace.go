package matrix

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft/lab/scenario"
)

// How a run's packets become steps that a person can read.
const (
	// burst is the longest pause between datagrams of one bundle: a spray has 500 a second, single probes come
	// a tenth of a second apart and stay single.
	burst = 25 * time.Millisecond
	// flight is the longest time from one place to the next for the same datagram.
	flight = time.Second
	// firstSteps and lastSteps are how many are kept from either end.
	firstSteps, lastSteps = 40, 30
)

// A Step is a datagram's journey, or that of several alike in a row, bundled.
type Step struct {
	At, Until time.Duration // when the first and the last of them set out
	From, End string        // lanes: the machine that sent it, and the one where it ended
	What      string
	Source    string // its source address where it ended; "" if those of a bundle differ
	Target    string // where it was addressed to when it set out; without the port if those of a bundle differ
	Count     int    // datagrams: 1 or more
	Dropped   bool   // where it ended, it was dropped
	Why       string // what a NAT said to it
	Skipped   int    // steps left out before this one
}

// A journey is a datagram on its way through the trace.
type journey struct {
	from, end       string
	at, last        time.Duration
	target          string
	nowFrom, nowTo  string
	what, why       string
	dropped, ending bool
}

// newSample makes a sample of a run's trace.
func newSample(s scenario.Scenario, seed uint64, res scenario.Result) *Sample {
	out := &Sample{Seed: seed, Lanes: lanes(s)}
	steps := bundle(journeys(s, res.Trace))
	if n := len(steps); n > firstSteps+lastSteps {
		steps[n-lastSteps].Skipped = n - firstSteps - lastSteps
		steps = slices.Delete(steps, firstSteps, n-lastSteps)
	}
	out.Steps = slices.Clone(steps)
	for _, host := range slices.Sorted(maps.Keys(res.Logs)) {
		text := res.Logs[host]
		if len(text) > maxLog {
			text = text[len(text)-maxLog:]
			_, text, _ = strings.Cut(text, "\n")
			text = "(the beginning is left out)\n" + text
		}
		out.Logs = append(out.Logs, Log{host, strings.ToValidUTF8(text, "?")})
	}
	return out
}

// lanes are the machines of a cell from left to right: from a outwards, the servers, and inwards to b.
func lanes(s scenario.Scenario) []string {
	on := map[string]string{}
	for _, r := range s.Routers {
		on[r.Name] = r.On
	}
	chain := func(host string) (up []string) {
		for _, h := range s.Hosts {
			if h.Name == host {
				for at := h.On; at != scenario.Internet && at != "" && !slices.Contains(up, at); at = on[at] {
					up = append(up, at)
				}
			}
		}
		return up
	}
	out := append([]string{"a"}, chain("a")...)
	for _, h := range s.Hosts {
		if h.Role == scenario.Server || h.Role == scenario.Relay {
			out = append(out, h.Name)
		}
	}
	right := chain("b")
	slices.Reverse(right)
	for _, name := range append(right, "b") {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

// journeys follows each datagram from place to place. A trace does not number datagrams: one that is seen at a place
// is the oldest that is under way, says the same, was not there yet and has kept its source or its destination, for a NAT changes one of them.
// It ends where it is dropped, and at a host.
func journeys(s scenario.Scenario, trace []scenario.Packet) (all []*journey) {
	hosts := map[string]bool{}
	for _, h := range s.Hosts {
		hosts[h.Name] = true
	}
	trace = slices.Clone(trace)
	slices.SortStableFunc(trace, func(a, b scenario.Packet) int { return cmp.Compare(a.At, b.At) })
	under := map[string][]*journey{} // way, by what they say
	for _, p := range trace {
		waiting := under[p.What]
		for len(waiting) > 0 && p.At-waiting[0].last > flight {
			waiting = waiting[1:]
		}
		i := slices.IndexFunc(waiting, func(j *journey) bool {
			return !j.ending && j.end != p.Where && (j.nowFrom == p.From || j.nowTo == p.To)
		})
		var j *journey
		if i < 0 {
			j = &journey{from: p.Where, at: p.At, target: p.To, what: p.What}
			all = append(all, j)
			waiting = append(waiting, j)
		} else {
			j = waiting[i]
		}
		j.end, j.last, j.nowFrom, j.nowTo, j.dropped = p.Where, p.At, p.From, p.To, p.Dropped
		j.why = cmp.Or(p.Why, j.why)
		j.ending = p.Dropped || i >= 0 && hosts[p.Where]
		under[p.What] = waiting
	}
	return all
}

// bundle joins datagrams that go the same way to the same end in bursts.
func bundle(all []*journey) (steps []Step) {
	type key struct {
		from, end, what, why, host string
		dropped                    bool
	}
	last := map[key]int{}
	for _, j := range all {
		k := key{j.from, j.end, j.what, j.why, host(j.target), j.dropped}
		if i, ok := last[k]; ok && j.at-steps[i].Until <= burst {
			s := &steps[i]
			s.Count++
			s.Until = j.at
			if s.Target != j.target {
				s.Target = k.host
			}
			if s.Source != j.nowFrom {
				s.Source = ""
			}
			continue
		}
		last[k] = len(steps)
		steps = append(steps, Step{At: j.at, Until: j.at, From: j.from, End: j.end, What: j.what, Source: j.nowFrom, Target: j.target,
			Count: 1, Dropped: j.dropped, Why: j.why})
	}
	return steps
}

// host is an address without its port.
func host(addr string) string {
	if a, err := netip.ParseAddrPort(addr); err == nil {
		return a.Addr().String()
	}
	return addr
}
