package bench

import (
	"fmt"
	"slices"
	"time"
)

// A bondCase is a row of the table of what bonding has to reach.
type bondCase struct {
	name, about string
	links       []BondLink
	units       func(r *bondRun, c *bondCase) []*bondUnit // of one round
	judge       func(r *BondReport, c *bondCase, control string)

	least float64 // what efficiency is wanted
	equal bool
}

// between reports whether the case is one of equal links, and those with fewer and with more of them tell more.
func (c *bondCase) between() bool {
	return c.equal && len(c.links) > 2 && len(c.links) < maxBondLinks
}

// equal is a case of a number of links of the same rate.
func equal(n int, mbit, least float64) *bondCase {
	c := &bondCase{equal: true, name: fmt.Sprintf("equal-%dx%g", n, mbit), about: fmt.Sprintf("%d links of %g Mbit/s and 20 ms", n, mbit), least: least,
		units: throughputUnits, judge: judgeThroughput}
	for range n {
		c.links = append(c.links, BondLink{Mbit: mbit, RTTms: 20})
	}
	return c
}

// bondCases are in the order in which they are told. Times are round-trip times.
var bondCases = slices.Concat(
	equals(),
	[]*bondCase{
		unequal("unequal-8+16", 0.95, BondLink{Mbit: 8, RTTms: 20}, BondLink{Mbit: 16, RTTms: 20}),
		unequal("unequal-16+32", 0.95, BondLink{Mbit: 16, RTTms: 20}, BondLink{Mbit: 32, RTTms: 20}),
		unequal("mixed-10+50", 0.95, BondLink{Mbit: 10, RTTms: 20}, BondLink{Mbit: 50, RTTms: 60}),
		unequal("mixed-300+80", 0.90, BondLink{Mbit: 300, RTTms: 10}, BondLink{Mbit: 80, RTTms: 30}),
		added("added-slow", BondLink{Mbit: 1, RTTms: 200}),
		added("added-lossy", BondLink{Mbit: 50, RTTms: 20, Loss: 0.03}),
		added("added-far", BondLink{Mbit: 5, RTTms: 600}),
		added("added-shaky", BondLink{Mbit: 4, RTTms: 60, JitterMS: 40}),
		{name: "black-hole", about: "one of two links of 16 Mbit/s and 60 ms falls silent, in both directions or one, and is back 3 s later; datagrams at 80 % of what one carries",
			links: pair60, units: darkUnits, judge: judgeDark},
		{name: "link-down", about: "the interface of one of two links goes down, and up again 3 s later; datagrams at 80 % of what one carries",
			links: pair60, units: downUnits, judge: judgeDown},
		{name: "link-back", about: "one of two links is gone for 4 s, with and without word of it, and back; one TCP flow",
			links: pair20, units: backUnits, judge: judgeBack},
		{name: "capacity", about: "one of two links of 16 Mbit/s has 8 for 3 s; one TCP flow", links: pair20, units: capacityUnits, judge: judgeCapacity},
		{name: "flaps", about: "one of two links is gone 100 times in 60 s, with and without word of it", links: pair60, units: flapUnits, judge: judgeFlaps},
		{name: "metric", about: "two links of metrics 10 and 20, the first falls silent; datagrams at 80 % of what one carries", links: pair60, units: metricUnits, judge: judgeMetric},
		{name: "beside", about: "a plain TCP flow by the first of two links of 16 Mbit/s", links: pair20, units: besideUnits, judge: judgeBeside},
		{name: "fast", about: "one link without a limit, bonding on and off", units: func(*bondRun, *bondCase) []*bondUnit { return nil }, judge: judgeFast},
	})

var (
	pair20 = []BondLink{{Mbit: 16, RTTms: 20}, {Mbit: 16, RTTms: 20}}
	pair60 = []BondLink{{Mbit: 16, RTTms: 60}, {Mbit: 16, RTTms: 60}}
	// surviving is 80 % of what one of these links carries of datagrams' payload: beside the payload there are the headers
	// of IPv4 and UDP inside (28), WireGuard's (16 + 16, and padding), of IPv4 and UDP outside (28), and Ethernet's (14).
	surviving = 0.8 * 16 * bondDatagram / (bondDatagram + 28 + 4 + 32 + 28 + 14)
)

