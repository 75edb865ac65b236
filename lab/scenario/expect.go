package scenario

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"weft"
)

const expectExpected = "expect A B direct within 10s; ... relay for 20s; ... stays direct through EVENT; " +
	"... loses nothing; ... loses at most 5; ... silent at most 1.5s; ... carries 20mbit within 2s; A reaches B tcp:80 within 3s; " +
	"A cannot reach B tcp:80; or LINK idle for 10s"

var (
	expectWords = []string{"direct", "relay", "none", "stays", "loses", "silent", "carries", "reaches", "cannot reach"}
	pathWords   = []string{"direct", "relay", "none"}
	clauseWords = []string{"within", "for", "after", "through"}
)

// readExpectation reads what stands behind expect: two names, what is expected of them, and clauses, of which the
// one that names an event is the last.
func (p *parser) readExpectation(line int, words []string, _ string) {
	if len(words) < 3 {
		p.fail(line, "expected two names and what is expected of them: %s", expectExpected)
		return
	}
	e := Expectation{A: words[0], B: words[1], Line: line}
	var problem string
	switch words[1] {
	case "idle":
		e.B, e.Idle = "", true
		words = words[2:]
	case "reaches", "cannot":
		words, problem = e.readReach(words)
	default:
		words, problem = e.readWhat(words[2:])
	}
	if problem == "" {
		problem = e.readClauses(words)
	}
	if problem != "" {
		p.fail(line, "%s", problem)
		return
	}
	p.s.Expect = append(p.s.Expect, e)
}

// readWhat reads what is expected, up to the clauses.
func (e *Expectation) readWhat(words []string) (rest []string, problem string) {
	path := func(w string) bool {
		e.Path = weft.PathKind(w)
		return e.Path == weft.PathDirect || e.Path == weft.PathRelay || e.Path == weft.PathNone
	}
	follows := func(list ...string) bool {
		return len(words) > len(list) && strings.Join(words[1:1+len(list)], " ") == strings.Join(list, " ")
	}
	switch word := words[0]; {
	case path(word):
		return words[1:], ""
	case word == "stays":
		e.Stays = true
		if len(words) < 2 || !path(words[1]) {
			return nil, "stays what? expected " + oneOf(pathWords)
		}
		return words[2:], ""
	case word == "loses":
		e.Path, e.Whole = "", true
		if follows("nothing") {
			return words[2:], ""
		}
		ok := follows("at", "most") && len(words) > 3
		if ok {
			e.Lost, ok = parseCount(words[3], 1, maxLost)
		}
		if !ok {
			return nil, "expected: loses nothing, or loses at most, and a number of packets (or: silent at most 1.5s)"
		}
		return words[4:], ""
	case word == "carries":
		e.Path = ""
		ok := len(words) > 1
		if ok {
			e.Rate, ok = parseRate(words[1])
		}
		if !ok {
			return nil, "carries how much? expected " + rateExpected
		}
		return words[2:], ""
	case word == "silent":
		e.Path = ""
		ok := follows("at", "most") && len(words) > 3
		if ok {
			e.Gap, ok = parseDuration(words[3])
		}
		if !ok || e.Gap == 0 {
			return nil, "expected: silent at most, and " + durationExpected
		}
		return words[4:], ""
	}
	return nil, unknown(words[0], "expectation", expectWords)
}

// maxLost bounds a number of packets that may be lost; more than that is not counted by hand.
const maxLost = 1_000_000

// data reports whether it is about what the pair's flows bring.
func (e *Expectation) data() bool { return e.Whole || e.Gap > 0 || e.Rate > 0 }

// lasts reports whether it is about a time that begins with the event, and not about what becomes so.
func (e *Expectation) lasts() bool { return e.Stays || e.Whole || e.Gap > 0 }

// readClauses reads the rest.
func (e *Expectation) readClauses(words []string) (problem string) {
	var within, hold bool
	for len(words) > 0 {
		word := words[0]
		switch word {
		case "within", "for":
			at, said := &e.Within, &within
			if word == "for" {
				at, said = &e.Hold, &hold
			}
			var ok bool
			if len(words) > 1 {
				*at, ok = parseDuration(words[1])
			}
			if !ok || *at == 0 {
				return word + " what time? expected " + durationExpected
			}
			if *said {
				return quoted(word) + " is said twice"
			}
			*said = true
			words = words[2:]
		case "after", "through":
			if through := e.lasts(); through != (word == "through") {
				return fmt.Sprintf("%s stands where %s should: what stays as it is goes through an event, and what becomes so is after one",
					word, map[bool]string{true: "through", false: "after"}[through])
			}
			if len(words) < 2 {
				return word + " what? expected an event of this scenario, as its line has it behind the time"
			}
			event, problem := parseEvent(words[1:])
			if problem != "" {
				return word + " which event? " + problem
			}
			e.After = event.String()
			words = nil
		default:
			return unknown(word, "clause", clauseWords)
		}
	}
	return e.complete(within, hold)
}

