package matrix

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// A paint is an escape sequence of ECMA-48, SGR. Each goes with a word that says the same.
type paint string

const (
	green  paint = "32"
	yellow paint = "33"
	cyan   paint = "36"
	dim    paint = "2"
	bold   paint = "1"
	alarm  paint = "1;31"
)

var paints = map[Way]paint{Plain: green, Sprayed: yellow, Predicted: cyan, Relayed: dim}

// widest is how many characters of a line a table may take before its cells become letters: a wide terminal.
const widest = 132

// Print writes the result for a person: the table, what it took, and what is not as it should be.
func (r *Result) Print(w io.Writer, colour bool) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Headline())
	if r.Partial {
		b.WriteString(brush(colour, alarm, "Interrupted: what follows is partial.") + "\n")
	}
	b.WriteByte('\n')
	r.printCells(&b, colour)
	b.WriteByte('\n')
	r.printWays(&b)
	if n := r.Summary.Failed; n > 0 {
		fmt.Fprintf(&b, "\n%s\n", brush(colour, alarm, fmt.Sprintf("%d runs failed in the laboratory; the first: %s", n, r.firstError())))
	}
	if r.Expected != "" {
		if len(r.Differences) == 0 {
			fmt.Fprintf(&b, "\nEvery cell that was run is as %s expects.\n", r.Expected)
		} else {
			fmt.Fprintf(&b, "\nNot as %s expects:\n", r.Expected)
			list(&b, r.Differences, colour)
		}
	}
	if len(r.Surprises) > 0 {
		b.WriteString("\nNot as the oracle holds possible:\n")
		list(&b, r.Surprises, colour)
	}
	if _, err := io.WriteString(w, b.String()); err != nil {
		return fmt.Errorf("printing the result: %w", err)
	}
	return nil
}

// Headline is the result in a sentence.
func (r *Result) Headline() string {
	c := r.Conditions
	s := fmt.Sprintf("%s: %d of %d cells direct, %d possible. %s backend, %s, %s ports", Title(c), r.Summary.Direct, r.Summary.Cells,
		r.Summary.Possible, r.Backend, count(r.Seeds, "seed")+" a cell", c.Ports)
	if c.Pool > 1 {
		s += fmt.Sprintf(", pools of %d addresses", c.Pool)
	}
	if c.Loss > 0 {
		s += fmt.Sprintf(", %g %% loss", c.Loss)
	}
	if c.Late {
		s += ", filters that open late"
	}
	return s + fmt.Sprintf("; %.1f s.", r.Seconds)
}

