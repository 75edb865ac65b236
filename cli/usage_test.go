package cli

import (
	"errors"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func TestWhatMakesNoSenseIsSaidWithoutAskingAnybody(t *testing.T) {
	none := t.TempDir() + "/none"
	for _, c := range []struct{ line, words string }{
		{"foo", "`weft --help`"},
		{"foo bar", "`weft --help`"},
		{"help foo", "no help"},
		{"help admin foo", "no help"},
		{"admin foo", "`weft admin --help`"},
		{"admin key foo", "`weft admin key --help`"},
		{"admin key create x", "one word too many"},
		{"admin key remove", "weft admin key remove ID"},
		{"admin key remove x", "weft admin key list"},
		{"admin key remove -1", "see `weft admin key remove --help`"},
		{"admin key remove 4294967296", "weft admin key list"},
		{"admin key create --expires 0s", "--expires"},
		{"admin key create --expires -1h", "--expires"},
		{"admin key create --expires tomorrow", "--expires"},
		{"admin node rename a", "weft admin node rename NODE NAME"},
		{"admin dns set", "KEY=VALUE"},
		{"admin dns set upstreams", "KEY=VALUE"},
		{"admin dns set colour=red", "split.DOMAIN, record.NAME"},
		{"admin dns set upstreams=dns.example", "192.0.2.53"},
		{"admin dns set split.corp.example=192.0.2.53:x", "is no resolver"},
		{"admin dns set record.printer=nowhere", "is no address"},
		{"admin dns replace", "weft admin dns replace FILE"},
		{"admin policy foo", "`weft admin policy --help`"},
		{"admin policy set", "weft admin policy set FILE"},
		{"admin policy explain a", "weft admin policy explain FROM TO"},
		{"admin policy explain a b http", "is no protocol"},
		{"admin policy explain a b tcp:70000", "no port"},
		{"status x", "one word too many"},
		{"status --foo", "`weft status --help`"},
		{"status --socket", "`weft status --help`"},
		{"status --watch=maybe", "--watch"},
		{"up a b", "one word too many"},
		{"explain", "weft explain PEER"},
		{"explain a b c d", "one word too many"},
		{"explain a b ssh", "no protocol"},
		{"explain a b tcp:x", "no port"},
		{"explain a b tcp", "tcp:22"},
		{"explain a tcp", "tcp:22"},
		{"explain a b tcp:1-2", "tcp:22"},
		{"paths", "weft paths PEER"},
		{"paths a b", "one word too many"},
		{"paths a --watch=soon", "--watch"},
		{"metrics x", "one word too many"},
		{"metrics --listen 9470", "IP:PORT"},
		{"metrics --listen 127.0.0.1:http", "is no port"},
		{"metrics --listen=", "IP:PORT"},
		{"ping", "weft ping PEER"},
		{"ping a b", "one word too many"},
		{"ping a -c -1", "-c must not be negative"},
		{"ping a -c many", `"many"`},
		{"ping a --interval 0s", "--interval"},
		{"ping a --timeout -1s", "--timeout"},
		{"set port", "KEY=VALUE"},
		{"set colour=red", "bond, congestion, dns, endpoints"},
		{"set bond=on", "aggregate, redundant or off"},
		{"set bond=", "aggregate, redundant or off"},
		{"set bond.=off", "bond.NAME"},
		{"set bond.a b=off", "is no setting"},
		{"set bond.-x=off", "bond.NAME"},
		{"set bond.bob=on", "aggregate, redundant or off"},
		{"set congestion=vegas", "bbr, cubic or reno"},
		{"set redundant=dscp:64", "0 to 63"},
		{"set redundant=dscp:", "is no DSCP"},
		{"set redundant=dscp:gold", "dscp:ef"},
		{"set redundant=udp:0", "1 to 65535"},
		{"set redundant=udp:", "is no port"},
		{"set redundant=tcp:65536", "1 to 65535"},
		{"set redundant=sctp:22", "is no rule"},
		{"set redundant=ef", "dscp:CLASS"},
		{"set redundant=udp:1,udp:2,udp:3,udp:4,udp:5,udp:6,udp:7,udp:8,udp:9,udp:10,udp:11,udp:12,udp:13,udp:14,udp:15,udp:16,udp:17", "at most 16"},
		{"set mtu=1279", "1280 to 65456"},
		{"set mtu=65457", "1280 to 65456"},
		{"set mtu=big", "or auto"},
		{"node --mtu 9", "--mtu"},
		{"set port=0", "1 to 65535"},
		{"set port=65536", "1 to 65535"},
		{"set port=443 dns=maybe", "on or off"},
		{"set endpoints=192.0.2.1", "IP:PORT"},
		{"set endpoints=0.0.0.0:1", "IP:PORT"},
		{"set endpoints=host.example:1", "IP:PORT"},
		{"completion cow", "`weft completion --help`"},
		{"completion bash x", "one word too many"},
		{"version x", "one word too many"},
		{"lab foo", "`weft lab --help`"},
		{"bench foo", "`weft bench --help`"},
		{"bench overlay --rounds 0", "--rounds"},
		{"node x", "one word too many"},
		{"node --tun interface-of-too-long-a-name", "--tun"},
		{"node --tun a/b", "--tun"},
		{"node --link", "`weft node --help`"},
		{"node --link=", "IFACE:METRIC"},
		{"node --link :10", "IFACE:METRIC"},
		{"node --link interface-of-too-long-a-name", "IFACE:METRIC"},
		{"node --link eth0:", "is no metric"},
		{"node --link eth0:-1", "is no metric"},
		{"node --link eth0:fast", "0 to 65535"},
		{"node --link eth0:1.5", "is no metric"},
		{"node --link eth0:65536", "is no metric"},
		{"node --link eth0:18446744073709551616", "is no metric"},
		{"node --link eth0:1 --link eth0:2", "named twice"},
		{"node --userspace --proxy 1055", "--proxy"},
		{"server x", "one word too many"},
		{"server --listen 443 --data " + none, "--listen"},
		{"server --listen 127.0.0.1:0 --stun 3478 --data " + none, "--stun"},
		{"server --listen 127.0.0.1:65536 --data " + none, "--listen"},
		{"server --listen 127.0.0.1:0 --stun 127.0.0.1:0 --url weft.example --data " + none, "https://"},
		{"server --listen 127.0.0.1:0 --stun 127.0.0.1:0 --url https://u:p@weft.example --data " + none, "--url"},
		{"server --range fd00::/48 --data " + none, "--range"},
		{"server --range6 100.64.0.0/10 --data " + none, "--range6"},
		{"relay x", "one word too many"},
		{"relay --listen 127.0.0.1:0 --stun 127.0.0.1:0 --url https://127.0.0.1 --data " + t.TempDir(), "admin key create --relay"},
	} {
		t.Run(c.line, func(t *testing.T) {
			fails(t, inProcess(strings.Fields(c.line)...), ExitUsage, c.words)
		})
	}
	if _, err := os.Stat(none); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a server that was not started made its directory (%v)", err)
	}
}

