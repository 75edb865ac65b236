package cli

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft"
	"weft/bench"
)

func (a *app) benchBondCommand() *cobra.Command {
	o := bench.BondOptions{}
	var dir string
	names, about := bench.BondCases()
	c := &cobra.Command{
		Use:   "bond",
		Short: "Several links as one, beside each link alone and the kernel's MPTCP",
		Long: `Measure several links as one, in network namespaces of this machine: what one TCP flow gets of all of them, and what a
flow feels when one of them goes. Each link alone is measured with the same binary in the same run, and the kernel's
MPTCP over the same links. Raw figures are kept as JSON, and as one HTML page with figures over time.
Exit code 1 when a goal is not reached.

What is measured, and what --only takes (rates in Mbit/s, round-trip times):
` + benchList(names, about),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Binary, err = os.Executable(); err != nil {
				return fmt.Errorf("finding weft's own binary: %w", err)
			}
			const shortest = 8 * time.Second // five of which do not count
			if o.Rounds < 1 || o.Worlds < 1 || o.Load <= 0 || o.Length < shortest {
				return usagef("--runs, --worlds and --load must be at least 1, --length at least %v", shortest)
			}
			for _, x := range o.Control {
				if !slices.Contains(bench.BondControls, x) {
					return usagef("--congestion takes %s, with a comma between: not %q", strings.Join(bench.BondControls, " and "), x)
				}
			}
			if o.Full && !c.Flags().Changed("runs") {
				o.Rounds = bench.BondFullRounds
			}
			if err := checkOnly(o.Only, names); err != nil {
				return err
			}
			o.Out, o.Version = a.err, weft.Version
			r, err := bench.Bond(c.Context(), o)
			if r == nil || err != nil && len(r.Runs) == 0 {
				return err
			}
			return a.reportBond(r, dir, err)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Only, "only", nil, "measure only these, with commas between (default all)")
	f.IntVar(&o.Rounds, "runs", bench.BondRounds, fmt.Sprintf("runs of each subject of a case (with --full: %d)", bench.BondFullRounds))
	f.BoolVar(&o.Full, "full", false, "measure with bbr as the inner flow's congestion control, too, and every case in every run")
	f.StringSliceVar(&o.Control, "congestion", nil, "congestion control of the inner flow: cubic, bbr, or both with a comma between (default cubic, with --full both)")
	f.DurationVar(&o.Length, "length", bench.BondLength, "of a run where throughput is measured; the first 5 s of it do not count")
	f.IntVar(&o.Worlds, "worlds", bench.BondWorlds, "runs at once, at most, each in an internet of its own")
	f.Float64Var(&o.Load, "load", bench.BondLoad, "processor seconds a second that all runs at once may be taken to need, together")
	f.StringVar(&dir, "out", "out/bench", "directory for the raw figures and the page")
	f.StringVar(&o.Logs, "logs", "", "existing directory for the logs of what is started")
	return c
}

// reportBond keeps the raw figures, prints the summary, and fails where a goal is not reached or the benchmark ended early.
func (a *app) reportBond(r *bench.BondReport, dir string, ended error) error {
	paths, err := r.Save(dir)
	if err != nil {
		return err
	}
	fmt.Fprintln(a.err, "raw figures and page:", strings.Join(paths, ", "))
	if ended != nil {
		return ended
	}
	if a.json {
		err = a.printJSON(r)
	} else {
		err = r.Print(a.out)
	}
	if err == nil && r.Missed() {
		err = errQuiet
	}
	return err
}
