package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"weft/lab/scenario"
)

func TestEveryShippedScenarioComesOutAsItExpects(t *testing.T) {
	for _, name := range scenario.Shipped() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, err := scenario.Open(name)
			if err != nil {
				t.Fatal(err)
			}
			seeds := uint64(5)
			if slices.ContainsFunc(s.Flows, func(f scenario.Flow) bool { return f.Rate > 0 }) {
				seeds = 1 // their packets are many, and chance has little part in them
			}
			for seed := range seeds {
				r, err := Backend{}.Run(context.Background(), s, scenario.Options{Seed: seed + 1})
				var unsupported *scenario.Unsupported
				if what, _ := s.OnlyReal(); what != "" {
					if !errors.As(err, &unsupported) {
						t.Errorf("what only real machines do (%s) is run: %v", what, err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if !r.OK {
					t.Errorf("seed %d:\n%s", seed+1, told(r))
				}
			}
		})
	}
}

// told is a result for a failed test.
func told(r scenario.Result) string {
	var b strings.Builder
	for _, o := range r.Outcomes {
		fmt.Fprintf(&b, "%v: %s: %s\n", o.OK, o.Expectation, o.Why)
	}
	for _, p := range r.Pairs {
		fmt.Fprintf(&b, "%s-%s: %s %s after %v, %d packets, %s\n", p.A, p.B, p.Path, p.Way, p.DirectAfter, p.Packets, p.Reason)
	}
	for _, f := range r.Flows {
		fmt.Fprintf(&b, "%s to %s: %d sent, %d lost, silent for %v\n", f.From, f.To, f.Sent, f.Lost, f.Silence)
	}
	for name, log := range r.Logs {
		fmt.Fprintf(&b, "%s:\n%s", name, log)
	}
	return b.String()
}
