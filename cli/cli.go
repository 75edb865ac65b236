// Package cli is the command line: one command, one file. It alone assembles roles out of rooms; what a
// command does is done elsewhere.
//
// The contract that scripts rely on: results on standard output, everything else on standard error; --json
// prints one document with a schema_version; and the exit codes below.
package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"weft"
	"weft/control/store"
	"weft/node"
)

// Exit codes.
const (
	ExitOK         = 0 // yes
	ExitFailed     = 1 // no, or it failed
	ExitUsage      = 2 // the command line makes no sense
	ExitNotRunning = 3 // there is no daemon, or no server, to ask
)

// A usageError is a command line that makes no sense.
type usageError struct{ err error }

func (e usageError) Error() string { return e.err.Error() }
func (e usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

// errQuiet ends a command with ExitFailed when its output has said why.
var errQuiet = errors.New("failed")

// An app is one run of the command line.
type app struct {
	in       io.Reader
	out, err io.Writer
	json     bool
	socket   string
	verbose  bool
}

// Main runs the command line and returns its exit code.
func Main(args []string, in io.Reader, out, errw io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	a := &app{in: in, out: out, err: errw}
	root := a.root()
	root.SetArgs(args)
	err := root.ExecuteContext(ctx)
	code := exitCode(err)
	if code == ExitFailed && ctx.Err() != nil && errors.Is(err, context.Canceled) {
		err = errors.New("interrupted")
	}
	if err != nil && !errors.Is(err, errQuiet) {
		fmt.Fprintf(errw, "weft: %s\n", oneLine(err.Error()))
	}
	return code
}

// oneLine makes what may be several errors, and may quote a damaged file, fit for a line on a terminal.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, strings.ReplaceAll(s, "\n", "; "))
}

// advise adds what to do to an error of a directory that was given by a flag, where the error does not say it.
func advise(err error, flag string) error {
	switch {
	case err == nil, strings.Contains(err.Error(), flag), strings.Contains(err.Error(), "free some space"):
		return err
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT), errors.Is(err, store.ErrFull):
		return fmt.Errorf("the disk is full: free some space and start again, nothing is lost (%w)", err)
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: run as the user that the directory belongs to, or choose another with %s", err, flag)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: choose another directory with %s", err, flag)
	}
	return err
}

// exitCode is what a script hears of an error.
func exitCode(err error) int {
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.As(err, &usage):
		return ExitUsage
	case errors.Is(err, node.ErrNotRunning), errors.Is(err, errServerNotRunning):
		return ExitNotRunning
	}
	return ExitFailed
}

func (a *app) root() *cobra.Command {
	root := &cobra.Command{
		Use:   "weft",
		Short: "A private network between your machines, hosted by yourself",
		Long: `weft joins your machines into one private network: each reaches every other by name, over WireGuard,
directly wherever the NATs in between allow it and through your own relay where they don't.

  weft server --data DIR          on one machine that the others can reach
  weft node --token TOKEN         on each machine (the server prints the line)
  weft status                     who is there, and how they are reached

Exit codes: 0 yes, 1 no or failed, 2 usage, 3 not running.`,
		Args:         noArgs,
		RunE:         func(c *cobra.Command, _ []string) error { return c.Help() },
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(flagError)
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print one JSON document")
	f.StringVar(&a.socket, "socket", node.DefaultSocket, "the daemon's socket")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "log what happens in detail")
	root.AddCommand(
		a.serverCommand(), a.adminCommand(), a.relayCommand(), a.nodeCommand(),
		a.upCommand(), a.downCommand(), a.rotateCommand(), a.logoutCommand(),
		a.statusCommand(), a.pathsCommand(), a.explainCommand(), a.pingCommand(), a.netcheckCommand(), a.setCommand(), a.portalCommand(), a.metricsCommand(),
		a.labCommand(), a.benchCommand(), a.versionCommand(),
	)
	root.InitDefaultHelpCmd()
	root.InitDefaultCompletionCmd()
	for _, c := range root.Commands() {
		switch c.Name() {
		case "help": // of something that there is not, it says so and all is well
			c.Args = func(_ *cobra.Command, list []string) error {
				if found, rest, err := root.Find(list); err != nil || len(rest) > 0 {
					return usagef("there is no help for %s: `%s --help` lists the commands", quote(strings.Join(list, " ")), found.CommandPath())
				}
				return nil
			}
		case "completion":
			c.Short = "Print a script that has a shell complete weft's commands"
			c.Long = c.Short + ", for example: source <(weft completion bash)"
			c.Args = noArgs
			c.RunE = func(c *cobra.Command, _ []string) error { return c.Help() }
			for _, shell := range c.Commands() {
				shell.Args = noArgs
			}
		}
	}
	return root
}

// flagError makes a usage error of what pflag says. Of a value that is none it goes on to quote the parser.
func flagError(c *cobra.Command, err error) error {
	said := err.Error()
	var value interface{ GetValue() string } // pflag.InvalidValueError
	if errors.As(err, &value) {
		said, _, _ = strings.Cut(said, " flag: ")
		said = strings.Replace(said, strconv.Quote(value.GetValue()), quote(value.GetValue()), 1)
	} else if len(said) > 2*maxQuoted {
		said = "that is no flag, and if it was meant to be a token, then that one is cut: copy it again, whole"
	}
	return usagef("%s (see `%s --help`)", said, c.CommandPath())
}

// maxQuoted is the longest word of a command line that is repeated whole, in bytes. A longer one may be a token in
// the wrong place, or a part of one: a secret.
const maxQuoted = 40

func quote(word string) string {
	if len(word) > maxQuoted {
		return fmt.Sprintf("%q...", word[:4])
	}
	return strconv.Quote(word)
}

// args checks the number of positional arguments, of which the first ones must be there.
func args(least, most int) cobra.PositionalArgs {
	return func(c *cobra.Command, list []string) error {
		switch {
		case len(list) < least:
			return usagef("something is missing: %s", c.UseLine())
		case len(list) > most && c.HasAvailableSubCommands():
			return usagef("there is no %s in `%s` (see `%s --help`)", quote(list[0]), c.CommandPath(), c.CommandPath())
		case len(list) > most:
			return usagef("%s is one word too many: %s", quote(list[most]), c.UseLine())
		}
		return nil
	}
}

var noArgs = args(0, 0)

// client speaks to the daemon.
func (a *app) client() *node.Client { return node.NewClient(a.socket) }

// logger writes to standard error: warnings and what changed, or with --verbose everything.
func (a *app) logger() *slog.Logger {
	level := slog.LevelInfo
	if a.verbose {
		level = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: level}))
}

// printJSON prints one document, for a person to look at, too.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printLine prints one of several documents, in a line of its own (JSON Lines).
func (a *app) printLine(v any) error { return json.NewEncoder(a.out).Encode(v) }

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: noArgs,
		RunE: func(*cobra.Command, []string) error {
			if a.json {
				return a.printJSON(struct {
					Schema  int    `json:"schema_version"`
					Version string `json:"version"`
				}{weft.SchemaVersion, weft.Version})
			}
			_, err := fmt.Fprintln(a.out, "weft", weft.Version)
			return err
		},
	}
}
