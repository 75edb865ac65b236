package weft_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	namedTest   = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")
	definedTest = regexp.MustCompile(`(?m)^func (Test[A-Za-z0-9]+)\(`)
)

func TestEveryAttackIsShownToFailByATestThatExists(t *testing.T) {
	page, err := os.ReadFile("docs/attacks.md")
	if err != nil {
		t.Fatal(err)
	}
	defined := map[string]map[string]bool{} // room -> tests
	for line := range strings.Lines(string(page)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| attack") || strings.HasPrefix(line, "| ---") {
			continue
		}
		cells := strings.Split(line, " | ")
		list := strings.Split(cells[len(cells)-1], ", ")
		room, some := "", false
		for _, item := range list {
			if first, _, named := strings.Cut(item, " `Test"); named && first != "" && !strings.HasPrefix(item, "`") {
				room = strings.TrimSpace(strings.TrimLeft(first, "| "))
			}
			name := namedTest.FindStringSubmatch(item)
			if name == nil {
				continue
			}
			some = true
			if defined[room] == nil {
				defined[room] = testsOf(t, room)
			}
			if !defined[room][name[1]] {
				t.Errorf("there is no %s in %q: %s", name[1], room, line)
			}
		}
		if !some {
			t.Errorf("nothing shows that this fails: %s", line)
		}
	}
	if len(defined) < 8 {
		t.Errorf("only %d rooms are named", len(defined))
	}
}

// testsOf lists the tests of a room.
func testsOf(t *testing.T, room string) map[string]bool {
	files, err := filepath.Glob(filepath.Join(filepath.FromSlash(room), "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bool{}
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range definedTest.FindAllStringSubmatch(string(text), -1) {
			out[m[1]] = true
		}
	}
	return out
}
