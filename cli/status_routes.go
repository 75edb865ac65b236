package cli

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"weft"
)

// printRoutes prints which networks lead where, of those that are not the overlay's own.
func printRoutes(w io.Writer, s weft.Status) error {
	if s.Self.ExitNode != "" {
		fmt.Fprintf(w, "exit   %s: what this machine sends to the internet goes through it, or nowhere\n", s.Self.ExitNode)
	}
	var waits []string
	for _, p := range s.Self.Advertised {
		if !slices.Contains(s.Self.Routes, p) {
			waits = append(waits, p.String())
		}
	}
	if len(s.Self.Routes) > 0 {
		fmt.Fprintf(w, "router for %s\n", joinRoutes(s.Self.Routes))
	}
	if len(waits) > 0 {
		fmt.Fprintf(w, "router for %s when it is approved: say `weft admin route approve %s ROUTE` on the server\n", strings.Join(waits, ", "), s.Self.Name)
	}
	if len(s.Routes) == 0 {
		return nil
	}
	fmt.Fprintln(w)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "ROUTE\tBY\tBESIDE\tNOTE")
	for _, r := range s.Routes {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", r.Route, r.By, strings.Join(r.Beside, ","), r.Note)
	}
	return t.Flush()
}
