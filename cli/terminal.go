package cli

import (
	"fmt"
	"io"
	"os"
	"time"

	"weft/lab/matrix"
)

// progressPause is how often something is said of the progress where the output is no terminal.
const progressPause = 10 * time.Second

// isTerminal reports whether what is written there is seen by a person at once.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok || os.Getenv("TERM") == "dumb" {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// colours reports whether to write in colour there: on a terminal, unless the environment says no (no-color.org).
func colours(w io.Writer) bool { return os.Getenv("NO_COLOR") == "" && isTerminal(w) }

// A progressLine tells how far a matrix has come: on a terminal in one line that changes, elsewhere in a line now and then.
type progressLine struct {
	out      io.Writer
	terminal bool
	begun    bool
	said     time.Duration
	width    int // of what stands in the line
}

// redraw is how often a line that changes does, at most.
const redraw = 100 * time.Millisecond

func newProgressLine(w io.Writer) *progressLine {
	return &progressLine{out: w, terminal: isTerminal(w)}
}

func (l *progressLine) show(p matrix.Progress) {
	pause := progressPause
	if l.terminal {
		pause = redraw
	}
	if l.begun && p.Elapsed-l.said < pause {
		return
	}
	l.begun, l.said = true, p.Elapsed
	left := time.Duration(float64(p.Elapsed) / float64(p.Runs) * float64(p.OfRuns-p.Runs))
	text := fmt.Sprintf("%d of %d runs, %d of %d cells, %d of them direct, about %s to go", p.Runs, p.OfRuns, p.Cells, p.OfCells, p.Direct, left.Round(time.Second))
	if !l.terminal {
		fmt.Fprintln(l.out, text)
		return
	}
	fmt.Fprintf(l.out, "\r%-*s", l.width, text)
	l.width = len(text)
}

// end leaves an empty line where the progress stood.
func (l *progressLine) end() {
	if l.terminal && l.width > 0 {
		fmt.Fprintf(l.out, "\r%*s\r", l.width, "")
	}
}
