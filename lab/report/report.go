// Package report draws a matrix of NATs as one HTML page that needs nothing else: styles and pictures are in it, no
// script is needed and nothing is fetched, so that it can be kept, sent and printed.
//
// # What a reader is to see, in this order
//
// The result in a sentence; the matrix as a picture; what is not as it was expected, or as the oracle holds possible; how
// long it took to a direct path and what it cost, as distributions rather than means; and for each cell why it
// is as it is and, for one typical run, which packets went where and what became of them.
//
// # How it says things
//
// Nothing is said by colour alone: each way has a shape of its own and a dash pattern of its own, and every picture
// has its figures beside it as text. Colours are those of Okabe and Ito, which people with any colour vision tell
// apart, on a light or a dark ground as the reader's system asks for.
//
// # What it refuses
//
// To grow without bound: a page holds the packets of at most MaxDiagrams cells, those that are not as they should be first, and
// the runs of a cell one by one only where there are few or they stand out. The whole is in the JSON document.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"slices"
	"sync"
	"time"

	"weft/lab/matrix"
)

// MaxDiagrams is how many cells are shown with their packets: RFC 4787's 81, and some.
const MaxDiagrams = 100

// maxRuns is how many runs of a cell are listed one by one.
const maxRuns = 10

//go:embed page.html
var pageText string

var page = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("page").Funcs(template.FuncMap{
		"millis": matrix.Millis, "percent": matrix.Percent, "glyph": inlineGlyph,
		"when": func(t time.Time) string { return t.Format("2006-01-02 15:04 MST") },
	}).Parse(pageText))
})

// Write writes the page.
func Write(w io.Writer, r *matrix.Result) error {
	v := view{Result: r, Title: matrix.Title(r.Conditions), Headline: r.Headline(), Conditions: conditions(r)}
	v.Matrix = picture(r)
	times, packets := curves(r)
	v.Times, v.Packets = times.draw(), packets.draw()
	shown := drawn(r)
	for i := range r.Cells {
		v.Cells = append(v.Cells, newCell(r, &r.Cells[i], shown[i]))
	}
	v.Legend = append(v.Legend, legend...)
	if err := page().Execute(w, v); err != nil {
		return fmt.Errorf("writing the page: %w", err)
	}
	return nil
}

// view is what the page is made of.
type view struct {
	*matrix.Result
	Title, Headline string
	Conditions      []condition
	Legend          []legendEntry
	Matrix          template.HTML
	Times, Packets  template.HTML
	Cells           []cell
}

type condition struct{ Name, Value string }

// conditions are under what all this was measured.
func conditions(r *matrix.Result) []condition {
	c := r.Conditions
	list := []condition{
		{"matrix", matrix.Title(c)},
		{"backend", backends[r.Backend]},
		{"runs", fmt.Sprintf("%d a cell, seeds %d to %d", r.Seeds, r.FirstSeed, r.FirstSeed+uint64(max(r.Seeds, 1)-1))},
		{"outside ports", c.Ports},
		{"addresses of a NAT", fmt.Sprint(c.Pool)},
		{"RTT between the NATs", fmt.Sprintf("%g ms", 2*c.OneWay)},
		{"loss", fmt.Sprintf("%g %%", c.Loss)},
		{"filters", map[bool]string{false: "open at once", true: "open late"}[c.Late]},
		{"a run ends", fmt.Sprintf("after %g s, or when its direct path has lasted", c.Patient)},
		{"made", r.Started.Format("2006-01-02 15:04 MST") + fmt.Sprintf(", in %.1f s with %d at once", r.Seconds, r.Jobs)},
		{"by", "weft " + r.Version},
	}
	if list[1].Value == "" {
		list[1].Value = r.Backend
	}
	return list
}

// backends explains their names.
var backends = map[string]string{
	"vnet":  "vnet: weft's path discovery in virtual time",
	"netns": "netns: the whole program in network namespaces of Linux",
}

// A legendEntry explains a shape.
type legendEntry struct{ Shape, Text string }

var legend = []legendEntry{
	{string(matrix.Plain), "direct, by ordinary probes"},
	{string(matrix.Sprayed), "direct, by a spray"},
	{string(matrix.Predicted), "direct, by predicted ports"},
	{string(matrix.Relayed), "by the relay only"},
	{shapeNone, "no path at all"},
	{shapeOpen, "not run"},
}

// Shapes beside those of the ways.
const (
	shapeNone = "none"
	shapeOpen = "open"
)

// shape is how a cell is drawn.
func shape(c *matrix.CellResult) string {
	switch c.Verdict {
	case matrix.Open:
		return shapeOpen
	case matrix.None:
		return shapeNone
	case matrix.Relay:
		return string(matrix.Relayed)
	}
	return string(c.Way)
}

// drawn tells which cells are shown with their packets: those that are not as they should be, then as many of
// the others as fit, evenly.
func drawn(r *matrix.Result) []bool {
	out := make([]bool, len(r.Cells))
	left := MaxDiagrams
	var rest []int
	for i := range r.Cells {
		switch c := &r.Cells[i]; {
		case c.Sample == nil:
		case wrong(r, c) != "" && left > 0:
			out[i] = true
			left--
		default:
			rest = append(rest, i)
		}
	}
	n := min(left, len(rest))
	for k := range n {
		out[rest[k*len(rest)/n]] = true
	}
	return out
}

// wrong says what is not as it should be about a cell; "" if nothing.
func wrong(r *matrix.Result, c *matrix.CellResult) string {
	is := func(d matrix.Difference) bool { return d.Row == c.Row && d.Col == c.Col }
	if i := slices.IndexFunc(r.Differences, is); i >= 0 {
		return fmt.Sprintf("%s expects %s", r.Expected, r.Differences[i].Expected)
	}
	if i := slices.IndexFunc(r.Surprises, is); i >= 0 {
		return fmt.Sprintf("the oracle holds %s possible", c.Possible)
	}
	return ""
}
