package wireguard

import (
	"testing"

	"pgregory.net/rapid"
)

func TestAWindowTakesEachCounterOnceAndNoneThatIsTooOld(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var w Window
		seen, most := map[uint64]bool{}, uint64(0)
		any := false
		at := rapid.Uint64Range(0, 1<<40).Draw(t, "start")
		for range 300 {
			// Mostly near the largest, sometimes far before or behind it.
			step := rapid.OneOf(rapid.Int64Range(-70, 70), rapid.Int64Range(-9000, 9000), rapid.Int64Range(-30000, 30000)).Draw(t, "step")
			c := uint64(max(int64(at)+step, 0))
			want := !seen[c] && (!any || c > most || most+1-c <= WindowSize)
			if got := w.Check(c); got != want {
				t.Fatalf("Check(%d) = %v with %d the largest, want %v", c, got, most, want)
			}
			if got := w.Take(c); got != want {
				t.Fatalf("Take(%d) = %v with %d the largest, want %v", c, got, most, want)
			}
			if want {
				seen[c], any = true, true
				if most = max(most, c); rapid.Bool().Draw(t, "move") {
					at = most
				}
			}
		}
	})
}

func TestAWindowRefusesCountersPastTheLimit(t *testing.T) {
	var w Window
	if w.Take(RejectAfterMessages) || w.Take(1<<64-1) || !w.Take(RejectAfterMessages-1) {
		t.Error("the limit of section 6.1 is not kept")
	}
}

func BenchmarkWindow(b *testing.B) {
	var w Window
	for i := range b.N {
		w.Take(uint64(i))
	}
}
