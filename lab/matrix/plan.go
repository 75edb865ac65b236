package matrix

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/lab/scenario"
	"weft/lab/vnet"
)

// What every cell has in common.
const (
	// oneWay is how long a packet takes from one side's NAT to the other's, or to a server: an RTT of 40 ms, at which
	// the times to a direct path are stated.
	oneWay = 20 * time.Millisecond
	// jitter is that of each link; without any, two runs would be alike to the nanosecond.
	jitter = time.Millisecond
	// limit is how long a run may take: what is not tried by then (30 s of spraying after some of plain probing) is not
	// part of finding a path.
	limit = 60 * time.Second
	// hold is how long a direct path must last to count.
	hold = 2 * time.Second
	// late is by how much --late delays the filter: several times what installing a rule by a program that
	// watches connections takes, and longer than a round trip.
	late = 150 * time.Millisecond
)

// MaxPool is the largest pool of addresses that --pool makes.
const MaxPool = 16

// A Layout is how many NATs there are and which of them is whose.
type Layout string

// The layouts.
const (
	// Single has each node behind a NAT of its own.
	Single Layout = "single"
	// Double has each behind two NATs of the same type.
	Double Layout = "double"
	// DoubleDifferent has each behind two NATs of different types; a name a/b has a next to the node.
	DoubleDifferent Layout = "double-different"
	// Shared has both behind one NAT of the row's type, and a column per place where the other may be. Nothing but
	// the one NAT varies, so there are no pairs of types.
	Shared Layout = "shared"
	// Hairpin has each behind a NAT of its own, and both of these behind one carrier's that hairpins (RFC 4787 REQ-9): the
	// two inner networks know nothing of each other.
	Hairpin Layout = "hairpin"
)

// The columns of Shared.
const (
	oneLAN      = "one-lan"             // both in the NAT's own network
	twoLANs     = "two-lans"            // each behind another router of its own, and the NAT hairpins
	noHairpin   = "two-lans-no-hairpin" // the same, and it does not
	nameOfShare = "carrier"
)

// A Type is a NAT by what RFC 4787 says of it, with the name that tables have for it.
type Type struct {
	Name      string
	Mapping   weft.Mapping
	Filtering weft.Filtering
}

// RFC4787 are the nine types that RFC 4787's words span, from the kindest to peers to the least kind.
func RFC4787() (types []Type) {
	for _, m := range []weft.Mapping{weft.EndpointIndependentMapping, weft.AddressDependentMapping, weft.AddressAndPortDependentMapping} {
		for _, f := range []weft.Filtering{weft.EndpointIndependentFiltering, weft.AddressDependentFiltering, weft.AddressAndPortDependentFiltering} {
			types = append(types, Type{m.Abbreviation() + "-" + f.Abbreviation(), m, f})
		}
	}
	return types
}

// RFC3489 are the four types of RFC 3489 section 5, as RFC 4787 would say them.
func RFC3489() []Type {
	const cone = weft.EndpointIndependentMapping
	return []Type{
		{"full-cone", cone, weft.EndpointIndependentFiltering},
		{"restricted-cone", cone, weft.AddressDependentFiltering},
		{"port-restricted-cone", cone, weft.AddressAndPortDependentFiltering},
		{"symmetric", weft.AddressAndPortDependentMapping, weft.AddressAndPortDependentFiltering},
	}
}

// A Config says which matrix, under which conditions. The zero Config is RFC 4787's with random ports.
type Config struct {
	Matrix string          // "rfc4787" (or "") or "rfc3489"
	Layout Layout          // "": Single
	Pool   int             // outside addresses of each outermost NAT, chosen arbitrarily; 0 and 1: one
	Ports  weft.Allocation // of every NAT; unknown: random
	Loss   float64         // share of packets lost between any two sides, 0 to below 1
	Late   bool            // filters open late
	Row    string          // with Col: this cell only
	Col    string
}

// A Plan is what to run.
type Plan struct {
	Conditions Conditions
	Rows, Cols []string
	Cells      []Cell
}

