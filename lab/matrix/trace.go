package matrix

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/lab/scenario"
)

// How a run's packets become steps that a person can read.
const (
	// burst is the longest pause between datagrams of one bundle: a spray has 500 a second, single probes come
	// a tenth of a second apart and stay single.
	burst = 25 * time.Millisecond
	// repeated is the longest pause where nothing is learnt from telling datagrams apart: those that were dropped at the
	// same place for the same reason or of which nothing more was seen, and what goes to servers and comes from them.
	repeated = 500 * time.Millisecond
	// afterwards is for how long the trace goes on once there is a direct path.
	afterwards = 100 * time.Millisecond
	// flight is the longest time from one place to the next for the same datagram.
	flight = time.Second
	// maxSteps is how many are kept; of these, firstSteps and lastSteps from either end whatever they are.
	maxSteps, firstSteps, lastSteps = 70, 20, 20
	// crowd is how many datagrams make a step worth keeping: no plain round has as many.
	crowd = 20
)

// A Step is a datagram's journey, or that of several alike in a row, bundled.
type Step struct {
	At, Until time.Duration // when the first and the last of them set out
	From, End string        // lanes: the machine that sent it, and the one where it ended
	Via       []string      // lanes that it passed in between
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
	via             []string
	at, last        time.Duration
	target          string
	nowFrom, nowTo  string
	what, why       string
	dropped, ending bool
}

