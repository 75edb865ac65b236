package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft"
	"weft/lab/scenario"
	"weft/node"
)

// labRun is one weft lab run.
type labRun struct {
	*app
	backend, dir string
	seed         uint64
	show         bool
}

func (a *app) labRunCommand() *cobra.Command {
	l := &labRun{app: a}
	c := &cobra.Command{
		Use:   "run [SCENARIO]",
		Short: "Run a scenario: a network, what happens to it, and what is expected",
		Long: `Run a scenario: a small text that says which networks, NATs and hosts there are, what happens to them, and what
weft, or any other program, is expected to make of it. SCENARIO is the name of one that comes with weft, or a file
(with a dot or a slash in its name). Without SCENARIO, those that come with weft are listed; --show prints one, to
begin a scenario of your own with.

  --backend vnet    weft's path discovery in virtual time: milliseconds, and the same again with the same seed
  --backend netns   the whole program, and programs of others, in network namespaces of this machine (needs root)

With --out, DIR gets result.json, timeline.txt (events, changes of path, and what became of every packet), the scenario
itself, and each machine's log.

Exit code 0 when all is as expected, 1 when it is not or could not be run, 2 when the command line or the scenario makes
no sense.`,
		Args: args(0, 1),
		RunE: func(c *cobra.Command, list []string) error {
			if len(list) == 0 {
				return l.list()
			}
			return l.run(c, list[0])
		},
	}
	f := c.Flags()
	f.StringVar(&l.backend, "backend", "vnet", "vnet or netns")
	f.Uint64Var(&l.seed, "seed", 1, "seed of all that is random")
	f.StringVar(&l.dir, "out", "", "directory for result.json, timeline.txt and logs")
	f.BoolVar(&l.show, "show", false, "print the scenario instead of running it")
	return c
}

// list names the scenarios that come with weft.
func (l *labRun) list() error {
	type entry struct {
		Name  string `json:"name"`
		About string `json:"about"`
	}
	var entries []entry
	for _, name := range scenario.Shipped() {
		s, _, err := scenario.Open(name)
		if err != nil {
			return err
		}
		entries = append(entries, entry{name, strings.ReplaceAll(s.About, "\n", " ")})
	}
	if l.json {
		return l.printJSON(struct {
			Schema    int     `json:"schema_version"`
			Scenarios []entry `json:"scenarios"`
		}{weft.SchemaVersion, entries})
	}
	for _, e := range entries {
		fmt.Fprintf(l.out, "%s\n    %s\n", e.Name, e.About)
	}
	return nil
}

func (l *labRun) run(c *cobra.Command, name string) error {
	s, text, err := scenario.Open(name)
	if err != nil {
		return l.unreadable(name, err)
	}
	if l.show {
		if l.json {
			return usagef("--show prints the scenario's text, which is no JSON: leave one of the two out")
		}
		_, err := l.out.Write(text)
		return err
	}
	if mistakes := checkCommands(name, s); len(mistakes) > 0 {
		return l.unreadable(name, mistakes)
	}
	b, err := labBackend(l.backend)
	if err != nil {
		return err
	}
	o := scenario.Options{Seed: l.seed, KeepTrace: l.dir != "", Log: func(sentence string) { fmt.Fprintln(l.err, sentence) }}
	if o.Binary, err = os.Executable(); err != nil {
		return fmt.Errorf("finding weft's own binary: %w", err)
	}
	if l.dir != "" { // before the work, not after it
		o.Dir = filepath.Join(l.dir, "logs")
		if err := os.MkdirAll(o.Dir, 0o755); err != nil {
			return advise(fmt.Errorf("making the directory of --out: %w", err), "--out")
		}
	}
	r, err := b.Run(c.Context(), s, o)
	var unsupported *scenario.Unsupported
	switch {
	case errors.As(err, &unsupported):
		return fmt.Errorf("%s: %w", name, err)
	case err != nil:
		return err
	}
	if err := l.save(s, text, r); err != nil {
		return err
	}
	if err := l.tell(r); err != nil {
		return err
	}
	if !r.OK {
		return errQuiet
	}
	return nil
}

