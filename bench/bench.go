// Package bench measures tunnels beside tunnels: weft, by each of its paths, what a user would pick instead,
// and the bare link, over the same link of the same machine in one run. What it reports are ratios: machines
// differ and are noisy, so an absolute figure says little, and every figure is the median of runs that
// alternate between the subjects.
//
// Raw figures of every run are kept as JSON beside the summary.
package bench

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"text/tabwriter"
	"time"
)

// A Sample is one run of one subject.
type Sample struct {
	Subject string  `json:"subject"`
	Measure string  `json:"measure"`
	Unit    string  `json:"unit"`
	Round   int     `json:"round"`
	Value   float64 `json:"value"`
}

// A Goal is a figure that has to be reached: the median of a subject, or its ratio to another's.
type Goal struct {
	Name    string `json:"name"`
	Measure string `json:"measure"`
	Subject string `json:"subject"`
	Over    string `json:"over,omitempty"` // divide by this subject's median; "" is the figure itself
	// OverMeasure is the measure of Over's, where it is another one.
	OverMeasure string `json:"over_measure,omitempty"`

	Least   float64 `json:"least,omitempty"`
	Most    float64 `json:"most,omitempty"`
	Value   float64 `json:"value"`
	Reached bool    `json:"reached"`
	Skipped string  `json:"skipped,omitempty"` // why it could not be measured here: then it is not reached either
}

// A Report is the document of one benchmark.
type Report struct {
	Schema  int       `json:"schema_version"`
	Name    string    `json:"name"`
	Version string    `json:"version"`
	Started time.Time `json:"started"`
	Seconds float64   `json:"seconds"`
	Machine string    `json:"machine"`
	Notes   []string  `json:"notes,omitempty"` // the circumstances
	Goals   []Goal    `json:"goals"`
	Samples []Sample  `json:"samples"`

	skipped map[string]string // measures, and why there is none
}

// Add keeps a figure.
func (r *Report) Add(subject, measure, unit string, round int, v float64) {
	r.Samples = append(r.Samples, Sample{Subject: subject, Measure: measure, Unit: unit, Round: round, Value: v})
}

// Note keeps a circumstance, once.
func (r *Report) Note(format string, args ...any) {
	if n := fmt.Sprintf(format, args...); !slices.Contains(r.Notes, n) {
		r.Notes = append(r.Notes, n)
	}
}

// Skip says why there is nothing of a measure.
func (r *Report) Skip(measure, why string) {
	if r.skipped == nil {
		r.skipped = make(map[string]string)
	}
	r.skipped[measure] = why
}

// Values are all figures of one subject and measure, in ascending order.
func (r *Report) Values(subject, measure string) []float64 {
	var out []float64
	for _, s := range r.Samples {
		if s.Subject == subject && s.Measure == measure {
			out = append(out, s.Value)
		}
	}
	slices.Sort(out)
	return out
}

// Median is the median of one subject and measure, and 0 where there is no figure.
func (r *Report) Median(subject, measure string) float64 {
	return quantile(r.Values(subject, measure), 0.5)
}

// quantile is the q-quantile of sorted values, between neighbours in proportion.
func quantile(sorted []float64, q float64) float64 {
	if len(sorted) == 0 {
		return 0
	}
	at := q * float64(len(sorted)-1)
	i := int(at)
	if i+1 == len(sorted) {
		return sorted[i]
	}
	return sorted[i] + (at-float64(i))*(sorted[i+1]-sorted[i])
}

// Judge fills the goals in. A goal without figures is not reached.
func (r *Report) Judge(goals []Goal) {
	for _, g := range goals {
		g.Value = r.Median(g.Subject, g.Measure)
		if g.Over != "" {
			below := r.Median(g.Over, cmp.Or(g.OverMeasure, g.Measure))
			if below == 0 {
				g.Value = 0
			} else {
				g.Value /= below
			}
		}
		g.Skipped = r.skipped[g.Measure]
		g.Reached = g.Skipped == "" && g.Value != 0 && (g.Least == 0 || g.Value >= g.Least) && (g.Most == 0 || g.Value <= g.Most)
		r.Goals = append(r.Goals, g)
	}
}

// Print writes the summary for a person.
func (r *Report) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "MEASURE\tSUBJECT\tMEDIAN\tLEAST\tMOST\tUNIT\tRUNS")
	type row struct{ measure, subject string }
	var seen []row
	for _, s := range r.Samples {
		k := row{s.Measure, s.Subject}
		if slices.Contains(seen, k) {
			continue
		}
		seen = append(seen, k)
		v := r.Values(s.Subject, s.Measure)
		fmt.Fprintf(t, "%s\t%s\t%.4g\t%.4g\t%.4g\t%s\t%d\n", s.Measure, s.Subject, quantile(v, 0.5), v[0], v[len(v)-1], s.Unit, len(v))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w)
	t = tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "GOAL\tWANTED\tVALUE\t")
	for _, g := range r.Goals {
		want := fmt.Sprintf(">= %.3g", g.Least)
		if g.Most != 0 {
			want = fmt.Sprintf("<= %.3g", g.Most)
		}
		value, verdict := fmt.Sprintf("%.3g", g.Value), "missed"
		switch {
		case g.Skipped != "":
			value, verdict = "-", "left out: "+g.Skipped
		case g.Reached:
			verdict = "reached"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", g.Name, want, value, verdict)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, n := range r.Notes {
		fmt.Fprintln(w, n)
	}
	return nil
}

// Save writes the report to a file of the directory, which is made if need be, and returns its path.
func (r *Report) Save(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("the results cannot be kept: %w", err)
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, r.Name+"-"+r.Started.UTC().Format("20060102T150405Z")+".json")
	if err := os.WriteFile(path, append(b, '\n'), 0o644); err != nil {
		return "", fmt.Errorf("the results cannot be kept: %w", err)
	}
	return path, nil
}
