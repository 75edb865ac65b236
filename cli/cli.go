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
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"weft"
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
	var usage usageError
	switch {
	case err == nil:
		return ExitOK
	case errors.Is(err, errQuiet):
		return ExitFailed
	case errors.As(err, &usage), strings.HasPrefix(err.Error(), "unknown command"):
		fmt.Fprintf(errw, "weft: %v\n", err)
		return ExitUsage
	case errors.Is(err, node.ErrNotRunning), errors.Is(err, errServerNotRunning):
		fmt.Fprintf(errw, "weft: %v\n", err)
		return ExitNotRunning
	}
	fmt.Fprintf(errw, "weft: %v\n", err)
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
		SilenceUsage: true, SilenceErrors: true,
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		return usagef("%w (see `%s --help`)", err, c.CommandPath())
	})
	f := root.PersistentFlags()
	f.BoolVar(&a.json, "json", false, "print one JSON document")
	f.StringVar(&a.socket, "socket", node.DefaultSocket, "the daemon's socket")
	f.BoolVarP(&a.verbose, "verbose", "v", false, "log what happens in detail")
	root.AddCommand(
		a.serverCommand(), a.adminCommand(), a.relayCommand(), a.nodeCommand(),
		a.upCommand(), a.downCommand(), a.logoutCommand(),
		a.statusCommand(), a.pingCommand(), a.netcheckCommand(), a.setCommand(),
		a.labCommand(), a.benchCommand(), a.versionCommand(),
	)
	return root
}

// args wraps a check of positional arguments so that a miss is a usage error.
func args(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(c *cobra.Command, list []string) error {
		if err := check(c, list); err != nil {
			return usagef("%w (usage: %s)", err, c.UseLine())
		}
		return nil
	}
}

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

// printJSON prints one document.
func (a *app) printJSON(v any) error {
	e := json.NewEncoder(a.out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (a *app) versionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Print the version", Args: args(cobra.NoArgs),
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
