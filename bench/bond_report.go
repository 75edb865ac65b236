package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A BondReport is the document of the benchmark of several links as one.
type BondReport struct {
	Schema  int        `json:"schema_version"`
	Name    string     `json:"name"`
	Version string     `json:"version"`
	Started time.Time  `json:"started"`
	Seconds float64    `json:"seconds"`
	Machine string     `json:"machine"`
	Full    bool       `json:"full"`
	Notes   []string   `json:"notes,omitempty"` // the circumstances
	Goals   []BondGoal `json:"goals"`
	Lengths []float64  `json:"added_bytes,omitempty"` // to a data packet, beyond WireGuard's
	Runs    []*BondRun `json:"runs"`
}

// A BondGoal is a figure that has to be reached, with what all runs gave of it.
type BondGoal struct {
	Case      string    `json:"case"`
	Name      string    `json:"name"`
	Direction string    `json:"direction,omitempty"`
	Control   string    `json:"congestion_control"`
	Unit      string    `json:"unit,omitempty"`
	Least     float64   `json:"least,omitempty"`
	Most      *float64  `json:"most,omitempty"`
	ByWorst   bool      `json:"by_worst"` // the worst run is what counts, not the median
	Values    []float64 `json:"values"`   // of each run, best first
	Median    float64   `json:"median"`
	Worst     float64   `json:"worst"`
	Reached   bool      `json:"reached"`
	Told      bool      `json:"told_only,omitempty"` // there is nothing to reach
	Beside    string    `json:"beside,omitempty"`    // what others reach, or what else there is to know
}

func (r *BondReport) note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(r.Notes, n) {
		r.Notes = append(r.Notes, n)
	}
}

// goal adds a goal with its values. A goal without any is not reached.
func (r *BondReport) goal(g BondGoal, values []float64) {
	g.Values = slices.Sorted(slices.Values(values))
	if g.Most == nil {
		slices.Reverse(g.Values) // more is better
	}
	if n := len(g.Values); n > 0 {
		ascending := slices.Sorted(slices.Values(values))
		g.Median, g.Worst = quantile(ascending, 0.5), g.Values[n-1]
		v := g.Median
		if g.ByWorst {
			v = g.Worst
		}
		g.Reached = v >= g.Least && (g.Most == nil || v <= *g.Most)
	}
	r.Goals = append(r.Goals, g)
}

// runs are those of a case and subject that went well and count, in one direction and under one congestion control.
func (r *BondReport) runs(f func(*BondRun) bool) (list []*BondRun) {
	for _, x := range r.Runs {
		if x.Problem == "" && !x.Superseded && f(x) {
			list = append(list, x)
		}
	}
	return list
}

// controls are the congestion controls that were measured.
func (r *BondReport) controls() (list []string) {
	for _, x := range r.Runs {
		if !slices.Contains(list, x.Control) {
			list = append(list, x.Control)
		}
	}
	return list
}

// alone is the median of what one link carried for a subject.
func (r *BondReport) alone(s bondSubject, l BondLink, direction, control string, load bondLoad) float64 {
	var v []float64
	for _, x := range r.runs(func(x *BondRun) bool {
		return x.Subject == s && x.Links[0] == l && x.Direction == direction && x.Control == control && (len(x.Short) > 0) == (load == loadShort)
	}) {
		if load == loadShort {
			v = append(v, quantile(x.Short, 0.5))
		} else {
			v = append(v, x.Mbit)
		}
	}
	slices.Sort(v)
	return quantile(v, 0.5)
}

