package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weft"
)

func (a *app) explainCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "explain PEER | [A] B [PROTO:PORT]",
		Short: "Say how a peer is reached and why so, or whether a rule lets A reach B",
		Long: `Say how a peer is reached and why so: what the NATs of both sides do, what was tried to reach it directly,
how that ended, and what would help. PEER is a name or an overlay address. Exit code 0 when the peer is reached,
1 when it is not or there is none of that name.

With two names or addresses, or one and PROTO:PORT (A is this node then): say which rules of the policy let A begin something towards B, or towards B at PROTO:PORT
(tcp:22, udp:53, icmp), and what of A's was refused. The node that lets in decides: B is this node, or something behind it. Of an address
behind another node it is said which router or exit node packets go through, and whether that is approved and in use.
Exit code 0 when it is allowed, 1 when it is not or is not decided here.`,
		Args: args(1, 3),
		RunE: func(c *cobra.Command, list []string) error {
			if len(list) > 1 {
				return a.explainAccess(c, asked(list))
			}
			e, err := a.client().Explain(c.Context(), list[0])
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(e)
			} else {
				err = printExplanation(a.out, e, time.Now())
			}
			if err == nil && e.Path == weft.PathNone {
				err = errQuiet
			}
			return err
		},
	}
}

func printExplanation(w io.Writer, e weft.Explanation, now time.Time) error {
	switch e.Path {
	case weft.PathDirect:
		how := "directly"
		if e.Method == weft.DirectTCP {
			how = "directly, by TCP,"
		}
		fmt.Fprintf(w, "%s is reached %s at %s", e.Peer, how, by(e.Endpoint, e.Link))
	case weft.PathRelay:
		how := "over UDP"
		if e.Method == weft.RelayStream {
			how = "by a stream"
		}
		fmt.Fprintf(w, "%s is reached through the relay %s, %s", e.Peer, e.Endpoint, how)
	default:
		fmt.Fprintf(w, "%s is not reached", e.Peer)
		if !e.Online {
			fmt.Fprint(w, ": the server says that it is offline")
		}
	}
	if e.Path != weft.PathNone {
		if !e.Since.IsZero() {
			fmt.Fprintf(w, ", for %s", age(now.Sub(e.Since)))
		}
		if e.Reason != "" {
			fmt.Fprintf(w, ": %s", e.Reason)
		}
	}
	fmt.Fprintln(w, ".")
	if e.Bond != "" {
		fmt.Fprintf(w, "Data goes by several paths at once, %s: %s. `weft paths %s` shows each.\n", e.Bond, strings.Join(e.Carriers, " + "), e.Peer)
	}
	if e.Path != weft.PathNone {
		fmt.Fprintf(w, "RTT %s, loss %s", millis(e.RTTms), percent(e.Loss))
		if e.MTU > 0 {
			fmt.Fprintf(w, ", packets of up to %d bytes", e.MTU)
		}
		fmt.Fprint(w, ".")
		if e.DirectAfterMS > 0 {
			fmt.Fprintf(w, " The first direct path was in use %.1f s after both were up.", e.DirectAfterMS/1000)
		}
		if e.OwnSocket != 0 {
			fmt.Fprintf(w, " This path has a UDP socket to itself, port %d.", e.OwnSocket)
		}
		fmt.Fprintln(w)
	}
	for _, side := range []weft.ExplainedSide{e.Self, e.Other} {
		if len(side.Links) == 0 {
			fmt.Fprintf(w, "\n%s: %s.\n", side.Name, strings.Join(side.Words, "; "))
			continue
		}
		fmt.Fprintf(w, "\n%s has %d links.\n", side.Name, len(side.Links))
		for _, l := range side.Links {
			name := l.Interface
			if name == "" {
				name = fmt.Sprintf("link %d", l.Link)
			}
			fmt.Fprintf(w, "%s: %s.\n", name, strings.Join(l.Words, "; "))
		}
	}
	if e.Blocked != "" {
		what := ""
		if e.Method == weft.DirectTCP {
			what = " over UDP"
		}
		fmt.Fprintf(w, "\nWhy there is no direct path%s: %s.\n", what, strings.TrimSuffix(e.Blocked, "."))
	}
	for i, advice := range e.Advice {
		if i == 0 {
			fmt.Fprintln(w, "\nWhat would help:")
		}
		fmt.Fprintf(w, "  - %s\n", advice)
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, at := range e.Attempts {
		if i == 0 {
			fmt.Fprint(t, "\nTRIED\tAGO\tTOOK\tPACKETS\tRESULT\n")
		}
		what := at.Way
		if at.Role != "" {
			what += ", as " + at.Role
		}
		fmt.Fprintf(t, "%s\t%s\t%.1f s\t%d\t%s\n", what, age(now.Sub(at.At)), at.TookMS/1000, at.Packets, at.Result)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if until := e.NextAttempt.Sub(now); e.Method != weft.Direct && until > 0 {
		fmt.Fprintf(w, "The next attempt is in %s, or as soon as something changes.\n", age(until))
	}
	for i, way := range e.Ways {
		if i == 0 {
			fmt.Fprint(t, "\nWAY\tADDRESS\tSTATE\tRTT\tLOSS\tMTU\tSEEN\tWHY\n")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", way.Way, orDash(way.Kind), wayState(way), millis(way.RTTms),
			percent(way.Loss), bytesOrDash(way.MTU), agoOr(way.LastSeen, now), way.Why)
	}
	return t.Flush()
}

// explainAccess says whether one may reach another.
func (a *app) explainAccess(c *cobra.Command, list []string) error {
	if err := checkAsked(list[2]); err != nil {
		return err
	}
	doc, err := a.client().Access(c.Context(), list[0], list[1], list[2])
	if err != nil {
		return err
	}
	if a.json {
		err = a.printJSON(doc)
	} else {
		err = printAccess(a.out, doc, time.Now())
	}
	if err == nil && !doc.Allowed {
		err = errQuiet
	}
	return err
}

// asked is who is asked about, whom, and what: of two words the second may be what, and the first is then reached from here ("").
func asked(list []string) []string {
	if len(list) == 2 {
		if _, err := weft.ParsePortRange(list[1]); err == nil {
			return []string{"", list[0], list[1]}
		}
		return []string{list[0], list[1], ""}
	}
	return list
}

// checkAsked reads what somebody asks about: nothing, or one protocol and port.
func checkAsked(what string) error {
	if what == "" {
		return nil
	}
	r, err := weft.ParsePortRange(what)
	if err != nil {
		return usagef("%v", err)
	}
	if !r.One() {
		return usagef("%q is more than one thing to ask about: name a protocol and a port, as in tcp:22, or icmp", what)
	}
	return nil
}

func printAccess(w io.Writer, doc weft.Access, now time.Time) error {
	may, at := "may reach", ""
	switch {
	case doc.DecidedBy != "":
		may = "to"
	case !doc.Allowed:
		may = "may not reach"
	}
	if doc.What != "" {
		at = " at " + doc.What
	}
	fmt.Fprintf(w, "%s (%s) %s %s (%s)%s: %s.\n", doc.From, doc.FromAddr, may, doc.To, doc.ToAddr, at, doc.Reason)
	printCarrier(w, doc)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, r := range doc.Rules {
		if i == 0 {
			fmt.Fprint(t, "\nFROM\tTO\tPORTS\tWHY\n")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", joined(r.From), orElse(joined(r.To), "this node"), orElse(joined(r.Ports), "*"), orDash(r.Why))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if r := doc.Refused; r.Packets > 0 {
		fmt.Fprintf(w, "\n%d packets of %s were refused here", r.Packets, doc.From)
		if r.Last != "" {
			fmt.Fprintf(w, ", the last that no rule allows %s ago, to %s", age(now.Sub(r.At)), r.Last)
		}
		fmt.Fprintln(w, ".")
	}
	return nil
}

// printCarrier says through whom packets go.
func printCarrier(w io.Writer, doc weft.Access) {
	c := doc.Carrier
	if c.By == "" {
		return
	}
	route := c.Route.String()
	if weft.IsExit(c.Route) {
		route = "the internet"
	}
	switch {
	case !c.Approved:
		fmt.Fprintf(w, "%s offers to speak for %s, and is not let.\n", c.By, route)
		return
	case !c.InUse:
		fmt.Fprintf(w, "%s speaks for %s, which is approved and not in use here: %s.\n", c.By, route, c.Note)
		return
	}
	fmt.Fprintf(w, "Packets to %s go through %s, which speaks for %s: approved, in use", doc.ToAddr, c.By, route)
	if c.Note != "" {
		fmt.Fprintf(w, "; %s", c.Note)
	}
	if len(c.Beside) > 0 {
		fmt.Fprintf(w, "; beside it, to take over: %s", strings.Join(c.Beside, ", "))
	}
	fmt.Fprintln(w, ".")
}

// joined lists what prints itself.
func joined[T any](list []T) string {
	words := make([]string, 0, len(list))
	for _, x := range list {
		words = append(words, fmt.Sprint(x))
	}
	return strings.Join(words, " ")
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func wayState(w weft.WayStatus) string {
	switch {
	case w.InUse:
		return w.State + ", in use"
	case w.State == "untested" && w.Tries > 0:
		return fmt.Sprintf("no answer to %d", w.Tries)
	}
	return w.State
}

func bytesOrDash(n int) string {
	if n == 0 {
		return "-"
	}
	return strconv.Itoa(n)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func agoOr(t, now time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return age(now.Sub(t)) + " ago"
}
