package control

import (
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestATreeIsAMapInOrderAndOldTreesStayAsTheyWere(t *testing.T) {
	id := rapid.OneOf(rapid.Uint32Range(0, 70), rapid.Uint32Range(1000, 1100), rapid.Uint32())
	rapid.Check(t, func(rt *rapid.T) {
		type version struct {
			tree tree[int]
			want map[uint32]int
		}
		now := version{want: map[uint32]int{}}
		var old []version
		for i := range rapid.IntRange(0, 60).Draw(rt, "steps") {
			old = append(old, version{now.tree, maps.Clone(now.want)})
			n := id.Draw(rt, "id")
			if len(now.want) > 0 && rapid.IntRange(0, 2).Draw(rt, "delete") > 0 {
				if rapid.Bool().Draw(rt, "known") {
					n = rapid.SampledFrom(slices.Sorted(maps.Keys(now.want))).Draw(rt, "which")
				}
				delete(now.want, n)
				now.tree = now.tree.delete(n)
				continue
			}
			now.want[n] = i
			now.tree = now.tree.set(n, i)
		}
		for _, v := range append(old, now) {
			if v.tree.len() != len(v.want) {
				rt.Fatalf("%d things, want %d", v.tree.len(), len(v.want))
			}
			if got := maps.Collect(v.tree.all()); !maps.Equal(got, v.want) {
				rt.Fatalf("%v, want %v", got, v.want)
			}
			var order []uint32
			for id := range v.tree.all() {
				order = append(order, id)
			}
			if !slices.IsSorted(order) {
				rt.Fatalf("not in order: %v", order)
			}
			for n, want := range v.want {
				if got, ok := v.tree.get(n); !ok || got != want {
					rt.Fatalf("%d at %d, %v, want %d", got, n, ok, want)
				}
			}
			if _, ok := v.tree.get(id.Filter(func(n uint32) bool { _, ok := v.want[n]; return !ok }).Draw(rt, "absent")); ok {
				rt.Fatal("something where nothing is")
			}
		}
		if len(now.want) == 0 && now.tree.root != nil {
			rt.Fatal("an empty tree holds on to branches")
		}
	})
}
