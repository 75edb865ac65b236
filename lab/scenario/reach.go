package scenario

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// A Reach is whether somebody connects to somewhere and is answered. Its zero value asks nothing.
type Reach struct {
	Service string // tcp:PORT, udp:PORT, icmp; tcp6:PORT, udp6:PORT and icmp6 by IPv6
	Not     bool   // nobody answers, or not as asked for
	As      string // a machine or router: who answers sees one of its addresses; empty: whichever
	At      string // the machine that answers; empty: the one that is asked
}

// IPv6 reports whether IPv6 is asked for, and Port the port; 0: an echo.
func (r Reach) IPv6() bool { return strings.HasSuffix(r.protocol(), "6") }

// UDP reports whether a datagram is asked with.
func (r Reach) UDP() bool { return strings.HasPrefix(r.protocol(), "udp") }

func (r Reach) protocol() string {
	proto, _, _ := strings.Cut(r.Service, ":")
	return proto
}

// Port is that of TCP or UDP; 0: an echo is asked for.
func (r Reach) Port() uint16 {
	_, port, ok := strings.Cut(r.Service, ":")
	n, valid := parseCount(port, 1, 65535)
	if !ok || !valid {
		return 0
	}
	return uint16(n)
}

const serviceExpected = "tcp:80, udp:53 or icmp, by IPv6 tcp6:80, udp6:53 or icmp6"

func validService(s string) bool {
	r := Reach{Service: s}
	switch r.protocol() {
	case "tcp", "tcp6", "udp", "udp6":
		return r.Port() > 0
	}
	return s == "icmp" || s == "icmp6"
}

// A Question is what is to be tried: expectations with the same one share the answers.
type Question struct {
	A, B            string
	Service, As, At string
}

// Question is what an expectation of Reach asks.
func (e Expectation) Question() Question {
	return Question{e.A, e.B, e.Reach.Service, e.Reach.As, e.Reach.At}
}

// readReach reads A reaches B SERVICE, or A cannot reach B SERVICE, each perhaps with as and at, up to the clauses.
func (e *Expectation) readReach(words []string) (rest []string, problem string) {
	e.A, words = words[0], words[1:]
	if words[0] == "cannot" {
		e.Reach.Not = true
		if len(words) < 2 || words[1] != "reach" {
			return nil, "cannot what? expected cannot reach, a name, and " + serviceExpected
		}
		words = words[1:]
	}
	if len(words) < 3 {
		return nil, "reaches whom, and what there? expected a name, and " + serviceExpected
	}
	e.B, e.Reach.Service, words = words[1], words[2], words[3:]
	if !validService(e.Reach.Service) {
		return nil, fmt.Sprintf("%s is nothing to be reached: expected %s", quoted(e.Reach.Service), serviceExpected)
	}
	for len(words) > 0 && (words[0] == "as" || words[0] == "at") {
		at := &e.Reach.As
		if words[0] == "at" {
			at = &e.Reach.At
		}
		switch {
		case *at != "":
			return nil, quoted(words[0]) + " is said twice"
		case len(words) < 2:
			return nil, words[0] + " whom? expected a name"
		case e.Reach.Port() == 0:
			return nil, "an echo does not tell who asked and who answered: expected tcp: or udp: and a port"
		}
		*at, words = words[1], words[2:]
	}
	return words, ""
}

// reachText is an expectation of Reach as the text has it, up to the clauses.
func reachText(e Expectation) (words []string) {
	words = []string{e.A, "reaches", e.B, e.Reach.Service}
	if e.Reach.Not {
		words = []string{e.A, "cannot", "reach", e.B, e.Reach.Service}
	}
	if e.Reach.As != "" {
		words = append(words, "as", e.Reach.As)
	}
	if e.Reach.At != "" {
		words = append(words, "at", e.Reach.At)
	}
	return words
}

// checkReach looks at the names of an expectation of Reach.
func (p *parser) checkReach(e Expectation) {
	p.host(e.Line, e.A)
	host, _, leg := strings.Cut(e.B, ".")
	switch h, _, _ := p.s.Leg(e.B); {
	case p.s.Router(e.B) != nil:
		if e.Reach.At == "" {
			p.fail(e.Line, "%s is a router, which answers nobody: expected at and the machine that should answer", e.B)
		}
	case h != nil:
	case leg && p.s.Host(host) != nil:
		names := p.s.places(p.s.Host(host))
		p.fail(e.Line, "%s", unknown(e.B, "address of "+host, names))
	default:
		p.fail(e.Line, "%s", unknown(e.B, "host or router", p.s.linkNames()))
	}
	if e.Reach.At != "" {
		p.host(e.Line, e.Reach.At)
	}
	if e.Reach.As != "" && p.s.Router(e.Reach.As) == nil {
		p.host(e.Line, e.Reach.As)
	}
	if e.A == host && e.Reach.At == "" {
		p.fail(e.Line, "%s reaches itself: expected another machine", e.A)
	}
}