// A Cell is one ordered pair: what to run, and what could be had at best.
type Cell struct {
	Row, Col string
	Possible Way
	Why      string
	Scenario scenario.Scenario
}

// Plan makes the scenarios of all cells. Its errors are about what the Config asks for.
func (c Config) Plan() (Plan, error) {
	var types []Type
	switch c.Matrix {
	case "", "rfc4787":
		c.Matrix, types = "rfc4787", RFC4787()
	case "rfc3489":
		types = RFC3489()
	default:
		return Plan{}, fmt.Errorf("there is no matrix %q: rfc4787 or rfc3489", c.Matrix)
	}
	if c.Layout == "" {
		c.Layout = Single
	}
	if c.Ports == weft.AllocationUnknown {
		c.Ports = weft.RandomAllocation
	}
	c.Pool = max(c.Pool, 1)
	switch {
	case c.Pool > MaxPool:
		return Plan{}, fmt.Errorf("a pool of %d addresses is too large: at most %d", c.Pool, MaxPool)
	case math.IsNaN(c.Loss) || c.Loss < 0 || c.Loss >= 1:
		return Plan{}, errors.New("the loss must be 0 or more, and less than 100 percent")
	}
	p := Plan{Conditions: Conditions{
		Matrix: c.Matrix, Layout: string(c.Layout), Pool: c.Pool, Ports: c.Ports.String(), Loss: c.Loss * 100, Late: c.Late,
		OneWay: float64(oneWay) / 1e6, Patient: limit.Seconds(),
	}}
	rows, cols := chains(types, c.Layout), []chain{{name: oneLAN}, {name: twoLANs}, {name: noHairpin}}
	if c.Layout != Shared {
		cols = rows
	}
	for _, r := range rows {
		p.Rows = append(p.Rows, r.name)
	}
	for _, x := range cols {
		p.Cols = append(p.Cols, x.name)
	}
	for _, r := range rows {
		for _, x := range cols {
			if (c.Row != "" || c.Col != "") && (r.name != c.Row || x.name != c.Col) {
				continue
			}
			cell, err := c.cell(r, x)
			if err != nil {
				return Plan{}, fmt.Errorf("%s with %s: %w", r.name, x.name, err)
			}
			p.Cells = append(p.Cells, cell)
		}
	}
	if len(p.Cells) == 0 {
		return Plan{}, fmt.Errorf("there is no cell %q,%q: the rows are %s, the columns %s", c.Row, c.Col, names(p.Rows), names(p.Cols))
	}
	return p, nil
}

// names lists names for a person, not all of many.
func names(list []string) string {
	const enough = 12
	if len(list) > enough {
		return strings.Join(list[:enough], ", ") + fmt.Sprintf(" and %d more", len(list)-enough)
	}
	return strings.Join(list, ", ")
}

// A chain is a side's own NATs, from the node outwards.
type chain struct {
	name  string
	types []Type
}

func chains(types []Type, l Layout) (out []chain) {
	for _, t := range types {
		switch l {
		case Double:
			out = append(out, chain{t.Name, []Type{t, t}})
		case DoubleDifferent:
			for _, outer := range types {
				if outer != t {
					out = append(out, chain{t.Name + "/" + outer.Name, []Type{t, outer}})
				}
			}
		default:
			out = append(out, chain{t.Name, []Type{t}})
		}
	}
	return out
}

// nat is what a router of a type does under the Config's conditions.
func (c Config) nat(t Type) vnet.NATConfig {
	n := vnet.NATConfig{Mapping: t.Mapping, Filtering: t.Filtering, Allocation: c.Ports}
	if c.Ports == weft.SequentialAllocation {
		n.Step = 1
	}
	if c.Late {
		n.OpensLate = late
	}
	return n
}

// pooled is a NAT that faces the internet.
func (c Config) pooled(n vnet.NATConfig) vnet.NATConfig {
	if c.Pool > 1 {
		n.Pooling = vnet.ArbitraryPooling
	}
	return n
}

