package matrix

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// A Verdict is what a table holds in a cell.
type Verdict string

// The verdicts. Open is, in an expectation, a cell where either will do, and in a result one that was not run.
const (
	Direct Verdict = "direct"
	Relay  Verdict = "relay"
	None   Verdict = "none" // the nodes did not reach each other at all
	Open   Verdict = "?"
)

var verdicts = []Verdict{Direct, Relay, None, Open}

// corner is what stands above the names of the rows, in every file.
const corner = "nat"

// Limits of a file, so that a wrong one cannot make us use up memory: twice the largest table that a Config makes.
const (
	maxNames   = 200
	maxNameLen = 64      // bytes
	maxLine    = 1 << 15 // bytes
)

// A Table is an expectation, or what a result comes to: a verdict per ordered pair of NATs. Cells are by row, then
// column. The zero Table has no cells.
type Table struct {
	Rows, Cols []string
	Cells      [][]Verdict
}

// NewTable is a table all of whose cells are open.
func NewTable(rows, cols []string) Table {
	t := Table{Rows: slices.Clone(rows), Cols: slices.Clone(cols), Cells: make([][]Verdict, len(rows))}
	for i := range t.Cells {
		t.Cells[i] = slices.Repeat([]Verdict{Open}, len(cols))
	}
	return t
}

// A SyntaxError is an expectation file that makes no sense.
type SyntaxError struct {
	File string
	Line int // from 1
	Want string
	Got  string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("%s, line %d: expected %s, found %s", e.File, e.Line, e.Want, e.Got)
}

// ParseTable reads a table: comma-separated, the first line "nat" and the names of the columns, then a line for each row,
// its name and a verdict per column. Blank lines and lines that begin with # are passed over; spaces around names and verdicts do not count.
// Rows and columns are in any order, none twice. file is the name in errors, all of which are *SyntaxError
// but those of reading.
func ParseTable(r io.Reader, file string) (Table, error) {
	var t Table
	line := 0
	fail := func(want, got string) (Table, error) {
		return Table{}, &SyntaxError{File: file, Line: line, Want: want, Got: got}
	}
	s := bufio.NewScanner(r)
	s.Buffer(make([]byte, 0, 4096), maxLine)
	for s.Scan() {
		line++
		text := strings.TrimSpace(s.Text())
		if line == 1 {
			text = strings.TrimPrefix(text, "\uFEFF") // what spreadsheets put in front
		}
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		words := strings.Split(text, ",")
		for i := range words {
			words[i] = strings.TrimSpace(words[i])
		}
		if t.Cols == nil {
			if words[0] != corner {
				return fail(`"`+corner+`" and the names of the columns`, show(words[0]))
			}
			if len(words) < 2 {
				return fail("at least one name of a column after \""+corner+`"`, "none")
			}
			if want, got := badNames(words[1:]); want != "" {
				return fail(want, got)
			}
			t.Cols = words[1:]
			continue
		}
		name := words[0]
		if want, got := badNames(append(slices.Clone(t.Rows), name)); want != "" {
			return fail(want, got)
		}
		if len(words)-1 != len(t.Cols) {
			return fail(fmt.Sprintf("%d verdicts after %s, one per column", len(t.Cols), show(name)), fmt.Sprint(len(words)-1))
		}
		row := make([]Verdict, len(t.Cols))
		for i, w := range words[1:] {
			row[i] = Verdict(w)
			if !slices.Contains(verdicts, row[i]) {
				return fail(fmt.Sprintf("direct, relay, none or ? for %s with %s", name, t.Cols[i]), show(w))
			}
		}
		t.Rows, t.Cells = append(t.Rows, name), append(t.Cells, row)
	}
	line++
	switch err := s.Err(); {
	case errors.Is(err, bufio.ErrTooLong):
		return fail(fmt.Sprintf("a line of at most %d bytes", maxLine), "a longer one")
	case err != nil:
		return Table{}, fmt.Errorf("reading %s: %w", file, err)
	case t.Cols == nil:
		return fail(`"`+corner+`" and the names of the columns`, "the end")
	case len(t.Rows) == 0:
		return fail("the name of a NAT and its verdicts", "the end")
	}
	return t, nil
}

