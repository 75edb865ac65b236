package cli

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/spf13/cobra"

	"weft"
	"weft/bench"
	"weft/key"
	"weft/relay"
	"weft/wire"
)

func (a *app) benchRelayCommand() *cobra.Command {
	o := bench.RelayOptions{}
	var dir string
	c := &cobra.Command{
		Use:   "relay",
		Short: "weft's relay alone, by UDP and by stream, beside derper",
		Long: `Measure weft's relay by itself, by UDP and by stream, beside derper: what it carries between nodes that do
nothing but send and receive, over loopback, what that costs it, and what becomes of it when far more is offered than
it can carry. derper is built with go from the module proxy, unless --derper names one. Raw figures are kept as JSON.
Exit code 1 when a goal is not reached.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if o.Binary, err = os.Executable(); err != nil {
				return fmt.Errorf("finding weft's own binary: %w", err)
			}
			if o.Rounds < 1 || o.Flows < 1 || o.Length < time.Second {
				return usagef("--rounds and --flows must be at least 1, --length at least 1s")
			}
			o.Out, o.Version, o.Dir = a.err, weft.Version, dir
			r, err := bench.Relay(c.Context(), o)
			if err != nil {
				return err
			}
			return a.reportBench(r, dir)
		},
	}
	f := c.Flags()
	f.IntVar(&o.Rounds, "rounds", 5, "rounds, in each of which every subject is measured")
	f.IntVar(&o.Flows, "flows", 16, "flows at once, each between two nodes of its own")
	f.DurationVar(&o.Length, "length", 2*time.Second, "of one run, of which each subject has three in a round")
	f.StringSliceVar(&o.Only, "only", nil, "measure only these subjects, with commas between (default all)")
	f.StringVar(&o.Derper, "derper", "", "path of a derper that is built already")
	f.StringVar(&dir, "out", "out/bench", "directory for the raw figures, and for the derper that is built")
	return c
}

// benchRelaydCommand is the relay that the benchmark starts: a weft relay without a network, which takes the
// tickets of whoever's key it is told. It is not for people.
func (a *app) benchRelaydCommand() *cobra.Command {
	return &cobra.Command{
		Use: "relayd", Short: "A relay on loopback, for a benchmark", Hidden: true, Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return a.benchRelayd(c.Context()) },
	}
}

func (a *app) benchRelayd(ctx context.Context) error {
	line, err := bufio.NewReader(a.in).ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the key of who signs tickets is read from standard input: %w", err)
	}
	issuer, err := key.ParseSigningPublic(trimLine(line))
	if err != nil {
		return err
	}
	front, err := listenFront("127.0.0.1:0", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer front.close()
	dir, err := os.MkdirTemp("", "weft-bench-relayd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	at := "https://" + front.tcp.Addr().String()
	if err := front.certify(dir, at); err != nil {
		return err
	}
	private := key.NewPrivate[key.Relay]()
	rel, err := relay.New(relay.Config{Key: private, Issuer: issuer, Logger: a.logger()})
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.Handle(wire.RelayPath, rel)
	if err := a.printLine(bench.RelayReady{
		Key: private.Public(), URL: at, UDP: netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), front.udpPort()), Fingerprint: front.fingerprint,
	}); err != nil {
		return err
	}
	return front.serve(ctx, mux, rel, a.logger())
}
