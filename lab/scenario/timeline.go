package scenario

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"slices"
	"time"
)

// Print writes a result for people: what was expected and came of it, the pairs, the flows.
func (r Result) Print(to io.Writer) error {
	w := bufio.NewWriter(to)
	verdict := "as expected"
	if !r.OK {
		verdict = "NOT as expected"
	} else if len(r.Outcomes) == 0 {
		verdict = "nothing was expected"
	}
	fmt.Fprintf(w, "%s: %s (%s, seed %d, %s of the scenario's time)\n", r.Scenario, verdict, r.Backend, r.Seed, seconds(r.Elapsed))
	for _, o := range r.Outcomes {
		fmt.Fprintf(w, "  %s  %s\n        %s\n", map[bool]string{true: "yes", false: "NO "}[o.OK], o.Expectation, o.Why)
	}
	if len(r.Pairs) > 0 {
		rows := [][]string{{"pair", "path", "found", "direct after", "packets", "why"}}
		for _, p := range r.Pairs {
			after := ""
			if p.DirectAfter > 0 {
				after = seconds(p.DirectAfter)
			}
			rows = append(rows, []string{p.A + " - " + p.B, string(p.Path), p.Way, after, fmt.Sprint(p.Packets), p.Reason})
		}
		table(w, rows)
	}
	if len(r.Flows) > 0 {
		rows := [][]string{{"flow", "sent", "lost", "longest silence", "out of order", "rate"}}
		for _, f := range r.Flows {
			rows = append(rows, []string{f.From + " to " + f.To, fmt.Sprint(f.Sent), fmt.Sprint(f.Lost), seconds(f.Silence),
				fmt.Sprint(f.OutOfOrder), megabits(f.Rate)})
		}
		table(w, rows)
	}
	return w.Flush()
}

// table writes rows in columns, behind an empty line.
func table(w io.Writer, rows [][]string) {
	widths := make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], len(cell))
		}
	}
	fmt.Fprintln(w)
	for _, row := range rows {
		line := " "
		for i, cell := range row {
			line += fmt.Sprintf(" %-*s ", widths[i], cell)
		}
		fmt.Fprintln(w, trimRight(line))
	}
}

func trimRight(s string) string {
	for len(s) > 0 && s[len(s)-1] == ' ' {
		s = s[:len(s)-1]
	}
	return s
}

// A line is one of a timeline.
type line struct {
	at    time.Duration
	until time.Duration // of a packet line: when the last of several alike was seen
	text  string
	more  int
}

// WriteTimeline writes what happened in the order of time: the scenario's events, how paths changed, and every
// packet that was traced. Packets alike in a row are one line.
func WriteTimeline(to io.Writer, s Scenario, r Result) error {
	var lines []line
	for _, e := range s.Story() {
		if e.At <= r.Elapsed {
			lines = append(lines, line{at: e.At, text: "*** " + e.String()})
		}
	}
	for _, c := range r.Changes {
		lines = append(lines, line{at: c.At, text: fmt.Sprintf("*** %s and %s: %s", c.A, c.B, c.Path)})
	}
	for _, p := range r.Trace {
		lines = append(lines, line{at: p.At, until: p.At, text: packetText(p)})
	}
	slices.SortStableFunc(lines, func(a, b line) int { return cmp.Compare(a.at, b.at) })
	w := bufio.NewWriter(to)
	fmt.Fprintf(w, "# %s on %s, seed %d: time, place, what it was, from, to\n", r.Scenario, r.Backend, r.Seed)
	for i := 0; i < len(lines); {
		l := lines[i]
		for i++; i < len(lines) && lines[i].text == l.text; i++ {
			l.more, l.until = l.more+1, lines[i].at
		}
		fmt.Fprintf(w, "%10.4fs  %s", l.at.Seconds(), l.text)
		if l.more > 0 {
			fmt.Fprintf(w, "  (and %d more until %.4fs)", l.more, l.until.Seconds())
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// packetText is a packet's line, without its time.
func packetText(p Packet) string {
	text := fmt.Sprintf("%-12s %-24s %21s -> %-21s", p.Where, p.What, p.From, p.To)
	switch {
	case p.Dropped:
		text += "  X " + p.Why
	case p.Why != "":
		text += "  (" + p.Why + ")"
	}
	return trimRight(text)
}
