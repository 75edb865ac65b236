package scenario

import (
	"os"
	"strings"
	"testing"
)

func TestTheManualsExamplesReadAndItNamesEveryWord(t *testing.T) {
	b, err := os.ReadFile("../../docs/scenarios.md")
	if err != nil {
		t.Fatal(err)
	}
	manual := string(b)
	examples := 0
	for i, block := range strings.Split(manual, "\n```\n") {
		if i%2 == 0 || !strings.Contains(block, "\nexpect ") {
			continue
		}
		examples++
		if _, err := Parse("docs/scenarios.md", []byte(block)); err != nil {
			t.Errorf("an example does not read: %v\n%s", err, block)
		}
	}
	if examples < 2 {
		t.Errorf("%d examples were found", examples)
	}
	var words []string
	for _, s := range statements {
		words = append(words, s.word)
	}
	for _, f := range forms {
		words = append(words, string(f.verb)+" ")
	}
	for _, list := range [][]string{keys(routerFields), keys(lanFields), keys(hostFields), keys(flowFields), keys(setFields), expectWords, clauseWords} {
		words = append(words, list...)
	}
	for _, k := range Kernels {
		words = append(words, "`"+k.Name+"`")
	}
	for _, n := range natNames {
		words = append(words, "`"+n.name+"`")
	}
	for _, w := range words {
		if !strings.Contains(manual, w) {
			t.Errorf("%q is not in the manual", w)
		}
	}
}

func keys[T any](list fields[T]) (words []string) {
	for _, f := range list {
		words = append(words, f.key+"=")
	}
	return words
}
