package cli

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"weft"
	"weft/control"
)

// exitWord stands for 0.0.0.0/0 and ::/0 where routes are given.
const exitWord = "exit"

func (ad *admin) routeCommand() *cobra.Command {
	change := func(use, short string, request func([]netip.Prefix) control.RoutesRequest) *cobra.Command {
		return &cobra.Command{Use: use + " NODE ROUTE...", Short: short, Args: args(2, weft.MaxRoutes+1),
			Long: short + ".\n\nA ROUTE is a network, for example 192.168.142.0/24, or " + exitWord + ": everything, as an exit node has it (0.0.0.0/0 and ::/0).\n" +
				"Exit code 1 when the server refuses, 2 when a ROUTE is none; then nothing has changed.",
			RunE: func(c *cobra.Command, list []string) error {
				routes, err := parseRoutes(list[1:])
				if err != nil {
					return usageError{err}
				}
				n, err := ad.client().ChangeRoutes(c.Context(), list[0], request(routes))
				return show(ad, n, err, func(n control.NodeAnswer) {
					if len(n.Node.Routes) == 0 {
						fmt.Fprintf(ad.out, "%s speaks for no network\n", n.Node.Name)
						return
					}
					fmt.Fprintf(ad.out, "%s speaks for %s\n", n.Node.Name, joinRoutes(n.Node.Routes))
				})
			}}
	}
	return group("route", "Networks behind nodes",
		&cobra.Command{Use: "list", Short: "List the networks that nodes offer, and which are approved", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				r, err := ad.client().Routes(c.Context())
				return show(ad, r, err, func(r control.RoutesAnswer) {
					var rows [][]string
					for _, x := range r.Routes {
						rows = append(rows, []string{x.Route.String(), x.Node, routeState(x), yesNo(x.Online)})
					}
					ad.table("ROUTE\tNODE\tSTATE\tONLINE", rows)
				})
			}},
		change("approve", "Let a node speak for networks behind it", func(p []netip.Prefix) control.RoutesRequest {
			return control.RoutesRequest{Approve: p}
		}),
		change("withdraw", "Let a node speak for networks no longer", func(p []netip.Prefix) control.RoutesRequest {
			return control.RoutesRequest{Withdraw: p}
		}),
	)
}

func routeState(r control.RouteInfo) string {
	switch {
	case r.Advertised && r.Approved:
		return "in use"
	case r.Advertised:
		return "waits for approval"
	}
	return "approved, not offered"
}

// parseRoutes reads routes as people write them.
func parseRoutes(list []string) (out []netip.Prefix, err error) {
	for _, s := range list {
		if s == exitWord {
			out = append(out, weft.ExitRoutes...)
			continue
		}
		p, err := weft.ParseRoute(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return weft.SortRoutes(out), nil
}

// joinRoutes is routes for a person.
func joinRoutes(list []netip.Prefix) string {
	var words []string
	for _, p := range list {
		words = append(words, p.String())
	}
	return strings.Join(words, ", ")
}
