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
		Long: `Find out what the NATs between this machine and the world do, in RFC 4787's words, and what that means for direct
connections. It needs relays to ask: one tells where it sees this machine, a second port how ports are treated, a
second relay at another address the rest. A machine with several links is told of each. Exit code 1 when nothing answers.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !a.json {
				fmt.Fprintln(a.err, "asking the network's relays, up to 20 seconds ...")
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
	if len(n.Links) == 0 {
		a.printFamilies(n.IPv4, n.IPv6)
	}
	for _, l := range n.Links {
		fmt.Fprintf(a.out, "link        %s\n", l.Interface)
		a.printFamilies(l.IPv4, l.IPv6)
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

// printFamilies prints what is known of the way out in each address family.
func (a *app) printFamilies(v4, v6 weft.NetcheckFamily) {
	for _, f := range []struct {
		name string
		weft.NetcheckFamily
	}{{"IPv4", v4}, {"IPv6", v6}} {
		if !f.Works {
			fmt.Fprintf(a.out, "%s        no\n", f.name)
			continue
		}
		fmt.Fprintf(a.out, "%s        seen as %s; mapping %s, filtering %s%s\n", f.name, f.Mapped, f.Mapping, f.Filtering, natRest(f.NAT))
		for _, p := range f.Prospects {
			fmt.Fprintf(a.out, "            %s\n", p)
		}
	}
}

// natRest says what is known of a NAT beyond mapping and filtering. Without a NAT there is no such thing.
func natRest(n weft.NAT) string {
	if n.Mapping == weft.NoNAT {
		return ""
	}
	ports := n.Allocation.String()
	if n.Allocation == weft.SequentialAllocation {
		ports += fmt.Sprintf(" (%+d)", n.Step)
	}
	return fmt.Sprintf(", ports %s, hairpin %s", ports, n.Hairpin)
}
