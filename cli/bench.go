package cli

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft"
	"weft/bench"
)

func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure tunnels beside tunnels", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(a.benchOverlayCommand(), a.benchPlainCommand(), a.benchCrowdCommand(), a.benchCrowdEndsCommand(), a.benchRelayCommand(), a.benchRelaydCommand(), a.benchBondCommand())
	return c
}

// benchList says what a benchmark measures, a line each.
func benchList(names, about []string) string {
	width := len(slices.MaxFunc(names, func(a, b string) int { return len(a) - len(b) }))
	var b strings.Builder
	for i, name := range names {
		fmt.Fprintf(&b, "\n  %-*s  %s", width, name, about[i])
	}
	return b.String()
}

// checkOnly checks what is to be measured against what there is.
func checkOnly(only, names []string) error {
	for _, name := range only {
		if !slices.Contains(names, name) {
			return usagef("--only: there is nothing called %q to measure: there are %s", name, strings.Join(names, ", "))
		}
	}
	return nil
}

func (a *app) benchOverlayCommand() *cobra.Command {
	o := bench.OverlayOptions{}
	var dir string
	names, about := bench.Parts()
	c := &cobra.Command{
		Use:   "overlay",
		Short: "weft direct, by UDP relay and by stream, beside plain wireguard-go and the bare link",
		Long: `Measure weft's paths beside plain wireguard-go and the bare link, in network namespaces of this machine, and
how long fresh nodes behind NATs take to talk and to talk directly. Raw figures are kept as JSON.
Exit code 1 when a goal is not reached.

What is measured, and what --only takes:
` + benchList(names, about),
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Binary, err = os.Executable(); err != nil {
				return fmt.Errorf("finding weft's own binary: %w", err)
			}
			const shortest = 2 * time.Second
			if o.Rounds < 1 || o.Joins < 0 || o.Echoes < 1 || o.Tries < 1 || o.Length < shortest {
				return usagef("--rounds, --echoes and --tries must be at least 1, --length at least %v, --joins at least 0", shortest)
			}
			if err := checkOnly(o.Only, names); err != nil {
				return err
			}
			o.Out, o.Version = a.err, weft.Version
			r, err := bench.Overlay(c.Context(), o)
			if err != nil {
				if r != nil && len(r.Samples) > 0 {
					if path, failed := r.Save(dir); failed == nil {
						fmt.Fprintln(a.err, "raw figures until then:", path)
					}
				}
				return err
			}
			return a.reportBench(r, dir)
		},
	}
	f := c.Flags()
	f.StringSliceVar(&o.Only, "only", nil, "measure only these, with commas between (default all)")
	f.IntVar(&o.Rounds, "rounds", 5, "rounds, in each of which every subject is measured")
	f.DurationVar(&o.Length, "length", 3*time.Second, "of one run under load, after a second to warm up")
	f.IntVar(&o.Echoes, "echoes", 100, "of one RTT run")
	f.IntVar(&o.Joins, "joins", 20, "fresh nodes that join behind NATs")
	f.IntVar(&o.Tries, "tries", 3, "how often a run is tried, at most, if the machine had other work meanwhile")
	f.StringVar(&o.Congestion, "congestion", "cubic", "TCP congestion control of all connections, as the kernel calls it: cubic, bbr, ...")
	f.StringVar(&dir, "out", "out/bench", "directory for the raw figures")
	f.StringVar(&o.Logs, "logs", "", "existing directory for profiles and for the logs of what is started")
	return c
}

// reportBench keeps the raw figures, prints the summary, and fails where a goal is not reached.
func (a *app) reportBench(r *bench.Report, dir string) error {
	path, err := r.Save(dir)
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(r)
	} else {
		err = r.Print(a.out)
	}
	fmt.Fprintln(a.err, "raw figures:", path)
	for _, g := range r.Goals {
		if !g.Reached && err == nil {
			err = errQuiet
		}
	}
	return err
}

// benchPlainCommand is what the benchmark starts beside weft: it is not for people.
func (a *app) benchPlainCommand() *cobra.Command {
	var cfg bench.PlainConfig
	var endpoint, addr, peerAddr string
	c := &cobra.Command{
		Use: "plain", Short: "One end of a plain wireguard-go tunnel", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if cfg.Endpoint, err = netip.ParseAddrPort(endpoint); err != nil {
				return usageError{err}
			}
			if cfg.Addr, err = netip.ParseAddr(addr); err != nil {
				return usageError{err}
			}
			if cfg.PeerAddr, err = netip.ParseAddr(peerAddr); err != nil {
				return usageError{err}
			}
			if cfg.Key, cfg.Peer, err = bench.ReadPlainKeys(a.in); err != nil {
				return err
			}
			return bench.Plain(c.Context(), cfg, a.out)
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.Interface, "interface", "plain0", "name of the network interface")
	f.IntVar(&cfg.MTU, "mtu", bench.PlainMTU, "of the interface")
	f.StringVar(&cfg.Profiles, "profiles", "", "path of a socket that serves profiles, for root")
	f.Uint16Var(&cfg.Port, "port", 51900, "UDP port")
	f.StringVar(&endpoint, "endpoint", "", "IP:PORT of the peer")
	f.StringVar(&addr, "address", "", "address inside, of this end")
	f.StringVar(&peerAddr, "peer-address", "", "address inside, of the peer")
	return c
}

// benchCrowdCommand is what the benchmark starts for a process of its own: it is not for people.
func (a *app) benchCrowdCommand() *cobra.Command {
	var cfg bench.CrowdConfig
	c := &cobra.Command{
		Use: "crowd", Short: "An engine with many peers", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) (err error) {
			if cfg.Binary, err = os.Executable(); err != nil {
				return err
			}
			got, err := bench.Crowd(c.Context(), cfg)
			if err != nil {
				return err
			}
			return a.printLine(got)
		},
	}
	f := c.Flags()
	f.IntVar(&cfg.Peers, "peers", 1, "peers that are configured")
	f.IntVar(&cfg.Active, "active", 1, "peers that flows go to")
	f.IntVar(&cfg.Flows, "flows", 1, "flows")
	f.DurationVar(&cfg.Length, "length", time.Second, "of the run in each direction")
	f.BoolVar(&cfg.Wired, "wired", false, "far ends are at the end of an interface and not on loopback")
	f.IntVar(&cfg.EndsOn, "ends-on", -1, "core that the far ends have alone; negative: any")
	return c
}

// benchCrowdEndsCommand is what the crowd starts for its far ends: it is not for people.
func (a *app) benchCrowdEndsCommand() *cobra.Command {
	var ends int
	var awake, wired bool
	c := &cobra.Command{
		Use: "crowd-ends", Short: "The far ends of an engine with many peers", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return bench.CrowdEnds(c.Context(), ends, awake, wired, a.in, a.out)
		},
	}
	c.Flags().IntVar(&ends, "ends", 1, "how many")
	c.Flags().BoolVar(&wired, "wired", false, "they are at the end of an interface")
	c.Flags().BoolVar(&awake, "awake", false, "they never wait: for ends that have a core alone")
	return c
}
