package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"weft"
	"weft/control"
	"weft/host"
	"weft/policy"
)

func (ad *admin) policyCommand() *cobra.Command {
	get := &cobra.Command{Use: "get", Short: "Print the policy, or one to begin with where none is set", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := ad.client().Policy(c.Context())
			return show(ad, p, err, func(p control.PolicyAnswer) { fmt.Fprint(ad.out, p.Text) })
		}}
	var revision string
	set := &cobra.Command{Use: "set FILE", Short: "Put a policy in force; - reads standard input", Args: args(1, 1),
		Long: "Put the policy in FILE in force, at once and for all nodes that it changes anything for; - reads standard input. One with unknown\n" +
			"names, or whose own tests fail, changes nothing: what is wrong is printed with line and column, and the exit code is 1. With\n" +
			"--revision (see `weft admin policy get --json`) it is refused, too, if another one was put in force since.",
		RunE: func(c *cobra.Command, list []string) error {
			text, err := ad.readPolicy(list[0])
			if err != nil {
				return err
			}
			p, err := ad.client().SetPolicy(c.Context(), control.PolicyRequest{Text: text, Revision: revision})
			return ad.took(list[0], p, err, "set")
		}}
	set.Flags().StringVar(&revision, "revision", "", "the revision that it is to replace")
	unset := &cobra.Command{Use: "unset", Short: "Take the policy away: only a user's own machines reach each other then", Args: noArgs,
		Long: "Take the policy away, at once and for all nodes: from then on a user's own untagged machines reach each other, and nothing else reaches\n" +
			"anything. `weft admin policy get` prints what there was before; keep it. With --revision it is refused if another one was put in\n" +
			"force since. Exit code 1 when none is set.",
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := ad.client().UnsetPolicy(c.Context(), control.PolicyRequest{Revision: revision})
			return show(ad, p, err, func(control.PolicyAnswer) {
				fmt.Fprintf(ad.out, "unset: %s\n", weft.WithoutPolicy)
			})
		}}
	unset.Flags().StringVar(&revision, "revision", "", "the revision that it is to take away")
	check := &cobra.Command{Use: "check FILE", Short: "Say what is wrong with a policy, and change nothing", Args: args(1, 1),
		Long: "Say what is wrong with the policy in FILE, with line and column, and change nothing; - reads standard input. Its names are held\n" +
			"against the users that the server has, and its own tests are made. Exit code 0 when it could be set, 1 when not.",
		RunE: func(c *cobra.Command, list []string) error {
			text, err := ad.readPolicy(list[0])
			if err != nil {
				return err
			}
			p, err := ad.client().CheckPolicy(c.Context(), control.PolicyRequest{Text: text})
			return ad.took(list[0], p, err, "could be set")
		}}
	edit := &cobra.Command{Use: "edit", Short: "Change the policy with $VISUAL or $EDITOR", Args: noArgs,
		Long: "Open the policy in $VISUAL, $EDITOR or vi, and put in force what comes of it. Where that does not do, or somebody else was quicker,\n" +
			"nothing is changed and the text is kept in a file.",
		RunE: func(c *cobra.Command, _ []string) error { return ad.editPolicy(c.Context()) }}
	explain := &cobra.Command{Use: "explain FROM TO [PROTO:PORT]", Short: "Say whether one node may reach another, and by which rule", Args: args(2, 3),
		Long: "Say whether FROM may reach TO, and which rule of the policy says so. Each is a node's name or number, or an address: a node's, or one\n" +
			"behind it. Without PROTO:PORT, for example tcp:22 or icmp, all that is allowed is listed. Exit code 0 when it may, 1 when not.",
		RunE: func(c *cobra.Command, list []string) error {
			r := control.ExplainRequest{From: list[0], To: list[1]}
			if len(list) == 3 {
				r.Port = list[2]
				if _, err := weft.ParsePortRange(r.Port); err != nil {
					return usagef("%w", err)
				}
			}
			e, err := ad.client().ExplainPolicy(c.Context(), r)
			if err = show(ad, e, err, ad.printVerdict); err == nil && !e.Allowed {
				err = errQuiet
			}
			return err
		}}
	return group("policy", "Who may reach whom", get, set, unset, check, edit, explain)
}

