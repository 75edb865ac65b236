package cli

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"weft"
	"weft/node"
)

func (a *app) portalCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "portal",
		Short: "Hand a machine's public address to a client elsewhere, or show how that does",
		Long: `Hand the public address of one machine (the remote portal: a rented server, one interface is enough) to a client behind
another one (the local portal: at home, with all its uplinks). What strangers send to the address reaches the client, and what the
client sends leaves from it: TCP, UDP, ICMP, everything, in IPv4 and IPv6, by every link that the two have.

  weft portal remote HOME                        on the server: its address is for the client of the node HOME
  weft portal local SERVER --client eth1 --dhcp  at home: the client is at eth1

Without arguments: show it. Exit code 0 when it is open or off, 1 when it is not open.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			s, err := a.client().PortalStatus(c.Context())
			if err != nil {
				return err
			}
			if err := a.printPortal(s); err != nil {
				return err
			}
			if s.Role != node.PortalOff && !s.Open {
				return errQuiet
			}
			return nil
		},
	}
	c.AddCommand(a.portalRemoteCommand(), a.portalLocalCommand(), &cobra.Command{
		Use: "off", Short: "End the portal here: addresses are this machine's own again", Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return a.askPortal(c, node.PortalRequest{Role: node.PortalOff})
		},
	})
	return c
}

func (a *app) portalRemoteCommand() *cobra.Command {
	var iface string
	var keep []string
	c := &cobra.Command{
		Use:   "remote PEER",
		Short: "Hand this machine's public address to the client behind PEER",
		Long: `Hand this machine's public address to the client behind PEER, a node on which weft portal local is said. It returns when that
is so, and stays so until weft portal off, after a new start of the machine too.

This machine keeps for itself: TCP port 22 and the port of the SSH session that this is said in, weft's own ports, the
answers to what it begins, and what --keep names. With --keep tcp:443, for example, a web server of its own.`,
		Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			q := node.PortalRequest{Role: node.PortalRemote, Peer: list[0], Interface: iface, Keep: []weft.PortRange{{Proto: weft.ProtoTCP, First: 22, Last: 22}}}
			if port, ok := sshPort(os.Getenv("SSH_CONNECTION")); ok && port != 22 {
				q.Keep = append(q.Keep, weft.PortRange{Proto: weft.ProtoTCP, First: port, Last: port})
			}
			for _, k := range keep {
				r, err := parseKept(k)
				if err != nil {
					return err
				}
				q.Keep = append(q.Keep, r)
			}
			return a.askPortal(c, q)
		},
	}
	c.Flags().StringVar(&iface, "interface", "", "interface with the address (default what the default route leaves by)")
	c.Flags().StringArrayVar(&keep, "keep", nil, "what stays this machine's own: tcp:PORT, udp:FIRST-LAST, icmp; repeat it for several")
	return c
}

func (a *app) portalLocalCommand() *cobra.Command {
	var q node.PortalRequest
	var share string
	var resolvers []string
	c := &cobra.Command{
		Use:   "local PEER --client IFACE",
		Short: "Serve the client at an interface with the public address of PEER",
		Long: `Serve the client at an interface of this machine with the public address of PEER, a node on which weft portal remote is said. It
returns when the client can use it, and stays so until weft portal off, after a new start of the machine too.

The client has the address itself, with the gateway that the output names; with --dhcp it is told both (in IPv6 by router
advertisements and DHCPv6). With --share, many clients in a private network appear under the address, and are reached by answers only.`,
		Args: args(1, 1),
		RunE: func(c *cobra.Command, list []string) error {
			q.Role, q.Peer = node.PortalLocal, list[0]
			if n := len(q.Interface); n == 0 || n > maxInterfaceName || strings.ContainsAny(q.Interface, "/:% \t\n") {
				return usagef("--client: %q names no interface: give the one that the client is at, for example eth1", q.Interface)
			}
			if share != "" {
				p, err := netip.ParsePrefix(share)
				if err != nil {
					return usagef("--share: %q is no address with the length of its network: give for example 192.168.77.1/24", share)
				}
				q.Share = p
			}
			for _, r := range resolvers {
				addr, err := netip.ParseAddr(r)
				if err != nil {
					return usagef("--dns: %q is no address: give for example 9.9.9.9", r)
				}
				q.Resolvers = append(q.Resolvers, addr)
			}
			return a.askPortal(c, q)
		},
	}
	f := c.Flags()
	f.StringVar(&q.Interface, "client", "", "interface that the client, or the clients, are at")
	f.BoolVar(&q.DHCP, "dhcp", false, "tell clients their addresses by DHCP, and be their router in IPv6")
	f.StringVar(&share, "share", "", "many clients: this machine's address in their private network, for example 192.168.77.1/24")
	f.StringArrayVar(&resolvers, "dns", nil, "name server that clients are told; repeat it for several (default those of PEER)")
	return c
}

// askPortal has the daemon do it, and shows what came of it.
func (a *app) askPortal(c *cobra.Command, q node.PortalRequest) error {
	if err := q.Check(); err != nil {
		return usageError{err}
	}
	s, err := a.client().Portal(c.Context(), q)
	if err != nil {
		return err
	}
	return a.printPortal(s)
}

func (a *app) printPortal(s weft.PortalStatus) error {
	if a.json {
		return a.printJSON(s)
	}
	line := func(what, format string, args ...any) {
		fmt.Fprintf(a.out, "%-10s "+format+"\n", append([]any{what}, args...)...)
	}
	if s.Role == node.PortalOff {
		line("portal", "off")
		return nil
	}
	state := "not open"
	if s.Open {
		state = "open"
	}
	line("portal", "%s, %s", s.Role, state)
	if s.Problem != "" {
		line("problem", "%s", s.Problem)
	}
	line("peer", "%s", s.Peer)
	if s.Interface != "" {
		line("interface", "%s", s.Interface)
	}
	if s.Share.IsValid() {
		line("clients", "in %s, gateway %s", s.Share.Masked(), s.Share.Addr())
	}
	for i, p := range s.Addrs {
		if s.Role == node.PortalLocal && !s.Share.IsValid() && i < len(s.Gateways) {
			line("address", "%s, gateway %s", p, s.Gateways[i])
		} else {
			line("address", "%s", p.Addr())
		}
	}
	for _, k := range s.Keep {
		line("kept", "%s", k)
	}
	for _, l := range s.Leases {
		line("lease", "%s %s %s until %s", l.Addr, l.Client, l.Name, l.Expires.Format(time.TimeOnly))
	}
	if s.Open {
		t := s.Traffic
		line("to client", "%d packets, %d bytes", t.ToClient.Packets, t.ToClient.Bytes)
		line("from it", "%d packets, %d bytes", t.FromClient.Packets, t.FromClient.Bytes)
		line("refused", "%d packets", t.Refused.Packets)
	}
	return nil
}

// sshPort is the port at this end of an SSH session, by its $SSH_CONNECTION: client's address and port, server's address and
// port (ssh(1)).
func sshPort(connection string) (uint16, bool) {
	words := strings.Fields(connection)
	if len(words) != 4 {
		return 0, false
	}
	n, err := strconv.ParseUint(words[3], 10, 16)
	return uint16(n), err == nil && n != 0
}

// parseKept reads what stays the remote end's own. Everything of all protocols would leave nothing to hand over.
func parseKept(s string) (weft.PortRange, error) {
	r, err := weft.ParsePortRange(s)
	if err != nil || r.Proto == 0 {
		return r, usagef("--keep: %s is nothing to keep: give tcp:PORT, udp:FIRST-LAST, or a protocol as icmp", quote(s))
	}
	return r, nil
}
