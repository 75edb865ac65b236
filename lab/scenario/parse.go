package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"weft"
)

// MaxText is the length of the longest scenario in bytes: all of MaxMachines, at length, many times over.
const MaxText = 256 << 10

// Parse reads a scenario. Its name is given: the text has none. An error is of type [Errors].
func Parse(name string, text []byte) (Scenario, error) {
	p := &parser{s: Scenario{Name: name}, name: name}
	if len(text) > MaxText {
		p.fail(1, "the text is longer than %d KiB: expected a scenario", MaxText>>10)
		return Scenario{}, p.errs
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		n++
		line = strings.TrimRight(line, "\r\n")
		if !utf8.ValidString(line) || strings.ContainsFunc(line, func(r rune) bool { return r != '\t' && !unicode.IsPrint(r) }) {
			p.fail(n, "this is not text: expected a line of UTF-8 without control characters")
			continue
		}
		p.line(n, line)
	}
	if len(p.errs) == 0 { // what is unknown because its own line is wrong is no second mistake
		p.check()
	}
	if len(p.errs) > 0 {
		return Scenario{}, p.errs
	}
	return p.s, nil
}

// A parser reads one text.
type parser struct {
	s           Scenario
	name        string
	limit       int   // line of the limit
	policyLines []int // where each line of the policy stands
	runs        []run
	errs        Errors
}

// A run is a command for a host that may not be declared yet.
type run struct {
	host, command string
	line          int
}

func (p *parser) fail(line int, format string, args ...any) {
	if len(p.errs) < maxErrors {
		p.errs = append(p.errs, &Error{p.name, line, fmt.Sprintf(format, args...)})
	}
}

// A statement is one kind of line. Of those that are verbatim, a # is a part.
type statement struct {
	word     string
	verbatim bool
	read     func(p *parser, line int, words []string, rest string)
}

var statements []statement

func init() { // its functions name it
	statements = []statement{
		{"about", true, (*parser).readAbout},
		{"limit", false, (*parser).readLimit},
		{"router", false, (*parser).readRouter},
		{"lan", false, (*parser).readLan},
		{"host", false, hostReader(Node)},
		{"server", false, hostReader(Server)},
		{"relay", false, hostReader(Relay)},
		{"machine", false, hostReader(Plain)},
		{"policy", true, (*parser).readPolicy},
		{"weft", false, (*parser).readCommand},
		{"run", true, (*parser).readRun},
		{"flow", false, (*parser).readFlow},
		{"at", false, (*parser).readEvent},
		{"probe", true, (*parser).readProbe},
		{"expect", false, (*parser).readExpectation},
	}
}

// line reads one line.
func (p *parser) line(n int, text string) {
	text = strings.Trim(text, " \t")
	if text == "" || text[0] == '#' {
		return
	}
	word, rest := cut(text)
	i := slices.IndexFunc(statements, func(s statement) bool { return s.word == word })
	if i < 0 {
		words := make([]string, len(statements))
		for j, s := range statements {
			words[j] = s.word
		}
		p.fail(n, "%s", unknown(word, "statement", words))
		return
	}
	s := statements[i]
	if !s.verbatim {
		rest = withoutComment(rest)
	}
	s.read(p, n, strings.Fields(rest), rest)
}

// cut splits off the first word.
func cut(text string) (word, rest string) {
	i := strings.IndexAny(text, " \t")
	if i < 0 {
		return text, ""
	}
	return text[:i], strings.Trim(text[i:], " \t")
}

// withoutComment ends a line at a # that begins a word.
func withoutComment(text string) string {
	for i := range len(text) {
		if text[i] == '#' && (i == 0 || text[i-1] == ' ' || text[i-1] == '\t') {
			return strings.Trim(text[:i], " \t")
		}
	}
	return text
}

func (p *parser) readAbout(line int, _ []string, rest string) {
	if rest == "" {
		p.fail(line, "about what? expected a sentence")
		return
	}
	if p.s.About != "" {
		p.s.About += "\n"
	}
	p.s.About += rest
}

func (p *parser) readLimit(line int, words []string, _ string) {
	d, ok := time.Duration(0), false
	if len(words) == 1 {
		d, ok = parseDuration(words[0])
	}
	switch {
	case !ok || d == 0:
		p.fail(line, "expected how long the scenario may take: limit and %s", durationExpected)
	case p.limit > 0:
		p.fail(line, "there is a limit already, on line %d", p.limit)
	default:
		p.s.Limit, p.limit = d, line
	}
}

// named takes the name off a declaration.
func (p *parser) named(line int, kind string, words []string) (name string, rest []string, ok bool) {
	switch {
	case len(words) == 0:
		p.fail(line, "%s needs a name: expected %s", kind, nameExpected)
	case !validName(words[0]):
		p.fail(line, "%s cannot be a name: expected %s", quoted(words[0]), nameExpected)
	case p.declared(words[0]) > 0:
		p.fail(line, "%s is there already, on line %d: expected another name", words[0], p.declared(words[0]))
	case len(p.s.Routers)+len(p.s.Lans)+len(p.s.Hosts) == MaxMachines:
		p.fail(line, "this is one machine too many: expected %d at most, routers, lans and hosts together", MaxMachines)
	default:
		return words[0], words[1:], true
	}
	return "", nil, false
}

