package cli

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"weft/lab/demo"
)

func (a *app) labCommand() *cobra.Command {
	c := &cobra.Command{Use: "lab", Short: "Networks on this machine, to see and to prove what weft does", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	var keep bool
	show := &cobra.Command{
		Use:   "demo",
		Short: "Two homes behind NATs, one private network, shown in network namespaces of this machine",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if a.json {
				return usagef("the demonstration is told to people: it has no --json (weft bench has)")
			}
			self, err := os.Executable()
			if err != nil {
				return fmt.Errorf("finding weft's own binary: %w", err)
			}
			return demo.Run(c.Context(), demo.Options{Binary: self, Out: a.out, Keep: keep})
		},
	}
	show.Flags().BoolVar(&keep, "keep", false, "leave it running until interrupted, to look around")
	c.AddCommand(show, a.labNatCommand())
	c.AddCommand(a.labRunCommand(), a.labRouterCommand())
	return c
}
