package cli

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"weft"
)

func (a *app) netcheckCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "netcheck",
		Short: "Find out what the NATs between this machine and the world do",
		Long:  "Find out what the NATs between this machine and the world do, in RFC 4787's words. Exit code 1 when nothing answers.",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !a.json {
				fmt.Fprintln(a.err, "asking the network's relays, some seconds ...")
			}
			n, err := a.client().Netcheck(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(n)
			} else {
				a.printNetcheck(n)
			}
			reachable := n.UDP
			for _, r := range n.Relays {
				reachable = reachable || r.Stream != ""
			}
			if err == nil && !reachable {
				return errQuiet
			}
			return err
		},
	}
}

func (a *app) printNetcheck(n weft.Netcheck) {
	fmt.Fprintf(a.out, "UDP         %s\n", yesNo(n.UDP))
	for _, f := range []struct {
		name string
		weft.NetcheckFamily
	}{{"IPv4", n.IPv4}, {"IPv6", n.IPv6}} {
		if !f.Works {
			fmt.Fprintf(a.out, "%s        no\n", f.name)
			continue
		}
		fmt.Fprintf(a.out, "%s        seen as %s; mapping %s, filtering %s\n", f.name, f.Mapped, f.Mapping, f.Filtering)
	}
	fmt.Fprintf(a.out, "interfaces  %s\n", strings.Join(n.Interface, ", "))
	for _, r := range n.Relays {
		line := fmt.Sprintf("relay       %s: UDP %s, stream %s %s", r.Name, millis(r.UDPms), millis(r.StreamMS), r.Stream)
		if r.Error != "" {
			line += ": " + r.Error
		}
		fmt.Fprintln(a.out, strings.TrimSpace(line))
	}
	for _, p := range n.Problems {
		fmt.Fprintf(a.out, "! %s\n", p)
	}
}