// String is what a person who waits is told of a run.
func (x *BondRun) String() (s string) {
	var names []string
	for _, l := range x.Links {
		names = append(names, l.String())
	}
	s = fmt.Sprintf("%s, %s %s, round %d: ", x.Case, x.Subject, x.Direction, x.Round)
	if len(names) > 4 {
		s += fmt.Sprintf("%d x %s: ", len(names), names[0])
	} else {
		s += strings.Join(names, " + ") + ": "
	}
	if x.Problem != "" {
		return s + "failed: " + x.Problem
	}
	defer func() {
		if n := x.silences(); n > 0 {
			s += fmt.Sprintf(", %d times a path fell silent", n)
		}
	}()
	switch {
	case x.UDP != nil:
		s += x.UDP.String()
		for _, e := range x.Events {
			s += fmt.Sprintf("; %s %d at %.1f s: gap %.0f ms, %d lost", e.What, e.Link, e.At, e.GapMS, e.Lost)
			if len(x.Events) > 8 {
				s += ", ..."
				break
			}
		}
		return s + fmt.Sprintf("; longest gap %.0f ms", x.StallMS)
	case len(x.Short) > 0:
		return s + fmt.Sprintf("%d transfers of %d KiB: %.0f ms, 95 %% below %.0f", len(x.Short), shortBytes>>10, quantile(x.Short, 0.5), quantile(x.Short, 0.95))
	}
	s += fmt.Sprintf("%.2f Mbit/s, longest stall %.0f ms", x.Mbit, x.StallMS)
	if x.Beside > 0 {
		s += fmt.Sprintf(", beside %.2f", x.Beside)
	}
	if x.Order != nil && x.Order.Packets > 0 {
		s += fmt.Sprintf(", %.3f %% late", 100*float64(x.Order.Late)/float64(x.Order.Packets))
	}
	if x.TCP != nil {
		s += fmt.Sprintf(", rtt %.0f ms, %.2f %% sent again", x.TCP.RTTms, x.TCP.SentAgain*100)
	}
	return s
}

// silences counts how often an end took a path for silent.
func (x *BondRun) silences() (n int) {
	for _, c := range x.Paths {
		if c.To == "silent" {
			n++
		}
	}
	return n
}

// Missed reports whether a goal was.
func (r *BondReport) Missed() bool {
	return slices.ContainsFunc(r.Goals, func(g BondGoal) bool { return !g.Told && !g.Reached })
}

// Print writes the summary for a person.
func (r *BondReport) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CASE\tMEASURE\tDIRECTION\tWANTED\tMEDIAN\tWORST\tUNIT\tRUNS\t\tBESIDE")
	for _, g := range r.Goals {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%.4g\t%.4g\t%s\t%d\t%s\t%s\n", g.Case, g.Name, g.Direction, g.wanted(), g.Median, g.Worst, g.Unit, len(g.Values), g.verdict(), g.Beside)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, x := range r.Runs {
		if x.Problem != "" && !x.Superseded {
			fmt.Fprintln(w, x)
		}
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, n)
	}
	return nil
}

func (g BondGoal) wanted() (s string) {
	switch {
	case g.Told:
		return "-"
	case g.Most == nil:
		s = fmt.Sprintf(">= %.3g", g.Least)
	case g.Least > 0:
		s = fmt.Sprintf("%.3g to %.3g", g.Least, *g.Most)
	default:
		s = fmt.Sprintf("<= %.3g", *g.Most)
	}
	if g.ByWorst {
		s += ", worst"
	}
	return s
}

func (g BondGoal) verdict() string {
	switch {
	case g.Told:
		return ""
	case g.Reached:
		return "reached"
	case len(g.Values) == 0:
		return "missed: nothing was measured"
	}
	return "missed"
}

// Save writes the report and its page to files of the directory, which is made if need be, and returns their paths.
func (r *BondReport) Save(dir string) (paths []string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("the results cannot be kept: %w", err)
	}
	b, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	base := filepath.Join(dir, r.Name+"-"+r.Started.UTC().Format("20060102T150405Z"))
	page, err := r.page()
	if err != nil {
		return nil, err
	}
	for suffix, content := range map[string][]byte{".json": append(b, '\n'), ".html": page} {
		if err := os.WriteFile(base+suffix, content, 0o644); err != nil {
			return nil, fmt.Errorf("the results cannot be kept: %w", err)
		}
		paths = append(paths, base+suffix)
	}
	slices.Sort(paths)
	return paths, nil
}
