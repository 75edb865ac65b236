package report

import (
	"fmt"
	"html"
	"html/template"
	"slices"
	"strconv"
	"strings"
	"time"

	"weft/lab/matrix"
)

// Sizes of a sequence diagram, in pixels at 100 %.
const (
	timeWidth = 124
	laneGap   = 72
	textWidth = 720
	headRow   = 26
	stepRow   = 21
)

// diagram is a sequence diagram: time goes down, each machine has a lane, each row is a datagram or a bundle of them.
func diagram(s *matrix.Sample) template.HTML {
	if len(s.Steps) == 0 {
		return "<p>The run has left no trace.</p>"
	}
	rows := len(s.Steps)
	for _, st := range s.Steps {
		if st.Skipped > 0 {
			rows++
		}
	}
	lane := func(name string) int {
		return timeWidth + laneGap/2 + laneGap*max(slices.Index(s.Lanes, name), 0)
	}
	text := timeWidth + laneGap*len(s.Lanes) + 8
	width, height := text+textWidth, headRow+stepRow*rows+8
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="seq" role="img" aria-label="Sequence diagram" viewBox="0 0 %d %d" width="%d" height="%d">`, width, height, width, height)
	for _, name := range s.Lanes {
		fmt.Fprintf(&b, `<text class="lane mid" x="%d" y="14">%s</text><path class="life" d="M%d %dV%d"/>`, lane(name), html.EscapeString(name), lane(name), headRow-4, height-4)
	}
	y := headRow + stepRow/2
	for _, st := range s.Steps {
		if st.Skipped > 0 {
			fmt.Fprintf(&b, `<text class="what" x="%d" y="%d">⋮ %s more steps</text>`, text, y+4, grouped(st.Skipped))
			y += stepRow
		}
		fmt.Fprintf(&b, `<text class="at end" x="%d" y="%d">%s</text>`, timeWidth-10, y+4, clock(st))
		arrow(&b, st, lane, y)
		fmt.Fprintf(&b, `<text class="what" x="%d" y="%d">%s</text>`, text, y+4, html.EscapeString(sentence(st)))
		y += stepRow
	}
	b.WriteString(`</svg>`)
	return template.HTML(b.String()) // made of numbers and escaped words
}

// arrow draws a step: a line from lane to lane, a dot where it passed through, a head or a cross at its end.
func arrow(b *strings.Builder, st matrix.Step, lane func(string) int, y int) {
	from, end := lane(st.From), lane(st.End)
	class := "way"
	if st.Count > 1 {
		class += " many"
	}
	if st.Dropped {
		class += " lost"
	}
	if from == end {
		fmt.Fprintf(b, `<path class="%s" d="M%d %dh14"/>`, class, from, y)
		end += 14
	} else {
		fmt.Fprintf(b, `<path class="%s" d="M%d %dH%d"/>`, class, from, y, end)
	}
	for _, name := range st.Via {
		fmt.Fprintf(b, `<circle class="hop" cx="%d" cy="%d" r="2.5"/>`, lane(name), y)
	}
	toward := 1
	if end < from {
		toward = -1
	}
	if st.Dropped {
		fmt.Fprintf(b, `<path class="cross" d="M%d %dl8 8m0 -8l-8 8"/>`, end-4, y-4)
	} else {
		fmt.Fprintf(b, `<path class="head" d="M%d %dl%d -4v8z"/>`, end, y, -8*toward)
	}
}

// sentence tells a step in words.
func sentence(st matrix.Step) string {
	s := st.What
	if st.Count > 1 {
		s = grouped(st.Count) + " × " + s
	}
	if st.Target != "" {
		s += " to " + st.Target
	}
	if st.Source != "" && st.Source != st.Target {
		s += ", from " + st.Source
	}
	if st.Why != "" {
		s += ": " + strings.TrimPrefix(st.Why, "dropped: ") // the cross says so
	}
	return s
}

// clock writes when a step was, from and to where it lasted.
func clock(st matrix.Step) string {
	if st.Until-st.At >= time.Millisecond {
		return fmt.Sprintf("%.3f - %.3f s", st.At.Seconds(), st.Until.Seconds())
	}
	return fmt.Sprintf("%.3f s", st.At.Seconds())
}

// grouped writes a number with its thousands apart.
func grouped(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}
