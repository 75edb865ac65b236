package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"weft"
	"weft/node"
)

func (a *app) upCommand() *cobra.Command {
	var r node.UpRequest
	c := &cobra.Command{
		Use:   "up [TOKEN|https://SERVER]",
		Short: "Bring the network up here, joining it first if there is a token",
		Long: "Bring the network up on this machine, joining it first if there is a token.\n\nTOKEN is a " + tokenHelp + `.
Of a server where people sign in its address will do. Where somebody has to sign in, it prints an address to open in a
browser, on this machine or another one, and waits until that has happened.

Exit code 0 when it is up, 1 when the server refuses this machine or is not reached within 15 s - the daemon goes
on trying, ` + "`weft status`" + ` says how it stands -, 3 when there is no daemon.`,
		Args: args(0, 1),
		RunE: func(c *cobra.Command, list []string) (err error) {
			arg := ""
			if len(list) > 0 {
				arg = list[0]
			}
			if strings.HasPrefix(arg, "https://") || strings.HasPrefix(arg, "http://") {
				r.Token, err = askForToken(c.Context(), arg)
			} else {
				r.Token, err = a.readToken(arg, len(list) > 0)
			}
			if err != nil {
				return err
			}
			err = a.client().Up(c.Context(), r)
			if weft.CodeOf(err) == weft.CodeSignIn && !a.json {
				err = a.awaitSignIn(c.Context())
			}
			if err != nil {
				return err
			}
			s, err := a.client().Status(c.Context())
			if err != nil {
				return err
			}
			if a.json {
				return a.printJSON(s)
			}
			_, err = fmt.Fprintf(a.out, "up: %s (%s)\n", s.Self.FQDN, joinAddrs(s.Self.Addrs))
			return err
		},
	}
	c.Flags().StringVar(&r.Name, "name", "", "name to join under (default the host's)")
	return c
}

func (a *app) downCommand() *cobra.Command {
	var state, tun string
	c := &cobra.Command{
		Use: "down", Short: "Take the network away here; the machine stays a member", Args: noArgs,
		Long: `Take the network away on this machine, which stays a member.

Where the daemon was killed, what it left changed is put back, and named: the system's resolver, routes and rules, a portal. (So does
the daemon's next start.) Name its --state and --tun if it had others than usual.

Exit code 0 when the network is away, 3 when there is no daemon and nothing that one left.`,
		RunE: func(c *cobra.Command, _ []string) error {
			err := a.client().Down(c.Context())
			if errors.Is(err, node.ErrNotRunning) {
				if state == "" {
					state = defaultState()
				}
				left, e := node.Repair(state, tun)
				switch {
				case e != nil:
					return e
				case len(left) > 0:
					return a.isDown("no daemon runs; what a killed one left changed on this machine is put back: "+strings.Join(left, ", "), left)
				}
			}
			if err != nil {
				return err
			}
			return a.isDown("down: `weft up` brings it back", nil)
		},
	}
	c.Flags().StringVar(&state, "state", "", "state directory of a daemon that was killed (default /var/lib/weft, or below the home directory without root)")
	c.Flags().StringVar(&tun, "tun", "weft0", "its interface")
	return c
}

// downDoc is what weft down --json prints.
type downDoc struct {
	Schema  int      `json:"schema_version"`
	OK      bool     `json:"ok"`
	PutBack []string `json:"put_back,omitempty"` // what a daemon that was killed had left changed
}

func (a *app) isDown(sentence string, left []string) error {
	if a.json {
		return a.printJSON(downDoc{weft.SchemaVersion, true, left})
	}
	_, err := fmt.Fprintln(a.out, sentence)
	return err
}

func (a *app) rotateCommand() *cobra.Command {
	return &cobra.Command{
		Use: "rotate", Short: "Give this node another key; name and addresses stay", Args: noArgs,
		Long: `Give this node another key. Its number, name and addresses stay. The server tells the peers, which takes about a second, in
which the network is gone here; connections survive it. The old key is good for nothing any more.

Exit code 0 when it is done, 1 when the server is not reached - then the key is as it was -, 3 when there is no daemon.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.client().Rotate(c.Context()); err != nil {
				return err
			}
			return a.done("this node has another key")
		},
	}
}

func (a *app) logoutCommand() *cobra.Command {
	return &cobra.Command{
		Use: "logout", Short: "Leave the network for good", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := a.client().Logout(c.Context()); err != nil {
				return err
			}
			return a.done("this machine has left its network")
		},
	}
}

// done prints that a command did what it was told.
func (a *app) done(sentence string) error {
	if a.json {
		return a.printJSON(struct {
			Schema int  `json:"schema_version"`
			OK     bool `json:"ok"`
		}{weft.SchemaVersion, true})
	}
	_, err := fmt.Fprintln(a.out, sentence)
	return err
}

func joinAddrs(addrs []netip.Addr) string {
	list := make([]string, len(addrs))
	for i, x := range addrs {
		list[i] = x.String()
	}
	return strings.Join(list, ", ")
}
