package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weft"
	"weft/control"
)

// errServerNotRunning is what admin commands fail with when no server listens on the socket.
var errServerNotRunning = errors.New("no weft server runs there")

// adminSocket is the server's admin socket in its directory.
const adminSocket = "admin.sock"

// An admin is the server's directory, and through it its socket.
type admin struct {
	*app
	dir string
}

func (a *app) adminCommand() *cobra.Command {
	ad := &admin{app: a}
	c := &cobra.Command{
		Use:   "admin",
		Short: "Administer the server of this machine: users, join keys, nodes, relays, names",
		Args:  noArgs,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.PersistentFlags().StringVar(&ad.dir, "data", "/var/lib/weft-server", "the server's directory")
	c.AddCommand(ad.backupCommand(), ad.restoreCommand(), ad.statusCommand(), ad.userCommand(), ad.keyCommand(), ad.nodeCommand(), ad.relayCommand(),
		ad.routeCommand(), ad.dnsCommand(), ad.policyCommand())
	return c
}

func (ad *admin) client() *control.AdminClient {
	return control.NewAdminClient(filepath.Join(ad.dir, adminSocket))
}

// notRunning marks an error that means that there is no server, for the exit code.
func notRunning(err error) error {
	if weft.CodeOf(err) == weft.CodeUnavailable && strings.HasPrefix(err.Error(), "no weft server runs") {
		return runningError{err}
	}
	return err
}

type runningError struct{ error }

func (e runningError) Is(target error) bool { return target == errServerNotRunning }
func (e runningError) Unwrap() error        { return e.error }

// show prints a document, as JSON or as a person reads it.
func show[T any](ad *admin, doc T, err error, print func(T)) error {
	if err != nil {
		return notRunning(err)
	}
	if ad.json {
		return ad.printJSON(doc)
	}
	print(doc)
	return nil
}

// table prints rows under a heading.
func (a *app) table(heading string, rows [][]string) {
	t := tabwriter.NewWriter(a.out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, heading)
	for _, r := range rows {
		fmt.Fprintln(t, strings.Join(r, "\t"))
	}
	t.Flush()
}

// group is a command that only has subcommands.
func group(use, short string, commands ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Args: noArgs, RunE: func(c *cobra.Command, _ []string) error { return c.Help() }}
	c.AddCommand(commands...)
	return c
}

// withoutPolicy is what holds until somebody says who may reach whom.
const withoutPolicy = "a user's own machines reach each other, and nothing else reaches anything"

func (ad *admin) statusCommand() *cobra.Command {
	return &cobra.Command{Use: "status", Short: "Show how the server is", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := ad.client().Status(c.Context())
			return show(ad, s, err, func(s control.Status) {
				fmt.Fprintf(ad.out, "%s  weft %s\nkey       %s\nranges    %s, %s\nnodes     %d, %d online\nusers     %d\nrelays    %d\n",
					s.URL, s.Version, s.Key, s.IPv4, s.IPv6, s.Nodes, s.Online, s.Users, s.Relays)
				if s.Policy == control.DefaultPolicy {
					fmt.Fprintf(ad.out, "policy    none is set: %s (weft admin policy edit)\n", withoutPolicy)
				} else {
					fmt.Fprintf(ad.out, "policy    revision %s\n", s.Policy)
				}
				for _, p := range s.Problems {
					fmt.Fprintf(ad.out, "! %s\n", p)
				}
			})
		}}
}

