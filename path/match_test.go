package path

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"weft"
	"weft/wire"
)

// someCells draws ways between a few links of each side.
func someCells(t *rapid.T) (cells []cell) {
	ours, theirs := rapid.IntRange(1, 5).Draw(t, "ours"), rapid.IntRange(1, 5).Draw(t, "theirs")
	for l := range ours {
		for f := range theirs {
			if rapid.IntRange(0, 3).Draw(t, "is") == 0 {
				continue
			}
			cells = append(cells, cell{
				ours: weft.LinkID(l + 1), theirs: weft.LinkID(f + 1), way: &pair{number: uint16(len(cells))},
				metric: 10 * rapid.IntRange(0, 2).Draw(t, "metric"), cost: rapid.Int64Range(0, 1000).Draw(t, "cost"),
			})
		}
	}
	return cells
}

// best finds by trying all choices how many cells may share no link, and the least that so many cost.
func best(cells []cell, used cover) (n int, cost int64) {
	for i, x := range cells {
		if ours, theirs := used.covers(x); ours || theirs {
			continue
		}
		next := cover{ours: slices.Clone(used.ours), theirs: slices.Clone(used.theirs)}
		next.take(x)
		m, c := best(cells[i+1:], next)
		if m, c = m+1, c+x.cost; m > n || m == n && c < cost {
			n, cost = m, c
		}
	}
	return n, cost
}

func TestNoOtherChoiceUsesMoreLinksForLess(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cells := someCells(t)
		want, least := best(cells, cover{})
		var got cover
		cost := int64(0)
		for _, x := range disjoint(slices.Clone(cells)) {
			if ours, theirs := got.covers(x); ours || theirs {
				t.Fatalf("a link is used twice in %v", got.cells)
			}
			got.take(x)
			cost += x.cost
		}
		if len(got.cells) != want || cost != least {
			t.Fatalf("%d ways for %d, and there are %d for %d", len(got.cells), cost, want, least)
		}
	})
}

func TestEachLinkHasAMemberAndDearOnesStandBehindCheapOnes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		cells := someCells(t)
		got := match(slices.Clone(cells), wire.MaxBondPaths, func(cell, bool) bool { return false })
		var all cover
		for _, x := range cells {
			all.take(x)
		}
		if len(got.ours) < len(all.ours) && len(got.theirs) < len(all.theirs) {
			t.Fatalf("links of both sides are left out: %v of %v", got.cells, cells)
		}
		for _, tier := range []int{0, 10, 20} {
			n, of := 0, cover{}
			for _, x := range cells {
				if x.metric == tier {
					of.take(x)
				}
			}
			for _, x := range got.cells {
				if x.metric == tier {
					n++
				}
			}
			if n > max(len(of.ours), len(of.theirs)) {
				t.Fatalf("%d ways of metric %d: %v", n, tier, got.cells)
			}
		}
		// Of the lowest metric there are as many as share no link, at least.
		var cheap []cell
		for _, x := range cells {
			if x.metric == 0 {
				cheap = append(cheap, x)
			}
		}
		want, _ := best(cheap, cover{})
		n := 0
		for _, x := range got.cells {
			if x.metric == 0 {
				n++
			}
		}
		if n < want {
			t.Fatalf("%d ways of metric 0, and %d share no link", n, want)
		}
		for i, x := range got.cells {
			if slices.ContainsFunc(got.cells[:i], func(y cell) bool { return y.way == x.way }) {
				t.Fatalf("a way is there twice: %v", got.cells)
			}
		}
	})
}