// places are the names of a host's addresses.
func (s *Scenario) places(h *Host) (names []string) {
	for _, g := range h.Legs() {
		names = append(names, h.Name+"."+g.On)
	}
	return names
}

// An attempt is one try at a question.
type attempt struct {
	began, ended time.Duration
	ok           bool
	why          string
}

// Tried notes what became of a try at a question. Those of one question come in the order in which they began.
func (h *History) Tried(q Question, began, ended time.Duration, ok bool, why string) {
	if h.tried == nil {
		h.tried = map[Question][]attempt{}
	}
	h.tried[q] = append(h.tried[q], attempt{began, ended, ok, why})
}

// judgeReach is about who reaches whom: at some time until Within after from, and from then on for Hold; or never, from
// Within on for Hold.
func (h *History) judgeReach(e Expectation, from time.Duration) verdict {
	if e.Reach.Not {
		return h.judgeUnreachable(e, from+e.Within)
	}
	end := from + e.Within
	why := "nobody has tried yet"
	list := h.tried[e.Question()]
	for i := 0; i < len(list); i++ {
		x := list[i]
		if x.began < from || x.ended > end {
			continue
		}
		if why = fmt.Sprintf("not until %s: %s", seconds(x.ended), x.why); !x.ok {
			continue
		}
		until := x.ended + e.Hold
		broken := slices.IndexFunc(list[i:], func(y attempt) bool { return !y.ok && y.began < until })
		if broken < 0 {
			return verdict{ok: h.End >= until, decided: h.End >= until, why: fmt.Sprintf("yes at %s, after %s: %s", seconds(x.ended), seconds(x.ended-from), x.why)}
		}
		i += broken
		why = fmt.Sprintf("yes at %s, but not at %s: %s", seconds(x.ended), seconds(list[i].ended), list[i].why)
	}
	return verdict{decided: h.End >= end, why: why}
}

func (h *History) judgeUnreachable(e Expectation, begin time.Duration) verdict {
	end := begin + e.Hold
	tries, why := 0, ""
	for _, x := range h.tried[e.Question()] {
		if x.began < begin || x.ended > end {
			continue
		}
		if x.ok {
			return verdict{decided: true, why: fmt.Sprintf("reached at %s: %s", seconds(x.ended), x.why)}
		}
		tries, why = tries+1, x.why
	}
	v := verdict{ok: tries > 0, decided: h.End >= end, why: "nobody has tried"}
	if tries > 0 {
		v.why = fmt.Sprintf("%d tries from %s to %s: %s", tries, seconds(begin), seconds(min(end, max(begin, h.End))), why)
	}
	return v
}

// OnlyReal is the first thing in a scenario that takes real machines: the words behind "cannot", and its line. What is
// empty has no such thing.
func (s Scenario) OnlyReal() (what string, line int) {
	note := func(at int, format string, args ...any) {
		if what == "" || at < line {
			what, line = fmt.Sprintf(format, args...), at
		}
	}
	for _, l := range s.Lans {
		note(l.Line, "have a lan")
	}
	if s.Policy != nil {
		note(s.Policy.Line, "have a policy")
	}
	for _, h := range s.Hosts {
		if len(h.Run) > 0 {
			note(h.Line, "run commands")
		}
		if h.Rendezvous || h.Member.User != "" || len(h.Member.Tags) > 0 || h.Member.Secret != "" {
			note(h.Line, "tell members apart")
		}
	}
	for _, c := range s.Commands {
		note(c.Line, "say anything to weft")
	}
	for _, e := range s.Events {
		if e.Verb == Weft {
			note(e.Line, "say anything to weft")
		}
	}
	for _, f := range s.Flows {
		if f.TCP || s.role(f.From) != Node || s.role(f.To) != Node {
			note(f.Line, "have data flow but from node to node")
		}
	}
	for _, x := range s.Probes {
		note(x.Line, "run a probe's command")
	}
	for _, e := range s.Expect {
		if e.Reach.Service != "" {
			note(e.Line, "try who reaches whom")
		}
	}
	return what, line
}

// role is that of a host.
func (s *Scenario) role(name string) Role {
	if h := s.Host(name); h != nil {
		return h.Role
	}
	return Plain
}