// newSample makes a sample of a run's trace.
func newSample(s scenario.Scenario, seed uint64, res scenario.Result) *Sample {
	out := &Sample{Seed: seed, Lanes: lanes(s)}
	place := places(s)
	all := place.journeys(res.Trace)
	if len(res.Pairs) > 0 && res.Pairs[0].Path == weft.PathDirect {
		end := res.Pairs[0].DirectAfter + afterwards
		all = slices.DeleteFunc(all, func(j *journey) bool { return j.at > end })
	}
	steps := place.bundle(all)
	out.Steps = place.abridge(steps)
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

// lanes are the machines of a cell from left to right: from a outwards, the internet, where what has no destination
// ends, the servers, and inwards to b.
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
	out := append(append([]string{"a"}, chain("a")...), scenario.Internet)
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

// A layout is what of a scenario tells where a datagram can go next.
type layout struct {
	on      map[string]string // what each machine is on
	router  map[string]bool
	servers map[string]bool
}

func places(s scenario.Scenario) layout {
	l := layout{map[string]string{}, map[string]bool{}, map[string]bool{}}
	for _, r := range s.Routers {
		l.on[r.Name], l.router[r.Name] = r.On, true
	}
	for _, h := range s.Hosts {
		l.on[h.Name] = h.On
		l.servers[h.Name] = h.Role == scenario.Server || h.Role == scenario.Relay
	}
	return l
}

// follows tells how well p fits as what comes next of a datagram that is under way; 0: not at all. It must be the next machine
// on some way, and a NAT changes the source or the destination, not both (but where it turns a datagram back). Backends differ in whether
// a NAT tells of addresses before or after it has changed them.
func (l layout) follows(j *journey, p scenario.Packet) (fit int) {
	source, target := j.nowFrom == p.From, j.nowTo == p.To
	next := l.on[j.end] == p.Where || l.on[p.Where] == j.end || l.on[j.end] == l.on[p.Where]
	switch {
	case j.ending:
		return 0
	case j.end == p.Where: // it got no further
		next = p.Dropped
	case strings.HasSuffix(p.What, streamed): // by TCP, end to end
		next = source && target
	}
	switch {
	case !next:
		return 0
	case source && target:
		fit = 4
	case source || target:
		fit = 2
	case l.router[p.Where] && p.Why != "" && !p.Dropped: // it was turned back
		fit = 2
	default:
		return 0
	}
	if j.last == p.At {
		fit++
	}
	return fit
}

// streamed marks what went by a stream.
const streamed = " (stream)"

// journeys follows each datagram from place to place. A trace does not number datagrams: what is seen at a place is
// that one under way which says the same and fits best, of several the oldest. It ends where it is dropped, and at a host.
func (l layout) journeys(trace []scenario.Packet) (all []*journey) {
	trace = slices.Clone(trace)
	slices.SortStableFunc(trace, func(a, b scenario.Packet) int { return cmp.Compare(a.At, b.At) })
	under := map[string][]*journey{} // way, by what they say
	own := map[string]string{}       // addresses of hosts
	for _, p := range trace {
		waiting := under[p.What]
		for len(waiting) > 0 && (waiting[0].ending || p.At-waiting[0].last > flight) {
			waiting = waiting[1:]
		}
		var j *journey
		best, sends := 0, !l.router[p.Where] && own[p.Where] == host(p.From) && !p.Dropped
		for _, w := range waiting {
			if fit := l.follows(w, p); fit > best && !sends {
				j, best = w, fit
			}
		}
		if own[p.Where] == "" { // a host's first is either of these
			own[p.Where] = host(p.From)
			if best > 0 {
				own[p.Where] = host(p.To)
			}
		}
		if j == nil && !l.router[p.Where] && !sends && own[p.Where] != host(p.From) {
			continue // a host got what was not under way to it: some trace took a private address for the host's
		}
		if j == nil {
			j = &journey{from: p.Where, at: p.At, target: p.To, what: p.What}
			all = append(all, j)
			waiting = append(waiting, j)
		} else if j.end != j.from && j.end != p.Where {
			j.via = append(j.via, j.end)
		}
		j.end, j.last, j.nowFrom, j.nowTo, j.dropped = p.Where, p.At, p.From, p.To, p.Dropped
		j.why = cmp.Or(p.Why, j.why)
		j.ending = p.Dropped || best > 0 && !l.router[p.Where]
		under[p.What] = waiting
	}
	return all
}

// bundle joins datagrams that go the same way to the same end in bursts.
func (l layout) bundle(all []*journey) (steps []Step) {
	type key struct {
		from, end, what, why, host string
		dropped                    bool
	}
	last := map[key]int{}
	for _, j := range all {
		k := key{j.from, j.end, j.what, j.why, host(j.target), j.dropped}
		pause := burst
		if j.dropped || l.router[j.end] || l.servers[j.from] || l.servers[j.end] {
			pause = repeated
		}
		if i, ok := last[k]; ok && j.at-steps[i].Until <= pause {
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
		steps = append(steps, Step{At: j.at, Until: j.at, From: j.from, End: j.end, Via: j.via, What: j.what, Source: j.nowFrom, Target: j.target,
			Count: 1, Dropped: j.dropped, Why: j.why})
	}
	return steps
}

// abridge leaves out steps where there are too many, those first that tell the least: what goes on with servers.
func (l layout) abridge(steps []Step) []Step {
	n := len(steps)
	if n <= maxSteps {
		return steps
	}
	keep, left := make([]bool, n), maxSteps
	for _, telling := range []func(int) bool{
		func(i int) bool { return i < firstSteps || i >= n-lastSteps },
		func(i int) bool { return steps[i].Count >= crowd },
		func(i int) bool { return !l.servers[steps[i].From] && !l.servers[steps[i].End] },
		func(int) bool { return true },
	} {
		for i := range steps {
			if left > 0 && !keep[i] && telling(i) {
				keep[i] = true
				left--
			}
		}
	}
	out, skipped := make([]Step, 0, maxSteps), 0
	for i, s := range steps {
		if !keep[i] {
			skipped++
			continue
		}
		s.Skipped, skipped = skipped, 0
		out = append(out, s)
	}
	return out
}

// host is an address without its port.
func host(addr string) string {
	if a, err := netip.ParseAddrPort(addr); err == nil {
		return a.Addr().String()
	}
	return addr
}
