package scenario

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft"
)

// arriveWithin is how long a packet of a flow is waited for before it counts as lost.
const arriveWithin = 2 * time.Second

// A History is what a backend saw, from time zero on. Its zero value has seen nothing.
type History struct {
	// End is until when the backend has watched.
	End   time.Duration
	paths map[[2]string][]change
	flows []FlowHistory
	links map[string][]carried
	tried map[Question][]attempt
}

// carried is what a link had carried by a time, both directions together.
type carried struct {
	at    time.Duration
	bytes uint64
}

// A change is a pair's path from a time on.
type change struct {
	at   time.Duration
	path weft.PathKind
}

// Bytes is how many a packet of the flow has, of the overlay: its IP header and all behind.
func (f *Flow) Bytes() int { return cmp.Or(f.Size, DefaultSize) }

// DefaultSize is that of a flow's packet where it says none, in bytes.
const DefaultSize = 100

// A FlowHistory is what became of a flow's packets: the n-th was sent n steps after the first.
type FlowHistory struct {
	Flow    Flow
	Sent    int
	Arrived []time.Duration // by number, when; 0, or beyond its end: not
}

func pairOf(a, b string) [2]string {
	if b < a {
		a, b = b, a
	}
	return [2]string{a, b}
}

// Path notes how a pair reaches each other from now on. Times do not go backwards.
func (h *History) Path(at time.Duration, a, b string, path weft.PathKind) {
	h.End = max(h.End, at)
	if h.paths == nil {
		h.paths = map[[2]string][]change{}
	}
	p := pairOf(a, b)
	list := h.paths[p]
	if n := len(list); n > 0 && list[n-1].at == at { // what lasts no time was never there
		list = list[:n-1]
	}
	if n := len(list); n > 0 && list[n-1].path == path || n == 0 && path == weft.PathNone {
		h.paths[p] = list
		return
	}
	h.paths[p] = append(list, change{at, path})
}

// At is a pair's path at a time.
func (h *History) At(at time.Duration, a, b string) weft.PathKind {
	path := weft.PathNone
	for _, c := range h.paths[pairOf(a, b)] {
		if c.at > at {
			break
		}
		path = c.path
	}
	return path
}

// First is when a pair's path was of a kind for the first time.
func (h *History) First(a, b string, path weft.PathKind) (time.Duration, bool) {
	for _, c := range h.paths[pairOf(a, b)] {
		if c.path == path {
			return c.at, true
		}
	}
	return 0, false
}

// Changes are all changes of paths, in order.
func (h *History) Changes() (list []Change) {
	for p, changes := range h.paths {
		for _, c := range changes {
			list = append(list, Change{c.at, p[0], p[1], c.path})
		}
	}
	slices.SortFunc(list, func(x, y Change) int {
		return cmp.Or(cmp.Compare(x.At, y.At), cmp.Compare(x.A, y.A), cmp.Compare(x.B, y.B))
	})
	return list
}

// SetFlows notes what became of the flows so far. The slices are looked at whenever something is judged.
func (h *History) SetFlows(flows []FlowHistory) { h.flows = flows }

// Results are the flows' as they are now.
func (h *History) Results() (list []FlowResult) {
	for _, f := range h.flows {
		lost, silence := f.lost(h.End, 0, h.End)
		r := FlowResult{From: f.Flow.From, To: f.Flow.To, Sent: f.Sent, Lost: lost, Silence: silence}
		r.OutOfOrder, r.Rate = f.arrivals()
		list = append(list, r)
	}
	return list
}

// arrivals are how many packets came after a later one, and the rate at which they came.
func (f *FlowHistory) arrivals() (outOfOrder int, rate float64) {
	var first, last time.Duration
	came := 0
	for _, at := range f.Arrived {
		if at == 0 {
			continue
		}
		if came++; at < last {
			outOfOrder++
		}
		if first == 0 || at < first {
			first = at
		}
		last = max(last, at)
	}
	if last > first {
		rate = float64((came-1)*f.Flow.Bytes()*8) / (last - first).Seconds()
	}
	return outOfOrder, rate
}

// brought is how many bytes came between two times.
func (f *FlowHistory) brought(from, to time.Duration) (bytes int) {
	for _, at := range f.Arrived {
		if at > from && at <= to {
			bytes += f.Flow.Bytes()
		}
	}
	return bytes
}

// Carried notes what a link, by the name that events have for it, has carried so far, both directions together.
func (h *History) Carried(at time.Duration, link string, bytes uint64) {
	if h.links == nil {
		h.links = map[string][]carried{}
	}
	h.links[link] = append(h.links[link], carried{at, bytes})
}

