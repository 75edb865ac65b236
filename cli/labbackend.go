package cli

import (
	"fmt"

	"weft/lab/netns"
	"weft/lab/real"
	"weft/lab/scenario"
	"weft/lab/sim"
)

// labBackend is what --backend names.
func labBackend(name string) (scenario.Backend, error) {
	switch name {
	case "vnet":
		return sim.Backend{}, nil
	case "netns":
		if err := netns.Available(); err != nil { // once, before the first of many runs
			return nil, fmt.Errorf("the netns backend cannot run here: %w; the vnet backend needs nothing of this machine", err)
		}
		return real.Backend{}, nil
	}
	return nil, usagef("--backend is vnet or netns, not %s", quote(name))
}
