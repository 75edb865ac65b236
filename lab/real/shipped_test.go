package real

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"weft/lab/netns"
	"weft/lab/scenario"
)

// atOnce is how many scenarios run together: most of their time they wait.
const atOnce = 4

// TestWhatShipsForRealMachinesComesOutAsItExpects runs offices, routers, an exit, a portal and two words: all that the
// virtual backend refuses and that takes no programs of others.
func TestWhatShipsForRealMachinesComesOutAsItExpects(t *testing.T) {
	if err := netns.Available(); err != nil {
		t.Skip(err)
	}
	binary, err := weftBinary()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	var group errgroup.Group
	group.SetLimit(atOnce)
	var mu sync.Mutex
	names := 0
	for _, name := range scenario.Shipped() {
		s, _, err := scenario.Open(name)
		if err != nil {
			t.Fatal(err)
		}
		weft := slices.ContainsFunc(s.Hosts, func(h scenario.Host) bool { return h.Role == scenario.Node })
		if what, _ := s.OnlyReal(); what == "" || !weft {
			continue
		}
		names++
		group.Go(func() error {
			began := time.Now()
			r, err := Backend{}.Run(ctx, s, scenario.Options{Binary: binary, Seed: 1})
			mu.Lock()
			defer mu.Unlock()
			t.Logf("%s took %v", name, time.Since(began).Round(time.Millisecond))
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			for _, o := range r.Outcomes {
				if !o.OK {
					t.Errorf("%s: %s: %s", name, o.Expectation, o.Why)
				}
			}
			if err != nil || !r.OK {
				for host, log := range r.Logs {
					t.Logf("--- %s: %s\n%s", name, host, log[max(0, len(log)-2000):])
				}
			}
			return nil
		})
	}
	group.Wait()
	if names < 7 {
		t.Errorf("only %d scenarios were run", names)
	}
}