func (ad *admin) keyCreateCommand() *cobra.Command {
	var r control.KeyRequest
	create := &cobra.Command{
		Use:   "create",
		Short: "Make a join key and print its token, this once",
		Long:  "Make a join key and print its token, this once: the server keeps a hash of it. Without --reusable it lets one machine in.",
		Args:  noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if r.Lifetime < 0 || c.Flags().Changed("expires") && r.Lifetime == 0 {
				return usagef("--expires must be above zero, for example 24h")
			}
			if r.NodeLifetime < 0 || c.Flags().Changed("node-expires") && r.NodeLifetime == 0 {
				return usagef("--node-expires must be above zero, for example 2160h")
			}
			k, err := ad.client().CreateKey(c.Context(), r)
			return show(ad, k, err, func(k control.KeyAnswer) { fmt.Fprintln(ad.out, k.Token) })
		},
	}
	f := create.Flags()
	f.StringVar(&r.User, "user", "", "whose the nodes will be")
	f.StringSliceVar(&r.Tags, "tag", nil, "tag of the nodes; may be given several times")
	f.BoolVar(&r.Reusable, "reusable", false, "for any number of machines")
	f.BoolVar(&r.Ephemeral, "ephemeral", false, "nodes vanish a minute after they leave")
	f.BoolVar(&r.Relay, "relay", false, "for a stand-alone relay (weft relay)")
	f.BoolVar(&r.Approved, "approved", false, "nodes need no approval (weft server --approve)")
	f.DurationVar(&r.NodeLifetime, "node-expires", 0, "after how long nodes have to join again with a new token, for example 2160h (default never)")
	f.DurationVar(&r.Lifetime, "expires", 0, "how long it lets machines in, for example 24h (default for ever)")
	return create
}

func (ad *admin) keyCommand() *cobra.Command {
	var in time.Duration
	expire := &cobra.Command{Use: "expire ID", Short: "Let a join key end, now or in a while", Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			id, err := keyID(list[0])
			if err != nil {
				return err
			}
			k, err := ad.client().ExpireKey(c.Context(), id, control.ExpireRequest{In: in})
			return show(ad, k, err, func(k control.KeyAnswer) { fmt.Fprintln(ad.out, k.Key.State) })
		}}
	expire.Flags().DurationVar(&in, "in", 0, "how long from now")

	return group("key", "Join keys, which let machines in",
		ad.keyCreateCommand(), expire,
		&cobra.Command{Use: "list", Short: "List the join keys", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				k, err := ad.client().Keys(c.Context())
				return show(ad, k, err, func(k control.KeysAnswer) {
					var rows [][]string
					for _, x := range k.Keys {
						rows = append(rows, []string{strconv.Itoa(int(x.ID)), string(x.State), x.User, keyKind(x),
							strings.Join(x.Tags, ","), strconv.Itoa(int(x.Uses)), date(x.Created), date(x.Expires)})
					}
					ad.table("ID\tSTATE\tUSER\tKIND\tTAGS\tUSES\tCREATED\tEXPIRES", rows)
				})
			}},
		&cobra.Command{Use: "remove ID", Short: "Withdraw a join key; who is in stays in", Args: args(1, 1),
			RunE: func(c *cobra.Command, list []string) error {
				id, err := keyID(list[0])
				if err != nil {
					return err
				}
				d, err := ad.client().RemoveKey(c.Context(), id)
				return show(ad, d, err, func(control.DoneAnswer) { fmt.Fprintln(ad.out, "removed") })
			}},
	)
}

func keyID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil {
		return 0, usagef("%s is no join key's number: `weft admin key list` shows them", quote(s))
	}
	return uint32(n), nil
}

func keyKind(k control.KeyInfo) string {
	var words []string
	for _, w := range []struct {
		is   bool
		word string
	}{{k.Relay, "relay"}, {k.Reusable, "reusable"}, {!k.Reusable, "one-off"}, {k.Ephemeral, "ephemeral"}, {k.Approved, "approved"}} {
		if w.is {
			words = append(words, w.word)
		}
	}
	return strings.Join(words, " ")
}

func (ad *admin) relayCommand() *cobra.Command {
	return group("relay", "Relays of the network",
		&cobra.Command{Use: "list", Short: "List the relays", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				r, err := ad.client().Relays(c.Context())
				return show(ad, r, err, func(r control.RelaysAnswer) {
					var rows [][]string
					for _, x := range r.Relays {
						rows = append(rows, []string{strconv.Itoa(int(x.ID)), x.Name, x.URL, strconv.Itoa(int(x.UDPPort)), yesNo(x.Connected)})
					}
					ad.table("ID\tNAME\tURL\tUDP\tCONNECTED", rows)
				})
			}},
		&cobra.Command{Use: "remove RELAY", Short: "Remove a stand-alone relay", Args: args(1, 1),
			RunE: func(c *cobra.Command, list []string) error {
				d, err := ad.client().RemoveRelay(c.Context(), list[0])
				return show(ad, d, err, func(control.DoneAnswer) { fmt.Fprintln(ad.out, "removed") })
			}},
	)
}

// date is a time as a person reads it, "-" for none.
func date(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04")
}