func equals() (list []*bondCase) {
	for _, mbit := range []float64{8, 16, 32} {
		for n, least := range map[int]float64{2: 0.97, 3: 0.97, 4: 0.96, 8: 0.95} {
			list = append(list, equal(n, mbit, least))
		}
	}
	slices.SortFunc(list, func(a, b *bondCase) int {
		return int(1000*(a.links[0].Mbit-b.links[0].Mbit)) + len(a.links) - len(b.links)
	})
	return list
}

func unequal(name string, least float64, links ...BondLink) *bondCase {
	c := &bondCase{name: name, links: links, least: least, units: throughputUnits, judge: judgeThroughput}
	c.about = "links of"
	for i, l := range links {
		if i > 0 {
			c.about += " and"
		}
		c.about += fmt.Sprintf(" %g Mbit/s, %g ms", l.Mbit, l.RTTms)
	}
	return c
}

// good is the link that a bad one is added to.
var good = BondLink{Mbit: 50, RTTms: 20}

func added(name string, bad BondLink) *bondCase {
	return &bondCase{name: name, about: fmt.Sprintf("a link of %v added to one of %v (Mbit/s, ms)", bad, good), links: []BondLink{good, bad},
		units: addedUnits, judge: judgeAdded}
}

// BondCases are the names that BondOptions.Only takes, in order, with a word on each.
func BondCases() (names, about []string) {
	for _, c := range bondCases {
		names, about = append(names, c.name), append(about, c.about)
	}
	return names, about
}

// directions are both.
var directions = []bool{true, false}

// both makes a unit for each direction.
func both(u bondUnit) (list []*bondUnit) {
	for _, out := range directions {
		v := u
		v.out = out
		list = append(list, &v)
	}
	return list
}

// throughputUnits are all links together, each kind of link alone, and the same without weft.
func throughputUnits(r *bondRun, c *bondCase) (list []*bondUnit) {
	flow := bondUnit{length: r.Length, warm: bondWarm, load: loadTCP}
	for _, s := range []bondSubject{bonded, mptcp} {
		u := flow
		u.subject, u.links = s, c.links
		if s == mptcp && c.equal && (c.between() || c.links[0].Mbit != 16) && !r.Full {
			continue // it does by others what it does by these
		}
		u.once = s == mptcp || c.between()
		list = append(list, both(u)...)
	}
	return append(list, aloneUnits(flow, c.links, single, plainTCP)...)
}

// aloneUnits are each kind of link by itself.
func aloneUnits(u bondUnit, links []BondLink, subjects ...bondSubject) (list []*bondUnit) {
	var kinds []BondLink
	for _, l := range links {
		if !slices.Contains(kinds, l) {
			kinds = append(kinds, l)
		}
	}
	for _, l := range kinds {
		for _, s := range subjects {
			v := u
			v.subject, v.links = s, []BondLink{l}
			v.once = true
			list = append(list, both(v)...)
		}
	}
	return list
}

// shortLength is how long short transfers are asked for, one after the other: some twenty of them.
const shortLength = 10 * time.Second

// addedUnits are long flows and short ones, by both links and by the good one alone.
func addedUnits(r *bondRun, c *bondCase) []*bondUnit {
	long := bondUnit{length: r.Length, warm: bondWarm, load: loadTCP}
	short := bondUnit{length: shortLength, warm: time.Second, load: loadShort, once: true}
	var list []*bondUnit
	for _, u := range []bondUnit{long, short} {
		v := u
		v.subject, v.links = bonded, c.links
		list = append(list, both(v)...)
		for _, x := range aloneUnits(u, c.links[:1], single) {
			x.once = u.once // as often: the worst run counts, and one run alone may have been a good one
			list = append(list, x)
		}
	}
	m := long
	m.subject, m.links, m.once, m.out = mptcp, c.links, true, true
	return append(list, &m)
}

// failWarm is the beginning of a run with failures that does not count.
const failWarm = 2 * time.Second

// failing is a unit of datagrams beside events.
func failing(c *bondCase, script ...bondEvent) bondUnit {
	return bondUnit{subject: bonded, links: c.links, length: failLength, warm: failWarm, load: loadUDP, mbit: surviving, script: script}
}

// When one of two links fails and comes back, and then the other.
const (
	firstGone  = 3 * time.Second
	firstBack  = 6 * time.Second
	secondGone = 9 * time.Second
	secondBack = 12 * time.Second
)

// failLength is that of a run in which each of two links fails once and comes back.
const failLength = 15 * time.Second

