package weft

import (
	"slices"
	"strings"
	"testing"
)

func TestEveryNATIsPutIntoWordsThatNoOtherShares(t *testing.T) {
	seen := map[string]NAT{}
	for m := MappingUnknown; m <= AddressAndPortDependentMapping; m++ {
		for f := FilteringUnknown; f <= AddressAndPortDependentFiltering; f++ {
			for a := AllocationUnknown; a <= RandomAllocation; a++ {
				n := NAT{Mapping: m, Filtering: f, Allocation: a}
				words := n.Words()
				if len(words) == 0 || slices.Contains(words, "") {
					t.Errorf("%v is %q", n, words)
				}
				all := strings.Join(words, "; ")
				if other, ok := seen[all]; ok {
					t.Errorf("%v and %v are both %q", n, other, all)
				}
				seen[all] = n
			}
		}
	}
	if words := (NAT{Mapping: 99, Filtering: 99, Allocation: 99, Hairpin: 99}).Words(); !strings.Contains(words[0], "not known") {
		t.Errorf("what a later version knows is %q", words)
	}
}