// badNames tells what is wrong with a list of names whose last one is new, or that is all new.
func badNames(names []string) (want, got string) {
	if len(names) > maxNames {
		return fmt.Sprintf("at most %d names", maxNames), "more"
	}
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		switch {
		case n == "":
			return "the name of a NAT", "nothing"
		case len(n) > maxNameLen || !utf8.ValidString(n) || strings.ContainsFunc(n, unsound):
			return fmt.Sprintf("the name of a NAT, of at most %d bytes and printable", maxNameLen), show(n)
		case seen[n]:
			return "each name once", show(n) + " again"
		}
		seen[n] = true
	}
	return "", ""
}

// unsound runes would make a file that does not read back as it was written, or a terminal misbehave.
func unsound(r rune) bool { return r == '"' || r == '#' || r == utf8.RuneError || !unicode.IsPrint(r) }

// show quotes a word of a file, cut where it is long.
func show(word string) string {
	if len(word) > maxNameLen {
		word = strings.ToValidUTF8(word[:maxNameLen], "") + "..."
	}
	if word == "" {
		return "nothing"
	}
	return fmt.Sprintf("%q", word)
}

// AppendCSV appends the table in the form that ParseTable reads.
func (t Table) AppendCSV(b []byte) []byte {
	b = append(b, corner...)
	for _, c := range t.Cols {
		b = append(append(b, ','), c...)
	}
	b = append(b, '\n')
	for i, r := range t.Rows {
		b = append(b, r...)
		for _, v := range t.Cells[i] {
			b = append(append(b, ','), v...)
		}
		b = append(b, '\n')
	}
	return b
}

// String is the table as a file has it.
func (t Table) String() string { return string(bytes.TrimSuffix(t.AppendCSV(nil), []byte("\n"))) }

// At is the verdict of a cell; Open and false where the table has no such cell.
func (t Table) At(row, col string) (Verdict, bool) {
	i, j := slices.Index(t.Rows, row), slices.Index(t.Cols, col)
	if i < 0 || j < 0 {
		return Open, false
	}
	return t.Cells[i][j], true
}

// Count is how many cells have a verdict.
func (t Table) Count(v Verdict) (n int) {
	for _, row := range t.Cells {
		for _, x := range row {
			if x == v {
				n++
			}
		}
	}
	return n
}

// A Difference is a cell that is not as expected.
type Difference struct {
	Row      string  `json:"row"`
	Col      string  `json:"col"`
	Expected Verdict `json:"expected"`
	Got      Verdict `json:"got"`
}

func (d Difference) String() string {
	return fmt.Sprintf("%s with %s: expected %s, got %s", d.Row, d.Col, d.Expected, d.Got)
}

// Fits tells whether an expectation is of the same NATs as a table, in any order; else what is amiss, in words.
func (t Table) Fits(expect Table) error {
	for _, axis := range []struct {
		what       string
		have, want []string
	}{{"row", t.Rows, expect.Rows}, {"column", t.Cols, expect.Cols}} {
		for _, n := range axis.have {
			if !slices.Contains(axis.want, n) {
				return fmt.Errorf("it has no %s %s, which the matrix has", axis.what, show(n))
			}
		}
		for _, n := range axis.want {
			if !slices.Contains(axis.have, n) {
				return fmt.Errorf("it has a %s %s, which the matrix does not have", axis.what, show(n))
			}
		}
	}
	return nil
}

// Differences are the cells of t that are neither open in the expectation nor as it says. Cells that are not in the expectation are not compared.
func (t Table) Differences(expect Table) (out []Difference) {
	for i, r := range t.Rows {
		for j, c := range t.Cols {
			want, _ := expect.At(r, c)
			if want != Open && want != t.Cells[i][j] {
				out = append(out, Difference{Row: r, Col: c, Expected: want, Got: t.Cells[i][j]})
			}
		}
	}
	return out
}
