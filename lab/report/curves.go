package report

import (
	"fmt"
	"html"
	"html/template"
	"math"
	"strings"

	"weft/lab/matrix"
)

// points is of how many steps a curve is made at most: one for each half percent.
const points = 200

// A chart is cumulative distributions over a logarithmic axis.
type chart struct {
	about    string
	from, to float64 // powers of ten
	label    func(float64) string
	lines    []line
}

type line struct {
	way    matrix.Way
	values []float64 // ascending
}

// curves are how long it took, and what it cost.
func curves(r *matrix.Result) (times, packets chart) {
	times = chart{about: "Share of runs that were direct within a time", label: round}
	packets = chart{about: "Share of runs that spent at most so many packets", label: func(v float64) string { return fmt.Sprintf("%.0f", v) }}
	for _, w := range matrix.Ways {
		if v := r.Times(w); len(v) > 0 {
			times.lines = append(times.lines, line{w, v})
		}
		if v := r.PacketsOf(w); len(v) > 0 {
			packets.lines = append(packets.lines, line{w, v})
		}
	}
	times.scale(10, 1000)
	packets.scale(1, 100)
	return times, packets
}

// round writes a whole power of ten of milliseconds.
func round(ms float64) string {
	if ms < 1000 {
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.0f s", ms/1000)
}

// scale sets the axis to powers of ten around all values, and around two that are always to be on it.
func (c *chart) scale(least, most float64) {
	for _, l := range c.lines {
		least, most = min(least, max(l.values[0], 1)), max(most, l.values[len(l.values)-1])
	}
	c.from = math.Pow(10, math.Floor(math.Log10(least)))
	c.to = math.Pow(10, math.Ceil(math.Log10(most)))
}

// draw is the picture.
func (c chart) draw() template.HTML {
	const width, height, left, right, top, bottom = 720, 290, 46, 96, 12, 40
	if len(c.lines) == 0 {
		return "<p>There was no such run.</p>"
	}
	x := func(v float64) float64 {
		share := (math.Log10(max(v, c.from)) - math.Log10(c.from)) / (math.Log10(c.to) - math.Log10(c.from))
		return left + share*(width-left-right)
	}
	y := func(share float64) float64 { return top + (1-share)*(height-top-bottom) }
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="chart" role="img" aria-label="%s" viewBox="0 0 %d %d" width="%d" height="%d">`, html.EscapeString(c.about), width, height, width, height)
	for _, share := range []float64{0, 0.25, 0.5, 0.75, 0.95, 1} {
		fmt.Fprintf(&b, `<path class="grid" d="M%d %.1fH%d"/><text class="tick end" x="%d" y="%.1f">%.0f</text>`, left, y(share), width-right, left-6, y(share)+4, share*100)
	}
	fmt.Fprintf(&b, `<text class="tick" x="4" y="%d">%%</text>`, top+4)
	for decade := c.from; decade <= c.to*1.001; decade *= 10 {
		fmt.Fprintf(&b, `<path class="grid" d="M%.1f %dV%d"/><text class="tick mid" x="%.1f" y="%d">%s</text>`,
			x(decade), top, height-bottom, x(decade), height-bottom+16, html.EscapeString(c.label(decade)))
		for k := 2.0; k < 10 && decade < c.to*0.999; k++ {
			fmt.Fprintf(&b, `<path class="grid faint" d="M%.1f %dV%d"/>`, x(k*decade), top, height-bottom)
		}
	}
	fmt.Fprintf(&b, `<text class="tick mid" x="%d" y="%d">%s</text>`, (left+width-right)/2, height-6, html.EscapeString(c.about))
	for i, l := range c.lines {
		fmt.Fprintf(&b, `<path class="line %s" d="%s"/>`, l.way, l.path(x, y))
		at := top + 14 + 20*i
		fmt.Fprintf(&b, `<path class="line %s" d="M%d %dh26"/><text class="tick" x="%d" y="%d">%s</text>`, l.way, width-right+6, at, width-right+38, at+4, l.way)
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // made of numbers and our own words
}

// path is the curve as steps.
func (l line) path(x, y func(float64) float64) string {
	var b strings.Builder
	n := min(len(l.values), points)
	fmt.Fprintf(&b, "M%.1f %.1f", x(l.values[0]), y(0))
	for i := 1; i <= n; i++ {
		share := float64(i) / float64(n)
		fmt.Fprintf(&b, "H%.1fV%.1f", x(matrix.Quantile(l.values, share)), y(share))
	}
	return b.String()
}