// Half of all tokens have a "-" in them, and a token that is cut before it looks like a flag.
func TestATokenInTheWrongPlaceIsNotRepeated(t *testing.T) {
	const secret = "Rp0z89SWdSDDzHsUIr94RDJuegifBpnBECR1_xKnr_FrLTxGU2meF2eQ8QgtUWLZlAsomEanw9HtBwUQpzSJ2iAyOoS39mrheTOPARHTRaYAx"
	for _, line := range []string{
		"up -" + secret, "up --" + secret, "up a weft1_" + secret, "status weft1_" + secret, "weft1_" + secret, "admin weft1_" + secret,
		"help weft1_" + secret, "node weft1_" + secret, "node -t" + secret, "set " + secret, "up --token=weft1_" + secret,
		"node --token weft1_" + secret + " --tokn", "admin key remove weft1_" + secret, "ping x -c weft1_" + secret,
	} {
		r := inProcess(strings.Fields(line)...)
		fails(t, r, ExitUsage)
		if strings.Contains(r.err, secret[10:50]) {
			t.Errorf("%s: it said %q", line, r.err)
		}
	}
}

func TestWithoutADaemonOrServerTheExitCodeIsThree(t *testing.T) {
	dir := t.TempDir()
	for _, line := range []string{"status", "status --json", "status --watch", "up", "down", "logout", "explain bob", "paths bob", "paths bob --watch", "metrics", "ping bob", "netcheck --json", "set", "set port=auto"} {
		t.Run(line, func(t *testing.T) {
			r := inProcess(append([]string{"--socket", dir + "/s"}, strings.Fields(line)...)...)
			r.err = strings.TrimPrefix(r.err, "asking the network's relays, some seconds ...\n")
			fails(t, r, ExitNotRunning, "weft node", "--socket")
		})
	}
	for _, line := range []string{
		"status", "user create ann", "user list", "user remove ann", "key create", "key list --json", "key expire 1", "key remove 1",
		"node create", "node list", "node rename a b", "node expire a", "node remove a", "relay list", "relay remove a",
		"policy get", "policy edit", "policy unset", "policy explain a b", "dns get", "dns set search=a",
	} {
		t.Run("admin "+line, func(t *testing.T) {
			r := inProcess(append([]string{"admin", "--data", dir}, strings.Fields(line)...)...)
			fails(t, r, ExitNotRunning, "weft server --data", dir)
		})
	}
}