func darkUnits(_ *bondRun, c *bondCase) (list []*bondUnit) {
	script := func(how bondHappening) []bondEvent {
		return []bondEvent{{at: firstGone, what: how, link: 1}, {at: firstBack, what: isLight, link: 1},
			{at: secondGone, what: how, link: 0}, {at: secondBack, what: isLight, link: 0}}
	}
	for _, mode := range []string{"", "redundant"} {
		u := failing(c, script(goesDark)...)
		u.mode = mode
		list = append(list, both(u)...)
	}
	for _, how := range []bondHappening{goesDarkOut, goesDarkIn} {
		u := failing(c, script(how)...)
		u.once = true
		list = append(list, both(u)...)
	}
	return list
}

func downUnits(_ *bondRun, c *bondCase) []*bondUnit {
	return both(failing(c, bondEvent{at: firstGone, what: goesDown, link: 1}, bondEvent{at: firstBack, what: comesUp, link: 1},
		bondEvent{at: secondGone, what: goesDown, link: 0}, bondEvent{at: secondBack, what: comesUp, link: 0}))
}

// When a link goes and comes back beside a TCP flow. Linux's BBR has four packets under way for 0.2 s once it has seen no shorter round trip for 10 s
// (BBR's ProbeRTT): 10 and 20 s after its beginning, on any link. A half second with that in it has 60 % of the rate of one link, with or
// without weft. So that comes while the link is gone, before it is looked at what the flow has by the other one.
const (
	flowWarm   = 3 * time.Second // a flow by two links is taken to have what they have
	goneAt     = 8 * time.Second
	aloneFrom  = 11 * time.Second
	backAt     = 12 * time.Second
	backLength = 17 * time.Second
)

func backUnits(_ *bondRun, c *bondCase) (list []*bondUnit) {
	for _, how := range [][2]bondHappening{{goesDark, isLight}, {goesDown, comesUp}} {
		list = append(list, both(bondUnit{subject: bonded, links: c.links, length: backLength, warm: flowWarm, load: loadTCP, once: how[0] == goesDown,
			script: []bondEvent{{at: goneAt, what: how[0], link: 1}, {at: backAt, what: how[1], link: 1}}})...)
	}
	return list
}

// narrowAt and wideAt are when a link's rate changes, after BBR's ProbeRTT, and halved is what it is between.
const (
	narrowAt     = 11 * time.Second
	wideAt       = 14 * time.Second
	narrowLength = 17 * time.Second
)

var halved = BondLink{Mbit: 8, RTTms: 20}

func capacityUnits(r *bondRun, c *bondCase) []*bondUnit {
	flow := bondUnit{length: r.Length, warm: bondWarm, load: loadTCP}
	u := flow
	u.subject, u.links, u.length, u.warm = bonded, c.links, narrowLength, flowWarm
	u.script = []bondEvent{{at: narrowAt, what: isChanged, link: 1, to: halved}, {at: wideAt, what: isChanged, link: 1, to: c.links[1]}}
	return append(both(u), aloneUnits(flow, []BondLink{c.links[0], halved}, single)...)
}

// flapLength is a minute of flaps with a little before and after.
const (
	flapLength = 66 * time.Second
	flapCount  = 100
)

// flapUnits are once for each kind of flap and of load, in one direction or the other: a hundred flaps are a hundred runs.
func flapUnits(r *bondRun, c *bondCase) (list []*bondUnit) {
	for i, how := range [][2]bondHappening{{goesDark, isLight}, {goesDown, comesUp}} {
		u := failing(c)
		u.length, u.once = flapLength, true
		for k := range flapCount {
			at := 4*time.Second + time.Duration(k)*600*time.Millisecond
			u.script = append(u.script, bondEvent{at: at, what: how[0], link: 1}, bondEvent{at: at + 300*time.Millisecond, what: how[1], link: 1})
		}
		for k, load := range []bondLoad{loadUDP, loadTCP} {
			u.load = load
			for _, x := range both(u) {
				if r.Full || x.out == (i == k) {
					list = append(list, x)
				}
			}
		}
	}
	return list
}

func metricUnits(_ *bondRun, c *bondCase) []*bondUnit {
	u := failing(c, bondEvent{at: firstBack, what: goesDark, link: 0}, bondEvent{at: secondBack, what: isLight, link: 0})
	u.metrics = []int{10, 20}
	return both(u)
}

func besideUnits(r *bondRun, c *bondCase) []*bondUnit {
	return both(bondUnit{subject: bonded, links: c.links, length: r.Length, warm: bondWarm, load: loadBeside})
}