// carriedBetween is what a link carried between two times, as far as was noted: from the last note before the first to
// the last note before the second.
func (h *History) carriedBetween(link string, from, to time.Duration) (bytes uint64) {
	at := func(t time.Duration) (bytes uint64) {
		for _, c := range h.links[link] {
			if c.at > t {
				break
			}
			bytes = c.bytes
		}
		return bytes
	}
	return at(to) - at(from)
}

// lost counts what was sent between two times and is lost, and the longest silence of that: as many steps as packets in
// a row are lost, or the time between one arrival and the next, of which one step is none.
func (f *FlowHistory) lost(now, from, to time.Duration) (lost int, silence time.Duration) {
	run := 0
	var before time.Duration // when the last of those came that were sent before
	var came []time.Duration
	for i := range f.Sent {
		at := f.Flow.Start + time.Duration(i)*f.Flow.Every
		arrived := i < len(f.Arrived) && f.Arrived[i] > 0
		if at < from && arrived {
			before = max(before, f.Arrived[i])
		}
		if at < from || at > to || at+arriveWithin > now && !arrived {
			run = 0
			continue
		}
		if arrived {
			came = append(came, f.Arrived[i])
			run = 0
			continue
		}
		lost++
		run++
		silence = max(silence, time.Duration(run)*f.Flow.Every)
	}
	if before > 0 {
		came = append(came, max(before, from))
	}
	slices.Sort(came)
	for i := 1; i < len(came); i++ {
		silence = max(silence, came[i]-came[i-1]-f.Flow.Every)
	}
	return lost, silence
}

// Judge says what became of every expectation, and whether that is certain before the end: then more watching
// changes nothing. With over, this is the end.
func (h *History) Judge(s Scenario, over bool) (outcomes []Outcome, decided bool) {
	decided = true
	for _, e := range s.Expect {
		o := Outcome{Expectation: e.String(), Line: e.Line, OK: true}
		var why []string
		for _, t := range e.Times(s) {
			v := h.judge(s, e, t)
			if !v.decided && over {
				v.ok = v.ok && (e.Whole || e.Gap > 0)
			} else if !v.decided {
				decided = false
			}
			o.OK = o.OK && v.ok
			why = append(why, v.why)
		}
		o.Why = strings.Join(why, "; ")
		outcomes = append(outcomes, o)
	}
	return outcomes, decided
}

// A verdict is what is known of one expectation and one time.
type verdict struct {
	ok, decided bool
	why         string
}

func (h *History) judge(s Scenario, e Expectation, from time.Duration) verdict {
	switch {
	case e.Idle:
		return h.judgeIdle(e, from)
	case e.Reach.Service != "":
		return h.judgeReach(e, from)
	case e.Rate > 0:
		return h.judgeRate(e, from)
	case e.Whole || e.Gap > 0:
		return h.judgeData(s, e, from)
	case e.Stays:
		return h.judgeLasting(e, from, from)
	case e.Within == 0:
		begin := from
		if e.Path != weft.PathNone && h.At(from, e.A, e.B) == weft.PathNone {
			begin = h.next(e, from, func(p weft.PathKind) bool { return p != weft.PathNone })
		}
		return h.judgeLasting(e, from, begin)
	}
	return h.judgeBecoming(e, from)
}

// next is when a pair's path is next as asked for; past the end if never.
func (h *History) next(e Expectation, from time.Duration, is func(weft.PathKind) bool) time.Duration {
	if is(h.At(from, e.A, e.B)) {
		return from
	}
	for _, c := range h.paths[pairOf(e.A, e.B)] {
		if c.at > from && is(c.path) {
			return c.at
		}
	}
	return h.End + 1
}

// judgeLasting is about what is so from begin until Hold after from.
func (h *History) judgeLasting(e Expectation, from, begin time.Duration) verdict {
	end := from + e.Hold
	if begin >= end || begin > h.End {
		if h.End < end {
			return verdict{why: "no path yet"}
		}
		return verdict{decided: true, why: fmt.Sprintf("no path until %s", seconds(end))}
	}
	broken := h.next(e, begin, func(p weft.PathKind) bool { return p != e.Path })
	switch {
	case broken <= min(end, h.End):
		return verdict{decided: true, why: fmt.Sprintf("%s at %s", h.At(broken, e.A, e.B), seconds(broken))}
	case h.End < end:
		return verdict{why: fmt.Sprintf("%s from %s to %s, where it ended", e.Path, seconds(begin), seconds(h.End))}
	}
	return verdict{ok: true, decided: true, why: fmt.Sprintf("%s from %s to %s", e.Path, seconds(begin), seconds(end))}
}

