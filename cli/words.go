package cli

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"weft/node"
	"weft/rendezvous"
	"weft/wire"
)

// secretEnv is the environment variable that NAME:SECRET may come in. It is taken out of the environment when read.
const secretEnv = "WEFT_SECRET"

// defaultBits is the length of the range of an address that was given without one: 10.0.0.0/16.
var defaultBits = rendezvous.DefaultRange.Bits()

// wordFlags are the flags of a network of two words.
type wordFlags struct {
	secret, rendezvous, address string
}

func (w *wordFlags) add(f *pflag.FlagSet) {
	f.StringVar(&w.secret, "secret", "", "NAME:SECRET of a network without accounts; - reads it from standard input, a path with / from that file, and $"+secretEnv+" is used when there is none")
	f.StringVar(&w.rendezvous, "rendezvous", "", "HOST[:PORT] or URL of the server at which machines with the same --secret find each other")
	f.StringVar(&w.address, "address", "", "overlay address in the network of --secret, 10.0.0.10/16 (default one that is free)")
}

// readWords finds the two words, if any were given. A secret on the command line can be read there by everybody on the
// machine, so the process starts itself again without it.
func (a *app) readWords(c *cobra.Command, w wordFlags, token string) (*node.Words, error) {
	given := c.Flags().Changed("secret")
	text, err := a.readSecret(w.secret, given)
	switch {
	case err != nil:
		return nil, err
	case text == "" && (c.Flags().Changed("rendezvous") || c.Flags().Changed("address")):
		return nil, usagef("--rendezvous and --address are for a network of two words: give --secret NAME:SECRET with them")
	case text == "":
		return nil, nil
	case token != "":
		return nil, usagef("--token and --secret are for networks of two kinds: give one of them")
	case w.rendezvous == "":
		return nil, usagef("--secret needs --rendezvous HOST: a machine where `weft server --rendezvous-only` runs")
	}
	out := &node.Words{URL: w.rendezvous}
	if !strings.Contains(out.URL, "://") {
		out.URL = "https://" + out.URL
	}
	if err := wire.CheckServerURL(out.URL); err != nil {
		return nil, usagef("--rendezvous: %w", err)
	}
	if w.address != "" {
		if out.Address, err = parseAddress(w.address); err != nil {
			return nil, usagef("--address: %w", err)
		}
	}
	words, err := rendezvous.ParseWords(text)
	if err != nil {
		return nil, err
	}
	if given && text == w.secret {
		if err := a.hide(text, "--secret", secretEnv); err != nil {
			a.logger().Warn("the secret stays readable in this process's command line; give it in a file", "error", err)
		}
	}
	out.Network, err = words.Network()
	return out, err
}

// readSecret finds NAME:SECRET: itself, "-" for standard input, a path, or what the environment has.
func (a *app) readSecret(arg string, given bool) (string, error) {
	empty := func(from string) error { return usagef("%s has no secret in it: write NAME:SECRET there", from) }
	switch {
	case given && strings.TrimSpace(arg) == "":
		return "", usagef("--secret is empty: give NAME:SECRET")
	case !given:
		return takeEnv(secretEnv), nil
	case arg == "-":
		return readHidden(a.in, "secret", "standard input", empty)
	case strings.HasPrefix(arg, "/"), strings.HasPrefix(arg, "./"), strings.HasPrefix(arg, "../"):
		f, err := os.Open(arg)
		if err != nil {
			return "", fmt.Errorf("the file of the secret cannot be read: %w", err)
		}
		defer f.Close()
		return readHidden(f, "secret", arg, empty)
	}
	return arg, nil
}

// parseAddress reads an overlay address; without a length it is of a range like the usual one.
func parseAddress(s string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(s)
	if err != nil {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return p, fmt.Errorf("%q is no address: give one such as 10.0.0.10/16", s)
		}
		p = netip.PrefixFrom(a, defaultBits)
	}
	return p, wire.CheckRendezvousAddress(p)
}
