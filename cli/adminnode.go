package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft"
	"weft/control"
)

func (ad *admin) nodeCommand() *cobra.Command {
	var end control.ExpireRequest
	expire := &cobra.Command{Use: "expire NODE", Short: "End a node's membership, now or in a while; it keeps its place", Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			n, err := ad.client().ExpireNode(c.Context(), list[0], end)
			return show(ad, n, err, func(n control.NodeAnswer) { fmt.Fprintln(ad.out, expiry(n.Node.Expires)) })
		}}
	endFlags(expire, &end, "take the end away: an expired node is let in again")

	return group("node", "Machines that are members",
		expire,
		&cobra.Command{Use: "list", Short: "List the nodes", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				n, err := ad.client().Nodes(c.Context())
				return show(ad, n, err, func(n control.NodesAnswer) {
					var rows [][]string
					names := make(map[weft.NodeID]string, len(n.Nodes))
					for _, x := range n.Nodes {
						names[x.ID] = x.Name
					}
					for _, x := range n.Nodes {
						rows = append(rows, []string{strconv.Itoa(int(x.ID)), x.Name, joinAddrs(x.Addrs), x.User, strings.Join(x.Tags, ","),
							nodeState(x), plainBy(x, names), date(x.Created)})
					}
					ad.table("ID\tNAME\tADDRESSES\tUSER\tTAGS\tSTATE\tVERSION\tCREATED", rows)
				})
			}},
		&cobra.Command{Use: "rename NODE NAME", Short: "Give a node another name", Args: args(2, 2),
			RunE: func(c *cobra.Command, list []string) error {
				n, err := ad.client().RenameNode(c.Context(), list[0], list[1])
				return show(ad, n, err, func(n control.NodeAnswer) { fmt.Fprintln(ad.out, n.Node.Name) })
			}},
		&cobra.Command{Use: "move NODE [USER]", Short: "Give a node to another user, or to nobody", Args: args(1, 2),
			RunE: func(c *cobra.Command, list []string) error {
				n, err := ad.client().MoveNode(c.Context(), list[0], strings.Join(list[1:], ""))
				return show(ad, n, err, func(n control.NodeAnswer) { fmt.Fprintln(ad.out, dash(n.Node.User)) })
			}},
		&cobra.Command{Use: "tag NODE [TAG...]", Short: "Give a node other tags, in place of those that it has", Args: args(1, 17),
			RunE: func(c *cobra.Command, list []string) error {
				n, err := ad.client().TagNode(c.Context(), list[0], list[1:])
				return show(ad, n, err, func(n control.NodeAnswer) { fmt.Fprintln(ad.out, dash(strings.Join(n.Node.Tags, " "))) })
			}},
		ad.nodeVerb("approve", "Let a node in that waits for approval", (*control.AdminClient).ApproveNode),
		ad.nodeVerb("disable", "Put a node out until it is enabled; it keeps its place", (*control.AdminClient).DisableNode),
		ad.nodeVerb("enable", "Take disable back", (*control.AdminClient).EnableNode),
		&cobra.Command{Use: "remove NODE", Short: "Remove a node: its peers forget it at once", Args: args(1, 1),
			RunE: func(c *cobra.Command, list []string) error {
				d, err := ad.client().RemoveNode(c.Context(), list[0])
				return show(ad, d, err, func(control.DoneAnswer) { fmt.Fprintln(ad.out, "removed") })
			}},
		ad.nodeCreateCommand(),
	)
}

func nodeState(n control.NodeInfo) string {
	switch {
	case n.Standing != control.Member:
		return n.Standing
	case n.Online:
		return "online"
	case n.LastSeen.IsZero():
		return "offline"
	}
	return "offline since " + date(n.LastSeen)
}

// nodeVerb is a command that does one thing to one node.
func (ad *admin) nodeVerb(verb, short string, f func(*control.AdminClient, context.Context, string) (control.NodeAnswer, error)) *cobra.Command {
	return &cobra.Command{Use: verb + " NODE", Short: short, Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			n, err := f(ad.client(), c.Context(), list[0])
			return show(ad, n, err, func(n control.NodeAnswer) { fmt.Fprintln(ad.out, n.Node.Standing) })
		}}
}
