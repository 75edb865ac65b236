package scenario

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestEveryShippedScenarioReadsAndComesBackFromItsOwnSpelling(t *testing.T) {
	names := Shipped()
	if len(names) < 12 {
		t.Fatalf("only %d scenarios ship: %v", len(names), names)
	}
	for _, name := range names {
		s, text, err := Open(name)
		if err != nil {
			t.Errorf("%v", err)
			continue
		}
		if s.About == "" || len(s.Expect) == 0 || !bytes.HasPrefix(text, []byte("about ")) {
			t.Errorf("%s does not say what it is about, or expects nothing", name)
		}
		again, err := Parse(name, Format(s))
		if err != nil {
			t.Errorf("%s: what Format writes does not read: %v", name, err)
			continue
		}
		if d := cmp.Diff(s, again, equal...); d != "" {
			t.Errorf("%s: (-read +read again)\n%s", name, d)
		}
	}
}

func TestAScenarioOpensByNameOrByFile(t *testing.T) {
	if _, _, err := Open("campsu"); err == nil || !strings.Contains(err.Error(), "did you mean campus?") {
		t.Errorf("a slip of the keyboard: %v", err)
	}
	if _, _, err := Open("./campus"); err == nil {
		t.Error("what has a slash in it is a file, and there is none")
	}
	if _, _, err := Open(t.TempDir()); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
	file := filepath.Join(t.TempDir(), "mine.scn")
	if err := os.WriteFile(file, []byte("server hub on=internet\nhost ann on=internet\nhost ann on=internet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(file); err == nil || !strings.Contains(err.Error(), file+":3: ann is there already, on line 2") {
		t.Errorf("an error names file and line: %v", err)
	}
	if err := os.WriteFile(file, []byte("server hub on=internet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if s, _, err := Open(file); err != nil || s.Name != "mine" || s.Host("hub") == nil {
		t.Errorf("a file: %+v, %v", s, err)
	}
	if err := os.WriteFile(file, bytes.Repeat([]byte("#"), MaxText+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := Open(file); err == nil || !strings.Contains(err.Error(), "longer than 256 KiB") {
		t.Errorf("a huge file: %v", err)
	}
	if !slices.IsSorted(Shipped()) {
		t.Error("the names are not in order")
	}
}
