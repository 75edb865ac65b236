package cli

import (
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
		return real.Backend{}, nil
	}
	return nil, usagef("--backend is vnet or netns, not %s", quote(name))
}
