package report

import (
	"fmt"
	"html"
	"html/template"
	"strings"
	"unicode/utf8"

	"weft/lab/matrix"
)

// Sizes in a picture, in pixels at 100 %.
const (
	letter   = 8.8 // width of a bold capital of 12 pixels, about
	bigCell  = 98
	bigRow   = 50
	tinyCell = 16
	bigMost  = 16 // columns, of a picture whose cells have text
)

// picture is the matrix.
func picture(r *matrix.Result) template.HTML {
	w, h, big := bigCell, bigRow, true
	if max(len(r.Rows), len(r.Cols)) > bigMost {
		w, h, big = tinyCell, tinyCell, false
	}
	left, top := 0, 0
	for _, n := range r.Rows {
		left = max(left, int(letter*float64(utf8.RuneCountInString(n)))+12)
	}
	for _, n := range r.Cols {
		top = max(top, int(letter*float64(utf8.RuneCountInString(n)))+12)
	}
	upright := !big || top-12 > w-4 // names that are wider than their columns stand on end
	if !upright {
		top = 24
	}
	var b strings.Builder
	width, height := left+w*len(r.Cols)+4, top+h*len(r.Rows)+4
	fmt.Fprintf(&b, `<svg class="matrix" role="img" aria-label="The matrix" viewBox="0 0 %d %d" width="%d" height="%d">`, width, height, width, height)
	for j, n := range r.Cols {
		x := left + j*w + w/2
		if upright {
			fmt.Fprintf(&b, `<text class="name" transform="translate(%d %d) rotate(-90)">%s</text>`, x+4, top-6, html.EscapeString(n))
		} else {
			fmt.Fprintf(&b, `<text class="name mid" x="%d" y="%d">%s</text>`, x, top-8, html.EscapeString(n))
		}
	}
	for i, row := range r.Rows {
		y := top + i*h
		fmt.Fprintf(&b, `<text class="name end" x="%d" y="%d">%s</text>`, left-8, y+h/2+4, html.EscapeString(row))
		for j, col := range r.Cols {
			if c := r.Cell(row, col); c != nil {
				square(&b, r, c, left+j*w, y, w, h, big)
			} else {
				fmt.Fprintf(&b, `<rect class="box open" x="%d" y="%d" width="%d" height="%d"/>`, left+j*w+1, y+1, w-2, h-2)
			}
		}
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // made of numbers and escaped names
}

// square is one cell of the picture.
func square(b *strings.Builder, r *matrix.Result, c *matrix.CellResult, x, y, w, h int, big bool) {
	bad := wrong(r, c)
	s := shape(c)
	tip := fmt.Sprintf("%s with %s: %s, %s of %d runs direct", c.Row, c.Col, words(c), matrix.Percent(c.Share), len(c.Runs))
	if bad != "" {
		tip += "; " + bad
	}
	fmt.Fprintf(b, `<a href="#%s"><title>%s</title><rect class="box %s" x="%d" y="%d" width="%d" height="%d"/>`,
		html.EscapeString(anchor(c.Row, c.Col)), html.EscapeString(tip), s, x+1, y+1, w-2, h-2)
	if big {
		glyph(b, s, x+14, y+16, 6)
		if c.Verdict != matrix.Open {
			fmt.Fprintf(b, `<text class="share end" x="%d" y="%d">%s</text>`, x+w-7, y+20, matrix.Percent(c.Share))
			if t := typical(c); t != "" {
				fmt.Fprintf(b, `<text class="time end" x="%d" y="%d">%s</text>`, x+w-7, y+34, t)
			}
			fmt.Fprintf(b, `<rect class="rail" x="%d" y="%d" width="%d" height="3"/><rect class="bar %s" x="%d" y="%d" width="%.1f" height="3"/>`,
				x+7, y+h-9, w-14, s, x+7, y+h-9, float64(w-14)*c.Share)
		}
	} else {
		glyph(b, s, x+w/2, y+h/2, 4)
	}
	if bad != "" {
		fmt.Fprintf(b, `<rect class="bad" x="%d" y="%d" width="%d" height="%d"/>`, x+2, y+2, w-4, h-4)
		if big {
			fmt.Fprintf(b, `<text class="alarm" x="%d" y="%d">≠</text>`, x+8, y+35)
		}
	}
	b.WriteString(`</a>`)
}

// words are a cell's outcome.
func words(c *matrix.CellResult) string {
	if c.Verdict == matrix.Direct {
		return "direct, " + string(c.Way)
	}
	return string(c.Verdict)
}

// typical is a cell's median time to a direct path.
func typical(c *matrix.CellResult) string {
	one := matrix.Result{Cells: []matrix.CellResult{*c}}
	if t := one.Times(""); len(t) > 0 {
		return matrix.Millis(matrix.Quantile(t, 0.5))
	}
	return ""
}

// glyph draws a way's shape around a point: a disc, dots, a diamond, a hollow square, a cross, a ring of dashes.
func glyph(b *strings.Builder, s string, x, y, r int) {
	switch s {
	case string(matrix.Plain):
		fmt.Fprintf(b, `<circle class="g plain" cx="%d" cy="%d" r="%d"/>`, x, y, r)
	case string(matrix.Sprayed):
		q := float64(r) / 2
		fmt.Fprintf(b, `<path class="g sprayed" d="%s%s%s%s"/>`, dot(x-r/2, y-r/2, q), dot(x+r/2, y-r/2, q), dot(x-r/2, y+r/2, q), dot(x+r/2, y+r/2, q))
	case string(matrix.Predicted):
		fmt.Fprintf(b, `<path class="g predicted" d="M%d %dl%d %dl%d %dl%d %dz"/>`, x, y-r, r, r, -r, r, -r, -r)
	case string(matrix.Relayed):
		fmt.Fprintf(b, `<rect class="g relay" x="%d" y="%d" width="%d" height="%d"/>`, x-r+1, y-r+1, 2*r-2, 2*r-2)
	case shapeNone:
		fmt.Fprintf(b, `<path class="g none" d="M%d %dl%d %dM%d %dl%d %d"/>`, x-r, y-r, 2*r, 2*r, x+r, y-r, -2*r, 2*r)
	default:
		fmt.Fprintf(b, `<circle class="g open" cx="%d" cy="%d" r="%d"/>`, x, y, r-1)
	}
}

// dot is a disc as a part of a path.
func dot(x, y int, r float64) string {
	return fmt.Sprintf("M%g %da%g %g 0 1 0 %g 0a%g %g 0 1 0 %g 0z", float64(x)-r, y, r, r, 2*r, r, r, -2*r)
}

// inlineGlyph is a shape to stand in text.
func inlineGlyph(s any) template.HTML {
	var b strings.Builder
	b.WriteString(`<svg class="inline" viewBox="0 0 16 16" width="16" height="16" aria-hidden="true">`)
	glyph(&b, fmt.Sprint(s), 8, 8, 6)
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // made of numbers
}
