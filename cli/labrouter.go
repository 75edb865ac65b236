package cli

import (
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"weft/lab/netns"
)

// labRouterCommand runs one of the laboratory's routers by itself, in a namespace that somebody else has made. The
// laboratory runs its own in its own process, so this is no command that people look for.
func (a *app) labRouterCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:    "router",
		Short:  "Run a NAT of the laboratory between two TAP devices in this network namespace",
		Hidden: true,
		Long: `Run a router with a NAT of the laboratory's own between two TAP devices, which it makes in the network namespace that it is
started in (ip netns exec NAME weft lab router); it refuses the machine's own. The configuration is one JSON document, on
the standard input or in --config FILE. What follows on the standard input are commands, one a line: forget, rebind,
block udp, allow udp, up, down, counts, link {"Delay":20000000,"Loss":0.01}. The standard output has a line of JSON for
each event. It ends at SIGTERM or Ctrl-C.

  {"inside_device": "lan0", "outside_device": "wan0", "events": true, "router": {"Name": "home",
   "Inside":  {"mac": "02:00:00:00:00:01", "Prefix4": "192.168.9.1/24"},
   "Outside": {"mac": "02:00:00:00:00:02", "Prefix4": "203.0.113.9/24"}, "Gateway4": "203.0.113.1",
   "NAT": {"Public": ["203.0.113.9"], "Mapping": "endpoint-independent", "Filtering": "address-dependent"}}}`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if file == "" {
				return netns.ServeRouter(c.Context(), os.Stdin, nil, a.out)
			}
			f, err := os.Open(file)
			if err != nil {
				return advise(fmt.Errorf("opening the router's configuration: %w", err), "--config")
			}
			defer f.Close()
			return netns.ServeRouter(c.Context(), f, io.Reader(os.Stdin), a.out)
		},
	}
	c.Flags().StringVar(&file, "config", "", "file with the configuration (default: the standard input)")
	return c
}