// judgeBecoming is about what is so at some time until Within after from, and then for Hold.
func (h *History) judgeBecoming(e Expectation, from time.Duration) verdict {
	end := from + e.Within
	why := fmt.Sprintf("never %s until %s, but %s", e.Path, seconds(min(end, h.End)), h.At(min(end, h.End), e.A, e.B))
	for at := from; at <= min(end, h.End); {
		at = h.next(e, at, func(p weft.PathKind) bool { return p == e.Path })
		if at > min(end, h.End) {
			break
		}
		until := h.next(e, at, func(p weft.PathKind) bool { return p != e.Path })
		switch {
		case until-at >= e.Hold && h.End >= at+e.Hold:
			return verdict{ok: true, decided: true, why: fmt.Sprintf("%s at %s, after %s", e.Path, seconds(at), seconds(at-from))}
		case until > h.End:
			return verdict{why: fmt.Sprintf("%s at %s, until %s, where it ended", e.Path, seconds(at), seconds(h.End))}
		}
		why = fmt.Sprintf("%s at %s, but %s at %s", e.Path, seconds(at), h.At(until, e.A, e.B), seconds(until))
		at = until
	}
	return verdict{decided: h.End >= end, why: why}
}

// judgeData is about what the pair's flows lost.
func (h *History) judgeData(s Scenario, e Expectation, from time.Duration) verdict {
	end := s.Duration()
	if e.After != "" {
		end = from + e.Hold
	} else if last, ok := s.flowsEnd(e); ok {
		end = last
	}
	var lost, sent int
	var silence time.Duration
	for i := range h.flows {
		f := &h.flows[i]
		if pairOf(f.Flow.From, f.Flow.To) != pairOf(e.A, e.B) {
			continue
		}
		sent += f.Sent
		n, longest := f.lost(h.End, from, end)
		lost, silence = lost+n, max(silence, longest)
	}
	v := verdict{ok: true, why: fmt.Sprintf("%d packets lost, no silence longer than %s", lost, seconds(silence))}
	if sent == 0 {
		v = verdict{why: "no data flowed"}
	} else if e.Whole {
		v.ok = lost <= e.Lost
	} else {
		v.ok = silence <= e.Gap
	}
	v.decided = h.End >= end+arriveWithin || sent > 0 && !v.ok
	return v
}

// judgeRate is about what the pair's flows bring, on average, for Hold from Within on.
func (h *History) judgeRate(e Expectation, from time.Duration) verdict {
	begin := from + e.Within
	end := begin + e.Hold
	bytes := 0
	for i := range h.flows {
		if f := &h.flows[i]; pairOf(f.Flow.From, f.Flow.To) == pairOf(e.A, e.B) {
			bytes += f.brought(begin, end)
		}
	}
	rate := float64(bytes*8) / e.Hold.Seconds()
	return verdict{ok: rate >= e.Rate, decided: h.End >= end,
		why: fmt.Sprintf("%s from %s to %s", megabits(rate), seconds(begin), seconds(min(end, max(begin, h.End))))}
}

// idleRate is what a link that carries no data may carry all the same, in bit/s: probes, what keeps NATs awake, what is
// said about other links.
const idleRate = 50e3

// judgeIdle is about a link that carries next to nothing for Hold.
func (h *History) judgeIdle(e Expectation, from time.Duration) verdict {
	end := from + e.Hold
	rate := float64(h.carriedBetween(e.A, from, end)*8) / e.Hold.Seconds()
	return verdict{ok: rate <= idleRate, decided: h.End >= end,
		why: fmt.Sprintf("%s from %s to %s", megabits(rate), seconds(from), seconds(min(end, max(from, h.End))))}
}

// flowsEnd is when the pair's flows are over, if they are before the scenario.
func (s Scenario) flowsEnd(e Expectation) (end time.Duration, ok bool) {
	ok = !slices.ContainsFunc(s.Flows, func(f Flow) bool { return pairOf(f.From, f.To) == pairOf(e.A, e.B) && f.For == 0 })
	for _, f := range s.Flows {
		if pairOf(f.From, f.To) == pairOf(e.A, e.B) {
			end = max(end, f.Start+f.For)
		}
	}
	return end, ok
}

// seconds writes a time for people, to the millisecond.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(float64(d.Round(time.Millisecond).Milliseconds())/1000, 'f', -1, 64) + "s"
}

// megabits writes a rate for people.
func megabits(rate float64) string { return strconv.FormatFloat(rate/1e6, 'f', 3, 64) + " Mbit/s" }
