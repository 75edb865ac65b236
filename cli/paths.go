package cli

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weft"
)

// eventsShown is how many changes of paths' states people see, the last ones: with some paths they fit a terminal of 24
// lines. A document has all that are remembered.
const eventsShown = 12

func (a *app) pathsCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "paths PEER",
		Short: "Show every path to a peer: its state, round-trip time, rate, loss and share, and what became of it",
		Long: `Show every path to a peer that works or did: by which link, its state, round-trip time, rate, loss, share of what is sent,
and bytes; then the changes of the paths' states, with their times and reasons. PEER is a name or an overlay address.

States: active, one of several that carry data; in use, the one that does; ready, it works; standby, it works, and one with
a lower metric carries the data; silent, what is sent by it does not arrive; returning, it is back and what it carries goes
by another as well; failed, it has to prove itself anew.

With --watch: again every second, in place on a terminal, elsewhere a line for each path and for each change. With --json,
too: one document a line. Exit code 0 when there is a path, 1 when there is none or no such peer.`,
		Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			if watch {
				return a.watchPaths(c, list[0])
			}
			p, err := a.client().Paths(c.Context(), list[0])
			if err != nil {
				return err
			}
			if a.json {
				err = a.printJSON(p)
			} else {
				err = printPaths(a.out, p, time.Now())
			}
			if err == nil && !reached(p) {
				err = errQuiet
			}
			return err
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show them again every second")
	return c
}

// reached reports whether something carries data, or may.
func reached(p weft.Paths) bool {
	return slices.ContainsFunc(p.Paths, func(x weft.PathStatus) bool {
		return x.State != weft.PathFailed && x.State != weft.PathUntested
	})
}

// watchPaths looks again every second, until it is interrupted.
func (a *app) watchPaths(c *cobra.Command, peer string) error {
	terminal := isTerminal(a.out)
	var before weft.Paths
	for first := true; ; first = false {
		p, err := a.client().Paths(c.Context(), peer)
		if err != nil {
			if c.Context().Err() != nil {
				return nil // that is how watching ends
			}
			return err
		}
		switch {
		case a.json:
			err = a.printLine(p)
		case terminal:
			err = a.redraw(p, first)
		default:
			err = printPathLines(a.out, p, before, first, time.Now())
		}
		if err != nil {
			return err
		}
		before = p
		select {
		case <-c.Context().Done():
			return nil
		case <-time.After(watchEvery):
		}
	}
}

// redraw shows the paths where they were shown before. Nothing is cleared that is written again: that would flicker.
func (a *app) redraw(p weft.Paths, first bool) error {
	var text bytes.Buffer
	if err := printPaths(&text, p, time.Now()); err != nil {
		return err
	}
	const home, clear, lineEnd, below = "\x1b[H", "\x1b[2J", "\x1b[K", "\x1b[J" // ECMA-48: CUP, ED, EL, ED
	start := home
	if first {
		start += clear
	}
	_, err := fmt.Fprint(a.out, start, strings.ReplaceAll(text.String(), "\n", lineEnd+"\n"), below)
	return err
}

