package matrix

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

func expectation(t testing.TB, name string) Table {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	table, err := ParseTable(bytes.NewReader(b), name)
	if err != nil {
		t.Fatal(err)
	}
	if got := string(table.AppendCSV(nil)); got != string(b) {
		t.Errorf("%s is written as\n%s", name, got)
	}
	return table
}

func TestTheExpectationFilesHaveTheCellsThatTheyAreKnownFor(t *testing.T) {
	for _, c := range []struct {
		file          string
		direct, relay int
	}{
		{"rfc4787-plain.csv", 57, 24}, {"rfc4787-best.csv", 77, 4}, {"rfc3489-plain.csv", 13, 3}, {"rfc3489-best.csv", 15, 1},
	} {
		table := expectation(t, c.file)
		if d, r := table.Count(Direct), table.Count(Relay); d != c.direct || r != c.relay {
			t.Errorf("%s: %d direct, %d relay", c.file, d, r)
		}
		for i, r := range table.Rows {
			for j, col := range table.Cols {
				if back, _ := table.At(col, r); back != table.Cells[i][j] {
					t.Errorf("%s: %s with %s is another than the other way round", c.file, r, col)
				}
			}
		}
	}
}

func TestABadExpectationIsToldByLineAndByWhatWasExpected(t *testing.T) {
	long := strings.Repeat("x", maxNameLen+1)
	for _, c := range []struct{ name, text, want string }{
		{"empty", "", `f, line 1: expected "nat" and the names of the columns, found the end`},
		{"only comments", "# a\n\n", `f, line 3: expected "nat" and the names of the columns, found the end`},
		{"no head", "EIM,direct\n", `f, line 1: expected "nat" and the names of the columns, found "EIM"`},
		{"no columns", "nat\n", `f, line 1: expected at least one name of a column after "nat", found none`},
		{"no rows", "nat,a\n", `f, line 2: expected the name of a NAT and its verdicts, found the end`},
		{"a column twice", "nat,a,a\n", `f, line 1: expected each name once, found "a" again`},
		{"a row twice", "nat,a\na,direct\n\na,relay\n", `f, line 4: expected each name once, found "a" again`},
		{"too few", "nat,a,b\na,direct\n", `f, line 2: expected 2 verdicts after "a", one per column, found 1`},
		{"too many", "nat,a\na,direct,relay\n", `f, line 2: expected 1 verdicts after "a", one per column, found 2`},
		{"unknown verdict", "nat,a,b\n# b first\nb,direct,dirct\n", `f, line 3: expected direct, relay, none or ? for b with b, found "dirct"`},
		{"no verdict", "nat,a\na,\n", `f, line 2: expected direct, relay, none or ? for a with a, found nothing`},
		{"a nameless row", "nat,a\n,direct\n", `f, line 2: expected the name of a NAT, found nothing`},
		{"a long name", "nat," + long + "\n", `f, line 1: expected the name of a NAT, of at most 64 bytes and printable, found "` + long[1:] + `..."`},
		{"a control character", "nat,a\x1b[31m\n", `f, line 1: expected the name of a NAT, of at most 64 bytes and printable, found "a\x1b[31m"`},
		{"a long line", "nat,a\na," + strings.Repeat(" ", maxLine) + "direct\n", `f, line 2: expected a line of at most 32768 bytes, found a longer one`},
		{"too many columns", "nat" + strings.Repeat(",a", maxNames+1) + "\n", `f, line 1: expected at most 200 names, found more`},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParseTable(strings.NewReader(c.text), "f")
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || err.Error() != c.want {
				t.Errorf("it says %v, not %s", err, c.want)
			}
		})
	}
}

func TestAnExpectationMayBeCommentedAndInAnyOrder(t *testing.T) {
	got, err := ParseTable(strings.NewReader("\uFEFF# ours\r\n\r\nnat, b , a\r\n b,direct, ?\r\na,relay ,none"), "f")
	if err != nil {
		t.Fatal(err)
	}
	want := Table{Rows: []string{"b", "a"}, Cols: []string{"b", "a"}, Cells: [][]Verdict{{Direct, Open}, {Relay, None}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestDifferencesNameTheCellsThatAreNotAsExpected(t *testing.T) {
	got := Table{Rows: []string{"a", "b"}, Cols: []string{"a", "b"}, Cells: [][]Verdict{{Direct, Relay}, {Direct, Open}}}
	expect := Table{Rows: []string{"b", "a"}, Cols: []string{"b", "a"}, Cells: [][]Verdict{{Relay, Open}, {Direct, Direct}}}
	want := []Difference{{"a", "b", Direct, Relay}, {"b", "b", Relay, Open}}
	if diff := cmp.Diff(want, got.Differences(expect)); diff != "" {
		t.Error(diff)
	}
	if s := want[0].String(); s != "a with b: expected direct, got relay" {
		t.Error(s)
	}
	if err := got.Fits(expect); err != nil {
		t.Errorf("the same names in another order do not fit: %v", err)
	}
	for _, c := range []struct {
		rows, cols []string
		words      string
	}{
		{[]string{"a"}, []string{"a", "b"}, `no row "b"`},
		{[]string{"a", "b", "c"}, []string{"a", "b"}, `a row "c"`},
		{[]string{"a", "b"}, []string{"b"}, `no column "a"`},
		{[]string{"a", "b"}, []string{"b", "a", "x"}, `a column "x"`},
	} {
		if err := got.Fits(NewTable(c.rows, c.cols)); err == nil || !strings.Contains(err.Error(), c.words) {
			t.Errorf("of %v by %v it is said: %v", c.rows, c.cols, err)
		}
	}
}

func TestATableReadsBackAsItWasWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		names := rapid.SliceOfNDistinct(rapid.StringMatching(`[A-Za-z0-9/ä-]{1,20}`), 1, 9, rapid.ID[string])
		table := NewTable(names.Draw(t, "rows"), names.Draw(t, "cols"))
		for _, row := range table.Cells {
			for j := range row {
				row[j] = rapid.SampledFrom(verdicts).Draw(t, "verdict")
			}
		}
		back, err := ParseTable(bytes.NewReader(table.AppendCSV(nil)), "f")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(table, back); diff != "" {
			t.Error(diff)
		}
	})
}

func FuzzParseTable(f *testing.F) {
	for _, name := range []string{"rfc4787-best.csv", "rfc4787-plain.csv", "rfc3489-best.csv", "rfc3489-plain.csv"} {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	f.Add([]byte("nat,a\r\n# c\na,?\n"))
	f.Add([]byte("nat,\"a,b\"\n"))
	f.Add([]byte("nat,a#\n\n#,direct"))
	f.Fuzz(func(t *testing.T, b []byte) {
		table, err := ParseTable(bytes.NewReader(b), "f")
		if err != nil {
			var syntax *SyntaxError
			if !errors.As(err, &syntax) || syntax.Line < 1 || syntax.Want == "" || syntax.Got == "" {
				t.Fatalf("an error without its line or what was expected: %v", err)
			}
			return
		}
		back, err := ParseTable(bytes.NewReader(table.AppendCSV(nil)), "f")
		if err != nil {
			t.Fatalf("what was read cannot be read again: %v", err)
		}
		if diff := cmp.Diff(table, back); diff != "" {
			t.Fatal(diff)
		}
		if d := table.Differences(back); table.Count(Open) == 0 && len(d) > 0 {
			t.Fatalf("it differs from itself: %v", d)
		}
	})
}