// checkCommands holds what a scenario says to weft against weft's own commands, before anything is laid out.
func checkCommands(name string, s scenario.Scenario) (mistakes scenario.Errors) {
	list := slices.Clone(s.Commands)
	for _, e := range s.Events {
		if e.Verb == scenario.Weft {
			list = append(list, e.Command())
		}
	}
	for _, c := range list {
		root := (&app{in: strings.NewReader(""), out: io.Discard, err: io.Discard}).root()
		found, rest, err := root.Find(c.Args)
		if err == nil {
			if err = found.ParseFlags(rest); err != nil {
				err = flagError(found, err)
			}
		}
		if err == nil {
			err = found.ValidateArgs(found.Flags().Args())
		}
		if err == nil && found.CommandPath() == "weft set" {
			err = changeSettings(new(node.Settings), found.Flags().Args())
		}
		if err != nil {
			mistakes = append(mistakes, &scenario.Error{Name: name, Line: c.Line, Problem: fmt.Sprintf("%v: %v", c, err)})
		}
	}
	return mistakes
}

// unreadable is why a scenario cannot be run: each mistake is told in a line of its own.
func (l *labRun) unreadable(name string, err error) error {
	var mistakes scenario.Errors
	switch {
	case errors.As(err, &mistakes) && len(mistakes) > 1:
		for _, m := range mistakes {
			fmt.Fprintln(l.err, oneLine(m.Error()))
		}
		return usagef("%s cannot be run: there are mistakes in it, the first ones are above", name)
	case errors.Is(err, fs.ErrPermission):
		return err
	}
	return usageError{err}
}

// tell prints the result.
func (l *labRun) tell(r scenario.Result) error {
	if !l.json {
		return r.Print(l.out)
	}
	r.Trace = nil // it has its place in --out: thousands of packets are nothing for a pipe
	return l.printJSON(newScenarioResult(r))
}

// A scenarioResult is what --json prints, and result.json holds.
type scenarioResult struct {
	Schema int `json:"schema_version"`
	scenario.Result
}

func newScenarioResult(r scenario.Result) scenarioResult {
	r.Pairs = append([]scenario.PairResult{}, r.Pairs...) // a list, even of none
	r.Outcomes = append([]scenario.Outcome{}, r.Outcomes...)
	return scenarioResult{weft.SchemaVersion, r}
}

// save writes the files of --out.
func (l *labRun) save(s scenario.Scenario, text []byte, r scenario.Result) error {
	if l.dir == "" {
		return nil
	}
	write := func(name string, f func(*os.File) error) error {
		file, err := os.Create(filepath.Join(l.dir, name))
		if err == nil {
			err = errors.Join(f(file), file.Close())
		}
		if err != nil {
			return advise(fmt.Errorf("writing %s: %w", name, err), "--out")
		}
		return nil
	}
	plain := func(b []byte) func(*os.File) error {
		return func(f *os.File) error { _, err := f.Write(b); return err }
	}
	if err := write(s.Name+scenario.Ext, plain(text)); err != nil {
		return err
	}
	for host, log := range r.Logs {
		if err := write(filepath.Join("logs", host+".log"), plain([]byte(log))); err != nil {
			return err
		}
	}
	if err := write("timeline.txt", func(f *os.File) error { return scenario.WriteTimeline(f, s, r) }); err != nil {
		return err
	}
	err := write("result.json", func(f *os.File) error {
		e := json.NewEncoder(f)
		e.SetIndent("", "  ")
		return e.Encode(newScenarioResult(r))
	})
	if err == nil {
		fmt.Fprintln(l.err, "written:", filepath.Join(l.dir, "timeline.txt"))
	}
	return err
}