// declared is the line of a router, lan or host; 0 where there is none.
func (p *parser) declared(name string) int {
	if l := p.s.Lan(name); l != nil {
		return l.Line
	}
	if r := p.s.Router(name); r != nil {
		return r.Line
	}
	if h := p.s.Host(name); h != nil {
		return h.Line
	}
	return 0
}

// apply reads the key=value words of a statement.
func apply[T any](p *parser, line int, list fields[T], to *T, words []string) (seen map[string]bool, ok bool) {
	seen, ok = map[string]bool{}, true
	for _, w := range words {
		if problem := list.apply(to, w, seen); problem != "" {
			p.fail(line, "%s", problem)
			ok = false
		}
	}
	return seen, ok
}

func (p *parser) readRouter(line int, words []string, _ string) {
	name, words, ok := p.named(line, "a router", words)
	if !ok {
		return
	}
	r := Router{Name: name, Line: line}
	said, _ := apply(p, line, routerFields, &r, words)
	p.completeRouter(&r, said)
	p.s.Routers = append(p.s.Routers, r)
}

// completeRouter fills in what follows from what was said of a router, and refuses what contradicts itself.
func (p *parser) completeRouter(r *Router, said map[string]bool) {
	if !said["on"] {
		p.fail(r.Line, "what is %s connected to? expected on=%s, or on= and another router", r.Name, Internet)
	}
	switch {
	case said["nat"] && said["kernel"]:
		p.fail(r.Line, "%s has both nat= and kernel=: expected one of them", r.Name)
	case said["kernel"]:
		for _, k := range []string{"ports", "hairpin", "pool", "public", "pooling", "refresh", "mappings", "per-host", "late", "spoils"} {
			if said[k] {
				p.fail(r.Line, "the kernel's NAT has no %s=: expected nat= instead of kernel=", k)
			}
		}
		for _, k := range Kernels {
			if k.Name == r.Kernel {
				timeout, blocked := r.NAT.Timeout, r.NAT.BlockUDP
				r.NAT = k.NAT
				r.NAT.Timeout, r.NAT.BlockUDP = timeout, blocked
			}
		}
		return
	case !said["nat"]:
		p.fail(r.Line, "what does %s do? expected nat= and %s; or kernel=", r.Name, natExpected)
		return
	}
	if !r.translates() {
		for _, k := range []string{"ports", "hairpin", "pool", "public", "pooling", "mappings", "per-host", "spoils"} {
			if said[k] {
				p.fail(r.Line, "%s translates nothing, so %s= means nothing: expected another nat=", r.Name, k)
			}
		}
		return
	}
	if r.NAT.Allocation == weft.AllocationUnknown {
		r.NAT.Allocation = weft.RandomAllocation
	}
	if said["public"] && said["pool"] {
		p.fail(r.Line, "%s has both pool= and public=: expected one of them, the addresses or their number", r.Name)
	}
}

func hostReader(role Role) func(*parser, int, []string, string) {
	return func(p *parser, line int, words []string, _ string) {
		name, words, ok := p.named(line, "a "+role.String(), words)
		if !ok {
			return
		}
		h := Host{Name: name, Role: role, Line: line}
		if said, _ := apply(p, line, hostFields, &h, words); !said["on"] {
			p.fail(line, "where is %s? expected on=%s, or on= and the name of a router", name, Internet)
		}
		p.checkMember(&h)
		p.s.Hosts = append(p.s.Hosts, h)
	}
}

func (p *parser) readRun(line int, _ []string, rest string) {
	host, command := cut(rest)
	if host == "" || command == "" {
		p.fail(line, "expected the name of a host and the command to run on it")
		return
	}
	p.runs = append(p.runs, run{host, command, line})
}

func (p *parser) readProbe(line int, _ []string, rest string) {
	a, rest := cut(rest)
	b, command := cut(rest)
	if command == "" {
		p.fail(line, "expected the names of two machines and the command that, on the first, prints how the second is reached: direct or relay")
		return
	}
	p.s.Probes = append(p.s.Probes, Probe{A: a, B: b, Command: command, Line: line})
}

func (p *parser) readFlow(line int, words []string, _ string) {
	if len(words) < 2 {
		p.fail(line, "expected from whom to whom data flows, and how often: flow ann bob every=20ms")
		return
	}
	f := Flow{From: words[0], To: words[1], Line: line}
	if said, ok := apply(p, line, flowFields, &f, words[2:]); ok {
		if said["rate"] {
			f.Every = time.Duration(float64(f.Bytes()*8) / f.Rate * float64(time.Second))
		}
		if said["every"] == said["rate"] || f.Every < minEvery {
			p.fail(line, "how often? expected every= and a time, or rate=, with at least %s between two packets", formatDuration(minEvery))
		}
	}
	p.s.Flows = append(p.s.Flows, f)
}

