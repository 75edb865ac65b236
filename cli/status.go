package cli

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"weft"
)

// watchEvery is how often --watch looks again.
const watchEvery = time.Second

func (a *app) statusCommand() *cobra.Command {
	var watch bool
	c := &cobra.Command{
		Use:   "status",
		Short: "Show this node, its peers and how each is reached",
		Long: `Show this node, its peers and how each is reached. Exit code 0 when the network is up, 1 when it is not,
3 when there is no daemon. With --json and --watch: one document a line, a line a second.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			for {
				s, err := a.client().Status(c.Context())
				if err != nil {
					if watch && c.Context().Err() != nil {
						return nil // that is how watching ends
					}
					return err
				}
				if watch && !a.json {
					fmt.Fprint(a.out, "\x1b[H\x1b[2J") // home, clear: ECMA-48
				}
				switch {
				case a.json && watch:
					err = a.printLine(s)
				case a.json:
					err = a.printJSON(s)
				default:
					err = printStatus(a.out, s, time.Now())
				}
				if err != nil {
					return err
				}
				if !watch {
					if s.State != weft.Running {
						return errQuiet
					}
					return nil
				}
				select {
				case <-c.Context().Done():
					return nil
				case <-time.After(watchEvery):
				}
			}
		},
	}
	c.Flags().BoolVarP(&watch, "watch", "w", false, "show it again every second")
	return c
}

func printStatus(w io.Writer, s weft.Status, now time.Time) error {
	switch s.State {
	case weft.NeedsJoin:
		fmt.Fprintln(w, "This machine belongs to no network yet: say `weft up TOKEN`.")
	case weft.Stopped:
		fmt.Fprintf(w, "Down. This machine belongs to the network of %s: `weft up` brings it up.\n", s.Server.URL)
	default:
		switch {
		case s.State == weft.Refused:
			fmt.Fprintln(w, "The server refuses this machine.")
		case s.State == weft.NeedsSignIn:
			fmt.Fprintf(w, "Somebody has to sign in for this machine, at %s, which shows the code %s.\n", s.SignIn.URL, s.SignIn.Code)
		case s.Self.FQDN == "":
			fmt.Fprintln(w, "Starting: this machine is on its way into the network.")
		}
		if s.Self.FQDN != "" {
			fmt.Fprintf(w, "%s  %s", s.Self.FQDN, joinAddrs(s.Self.Addrs))
			if s.Self.Proxy != "" {
				fmt.Fprintf(w, "  proxy %s", s.Self.Proxy)
			}
			if s.Self.Interface != "" {
				fmt.Fprintf(w, "  %s", s.Self.Interface)
			}
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "server %s  %s\n", s.Server.URL, serverState(s.Server, now))
		if missing := withoutOffload(s.Self.Offload); s.State == weft.Running && missing != "" {
			fmt.Fprintf(w, "slower packets go one by one: %s\n", missing)
		}
		for _, l := range s.Self.Links {
			fmt.Fprintf(w, "link   %s  NAT %s\n", l.Interface, l.NAT)
		}
		for _, r := range s.Self.Relays {
			fmt.Fprintf(w, "relay  %s  udp %s, stream %s", r.Name, rttOr(r.UDP, r.RTTms), yesNo(r.Stream))
			if r.Error != "" {
				fmt.Fprintf(w, ": %s", r.Error)
			}
			fmt.Fprintln(w)
		}
	}
	if len(s.Peers) > 0 {
		fmt.Fprintln(w)
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "PEER\tADDRESS\tPATH\tENDPOINT\tRTT\tLOSS\tMTU\tRX\tTX\tSEEN")
		for _, p := range s.Peers {
			addr := ""
			if len(p.Addrs) > 0 {
				addr = p.Addrs[0].String()
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", p.Name, addr, pathName(p), leadsTo(p),
				millis(p.RTTms), percent(p.Loss), bytesOrDash(p.MTU), amount(p.RxBytes), amount(p.TxBytes), seen(p, now))
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	if err := printRoutes(w, s); err != nil {
		return err
	}
	for i, n := range s.Notes {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "%s\n", n)
	}
	for i, p := range s.Problems {
		if i == 0 {
			fmt.Fprintln(w)
		}
		fmt.Fprintf(w, "! %s\n", p)
	}
	return nil
}

// withoutOffload says where the system takes no super-packets; "" where it does everywhere.
func withoutOffload(o weft.OffloadStatus) string {
	var where []string
	for _, x := range []struct {
		there bool
		where string
	}{
		{o.InterfaceTCP, "TCP at the interface"},
		{o.InterfaceUDP, "UDP at the interface (Linux has it from 6.2 on)"},
		{o.Send, "sending (this kernel damages runs of datagrams, or the network card refuses them)"},
		{o.Receive, "receiving (Linux has it from 5.0 on)"},
	} {
		if !x.there {
			where = append(where, x.where)
		}
	}
	return strings.Join(where, ", ")
}

// by adds to where a path leads the interface that it leaves by, where there are several links.
func by(endpoint, link string) string {
	if link == "" {
		return endpoint
	}
	return endpoint + " by " + link
}

// leadsTo is where the path leads, or what several leave by.
func leadsTo(p weft.PeerStatus) string {
	if len(p.Carriers) > 0 {
		return strings.Join(p.Carriers, " + ")
	}
	return by(p.Endpoint, p.Link)
}

func pathName(p weft.PeerStatus) string {
	if p.Bond != "" {
		return p.Bond
	}
	if p.Gateway != "" {
		return "by " + p.Gateway
	}
	if p.Path == weft.PathRelay {
		return p.Method.String()
	}
	return string(p.Path)
}

func serverState(s weft.ServerStatus, now time.Time) string {
	switch {
	case s.Connected:
		return "connected for " + age(now.Sub(s.Since))
	case s.Since.IsZero():
		return "connecting"
	}
	return "not connected for " + age(now.Sub(s.Since))
}

func seen(p weft.PeerStatus, now time.Time) string {
	switch {
	case !p.LastSeen.IsZero():
		return age(now.Sub(p.LastSeen)) + " ago"
	case p.Online:
		return "online"
	}
	return "offline"
}

func rttOr(up bool, rtt float64) string {
	if !up {
		return "no"
	}
	return millis(rtt)
}

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}

func millis(v float64) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f ms", v)
}

func percent(v float64) string { return fmt.Sprintf("%.1f %%", v*100) }

// age is a duration as a person says it: its largest unit.
func age(d time.Duration) string {
	switch {
	case d < time.Second:
		return "0 s"
	case d < time.Minute:
		return fmt.Sprintf("%d s", d/time.Second)
	case d < time.Hour:
		return fmt.Sprintf("%d min", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d days", d/(24*time.Hour))
}

// amount is a number of bytes in IEC 80000-13 units.
func amount(n uint64) string {
	v, units := float64(n), []string{"B", "KiB", "MiB", "GiB", "TiB"}
	i := 0
	for ; v >= 1024 && i < len(units)-1; i++ {
		v /= 1024
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, units[i])
}