// Title names a matrix for a person.
func Title(c Conditions) string {
	name := map[string]string{"rfc4787": "RFC 4787", "rfc3489": "RFC 3489"}[c.Matrix]
	return name + map[Layout]string{
		Single: "", Double: ", double NAT of the same type", DoubleDifferent: ", double NAT of different types",
		Shared: ", one NAT shared by both", Hairpin: ", both behind one carrier's NAT, by hairpin",
	}[Layout(c.Layout)]
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (r *Result) firstError() string {
	for i := range r.Cells {
		for _, x := range r.Cells[i].Runs {
			if x.Error != "" {
				return fmt.Sprintf("%s with %s, seed %d: %s", r.Cells[i].Row, r.Cells[i].Col, x.Seed, x.Error)
			}
		}
	}
	return ""
}

func list(b *strings.Builder, all []Difference, colour bool) {
	for _, d := range all {
		fmt.Fprintf(b, "  %s\n", brush(colour, alarm, d.String()))
	}
}

// brush paints a text, or leaves it as it is.
func brush(colour bool, p paint, text string) string {
	if !colour || p == "" {
		return text
	}
	return "\x1b[" + string(p) + "m" + text + "\x1b[0m"
}

// printCells writes the table: words where they fit the width, letters else.
func (r *Result) printCells(b *strings.Builder, colour bool) {
	const gap = 2
	wrong := map[[2]string]bool{}
	for _, d := range append(append([]Difference{}, r.Differences...), r.Surprises...) {
		wrong[[2]string{d.Row, d.Col}] = true
	}
	first, column := 0, 0
	for _, n := range r.Rows {
		first = max(first, utf8.RuneCountInString(n))
	}
	for _, n := range r.Cols {
		column = max(column, utf8.RuneCountInString(n))
	}
	for i := range r.Cells {
		column = max(column, utf8.RuneCountInString(r.words(&r.Cells[i], true)))
	}
	word, heads := r.words, r.Cols
	letters := first+len(r.Cols)*(column+gap) > widest
	if letters {
		word, heads, column = r.letters, nil, len(fmt.Sprint(len(r.Cols)))
		for i, n := range r.Cols {
			heads = append(heads, fmt.Sprint(i+1))
			fmt.Fprintf(b, "%*d  %s\n", column, i+1, n)
		}
		b.WriteByte('\n')
	}
	b.WriteString(strings.Repeat(" ", first))
	var line strings.Builder
	for _, h := range heads {
		fmt.Fprintf(&line, "%*s%-*s", gap, "", column, h)
	}
	b.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	for _, row := range r.Rows {
		fmt.Fprintf(b, "%-*s", first, row)
		for j, col := range r.Cols {
			text, p := "-", paint("")
			if c := r.Cell(row, col); c != nil {
				bad := wrong[[2]string{row, col}]
				if text, p = word(c, bad), paints[c.Way]; bad {
					p = alarm
				}
			}
			b.WriteString(strings.Repeat(" ", gap) + brush(colour, p, text))
			if j < len(r.Cols)-1 {
				b.WriteString(strings.Repeat(" ", column-utf8.RuneCountInString(text)))
			}
		}
		b.WriteByte('\n')
	}
	if letters {
		b.WriteString("\np plain, s sprayed, d predicted, r relay, n no path, ? not run; capitals: not as it should be\n")
	}
}

// words are a cell as words: how, how often, and ! where it is not as it should be.
func (r *Result) words(c *CellResult, bad bool) string {
	var s string
	switch c.Verdict {
	case Open:
		s = string(Open)
	case Direct:
		s = string(c.Way)
		if c.Share < 1 {
			s += fmt.Sprintf(" %s", Percent(c.Share))
		}
	default:
		s = string(c.Verdict)
		if c.Share > 0 {
			s += fmt.Sprintf(", %s direct", Percent(c.Share))
		}
	}
	if bad {
		s += "!"
	}
	return s
}

// letters are a cell as one letter.
func (r *Result) letters(c *CellResult, bad bool) string {
	s := string(Open)
	switch c.Verdict {
	case Open:
	case Direct:
		s = map[Way]string{Plain: "p", Sprayed: "s", Predicted: "d"}[c.Way]
	default:
		s = string(c.Verdict)[:1]
	}
	if bad {
		s = strings.ToUpper(s)
	}
	return s
}

// Percent writes a share; only the whole is 100 %.
func Percent(share float64) string {
	switch p := share * 100; {
	case share < 1 && p > 99:
		return ">99%"
	case share > 0 && p < 1:
		return "<1%"
	default:
		return fmt.Sprintf("%.0f%%", p)
	}
}

// printWays writes what it took.
func (r *Result) printWays(b *strings.Builder) {
	w := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(w, "way\truns\tto direct p50\tp95\tmax\tpackets p50\tp95\tmax\t\n")
	for _, s := range r.Summary.Ways {
		d := s.Direct
		fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\t%.0f\t%.0f\t%.0f\t\n", s.Way, s.Runs, Millis(d.P50), Millis(d.P95), Millis(d.Max),
			s.Packets.P50, s.Packets.P95, s.Packets.Max)
	}
	w.Flush()
}

// Millis writes milliseconds as a person reads them.
func Millis(ms float64) string {
	switch {
	case ms == 0:
		return "-"
	case ms < 9.95:
		return fmt.Sprintf("%.1f ms", ms)
	case ms < 999.5:
		return fmt.Sprintf("%.0f ms", ms)
	}
	return fmt.Sprintf("%.2f s", ms/1000)
}
