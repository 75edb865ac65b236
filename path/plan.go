package path

import (
	"cmp"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// What is believed of a NAT's behaviour that is not known, for the order in which things are tried. Of the NATs
// behind which people sit, some four fifths map endpoint-independently and few filter by less than address and
// port (Ford et al., USENIX 2005: 82 % can be punched).
const (
	believedEIM     = 0.8
	believedKinder  = 0.3 // a filter that looks at the address at most
	believedPredict = 0.9 // ports that are given in order, on a quiet NAT
	// believedOneIP is that what a NAT sends comes from the one of its addresses that is known.
	believedOneIP = 0.95
)

// PredictRounds is how often prediction is tried in a row: each costs 64 packets, and somebody else's connection
// through the same NAT at the wrong moment spoils one.
const PredictRounds = 6

// SprayTries is how often ports are sprayed in a row where it should work. One of 4,000 misses; but between NATs with four
// addresses each, of which one is known, every seventh does.
const SprayTries = 4

// A step is one attempt of a plan.
type step struct {
	way         wire.AttemptWay
	leaderOpens bool
	chance      float64
}

// A plan is what the two NATs leave to try, the likeliest first. Both sides make the same of the same two NATs,
// but only the one that leads acts on it.
type plan struct {
	plain bool // plain punching may work
	// sure says that it should. If it does not, the NATs are not what they seem, or have several addresses: the steps
	// are worth a try, and not many.
	sure bool
	// unkind says that one of the NATs, or both, has another port for every destination: where plain punching may work all
	// the same, because not everything is known of them, it does so at once.
	unkind bool
	// settled says that it is known how both choose ports. Until it is, a spray would disturb those who find out, and
	// prediction may be what is called for.
	settled bool
	steps   []step
}

// planFor makes the plan for the NAT of the side that leads and the other's. It rests on three rules.
//
// Plainly, it is possible if some outside address of the one is known before it sends and the other's packets
// get through to it: without filter (a reply leaves by the mapping that was hit), or with one that looks at the
// address alone and a mapping that does not depend on the destination, or if both mappings do not.
//
// With a spray, if the opener's filter looks at the address at most, or the prober's outside port is known, so that
// the opener can let it in.
//
// With prediction, if both sides' next ports can be told.
func planFor(leader, follower weft.NAT) plan {
	chance := plainChance(leader, follower)
	p := plan{plain: chance > 0, sure: chance == 1, unkind: fixed(leader)*fixed(follower) == 0}
	p.settled = tells(leader) && tells(follower)
	if predictable(leader) && predictable(follower) {
		for range PredictRounds {
			p.steps = append(p.steps, step{way: wire.Predict, chance: believedPredict})
		}
	}
	for _, opens := range []bool{true, false} {
		opener, prober := leader, follower
		if !opens {
			opener, prober = follower, leader
		}
		if c := sprayChance(opener, prober); c > 0 {
			p.steps = append(p.steps, step{way: wire.Spray, leaderOpens: opens, chance: c})
		}
	}
	slices.SortStableFunc(p.steps, func(a, b step) int { return cmp.Compare(b.chance, a.chance) })
	// What is sure is repeated before anything else. What rests on an address that may not be the only one takes turns.
	for i := 0; len(p.steps) > i && len(p.steps) < SprayTries && p.steps[i].chance >= believedOneIP; i++ {
		if p.steps[0].chance == 1 {
			p.steps = slices.Insert(p.steps, 0, p.steps[0])
		} else {
			p.steps = append(p.steps, p.steps[i])
		}
	}
	return p
}

// patience is how long plain punching, which may work, has to itself.
func (p plan) patience() time.Duration {
	if p.unkind && p.settled && !p.sure {
		return plainShortly
	}
	return plainFirst
}

// tells reports whether it is known how a NAT chooses ports; or there is none.
func tells(n weft.NAT) bool {
	return n.Allocation != weft.AllocationUnknown || n.Mapping == weft.NoNAT
}

// fixed is how likely the outside port does not depend on the destination.
func fixed(n weft.NAT) float64 {
	switch n.Mapping {
	case weft.MappingUnknown:
		return believedEIM
	case weft.NoNAT, weft.EndpointIndependentMapping:
		return 1
	}
	return 0
}

// kinder is how likely the filter looks at the address at most.
func kinder(n weft.NAT) float64 {
	switch n.Filtering {
	case weft.FilteringUnknown:
		return believedKinder
	case weft.EndpointIndependentFiltering, weft.AddressDependentFiltering:
		return 1
	}
	return 0
}

// open is how likely there is no filter.
func open(n weft.NAT) float64 {
	switch n.Filtering {
	case weft.FilteringUnknown:
		return believedKinder / 2
	case weft.EndpointIndependentFiltering:
		return 1
	}
	return 0
}

func either(a, b float64) float64 { return a + b - a*b }

func plainChance(a, b weft.NAT) float64 {
	one := func(n weft.NAT) float64 { return either(open(n), fixed(n)*kinder(n)) }
	return either(either(one(a), one(b)), fixed(a)*fixed(b))
}

// sprayChance prefers a prober whose address is known with its port to an opener that lets in what comes from the
// address that is thought to be the prober's.
func sprayChance(opener, prober weft.NAT) float64 {
	return either(believedOneIP*kinder(opener), fixed(prober))
}

// predictable reports whether the outside port of a NAT's next mapping can be told: for sure, as what depends on it is
// futile otherwise.
func predictable(n weft.NAT) bool {
	return n.Allocation == weft.SequentialAllocation && n.Step != 0 || n.Allocation == weft.PreservingAllocation
}
