package policy

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/tailscale/hujson"
)

// MaxText bounds a document, in bytes: some 10,000 lines.
const MaxText = 1 << 20

// maxDepth bounds brackets within brackets. The grammar has five.
const maxDepth = 32

// A Problem is a complaint about a document, and where in it.
type Problem struct {
	Line    int    `json:"line"`   // from 1
	Column  int    `json:"column"` // in characters, from 1
	Message string `json:"message"`
	// Warning is set of what is only left out of account. All else keeps a document from being taken.
	Warning bool `json:"warning,omitempty"`
}

// String is as people read it.
func (p Problem) String() string {
	return fmt.Sprintf("line %d, column %d: %s", p.Line, p.Column, p.Message)
}

// A place is an offset in the text, in bytes.
type place int

// A word is a string of the document.
type word struct {
	text string
	at   place
}

// A source is a text, where its lines begin, and what is wrong with it.
type source struct {
	text     []byte
	lines    []int
	problems []Problem
}

func newSource(text []byte) *source {
	s := &source{text: text, lines: []int{0}}
	for i, c := range text {
		if c == '\n' {
			s.lines = append(s.lines, i+1)
		}
	}
	return s
}

// line is the number of the line that a place is in, from 1.
func (s *source) line(at place) int {
	n, found := slices.BinarySearch(s.lines, int(at))
	if found {
		n++
	}
	return n
}

func (s *source) complain(at place, format string, args ...any) {
	s.add(at, false, fmt.Sprintf(format, args...))
}

func (s *source) warn(at place, format string, args ...any) {
	s.add(at, true, fmt.Sprintf(format, args...))
}

func (s *source) add(at place, warning bool, message string) {
	line := s.line(at)
	column := 1 + utf8.RuneCount(s.text[s.lines[line-1]:at])
	s.problems = append(s.problems, Problem{Line: line, Column: column, Message: message, Warning: warning})
}

// sorted are the problems in the order of the text.
func (s *source) sorted() []Problem {
	slices.SortStableFunc(s.problems, func(a, b Problem) int {
		if a.Line != b.Line {
			return a.Line - b.Line
		}
		return a.Column - b.Column
	})
	s.problems = slices.Compact(s.problems)
	return s.problems
}

// parse reads the text as HuJSON: JSON with comments and trailing commas.
func (s *source) parse() (v hujson.Value, ok bool) {
	if len(s.text) > MaxText {
		s.complain(0, "the policy has %d bytes, and may have %d", len(s.text), MaxText)
		return v, false
	}
	if at, deep := tooDeep(s.text); deep {
		s.complain(at, "there are more than %d brackets within each other", maxDepth)
		return v, false
	}
	v, err := hujson.Parse(append(slices.Clip(s.text), '\n')) // a comment needs its line's end, at that of the text too
	if err == nil {
		return v, true
	}
	at, message := place(len(s.text)), err.Error()
	var line, column int
	if n, _ := fmt.Sscanf(message, "hujson: line %d, column %d:", &line, &column); n == 2 && line <= len(s.lines) {
		at = place(min(s.lines[line-1]+column-1, len(s.text)))
		message = errors.Unwrap(err).Error()
	}
	s.complain(at, "this is no JSON with comments: %s", message)
	return v, false
}

// tooDeep finds brackets that are too deep in each other for a parser that calls itself. What stands in strings and
// comments does not count.
func tooDeep(text []byte) (place, bool) {
	depth := 0
	for i := 0; i < len(text); i++ {
		rest := text[i:]
		switch {
		case rest[0] == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++
				}
			}
		case bytes.HasPrefix(rest, []byte("//")):
			i += skip(rest, "\n") - 1
		case bytes.HasPrefix(rest, []byte("/*")):
			i += 1 + skip(rest[2:], "*/")
		case rest[0] == '{', rest[0] == '[':
			if depth++; depth > maxDepth {
				return place(i), true
			}
		case rest[0] == '}', rest[0] == ']':
			depth--
		}
	}
	return 0, false
}

// skip is how far it is to the last byte of an end, or of the text.
func skip(text []byte, end string) int {
	if n := bytes.Index(text, []byte(end)); n >= 0 {
		return n + len(end)
	}
	return len(text)
}

// at is where a value begins.
func at(v *hujson.Value) place { return place(v.StartOffset) }

// A field is one member of an object. Names are compared without regard to case, as this grammar's first writers did.
type field struct {
	name  word
	value *hujson.Value
}

// object reads an object's fields. what says what it is, for complaints.
func (s *source) object(v *hujson.Value, what string) []field {
	o, ok := v.Value.(*hujson.Object)
	if !ok {
		s.complain(at(v), "%s is to be an object, { ... }", what)
		return nil
	}
	var fields []field
	seen := make(map[string]bool)
	for i := range o.Members {
		m := &o.Members[i]
		name := word{m.Name.Value.(hujson.Literal).String(), at(&m.Name)}
		if seen[name.text] {
			s.complain(name.at, "%q is here twice in %s: one of them would be lost", name.text, what)
			continue
		}
		seen[name.text] = true
		fields = append(fields, field{name, &m.Value})
	}
	return fields
}

func (f field) is(name string) bool { return strings.EqualFold(f.name.text, name) }

// list reads an array.
func (s *source) list(v *hujson.Value, what string) []*hujson.Value {
	a, ok := v.Value.(*hujson.Array)
	if !ok {
		s.complain(at(v), "%s is to be a list, [ ... ]", what)
		return nil
	}
	out := make([]*hujson.Value, len(a.Elements))
	for i := range a.Elements {
		out[i] = &a.Elements[i]
	}
	return out
}

// word reads a string.
func (s *source) word(v *hujson.Value, what string) (word, bool) {
	l, ok := v.Value.(hujson.Literal)
	if !ok || l.Kind() != '"' {
		s.complain(at(v), "%s is to be a string", what)
		return word{}, false
	}
	return word{l.String(), at(v)}, true
}

// words reads a list of strings.
func (s *source) words(v *hujson.Value, what string) []word {
	var out []word
	for _, e := range s.list(v, what) {
		if w, ok := s.word(e, "each of "+what); ok {
			out = append(out, w)
		}
	}
	return out
}
