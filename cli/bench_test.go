package cli

import (
	"strings"
	"testing"

	"weft/bench"
)

func TestABenchmarkThatMeasuresNothingIsNotBegun(t *testing.T) {
	for _, c := range []struct{ line, words string }{
		{"bench overlay --length 1s", "--length"},
		{"bench overlay --only speed", "throughput, streams"},
		{"bench overlay --only throughput,speed", "speed"},
		{"bench overlay --echoes 0", "--echoes"},
		{"bench overlay --joins -1", "--joins"},
	} {
		fails(t, inProcess(strings.Fields(c.line)...), ExitUsage, c.words)
	}
}

func TestTheHelpNamesWhatOnlyTakes(t *testing.T) {
	r := inProcess("bench", "overlay", "--help")
	names, _ := bench.Parts()
	for _, name := range names {
		if !strings.Contains(r.out, "\n  "+name+" ") {
			t.Errorf("%s is not in the help:\n%s", name, r.out)
		}
	}
}