// minEvery bounds what a flow costs.
const minEvery = 100 * time.Microsecond

func (p *parser) readEvent(line int, words []string, _ string) {
	if len(words) < 2 {
		p.fail(line, "expected a time and what happens then, such as: at 20s rebind home")
		return
	}
	at, ok := parseDuration(words[0])
	if !ok {
		p.fail(line, "%s is no time: expected %s, counted from when all nodes are up", quoted(words[0]), durationExpected)
		return
	}
	words = words[1:]
	var every, during time.Duration
	if words[0] == "every" {
		if every, during, ok = readRepetition(words); !ok {
			p.fail(line, "how often and for how long? expected every, a time of at least %s, for, a longer time, and an event, at most %d times",
				formatDuration(minRepeat), maxRepeats)
			return
		}
		words = words[4:]
	}
	e, problem := parseEvent(words)
	if problem != "" {
		p.fail(line, "%s", problem)
		return
	}
	e.At, e.Every, e.For, e.Line = at, every, during, line
	p.s.Events = append(p.s.Events, e)
}

// minRepeat and maxRepeats bound what an event that repeats itself costs.
const (
	minRepeat  = 10 * time.Millisecond
	maxRepeats = 1000
)

// readRepetition reads every D for D, which must be followed by something.
func readRepetition(words []string) (every, during time.Duration, ok bool) {
	if len(words) < 5 || words[2] != "for" {
		return 0, 0, false
	}
	every, ok1 := parseDuration(words[1])
	during, ok2 := parseDuration(words[3])
	ok = ok1 && ok2 && every >= minRepeat && during > every && during/every < maxRepeats
	return every, during, ok
}

// A form is what stands behind a verb: words in capitals are operands, others stand as they are.
type form struct {
	verb Verb
	form string
}

var forms = []form{
	{Block, "udp on ROUTER"}, {Allow, "udp on ROUTER"}, {Forget, "ROUTER"}, {Rebind, "ROUTER"}, {Readdress, "NAME"},
	{Move, "HOST to NETWORK"}, {Down, "NAME"}, {Up, "NAME"}, {Cut, "NAME [out or in]"}, {Mend, "NAME"}, {Set, "NAME KEY=VALUE..."},
	{Restart, "HOST"}, {Stop, "HOST"}, {Start, "HOST"}, {Weft, "HOST COMMAND"},
}

// parseEvent reads a verb and its operands.
func parseEvent(words []string) (e Event, problem string) {
	verbs := make([]string, len(forms))
	for i, f := range forms {
		verbs[i] = string(f.verb)
	}
	i := slices.Index(verbs, words[0])
	if i < 0 {
		return e, unknown(words[0], "event", verbs)
	}
	e.Verb = forms[i].verb
	expected := verbs[i] + " " + forms[i].form
	if words = words[1:]; e.Verb == Set {
		if len(words) < 2 {
			return e, "expected " + expected + ", such as: set home loss=5%"
		}
		e.Args = []string{words[0]}
		var link Link
		seen := map[string]bool{}
		for _, w := range words[1:] {
			if problem := setFields.apply(&link, w, seen); problem != "" {
				return e, problem
			}
			key, _, _ := strings.Cut(w, "=")
			f := setFields[slices.IndexFunc(setFields, func(f field[Link]) bool { return f.key == key })]
			value, _ := f.get(&link)
			e.Args = append(e.Args, key+"="+value)
		}
		return e, ""
	}
	if e.Verb == Cut {
		if len(words) == 0 || len(words) > 2 || len(words) == 2 && words[1] != "out" && words[1] != "in" {
			return e, "expected " + expected
		}
		e.Args = words
		return e, ""
	}
	if e.Verb == Weft {
		if len(words) < 2 {
			return e, "expected " + expected + ", such as: weft hq set snat=off"
		}
		e.Args = words
		return e, ""
	}
	pattern := strings.Fields(forms[i].form)
	if len(words) != len(pattern) {
		return e, "expected " + expected
	}
	for j, w := range pattern {
		switch {
		case w == strings.ToUpper(w):
			e.Args = append(e.Args, words[j])
		case w != words[j]:
			return e, fmt.Sprintf("%s stands where %s should: expected %s", quoted(words[j]), w, expected)
		}
	}
	return e, ""
}

func eventText(e Event) string {
	words := []string{string(e.Verb)}
	i := slices.IndexFunc(forms, func(f form) bool { return f.verb == e.Verb })
	if i < 0 || e.Verb == Set || e.Verb == Cut || e.Verb == Weft {
		return strings.Join(append(words, e.Args...), " ")
	}
	n := 0
	for _, w := range strings.Fields(forms[i].form) {
		if w == strings.ToUpper(w) && n < len(e.Args) {
			w = e.Args[n]
			n++
		}
		words = append(words, w)
	}
	return strings.Join(words, " ")
}
