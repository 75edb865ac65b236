package cli

import (
	"cmp"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"weft"
	"weft/node"
	"weft/wire"
)

// proxyPasswordEnv is where a password for the proxy of userspace mode may come from.
const proxyPasswordEnv = "WEFT_PROXY_PASSWORD"

// maxInterfaceName is the longest name of an interface in Linux, in bytes: IFNAMSIZ less the final zero.
const maxInterfaceName = 15

func (a *app) nodeCommand() *cobra.Command {
	cfg := node.Config{}
	var token, passwordFile string
	var links []string
	var mtu int
	var words wordFlags
	c := &cobra.Command{
		Use:   "node",
		Short: "Run the daemon that keeps this machine in its network",
		Long: `Run the daemon, in the foreground. With a token it joins first, unattended; a machine that is a member needs
none. It is ready when it says so in a line on standard output (and to systemd, if that started it); with --json
that line is the document of weft status.

Without a server's accounts, two words make a network: --secret NAME:SECRET, the same on every machine, and --rendezvous
HOST, a weft server --rendezvous-only that introduces them. It is needed at the first start only; docs/two-words.md has more.

A network interface takes root, or CAP_NET_ADMIN. With --userspace there is none, and anybody may run it: programs
reach the network through a SOCKS5 and HTTP proxy on loopback, and what arrives for this node is handed to programs
that listen on 127.0.0.1. The proxy's user is "weft"; its password is in the file proxy-password of the state
directory, or what $WEFT_PROXY_PASSWORD or --proxy-password-file say. Without root, the daemon's socket is then
weft.sock in the state directory; name it to the other commands with --socket.

A machine with several uplinks reaches peers by all of them at once, and goes on by the others when one fails. Which they
are it finds out: interfaces with a default route or a public address. With --link, they are those that are named, and no
others are used; one with a higher METRIC carries data only while none with a lower one works, and none is 0.

Exit code 0 when it was told to end (SIGTERM, SIGINT), 1 when it cannot start or the server refuses the token. A
server that is not reached is tried again, for as long as it takes.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			var err error
			if cfg.Token, err = a.readToken(token, c.Flags().Changed("token")); err != nil {
				return err
			}
			if cfg.Words, err = a.readWords(c, words, cfg.Token); err != nil {
				return err
			}
			if cfg.MTU = mtu; c.Flags().Changed("mtu") && (mtu < node.MinMTU || mtu > node.MaxMTU) {
				return usagef("--mtu: %d is no MTU: give %d to %d bytes", mtu, node.MinMTU, node.MaxMTU)
			}
			if err := checkNodeFlags(cfg); err != nil {
				return err
			}
			if cfg.Links, cfg.Metrics, err = parseLinks(links); err != nil {
				return err
			}
			if cfg.StateDir == "" {
				cfg.StateDir = defaultState()
			}
			if cfg.Userspace && !c.Flags().Changed("socket") && os.Getuid() != 0 {
				a.socket = filepath.Join(cfg.StateDir, "weft.sock")
			}
			if cfg.Proxy.Password, err = readPassword(passwordFile); err != nil {
				return err
			}
			cfg.Socket, cfg.Logger = a.socket, a.logger()
			cfg.Ready = func(s weft.Status) {
				if a.json {
					a.printLine(s) // the reader may be gone; that is nothing to end for
					return
				}
				a.printReady(s)
			}
			d, err := node.New(cfg)
			if err != nil {
				return advise(err, "--state")
			}
			return advise(d.Run(c.Context()), "--s") // --state or --socket
		},
	}
	f := c.Flags()
	f.StringVar(&cfg.StateDir, "state", "", "directory of keys and settings (default /var/lib/weft, or below the home directory without root)")
	f.StringVar(&token, "token", "", tokenHelp)
	words.add(f)
	f.StringVar(&cfg.Name, "name", "", "name to join under (default the host's)")
	f.StringVar(&cfg.TUN, "tun", "weft0", "name of the network interface")
	f.IntVar(&mtu, "mtu", 0, "longest packet of the network's interface, in bytes: as weft set mtu=, and kept like that")
	f.StringArrayVar(&links, "link", nil, "interface to reach peers by, IFACE[:METRIC], the lowest metric first, none is 0; repeat it for several (default all that lead out)")
	f.BoolVar(&cfg.Userspace, "userspace", false, "no network interface: a proxy on loopback instead")
	f.StringVar(&cfg.Proxy.Listen, "proxy", "127.0.0.1:1055", "address of the proxy in userspace mode")
	f.StringVar(&passwordFile, "proxy-password-file", "", "file with the proxy's password")
	return c
}

// parseLinks reads IFACE[:METRIC] of --link and returns the names, lowest metric first, and their metrics: 0 without one, as
// of a route.
func parseLinks(list []string) (names []string, metrics map[string]int, err error) {
	for _, s := range list {
		name, text, has := strings.Cut(s, ":")
		var metric uint64
		if n := len(name); n == 0 || n > maxInterfaceName || strings.ContainsAny(name, "/% \t\n") || strings.Trim(name, ".") == "" {
			return nil, nil, usagef("--link: %q names no interface: give IFACE or IFACE:METRIC, for example eth0:10", s)
		}
		if has {
			if metric, err = strconv.ParseUint(text, 10, 32); err != nil || metric > wire.MaxMetric {
				return nil, nil, usagef("--link: %q is no metric: give 0 to %d, the lower the better, for example %s:10", text, wire.MaxMetric, name)
			}
		}
		if slices.Contains(names, name) {
			return nil, nil, usagef("--link: %s is named twice: name each interface once", name)
		}
		if metrics == nil {
			metrics = map[string]int{}
		}
		names, metrics[name] = append(names, name), int(metric)
	}
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(metrics[a], metrics[b]) })
	return names, metrics, nil
}

// checkNodeFlags finds what can be nothing but a slip of the pen.
func checkNodeFlags(cfg node.Config) error {
	if cfg.Userspace {
		if _, _, err := net.SplitHostPort(cfg.Proxy.Listen); err != nil {
			return usagef("--proxy: %q is no address: give 127.0.0.1:PORT", cfg.Proxy.Listen)
		}
		return nil
	}
	if n := len(cfg.TUN); n == 0 || n > maxInterfaceName || strings.ContainsAny(cfg.TUN, "/:% \t\n") || strings.Trim(cfg.TUN, ".") == "" {
		return usagef("--tun: %q is no name for an interface: give 1 to %d letters and digits", cfg.TUN, maxInterfaceName)
	}
	return nil
}

func readPassword(file string) (string, error) {
	if file == "" {
		p := os.Getenv(proxyPasswordEnv)
		os.Unsetenv(proxyPasswordEnv)
		return p, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("the proxy's password cannot be read: %w", err)
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

func defaultState() string {
	if os.Getuid() == 0 {
		return "/var/lib/weft"
	}
	dir := os.Getenv("XDG_STATE_HOME")
	if dir == "" {
		dir = filepath.Join(os.Getenv("HOME"), ".local", "state")
	}
	return filepath.Join(dir, "weft")
}

// printReady prints the line that says that the daemon is ready.
func (a *app) printReady(s weft.Status) {
	switch s.State {
	case weft.NeedsJoin:
		fmt.Fprintln(a.out, "weft is ready, and belongs to no network yet: say `weft up TOKEN`")
	case weft.NeedsSignIn:
		fmt.Fprintln(a.out, "weft is ready, and somebody has to sign in for this machine: say `weft up`")
	case weft.Refused:
		fmt.Fprintln(a.out, "weft is ready, and not in its network:", strings.Join(s.Problems, "; "))
	case weft.Stopped:
		fmt.Fprintln(a.out, "weft is ready, and down: say `weft up`")
	default:
		where := "on " + s.Self.Interface
		switch {
		case s.Self.Proxy != "":
			where = "behind the proxy on " + s.Self.Proxy
		case s.Self.Userspace:
			where = "without its proxy, which does not listen"
		}
		fmt.Fprintf(a.out, "weft is up: %s (%s) %s\n", s.Self.FQDN, joinAddrs(s.Self.Addrs), where)
	}
}
