package cli

import (
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"weft"
	"weft/bench"
)

func (a *app) benchCommand() *cobra.Command {
	c := &cobra.Command{Use: "bench", Short: "Measure tunnels beside tunnels", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(a.benchOverlayCommand(), a.benchPlainCommand())
	return c
}

func (a *app) benchOverlayCommand() *cobra.Command {
	o := bench.OverlayOptions{}
	var dir string
	c := &cobra.Command{
		Use:   "overlay",
		Short: "weft direct, by UDP relay and by stream, beside plain wireguard-go and the bare link",
		Long: `Measure weft's paths beside plain wireguard-go and the bare link, in network namespaces of this machine, and
how long fresh nodes behind NATs take to talk and to talk directly. Raw figures are kept as JSON.
Exit code 1 when a goal is not reached.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Binary, err = os.Executable(); err != nil {
				return fmt.Errorf("finding weft's own binary: %w", err)
			}
			if o.Rounds < 1 || o.Joins < 0 || o.Echoes < 1 || o.Length < time.Second {
				return usagef("--rounds and --echoes must be at least 1, --length at least 1s, --joins at least 0")
			}
			o.Out, o.Version = a.err, weft.Version
			r, err := bench.Overlay(c.Context(), o)
			if err != nil {
				return err
			}
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
		},
	}
	f := c.Flags()
	f.IntVar(&o.Rounds, "rounds", 5, "rounds, in each of which every subject is measured")
	f.DurationVar(&o.Length, "length", 5*time.Second, "of one throughput run")
	f.IntVar(&o.Echoes, "echoes", 100, "of one RTT run")
	f.IntVar(&o.Joins, "joins", 20, "fresh nodes that join behind NATs")
	f.StringVar(&dir, "out", "out/bench", "directory for the raw figures")
	f.StringVar(&o.Logs, "logs", "", "existing directory for the logs of what is started")
	return c
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
	f.Uint16Var(&cfg.Port, "port", 51900, "UDP port")
	f.StringVar(&endpoint, "endpoint", "", "IP:PORT of the peer")
	f.StringVar(&addr, "address", "", "address inside, of this end")
	f.StringVar(&peerAddr, "peer-address", "", "address inside, of the peer")
	return c
}