// printVerdict says whether, and where no port was asked for, what.
func (ad *admin) printVerdict(e control.ExplainAnswer) {
	fmt.Fprintln(ad.out, e.Message)
	if e.Port != "" {
		return
	}
	var rows [][]string
	for _, r := range e.Rules {
		ports := "everything"
		if len(r.Ports) > 0 {
			var words []string
			for _, p := range r.Ports {
				words = append(words, p.String())
			}
			ports = strings.Join(words, " ")
		}
		rows = append(rows, []string{ports, r.Why})
	}
	if len(rows) > 0 {
		ad.table("WHAT\tRULE", rows)
	}
}

// readPolicy reads a policy's text.
func (ad *admin) readPolicy(name string) (string, error) {
	text, err := readDocument(ad.in, "the policy", name, policy.MaxText)
	return string(text), err
}

// took says what the server made of a policy.
func (ad *admin) took(name string, p control.PolicyAnswer, err error, done string) error {
	if err != nil {
		return notRunning(err)
	}
	refused := policy.Refused(p.Problems)
	if ad.json {
		if err := ad.printJSON(p); err != nil || !refused {
			return err
		}
		return errQuiet
	}
	if name == "-" {
		name = "(standard input)"
	}
	for _, problem := range p.Problems {
		warning := ""
		if problem.Warning {
			warning = "warning: "
		}
		fmt.Fprintf(ad.err, "%s:%d:%d: %s%s\n", name, problem.Line, problem.Column, warning, oneLine(problem.Message))
	}
	if refused {
		return errQuiet
	}
	fmt.Fprintf(ad.out, "%s, revision %s\n", done, p.Revision)
	return nil
}

// editPolicy has a person change the policy.
func (ad *admin) editPolicy(ctx context.Context) error {
	now, err := ad.client().Policy(ctx)
	if err != nil {
		return notRunning(err)
	}
	f, err := os.CreateTemp("", "weft-policy-*.hujson") // for this user alone, by its mode
	if err != nil {
		return fmt.Errorf("making a file to edit: %w", err)
	}
	name := f.Name()
	_, err = f.WriteString(now.Text)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("writing the policy to %s: %w", name, err)
	}
	kept := func(err error) error { return fmt.Errorf("%w; nothing was changed, and your text is in %s", err, name) }
	for {
		if err := host.Foreground(append(editor(), name)...); err != nil {
			return kept(fmt.Errorf("the editor failed: %w", err))
		}
		text, err := ad.readPolicy(name)
		if err != nil {
			return kept(err)
		}
		if text == now.Text {
			fmt.Fprintln(ad.out, "nothing changed")
			return os.Remove(name)
		}
		p, err := ad.client().SetPolicy(ctx, control.PolicyRequest{Text: text, Revision: now.Revision})
		if err != nil {
			return kept(notRunning(err))
		}
		if err := ad.took(name, p, nil, "set"); err == nil {
			return os.Remove(name)
		} else if !ad.again() {
			if ad.json {
				return err
			}
			return kept(fmt.Errorf("the policy has problems"))
		}
	}
}

// again asks whether to edit once more, where there is somebody to ask.
func (ad *admin) again() bool {
	in, ok := ad.in.(*os.File)
	if ad.json || !ok || !isTerminal(in) || !isTerminal(ad.out) {
		return false
	}
	fmt.Fprint(ad.out, "Edit again? [Y/n] ")
	answer, err := bufio.NewReader(in).ReadString('\n')
	return err == nil && !strings.HasPrefix(strings.ToLower(strings.TrimSpace(answer)), "n")
}

// editor is the program that the person edits with, and its arguments.
func editor() []string {
	for _, name := range []string{"VISUAL", "EDITOR"} {
		if words := strings.Fields(os.Getenv(name)); len(words) > 0 {
			return slices.Clip(words)
		}
	}
	return []string{"vi"}
}
