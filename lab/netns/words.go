package netns

import (
	"fmt"
	"slices"
	"strings"
)

// crashes begin the line in which Go's runtime says why it ends a program (runtime/panic.go), or the race detector that
// it has found a race. The lines below it are of the goroutine that did it; the last ones of a log are of any other.
var crashes = []string{"panic: ", "fatal error: ", "WARNING: DATA RACE"}

// crashKept is how many lines of a crash are told: the reason and the goroutine's way there, with room for a race's two.
const crashKept = 40

// LastWords is what is to be shown of a log: its last lines, n of them, but where the program has crashed, what
// is said of that from its first line on.
func LastWords(log string, n int) string {
	lines := strings.Split(strings.TrimSpace(log), "\n")
	if at := crash(lines); at >= 0 {
		lines = lines[at:]
		return strings.Join(lines[:min(len(lines), crashKept)], "\n")
	}
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// crash is the first line that tells of one, or that weft's server outlived the panic of a request; -1: none does.
func crash(lines []string) int {
	return slices.IndexFunc(lines, func(line string) bool {
		return strings.Contains(line, " level=ERROR ") && strings.Contains(line, " panic=") || slices.ContainsFunc(crashes, func(begins string) bool { return strings.HasPrefix(line, begins) })
	})
}

// inOneLine is the last words for an error of one line. A crash is worth more lines: the place is below the reason.
func inOneLine(log string) string {
	const last, ofCrash = 5, 12
	lines := strings.Split(LastWords(log, last), "\n")
	if crash(lines) == 0 {
		lines = slices.DeleteFunc(lines, func(line string) bool { return strings.TrimSpace(line) == "" })
		lines = lines[:min(len(lines), ofCrash)]
	}
	return strings.Join(lines, " / ")
}

// crashed is nil, or says that the program crashed, as its log tells: whoever restarts a program, or only asks others, would not see it.
func (p *Process) crashed() error {
	if log := p.Log(); crash(strings.Split(log, "\n")) >= 0 {
		return fmt.Errorf("%s crashed: %s", p.Name, inOneLine(log))
	}
	return nil
}