// A stranger reads the help of a command and nothing else.
func TestEveryCommandExplainsItself(t *testing.T) {
	documented := map[string]bool{"weft": true, "weft server": true, "weft node": true, "weft relay": true, "weft up": true, "weft status": true,
		"weft ping": true, "weft explain": true, "weft paths": true, "weft metrics": true, "weft netcheck": true, "weft bench overlay": true}
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.HasParent() && c.Parent().Name() == "completion" {
			return
		}
		line := strings.Fields(c.CommandPath())[1:]
		r := inProcess(append(line, "--help")...)
		if r.code != ExitOK || r.err != "" || !strings.Contains(r.out, c.CommandPath()) {
			t.Errorf("%s --help: %+v", c.CommandPath(), r)
		}
		about := c.Long
		if about == "" {
			about = c.Short
		}
		if len(strings.Fields(about)) < 3 || !strings.Contains(r.out, about) {
			t.Errorf("%s is not explained: %q", c.CommandPath(), about)
		}
		for l := range strings.Lines(about) {
			if len(strings.TrimRight(l, "\n")) > 165 {
				t.Errorf("%s: a line of %d characters: %q", c.CommandPath(), len(l), l)
			}
		}
		if documented[c.CommandPath()] && !strings.Contains(strings.ToLower(about), "exit code") {
			t.Errorf("%s does not say what its exit codes mean", c.CommandPath())
		}
		if again := inProcess(append([]string{"help"}, line...)...); again != r {
			t.Errorf("weft help %s says something else than --help", strings.Join(line, " "))
		}
		for _, sub := range c.Commands() {
			visit(sub)
		}
	}
	visit((&app{}).root())
}

func TestShellsCompleteWeft(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if r := inProcess("completion", shell); r.code != ExitOK || r.err != "" || !strings.Contains(r.out, "weft") {
			t.Errorf("%s: exit code %d, %d bytes, %q", shell, r.code, len(r.out), r.err)
		}
	}
	if r := inProcess("__complete", "net"); !strings.HasPrefix(r.out, "netcheck\t") {
		t.Errorf("net is completed to %q", r.out)
	}
}
