package stun

import (
	"cmp"

	"weft"
)

// Refine is what is known after another look. What that could not tell is as it was, if the NAT seems to be the same:
// a packet that was lost takes nothing away.
func Refine(old, now weft.NAT) weft.NAT {
	if now.Mapping == weft.MappingUnknown || now.Mapping != old.Mapping {
		return now
	}
	now.Filtering = cmp.Or(now.Filtering, old.Filtering)
	now.Hairpin = cmp.Or(now.Hairpin, old.Hairpin)
	if now.Allocation == weft.AllocationUnknown {
		now.Allocation, now.Step = old.Allocation, old.Step
	}
	return now
}
