package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft/lab/vnet"
)

// A Link is a leg of the network: what becomes of packets on the way out, and on the way in.
type Link struct {
	Out Way `json:"out"`
	In  Way `json:"in"`
}

// A Way is one direction of a link.
type Way = vnet.LinkConfig

// Both is a link that does the same in both directions.
func Both(l Way) Link { return Link{l, l} }

// unsaid is what stands for one direction of which nothing is said.
const unsaid = "-"

// linkValue is a field of a link whose value may be one for both directions, or two with a slash between them: outwards
// and inwards.
func linkValue[T any, V comparable](key, expect string, link func(*T) *Link, at func(*Way) *V,
	parse func(string) (V, bool), format func(V) string) field[T] {
	var none V
	one := func(l *Way, s string) (ok bool) {
		if s == unsaid {
			*at(l) = none
			return true
		}
		*at(l), ok = parse(s)
		return ok
	}
	return field[T]{key, expect + ", or two, outwards/inwards", func(t *T, s string) bool {
		out, in, two := strings.Cut(s, "/")
		if !two {
			in = out
		}
		return !(out == unsaid && in == unsaid) && one(&link(t).Out, out) && one(&link(t).In, in)
	}, func(t *T) (string, bool) {
		out, in := *at(&link(t).Out), *at(&link(t).In)
		if out == in {
			return format(out), out != none
		}
		words := [2]string{unsaid, unsaid}
		for i, v := range [2]V{out, in} {
			if v != none {
				words[i] = format(v)
			}
		}
		return words[0] + "/" + words[1], true
	}}
}

// linkFields are the fields of the link that a T has.
func linkFields[T any](link func(*T) *Link) fields[T] {
	return fields[T]{
		linkValue("delay", durationExpected, link, func(l *Way) *time.Duration { return &l.Delay }, parseDuration, formatDuration),
		linkValue("jitter", durationExpected, link, func(l *Way) *time.Duration { return &l.Jitter }, parseDuration, formatDuration),
		linkValue("loss", shareExpected, link, func(l *Way) *float64 { return &l.Loss }, parseShare, formatShare),
		linkValue("reorder", shareExpected, link, func(l *Way) *float64 { return &l.Reorder }, parseShare, formatShare),
		linkValue("rate", rateExpected, link, func(l *Way) *float64 { return &l.Rate }, parseRate, formatRate),
		linkValue("queue", sizeExpected, link, func(l *Way) *int { return &l.Queue }, parseSize, formatSize),
	}
}

// A Leg is one of a host's links: to which network it leads, and its metric, by which weft prefers links. Without a
// metric on any of them weft finds out by itself which links there are.
type Leg struct {
	On     string `json:"on"`
	Metric int    `json:"metric,omitempty"`
}

const (
	maxLegs   = 8
	maxMetric = 9999
)

const placesExpected = "the name of a router or lan, or " + Internet + "; or up to 8 of them with commas between, each perhaps with a metric: fibre,lte:20"

// parsePlaces reads the networks that a host has links to.
func parsePlaces(s string) (legs []Leg, ok bool) {
	for word := range strings.SplitSeq(s, ",") {
		on, metric, said := strings.Cut(word, ":")
		g := Leg{On: on}
		if said {
			if g.Metric, ok = parseCount(metric, 1, maxMetric); !ok {
				return nil, false
			}
		}
		if !validName(on) && on != Internet || len(legs) == maxLegs {
			return nil, false
		}
		legs = append(legs, g)
	}
	return legs, true
}

func formatPlaces(legs []Leg) string {
	words := make([]string, len(legs))
	for i, g := range legs {
		words[i] = g.On
		if g.Metric > 0 {
			words[i] += ":" + strconv.Itoa(g.Metric)
		}
	}
	return strings.Join(words, ",")
}

// Legs are all links of a host, the first first.
func (h *Host) Legs() []Leg {
	if len(h.Places) > 0 {
		return h.Places
	}
	return []Leg{{On: h.On}}
}

// Metrics reports whether the host says which of its links come first.
func (h *Host) Metrics() bool {
	return slices.ContainsFunc(h.Places, func(g Leg) bool { return g.Metric > 0 })
}

// Leg finds one link of a host by the name that events have for it: HOST.NETWORK, or HOST where it has only one. The
// name of a host with several means all of them: then all is true, and index 0.
func (s *Scenario) Leg(name string) (h *Host, index int, all bool) {
	host, network, named := strings.Cut(name, ".")
	if h = s.Host(host); h == nil {
		return nil, 0, false
	}
	if !named {
		return h, 0, len(h.Legs()) > 1
	}
	index = slices.IndexFunc(h.Legs(), func(g Leg) bool { return g.On == network })
	if index < 0 {
		return nil, 0, false
	}
	return h, index, false
}

// LegName is the name that events have for a host's link.
func (h *Host) LegName(index int) string {
	if len(h.Legs()) == 1 {
		return h.Name
	}
	return h.Name + "." + h.Legs()[index].On
}

// linkNames are the names of all links: routers' ways outside, hosts' legs, and hosts.
func (s *Scenario) linkNames() (names []string) {
	for i := range s.Hosts {
		h := &s.Hosts[i]
		names = append(names, h.Name)
		for j := range h.Places {
			if len(h.Places) > 1 {
				names = append(names, h.LegName(j))
			}
		}
	}
	for _, r := range s.Routers {
		names = append(names, r.Name)
	}
	return names
}

// links are the links that a scenario begins with, by the names that events have for them.
func (s *Scenario) links() map[string]Link {
	links := map[string]Link{}
	for _, r := range s.Routers {
		links[r.Name] = r.Link
	}
	for i := range s.Hosts {
		h := &s.Hosts[i]
		for j, g := range h.Legs() {
			links[h.LegName(j)] = h.Link
			if j > 0 && s.Lan(g.On) != nil {
				links[h.LegName(j)] = Link{}
			}
		}
	}
	return links
}

// Story is all that happens, in order: an event that repeats itself as often as it does, each set with the link that it
// makes of what there was.
func (s *Scenario) Story() (list []Event) {
	for _, e := range s.Events {
		for n := range e.times() {
			x := e
			x.At += time.Duration(n) * e.Every
			x.Every, x.For = 0, 0
			list = append(list, x)
		}
	}
	slices.SortStableFunc(list, func(a, b Event) int { return int(max(-1, min(1, a.At-b.At))) })
	links := s.links()
	for i := range list {
		if e := &list[i]; e.Verb == Set {
			e.Link = e.change(links[e.Args[0]])
			links[e.Args[0]] = e.Link
		}
	}
	return list
}

// times is how often an event happens.
func (e Event) times() int {
	if e.Every <= 0 {
		return 1
	}
	return int((e.For + e.Every - 1) / e.Every)
}

// last is when it happens for the last time.
func (e Event) last() time.Duration { return e.At + time.Duration(e.times()-1)*e.Every }

// change is what a set event makes of a link.
func (e Event) change(l Link) Link {
	seen := map[string]bool{}
	for _, w := range e.Args[1:] {
		setFields.apply(&l, w, seen)
	}
	return l
}

// when is an event's time as the text has it.
func (e Event) when() string {
	if e.Every == 0 {
		return formatDuration(e.At)
	}
	return fmt.Sprintf("%s every %s for %s", formatDuration(e.At), formatDuration(e.Every), formatDuration(e.For))
}