// complete refuses what says too little or too much, and fills in the rest.
func (e *Expectation) complete(within, hold bool) (problem string) {
	data := e.Whole || e.Gap > 0
	switch {
	case e.Idle && within:
		return "within says by when something becomes so, and this is about what lasts: expected for, and a time"
	case e.Idle && !hold:
		return "idle for how long? expected for, and a time"
	case e.Reach.Service != "" && !e.Reach.Not && !within:
		return "by when? expected within and a time"
	case e.Reach.Not && !hold:
		e.Hold = DefaultHold
	case e.Idle, e.Rate > 0 && hold, e.Reach.Service != "":
	case e.Rate > 0 && (within || e.After != ""):
		e.Hold = DefaultHold
	case e.lasts() && within:
		return "within says by when something becomes so, and this is about what lasts: expected for, and a time"
	case e.Stays && e.After == "":
		return "stays through what? expected through and an event of this scenario; or without stays, for and a time"
	case data && hold && e.After == "":
		return "for how long after what? expected through and an event, or nothing: then the whole time counts"
	case !e.lasts() && !within && !hold:
		return "by when, or for how long? expected within and a time, for and a time, or both"
	case (e.Stays || data && e.After != "") && !hold:
		e.Hold = DefaultHold
	}
	return ""
}

func expectationText(e Expectation) string {
	words := []string{e.A, e.B}
	add := func(list ...string) { words = append(words, list...) }
	lasts := e.lasts()
	switch {
	case e.Idle:
		words = []string{e.A, "idle"}
	case e.Reach.Service != "":
		words = reachText(e)
	case e.Rate > 0:
		add("carries", formatRate(e.Rate))
	case e.Whole && e.Lost > 0:
		add("loses", "at", "most", strconv.Itoa(e.Lost))
	case e.Whole:
		add("loses", "nothing")
	case e.Gap > 0:
		add("silent", "at", "most", formatDuration(e.Gap))
	case e.Stays:
		add("stays", string(e.Path))
	default:
		add(string(e.Path))
	}
	if e.Within > 0 {
		add("within", formatDuration(e.Within))
	}
	if e.Hold > 0 && !((lasts || e.Rate > 0 || e.Reach.Not) && e.Hold == DefaultHold) {
		add("for", formatDuration(e.Hold))
	}
	if e.After != "" {
		add(map[bool]string{true: "through", false: "after"}[lasts], e.After)
	}
	return strings.Join(words, " ")
}

// Times are when the windows of an expectation begin: zero, or when its event happens, each time that it does.
func (e Expectation) Times(s Scenario) (times []time.Duration) {
	if e.After == "" {
		return []time.Duration{0}
	}
	for _, x := range s.Events {
		if x.String() != e.After {
			continue
		}
		for n := range x.times() {
			times = append(times, x.At+time.Duration(n)*x.Every)
		}
	}
	return times
}

// Duration is how long a scenario takes at most: its Limit; else a second more than the last thing in it.
func (s Scenario) Duration() time.Duration {
	if s.Limit > 0 {
		return s.Limit
	}
	last := s.last()
	if last == 0 {
		return DefaultLimit
	}
	return min(last+time.Second, MaxLimit)
}

// last is when the last event has happened and the last expectation with a time is decided.
func (s Scenario) last() (last time.Duration) {
	for _, e := range s.Events {
		last = max(last, e.last())
	}
	for _, e := range s.Expect {
		for _, t := range e.Times(s) {
			last = max(last, t+e.Within+e.Hold)
			if e.data() {
				last = max(last, t+e.Within+e.Hold+arriveWithin)
			}
		}
	}
	for _, f := range s.Flows {
		if f.For > 0 {
			last = max(last, f.Start+f.For+arriveWithin)
		}
	}
	return last
}