func printPaths(w io.Writer, p weft.Paths, now time.Time) error {
	fmt.Fprintln(w, bondSentence(p))
	if r := p.Bond.Redundant; p.Bond.On && len(r) > 0 && p.Bond.Mode != "redundant" {
		fmt.Fprintf(w, "By two paths at once: %s.\n", strings.Join(r, ", "))
	}
	if r := p.Bond.Received; r.Delivered > 0 {
		fmt.Fprintf(w, "Received %d packets, %d of them out of order; %d waited for an earlier one, %s given up.\n",
			r.Delivered, r.Reordered, r.Held, many(r.GapsPassed+r.GapsTimedOut, "gap was", "gaps were"))
	}
	links := slices.ContainsFunc(p.Paths, func(x weft.PathStatus) bool { return x.Link != "" })
	metrics := slices.ContainsFunc(p.Paths, func(x weft.PathStatus) bool { return x.Metric != 0 })
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i, x := range p.Paths {
		head, link := "", ""
		if links {
			head, link = "LINK\t", orDash(x.Link)+"\t"
		}
		if metrics {
			head, link = head+"METRIC\t", fmt.Sprintf("%s%d\t", link, x.Metric)
		}
		if i == 0 {
			fmt.Fprintf(t, "\n%sLOCAL\tREMOTE\tKIND\tSTATE\tRTT\tLOSS\tSHARE\tSENDS\tRECEIVES\tUP TO\tSENT\tRECEIVED\tWHY\n", head)
		}
		local := "-"
		if x.Local.IsValid() {
			local = x.Local.String()
		}
		fmt.Fprintf(t, "%s%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", link, local, x.Remote, kindOf(x), x.State, millis(x.RTTms),
			percent(x.Loss), share(x.Load.Share), bitRate(x.Load.TxRate), bitRate(x.Load.RxRate), bitRate(x.Bonded.Rate),
			amount(x.Load.TxBytes), amount(x.Load.RxBytes), x.Reason)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if p.Untested > 0 {
		fmt.Fprintf(w, "\n%s did not answer: `weft explain %s` lists them.\n", many(p.Untested, "more way", "more ways"), p.Peer)
	}
	list := p.Events
	if earlier := len(list) - eventsShown; earlier > 0 {
		list = list[earlier:]
	}
	for i, e := range list {
		if i == 0 {
			fmt.Fprint(t, "\nWHEN\tAGO\tPATH\tCHANGE\tWHY\n")
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\n", clock(e.At), age(now.Sub(e.At)), e.Path, changeOf(e), e.Reason)
	}
	return t.Flush()
}

// bondSentence says how many paths are used at once, and why so.
func bondSentence(p weft.Paths) string {
	switch {
	case p.Bond.On:
		s := fmt.Sprintf("%s: several paths at once, %s, with %s on each", p.Peer, p.Bond.Mode, p.Bond.Congestion)
		if p.Bond.QueuePackets > 0 {
			s += "; " + many(p.Bond.QueuePackets, "packet waits", "packets wait")
		}
		return s + "."
	case !reached(p) && !p.Online:
		return p.Peer + " is not reached: the server says that it is offline."
	case !reached(p):
		return p.Peer + " is not reached."
	case p.Bond.Why == "":
		return p.Peer + ": one path at a time."
	}
	return fmt.Sprintf("%s: one path at a time, since %s.", p.Peer, strings.TrimSuffix(p.Bond.Why, "."))
}

// printPathLines tells of each path, and of each change since the last time, in lines that stand for themselves.
func printPathLines(w io.Writer, p, before weft.Paths, first bool, now time.Time) error {
	var seen time.Time
	if n := len(before.Events); n > 0 {
		seen = before.Events[n-1].At
	}
	for _, e := range p.Events {
		if first || !e.At.After(seen) {
			continue
		}
		if _, err := fmt.Fprintf(w, "%s %s %s: %s\n", clock(e.At), e.Path, changeOf(e), e.Reason); err != nil {
			return err
		}
	}
	if len(p.Paths) == 0 {
		_, err := fmt.Fprintf(w, "%s %s\n", clock(now), bondSentence(p))
		return err
	}
	for _, x := range p.Paths {
		s := fmt.Sprintf("%s %s %s %s", clock(now), x.Method, by(x.Remote, x.Link), x.State)
		if x.State != weft.PathFailed {
			s += fmt.Sprintf(" rtt %s loss %s share %s sends %s receives %s", millis(x.RTTms), percent(x.Loss), share(x.Load.Share),
				bitRate(x.Load.TxRate), bitRate(x.Load.RxRate))
		}
		if _, err := fmt.Fprintln(w, s); err != nil {
			return err
		}
	}
	return nil
}

func changeOf(e weft.PathEvent) string { return fmt.Sprintf("%s -> %s", e.From, e.To) }

// kindOf is what sort of path it is.
func kindOf(x weft.PathStatus) string {
	if x.Kind == "" {
		return x.Method.String()
	}
	return x.Method.String() + " " + x.Kind
}

// clock is a time of day to the millisecond, where the person is.
func clock(t time.Time) string { return t.Local().Format("15:04:05.000") }

// share is a part of a whole; none is a dash.
func share(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", v*100)
}

// bitRate is bits a second in SI units; none is a dash.
func bitRate(v float64) string {
	units := []string{"bit/s", "kbit/s", "Mbit/s", "Gbit/s"}
	if v < 1 {
		return "-"
	}
	i := 0
	for ; v >= 1000 && i < len(units)-1; i++ {
		v /= 1000
	}
	if i == 0 {
		return fmt.Sprintf("%.0f %s", v, units[i])
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}

// many is a number of things.
func many[T int | uint64](n T, one, more string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, more)
}
