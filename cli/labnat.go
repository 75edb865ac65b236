package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/lab/matrix"
	"weft/lab/report"
)

// labNat is one weft lab nat.
type labNat struct {
	*app
	matrix.Config
	matrix.Options
	backend string
	layout  struct {
		double          string
		hairpin, shared bool
	}
	ports, loss, cell string
	expect, dir       string
}

// Runs of a cell where --seeds does not say: what a minute suffices for in virtual time; and one of the real program.
const (
	vnetSeeds  = 20
	netnsSeeds = 1
	maxSeeds   = 100_000
	maxJobs    = 256
)

func (a *app) labNatCommand() *cobra.Command {
	l := &labNat{app: a}
	c := &cobra.Command{
		Use:   "nat",
		Short: "Which pairs of NATs weft comes through directly, cell by cell",
		Long: `Run every ordered pair of NAT types and tell which come to a direct path, how, how fast and at what cost:
RFC 4787's 9 by 9 (mapping EIM, ADM, APDM; filtering EIF, ADF, APDF) or RFC 3489's 4 by 4.

  --backend vnet    weft's path discovery in virtual time, many seeds a cell
  --backend netns   the whole program in network namespaces of this machine (needs root)

Layouts other than a NAT on each side:
  --double             each node behind two NATs of the same type
  --double=different   of two different types; a/b has a next to the node
  --hairpin            both behind one carrier's NAT, by whose hairpin alone they reach each other
  --shared             one NAT shared by both: in one LAN, or in two with hairpin or without

With --out, DIR gets matrix.csv (a table as --expect reads it), cells.json (every run) and index.html (one page with
pictures, distributions and what was sent). A cell is direct when all its runs are, or 97 % where it takes a spray, or 90 %
where it takes predicted ports.

An expectation file has the line "nat,NAME,..." and then for each row "NAME,VERDICT,...", where a verdict is direct, relay,
none, or ? where either will do; lines that begin with # are comments.

Exit code 0 when all was run and, with --expect, is as expected; 1 when a cell differs, a run failed or it was
interrupted (what is known by then is printed and written all the same); 2 when the command line or FILE makes no sense.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error { return l.run(c) },
	}
	f := c.Flags()
	f.StringVar(&l.Matrix, "matrix", "rfc4787", "rfc4787 or rfc3489")
	f.StringVar(&l.layout.double, "double", "", "each node behind two NATs, of the same type or =different ones")
	f.Lookup("double").NoOptDefVal = "same"
	f.BoolVar(&l.layout.hairpin, "hairpin", false, "both behind one NAT that hairpins, in two inner networks")
	f.BoolVar(&l.layout.shared, "shared", false, "one NAT shared by both")
	f.IntVar(&l.Pool, "pool", 1, "outside addresses of each NAT, chosen arbitrarily (RFC 4787 section 4.1)")
	f.StringVar(&l.ports, "ports", "random", "how NATs choose ports: random, sequential or preserving")
	f.StringVar(&l.loss, "loss", "0", "packets lost between any two places, in percent")
	f.BoolVar(&l.Late, "late", false, "NATs open their filters late")
	f.StringVar(&l.backend, "backend", "vnet", "vnet or netns")
	f.IntVar(&l.Jobs, "jobs", 0, "runs at once; 0: as many as there are processors")
	f.IntVar(&l.Seeds, "seeds", 0, "runs of each cell; 0: 20 in vnet, 1 in netns")
	f.Uint64Var(&l.Seed, "seed", 1, "seed of a cell's first run; the others count up from it")
	f.StringVar(&l.cell, "cell", "", "ROW,COL: run this cell only")
	f.StringVar(&l.expect, "expect", "", "compare with the table in this file")
	f.StringVar(&l.dir, "out", "", "directory for matrix.csv, cells.json and index.html")
	return c
}

func (l *labNat) run(c *cobra.Command) error {
	if err := l.check(); err != nil {
		return err
	}
	plan, err := l.Plan()
	if err != nil {
		return usageError{err}
	}
	expect, err := l.expectation(plan)
	if err != nil {
		return err
	}
	if l.dir != "" { // before the work, not after it
		if err := os.MkdirAll(l.dir, 0o755); err != nil {
			return advise(fmt.Errorf("making the directory of --out: %w", err), "--out")
		}
	}
	b, err := labBackend(l.backend)
	if err != nil {
		return err
	}
	if l.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("finding weft's own binary: %w", err)
	}
	p := newProgressLine(l.err)
	l.Progress, l.Samples, l.Replays = p.show, l.dir != "", l.backend == "vnet"
	r, err := plan.Run(c.Context(), b, l.Options)
	p.end()
	if err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	r.Command = commandLine(c)
	if l.expect != "" {
		r.Compare(expect, filepath.Base(l.expect))
	}
	if failed := l.save(r); failed != nil {
		return failed
	}
	if told := l.tell(r); err == nil {
		err = told
	}
	return err
}

// check reads the flags that are words.
func (l *labNat) check() error {
	layouts := 0
	for _, x := range []struct {
		asked  bool
		layout matrix.Layout
	}{
		{l.layout.double == "same", matrix.Double}, {l.layout.double == "different", matrix.DoubleDifferent},
		{l.layout.hairpin, matrix.Hairpin}, {l.layout.shared, matrix.Shared},
	} {
		if x.asked {
			l.Layout = x.layout
			layouts++
		}
	}
	if d := l.layout.double; d != "" && d != "same" && d != "different" {
		return usagef("--double is same or different, not %s", quote(d))
	}
	if layouts > 1 {
		return usagef("--double, --hairpin and --shared are different layouts: give one of them")
	}
	switch l.ports {
	case "random", "sequential", "preserving":
		l.Ports.UnmarshalText([]byte(l.ports)) // one of those that it knows
	default:
		return usagef("--ports is random, sequential or preserving, not %s", quote(l.ports))
	}
	percent, err := strconv.ParseFloat(strings.TrimSpace(strings.TrimSuffix(l.loss, "%")), 64)
	if err != nil || !(percent >= 0 && percent < 100) {
		return usagef("--loss is in percent, at least 0 and less than 100, not %s", quote(l.loss))
	}
	l.Loss = percent / 100
	if l.cell != "" {
		var ok bool
		if l.Row, l.Col, ok = strings.Cut(l.cell, ","); !ok || l.Row == "" || l.Col == "" {
			return usagef("--cell is ROW,COL, for example EIM-EIF,APDM-APDF, not %s", quote(l.cell))
		}
	}
	switch {
	case l.Pool < 1 || l.Pool > matrix.MaxPool:
		return usagef("--pool is 1 to %d, not %d", matrix.MaxPool, l.Pool)
	case l.Jobs < 0 || l.Jobs > maxJobs:
		return usagef("--jobs is at most %d, and 0 for as many as there are processors", maxJobs)
	case l.Seeds < 0 || l.Seeds > maxSeeds:
		return usagef("--seeds is at most %d", maxSeeds)
	case l.Seed > 1<<63:
		return usagef("--seed is at most %d", uint64(1)<<63)
	}
	if l.Jobs == 0 {
		l.Jobs = runtime.GOMAXPROCS(0)
	}
	if l.Seeds == 0 {
		l.Seeds = map[string]int{"netns": netnsSeeds}[l.backend]
		if l.Seeds == 0 {
			l.Seeds = vnetSeeds
		}
	}
	return nil
}

// expectation reads the file of --expect, and sees that it is of this matrix.
func (l *labNat) expectation(plan matrix.Plan) (matrix.Table, error) {
	if l.expect == "" {
		return matrix.Table{}, nil
	}
	f, err := os.Open(l.expect)
	if err != nil {
		return matrix.Table{}, usagef("--expect: %w", err)
	}
	defer f.Close()
	t, err := matrix.ParseTable(f, l.expect)
	if err != nil {
		return matrix.Table{}, usageError{err}
	}
	if err := matrix.NewTable(plan.Rows, plan.Cols).Fits(t); err != nil {
		return matrix.Table{}, usagef("%s is not of this matrix: %w", l.expect, err)
	}
	return t, nil
}

// tell prints the result, and is an error when it is not what it should be.
func (l *labNat) tell(r *matrix.Result) error {
	var err error
	if l.json {
		if err = r.WriteJSON(l.out); err == nil {
			for _, d := range r.Differences {
				fmt.Fprintf(l.err, "not as %s expects: %s\n", r.Expected, d)
			}
		}
	} else {
		err = r.Print(l.out, colours(l.out))
	}
	if err == nil && (len(r.Differences) > 0 || r.Summary.Failed > 0) {
		err = errQuiet
	}
	return err
}

// save writes the files of --out.
func (l *labNat) save(r *matrix.Result) error {
	if l.dir == "" {
		return nil
	}
	for _, x := range []struct {
		name  string
		write func(*os.File) error
	}{
		{"matrix.csv", func(f *os.File) error { _, err := f.Write(r.Table().AppendCSV(nil)); return err }},
		{"cells.json", func(f *os.File) error { return r.WriteJSON(f) }},
		{"index.html", func(f *os.File) error { return report.Write(f, r) }},
	} {
		f, err := os.Create(filepath.Join(l.dir, x.name))
		if err == nil {
			err = errors.Join(x.write(f), f.Close())
		}
		if err != nil {
			return advise(fmt.Errorf("writing %s: %w", x.name, err), "--out")
		}
	}
	fmt.Fprintln(l.err, "written:", filepath.Join(l.dir, "index.html"))
	return nil
}

// commandLine is what makes the same again: the flags that were given, but for those of every command and for where the output goes.
func commandLine(c *cobra.Command) string {
	words := []string{c.CommandPath()}
	c.Flags().Visit(func(f *pflag.Flag) {
		switch {
		case f.Name == "out" || c.InheritedFlags().Lookup(f.Name) != nil:
		case f.Value.Type() == "bool":
			words = append(words, "--"+f.Name)
		case f.Name == "expect":
			path := f.Value.String()
			if filepath.IsAbs(path) { // the page is to be shown to others, this machine's directories are not
				path = filepath.Base(path)
			}
			words = append(words, "--expect "+path)
		case f.NoOptDefVal != "":
			words = append(words, "--"+f.Name+"="+f.Value.String())
		default:
			words = append(words, "--"+f.Name+" "+f.Value.String())
		}
	})
	return strings.Join(words, " ")
}
