package demo

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"
)

// teller prints the story, each line with the time since the beginning.
type teller struct {
	out   io.Writer
	began time.Time
}

func newTeller(out io.Writer) *teller { return &teller{out, time.Now()} }

func (t *teller) print(format string, args ...any) { fmt.Fprintf(t.out, format, args...) }

// say tells what has just happened.
func (t *teller) say(format string, args ...any) { t.sayAt(time.Now(), format, args...) }

// sayAt tells what happened at a time.
func (t *teller) sayAt(at time.Time, format string, args ...any) {
	t.print("%6.2f s  %s\n", at.Sub(t.began).Seconds(), fmt.Sprintf(format, args...))
}

// quote shows what a program printed, set in.
func (t *teller) quote(text string) {
	for line := range strings.Lines(strings.TrimSpace(text)) {
		t.print("          | %s\n", strings.TrimRight(line, "\n"))
	}
}

// phase is one line of the table at the end.
type phase struct {
	What  string        // was done to the network
	Path  string        // in use
	After time.Duration // until the path was in use
	RTT   time.Duration // median
	Mbit  float64       // one TCP flow, Mbit/s
	Stall time.Duration // longest silence of the long-lived connection while the path changed
	Sent  int           // packets of the call while the path changed
	Lost  int           // of these
}

// table prints the phases.
func (t *teller) table(phases []phase) {
	w := tabwriter.NewWriter(t.out, 0, 0, 3, ' ', 0)
	fmt.Fprintln(w, "  what was done\tpath\tafter\tRTT\tTCP\tTCP stalled\tUDP lost")
	for _, p := range phases {
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\t%s\t%s\t%d of %d\n", p.What, p.Path, span(p.After), span(p.RTT), rate(p.Mbit), span(p.Stall), p.Lost, p.Sent)
	}
	w.Flush()
}

// span writes a duration as a person reads it.
func span(d time.Duration) string {
	switch {
	case d < 10*time.Millisecond:
		return fmt.Sprintf("%.2f ms", float64(d)/1e6)
	case d < time.Second:
		return fmt.Sprintf("%.0f ms", float64(d)/1e6)
	}
	return fmt.Sprintf("%.1f s", d.Seconds())
}

// rate writes Mbit/s.
func rate(mbit float64) string {
	if mbit >= 1000 {
		return fmt.Sprintf("%.2f Gbit/s", mbit/1000)
	}
	return fmt.Sprintf("%.0f Mbit/s", mbit)
}
