package cli

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"weft/golden"
)

// The table of commands in the README stands between these lines, as the commands describe themselves.
const (
	readme         = "../README.md"
	commandsBegin  = "<!-- commands: `go test ./cli -run TestTheReadme -update` writes this table -->\n"
	commandsFinish = "<!-- end of commands -->\n"
)

// commandTable lists the commands; those below a group that has no groups below it share a row.
func commandTable(root *cobra.Command) string {
	var b strings.Builder
	b.WriteString("| command | what it does |\n| --- | --- |\n")
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" {
			return
		}
		var names []string
		flat := true
		for _, sub := range c.Commands() {
			if !sub.Hidden {
				names = append(names, "`"+sub.Name()+"`")
				flat = flat && !sub.HasAvailableSubCommands()
			}
		}
		switch {
		case c.HasAvailableSubCommands() && !flat:
			for _, sub := range c.Commands() {
				visit(sub)
			}
		case len(names) > 0:
			fmt.Fprintf(&b, "| `%s` %s | %s |\n", c.CommandPath(), strings.Join(names, ", "), c.Short)
		default:
			line := strings.TrimSuffix(c.UseLine(), " [flags]")
			fmt.Fprintf(&b, "| `%s` | %s |\n", strings.ReplaceAll(line, "|", `\|`), c.Short)
		}
	}
	for _, c := range root.Commands() {
		visit(c)
	}
	return b.String()
}

func TestTheReadmeListsTheCommandsThatThereAre(t *testing.T) {
	text, err := os.ReadFile(readme)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, begins := strings.Cut(string(text), commandsBegin)
	got, after, ends := strings.Cut(rest, commandsFinish)
	if !begins || !ends {
		t.Fatalf("%s has no place for the table of commands:\n%s%s", readme, commandsBegin, commandsFinish)
	}
	want := commandTable((&app{}).root())
	if golden.Updating() {
		if err := os.WriteFile(readme, []byte(before+commandsBegin+want+commandsFinish+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(got, "\n")); diff != "" {
		t.Errorf("the README's table of commands is another (-want +got): go test ./cli -run TestTheReadme -update\n%s", diff)
	}
}
