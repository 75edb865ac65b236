package scenario

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// An Error is one thing that is wrong with a scenario's text.
type Error struct {
	Name    string // of the scenario or its file
	Line    int
	Problem string // what is there, and what was expected
}

func (e *Error) Error() string { return fmt.Sprintf("%s:%d: %s", e.Name, e.Line, e.Problem) }

// maxErrors is how many are told at once: the rest often follow from the first.
const maxErrors = 10

// Errors are all that is wrong with a scenario's text, in the order of its lines; at most ten.
type Errors []*Error

func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, one := range e {
		lines[i] = one.Error()
	}
	return strings.Join(lines, "\n")
}

// maxName is the length of the longest name: it becomes part of a file name and of a namespace's.
const maxName = 32

// reserved are the words that have a meaning after a name could have stood.
var reserved = []string{Internet, "on", "to", "for", "within", "after", "through", "udp", "nothing", "reaches", "cannot"}

// validName reports whether something can be called so.
func validName(s string) bool {
	return len(s) > 0 && len(s) <= maxName && strings.Trim(s, "abcdefghijklmnopqrstuvwxyz0123456789-") == "" &&
		s[0] != '-' && !slices.Contains(reserved, s)
}

const nameExpected = "a name of up to 32 lower-case letters, digits and dashes that does not begin with a dash and is no word of the language"

// maxQuoted is how much of a word is repeated in an error.
const maxQuoted = 40

func quoted(word string) string {
	if len(word) > maxQuoted {
		return strconv.Quote(word[:maxQuoted]) + "..."
	}
	return strconv.Quote(word)
}

// unknown says that a word is none of a list, and which it may have been meant to be.
func unknown(word, kind string, known []string) string {
	if near := nearest(word, known); near != "" {
		return fmt.Sprintf("%s is no %s: did you mean %s?", quoted(word), kind, near)
	}
	return fmt.Sprintf("%s is no %s: expected %s", quoted(word), kind, oneOf(known))
}

// oneOf lists words.
func oneOf(words []string) string {
	switch len(words) {
	case 0:
		return "nothing"
	case 1:
		return words[0]
	}
	return strings.Join(words[:len(words)-1], ", ") + " or " + words[len(words)-1]
}

// nearest is the known word that takes the fewest slips of the keyboard, if it takes few: one, or a third of
// its length.
func nearest(word string, known []string) string {
	best, least := "", 0
	if len(word) > maxQuoted {
		return ""
	}
	for _, k := range known {
		d := distance(strings.ToLower(word), strings.ToLower(k))
		if d <= max(1, len(k)/3) && (best == "" || d < least) {
			best, least = k, d
		}
	}
	return best
}

// distance counts insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
func distance(a, b string) int {
	rows := make([][]int, len(a)+1)
	for i := range rows {
		rows[i] = make([]int, len(b)+1)
		rows[i][0] = i
	}
	for j := range rows[0] {
		rows[0][j] = j
	}
	for i := 1; i <= len(a); i++ {
		for j := 1; j <= len(b); j++ {
			change := 1
			if a[i-1] == b[j-1] {
				change = 0
			}
			rows[i][j] = min(rows[i-1][j]+1, rows[i][j-1]+1, rows[i-1][j-1]+change)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				rows[i][j] = min(rows[i][j], rows[i-2][j-2]+1)
			}
		}
	}
	return rows[len(a)][len(b)]
}
