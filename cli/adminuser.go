package cli

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"weft/control"
)

func (ad *admin) userCommand() *cobra.Command {
	var end control.ExpireRequest
	expire := &cobra.Command{Use: "expire NAME", Short: "End a user's time, now or in a while, and with it that of the user's machines", Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			u, err := ad.client().ExpireUser(c.Context(), list[0], end)
			return show(ad, u, err, func(u control.UserAnswer) { fmt.Fprintln(ad.out, expiry(u.User.Expires)) })
		}}
	endFlags(expire, &end, "take the end away")

	return group("user", "People that nodes belong to",
		expire,
		&cobra.Command{Use: "create NAME", Short: "Make a user", Args: args(1, 1),
			RunE: func(c *cobra.Command, list []string) error {
				u, err := ad.client().CreateUser(c.Context(), list[0])
				return show(ad, u, err, func(u control.UserAnswer) { fmt.Fprintln(ad.out, u.User.Name) })
			}},
		&cobra.Command{Use: "list", Short: "List the users", Args: noArgs,
			RunE: func(c *cobra.Command, _ []string) error {
				u, err := ad.client().Users(c.Context())
				return show(ad, u, err, func(u control.UsersAnswer) {
					var rows [][]string
					for _, x := range u.Users {
						rows = append(rows, []string{x.Name, userState(x), strconv.Itoa(x.Nodes), dash(x.Issuer), dash(x.Email), date(x.Created), date(x.Expires)})
					}
					ad.table("USER\tSTATE\tNODES\tSIGNS IN AT\tE-MAIL\tCREATED\tEXPIRES", rows)
				})
			}},
		&cobra.Command{Use: "rename NAME NEW", Short: "Give a user another name; nodes and keys go along", Args: args(2, 2),
			RunE: func(c *cobra.Command, list []string) error {
				u, err := ad.client().RenameUser(c.Context(), list[0], list[1])
				return show(ad, u, err, func(u control.UserAnswer) { fmt.Fprintln(ad.out, u.User.Name) })
			}},
		&cobra.Command{Use: "link NAME [ISSUER SUBJECT]", Short: "Have a user be the one who signs in at a provider as SUBJECT, or nobody there", Args: args(1, 3),
			RunE: func(c *cobra.Command, list []string) error {
				var q control.LinkRequest
				if len(list) == 2 {
					return usagef("an identity is an issuer and a subject: give both, or none")
				} else if len(list) == 3 {
					q = control.LinkRequest{Issuer: list[1], Subject: list[2]}
				}
				u, err := ad.client().LinkUser(c.Context(), list[0], q)
				return show(ad, u, err, func(u control.UserAnswer) { fmt.Fprintln(ad.out, dash(u.User.Issuer), dash(u.User.Subject)) })
			}},
		ad.userVerb("disable", "Put a user out, with all untagged machines that are the user's", (*control.AdminClient).DisableUser),
		ad.userVerb("enable", "Take disable back, and an end that has come", (*control.AdminClient).EnableUser),
		&cobra.Command{Use: "remove NAME", Short: "Remove a user who has no nodes", Args: args(1, 1),
			RunE: func(c *cobra.Command, list []string) error {
				d, err := ad.client().RemoveUser(c.Context(), list[0])
				return show(ad, d, err, func(control.DoneAnswer) { fmt.Fprintln(ad.out, "removed") })
			}},
	)
}

// userVerb is a command that does one thing to one user.
func (ad *admin) userVerb(verb, short string, f func(*control.AdminClient, context.Context, string) (control.UserAnswer, error)) *cobra.Command {
	return &cobra.Command{Use: verb + " NAME", Short: short, Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			u, err := f(ad.client(), c.Context(), list[0])
			return show(ad, u, err, func(u control.UserAnswer) { fmt.Fprintln(ad.out, userState(u.User)) })
		}}
}

func userState(u control.UserInfo) string {
	switch {
	case !u.Disabled.IsZero():
		return "disabled"
	case !u.Active:
		return "expired"
	}
	return "active"
}

// endFlags are those of commands that move an end.
func endFlags(c *cobra.Command, r *control.ExpireRequest, never string) {
	c.Flags().DurationVar(&r.In, "in", 0, "how long from now")
	c.Flags().BoolVar(&r.Never, "never", false, never)
}

// expiry says of an end what it is now.
func expiry(at time.Time) string {
	if at.IsZero() {
		return "never expires"
	}
	return "expires " + date(at)
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