// link is one of the two that every path through the network crosses.
func (c Config) link() vnet.LinkConfig {
	return vnet.LinkConfig{Delay: oneWay / 2, Jitter: jitter, Loss: 1 - math.Sqrt(1-c.Loss)}
}

// cell lays out one pair.
func (c Config) cell(row, col chain) (Cell, error) {
	cell := Cell{Row: row.name, Col: col.name}
	s := &cell.Scenario
	s.Name = strings.NewReplacer("/", "-").Replace(strings.ToLower(row.name + "-with-" + col.name))
	s.About = fmt.Sprintf("%s with %s, %s", row.name, col.name, c.Layout)
	s.Limit = limit
	onA, onB := c.build(s, row, col)
	s.Hosts = append(s.Hosts,
		scenario.Host{Name: "server", On: scenario.Internet, Role: scenario.Server, Link: scenario.Both(c.link())},
		scenario.Host{Name: "relay", On: scenario.Internet, Role: scenario.Relay, Link: scenario.Both(c.link())}, // its address tells EIM from ADM
		scenario.Host{Name: "a", On: onA, Role: scenario.Node},
		scenario.Host{Name: "b", On: onB, Role: scenario.Node})
	s.Expect = []scenario.Expectation{{A: "a", B: "b", Path: weft.PathDirect, Within: limit - hold, Hold: hold}}
	cell.Possible, cell.Why = possible(s)
	return cell, nil
}

// build adds the routers, and tells where the two nodes are.
func (c Config) build(s *scenario.Scenario, row, col chain) (onA, onB string) {
	switch c.Layout {
	case Shared:
		n := c.pooled(c.nat(row.types[0]))
		n.Hairpin = col.name == twoLANs
		s.Routers = append(s.Routers, c.router("nat", scenario.Internet, n, true))
		if col.name == oneLAN {
			return "nat", "nat"
		}
		home := Type{Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering}
		s.Routers = append(s.Routers, c.router("home-a", "nat", c.nat(home), false), c.router("home-b", "nat", c.nat(home), false))
		return "home-a", "home-b"
	case Hairpin:
		// RFC 6888 REQ-1 and REQ-7: a carrier's maps and, as recommended, filters independently of the endpoint.
		n := c.pooled(c.nat(Type{Mapping: weft.EndpointIndependentMapping, Filtering: weft.EndpointIndependentFiltering}))
		n.Hairpin = true
		carrier := c.router(nameOfShare, scenario.Internet, n, false)
		s.Routers = append(s.Routers, carrier, c.router("nat-a", nameOfShare, c.nat(row.types[0]), true), c.router("nat-b", nameOfShare, c.nat(col.types[0]), true))
		return "nat-a", "nat-b"
	}
	onA, onB = c.side(s, "a", row), c.side(s, "b", col)
	inner := func(r scenario.Router) bool { return r.On != scenario.Internet }
	slices.SortStableFunc(s.Routers, func(a, b scenario.Router) int { // the outer ones first, as a scenario that is read has them
		switch {
		case inner(a) == inner(b):
			return 0
		case inner(a):
			return 1
		}
		return -1
	})
	return onA, onB
}

// side adds one side's own NATs, and tells in whose network the node is.
func (c Config) side(s *scenario.Scenario, name string, own chain) string {
	on := scenario.Internet
	for i, t := range slices.Backward(own.types) {
		n, called := c.nat(t), "nat-"+name
		if on == scenario.Internet {
			n = c.pooled(n)
		}
		if i < len(own.types)-1 {
			called = fmt.Sprintf("inner-%s", name)
		}
		s.Routers = append(s.Routers, c.router(called, on, n, on == scenario.Internet))
		on = called
	}
	return on
}

// router is one NAT; far ones have the distance.
func (c Config) router(name, on string, n vnet.NATConfig, far bool) scenario.Router {
	r := scenario.Router{Name: name, On: on, NAT: n}
	if on == scenario.Internet && c.Pool > 1 {
		r.PoolSize = c.Pool
	}
	if far {
		r.Link = scenario.Both(c.link())
	}
	return r
}
