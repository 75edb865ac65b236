package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"weft"
)

func (a *app) pingCommand() *cobra.Command {
	var count int
	var untilDirect bool
	var interval, timeout time.Duration
	c := &cobra.Command{
		Use:   "ping PEER",
		Short: "Ask a peer for replies, and say by which path each came",
		Long: `Ask a peer for replies, and say by which path each came. PEER is a name or an overlay address.
Exit code 0 when there was a reply (with --until-direct: a direct one), 1 when there was none.
With --json: one document a line.`,
		Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			if count < 0 || interval <= 0 || timeout <= 0 {
				return usagef("-c must not be negative, --interval and --timeout must be above zero")
			}
			if !c.Flags().Changed("count") && untilDirect {
				count = 0
			}
			return a.ping(c, list[0], count, untilDirect, interval, timeout)
		},
	}
	f := c.Flags()
	f.IntVarP(&count, "count", "c", 4, "how many; 0 is until interrupted")
	f.BoolVar(&untilDirect, "until-direct", false, "end with the first reply by a direct path; without -c, however long that takes")
	f.DurationVar(&interval, "interval", time.Second, "from one to the next")
	f.DurationVar(&timeout, "timeout", 2*time.Second, "for each reply")
	return c
}

func (a *app) ping(c *cobra.Command, peer string, count int, untilDirect bool, interval, timeout time.Duration) error {
	replied := false
	for seq := 1; count == 0 || seq <= count; seq++ {
		began := time.Now()
		r, err := a.client().Ping(c.Context(), peer, timeout)
		if err != nil {
			if c.Context().Err() != nil {
				break
			}
			return err
		}
		r.Seq = seq
		if a.json {
			if err := a.printLine(r); err != nil {
				return err
			}
		} else if r.Error != "" {
			fmt.Fprintf(a.out, "%s seq=%d by %s: %s\n", r.Peer, seq, describe(r), r.Error)
		} else {
			fmt.Fprintf(a.out, "reply from %s seq=%d by %s in %.2f ms\n", r.Peer, seq, describe(r), r.RTTms)
		}
		if r.Error == "" {
			replied = replied || !untilDirect || r.Path == weft.PathDirect
			if untilDirect && replied {
				break
			}
		}
		if seq == count {
			break
		}
		select {
		case <-time.After(time.Until(began.Add(interval))):
			continue
		case <-c.Context().Done():
		}
		break
	}
	if !replied {
		return errQuiet
	}
	return nil
}

func describe(r weft.PingReply) string {
	if r.Endpoint == "" {
		return r.Method.String()
	}
	return r.Method.String() + " " + r.Endpoint
}
