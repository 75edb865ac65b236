package cli

import (
	"encoding/base64"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/boombuler/barcode/qr"
	"github.com/spf13/cobra"

	"weft"
	"weft/control"
	"weft/key"
)

// plainMTU is the MTU of a plain member's tunnel in bytes: the least that IPv6 has (RFC 8200 section 5). Behind a phone's
// network anything may be, and nobody looks for more.
const plainMTU = 1280

// plainKeepalive is how often a plain member says something, in seconds, so that its NAT lets its gateway reach it: what
// WireGuard's documents recommend, below the 30 s of impatient NATs (RFC 4787 section 4.3 asks for two minutes).
const plainKeepalive = 25

// plainDoc is what weft admin node create --wireguard prints with --json.
type plainDoc struct {
	control.PlainAnswer
	// Config is the text for wg-quick(8) and the WireGuard apps. Without --public-key it has the private key, which is
	// nowhere else.
	Config string `json:"config"`
}

func (ad *admin) nodeCreateCommand() *cobra.Command {
	create := ad.keyCreateCommand()
	create.Short = "Make a join key, or with --wireguard a node without weft, and print what it needs, this once"
	create.Long = `Without --wireguard, make a join key, as ` + "`weft admin key create`" + ` does: a node comes by joining.

With --wireguard, make a node that runs plain WireGuard and no weft, a phone or a router: print its configuration for
wg-quick or the WireGuard app, and on a terminal a QR code of it. It has one tunnel, to the node that --via names (or the one
that is best reached), which passes its packets on to all others. Its private key is made here and printed this once; with
--public-key it never leaves the device.`
	var r control.PlainRequest
	var wireGuard bool
	var public string
	f := create.Flags()
	f.BoolVar(&wireGuard, "wireguard", false, "for a device with plain WireGuard and no weft")
	f.StringVar(&r.Name, "name", "", "with --wireguard: the node's name")
	f.StringVar(&r.Via, "via", "", "with --wireguard: the node that it has its tunnel to")
	f.StringVar(&r.Endpoint, "endpoint", "", "with --wireguard: where that node is reached, as HOST:PORT")
	f.StringVar(&public, "public-key", "", "with --wireguard: the device's public key, if it has made its own")
	f.Lookup("expires").Usage = "how long it lets machines in, or the node stays, for example 24h (default for ever)"
	joinKey := create.RunE
	create.RunE = func(c *cobra.Command, list []string) error {
		if !wireGuard {
			for _, name := range []string{"name", "via", "endpoint", "public-key"} {
				if f.Changed(name) {
					return usagef("--%s is for --wireguard: what joins by itself says who it is", name)
				}
			}
			return joinKey(c, list)
		}
		for _, name := range []string{"reusable", "ephemeral", "relay"} {
			if f.Changed(name) {
				return usagef("--%s is for machines that join, and not for --wireguard", name)
			}
		}
		r.User, _ = f.GetString("user")
		r.Tags, _ = f.GetStringSlice("tag")
		r.Lifetime, _ = f.GetDuration("expires")
		if r.Lifetime < 0 || f.Changed("expires") && r.Lifetime < time.Second {
			return usagef("--expires must be a second at least, for example 2160h")
		}
		var private key.NodePrivate
		if public == "" {
			private = key.NewPrivate[key.Node]()
			r.Key = private.Public()
		} else {
			var err error
			if r.Key, err = parseWireGuardKey(public); err != nil {
				return usagef("--public-key %w", err)
			}
		}
		a, err := ad.client().CreatePlain(c.Context(), r)
		if err != nil {
			return notRunning(err)
		}
		return ad.showPlain(plainDoc{a, plainConfig(a, private)}, !private.IsZero())
	}
	return create
}

// showPlain prints a new plain member: the configuration alone on standard output, as a file wants it.
func (ad *admin) showPlain(doc plainDoc, whole bool) error {
	if ad.json {
		return ad.printJSON(doc)
	}
	fmt.Fprint(ad.out, doc.Config)
	if whole && isTerminal(ad.out) {
		fmt.Fprintln(ad.out)
		if err := printQR(ad.out, withoutComments(doc.Config)); err != nil {
			return err
		}
	}
	if doc.Gateway.Note != "" {
		fmt.Fprintf(ad.err, "! %s\n", doc.Gateway.Note)
	}
	return nil
}

// parseWireGuardKey reads a key as WireGuard's programs write it.
func parseWireGuardKey(s string) (key.NodePublic, error) {
	b, err := base64.StdEncoding.Strict().DecodeString(s)
	if err != nil || len(b) != key.Size || strings.ContainsAny(s, "\r\n") {
		return key.NodePublic{}, fmt.Errorf("takes a public key as `wg pubkey` prints it, and %s is none", quote(s))
	}
	return key.PublicFrom[key.Node](b)
}

func wireGuardKey(b [key.Size]byte) string { return base64.StdEncoding.EncodeToString(b[:]) }

// plainConfig is a plain member's configuration, wg-quick(8)'s. Nothing in it is a secret but the private key; of no
// private key, it says which one belongs there.
func plainConfig(a control.PlainAnswer, private key.NodePrivate) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s.%s by way of %s\n[Interface]\n", a.Node.Name, a.Domain, a.Gateway.Name)
	if private.IsZero() {
		fmt.Fprintf(&b, "# PrivateKey = the one whose public key is %s\n", wireGuardKey(a.Node.Key.Bytes()))
	} else {
		fmt.Fprintf(&b, "PrivateKey = %s\n", wireGuardKey(private.RevealBytes()))
	}
	var addrs, ranges []string
	for _, addr := range a.Node.Addrs {
		addrs = append(addrs, fmt.Sprintf("%s/%d", addr, addr.BitLen()))
	}
	for _, r := range a.Ranges {
		ranges = append(ranges, r.String())
	}
	fmt.Fprintf(&b, "Address = %s\nDNS = %s, %s\nMTU = %d\n\n", strings.Join(addrs, ", "), a.Service, a.Domain, plainMTU)
	fmt.Fprintf(&b, "[Peer]\nPublicKey = %s\nEndpoint = %s\nAllowedIPs = %s\nPersistentKeepalive = %d\n",
		wireGuardKey(a.Gateway.Key.Bytes()), a.Gateway.Endpoint, strings.Join(ranges, ", "), plainKeepalive)
	return b.String()
}

// withoutComments leaves out what is for a person: a QR code is the easier to read the less there is in it.
func withoutComments(config string) string {
	var b strings.Builder
	for line := range strings.Lines(config) {
		if line != "\n" && !strings.HasPrefix(line, "#") {
			b.WriteString(line)
		}
	}
	return b.String()
}

// quietZone is the light margin that a QR code must have, in modules (ISO/IEC 18004 section 6.3.8).
const quietZone = 4

// printQR draws a QR code of text, two modules in each character cell: black and white whatever the terminal's colours. The
// lowest level of error correction is enough on a screen, and fits 80 columns.
func printQR(w io.Writer, text string) error {
	code, err := qr.Encode(text, qr.L, qr.Unicode)
	if err != nil {
		return fmt.Errorf("the configuration fits in no QR code: %w", err)
	}
	size := code.Bounds().Dx()
	light := func(x, y int) bool {
		if x < 0 || y < 0 || x >= size || y >= size {
			return true
		}
		r, _, _, _ := code.At(x, y).RGBA()
		return r != 0
	}
	var b strings.Builder
	for y := -quietZone; y < size+quietZone; y += 2 {
		b.WriteString("\x1b[40;97m") // white on black: ECMA-48
		for x := -quietZone; x < size+quietZone; x++ {
			switch above, below := light(x, y), light(x, y+1); {
			case above && below:
				b.WriteString("█")
			case above:
				b.WriteString("▀")
			case below:
				b.WriteString("▄")
			default:
				b.WriteByte(' ')
			}
		}
		b.WriteString("\x1b[0m\n")
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// plainBy says what runs on a node: the version of its weft, or by way of whom it comes without.
func plainBy(n control.NodeInfo, names map[weft.NodeID]string) string {
	if !n.Plain() {
		return n.Version
	}
	return "wireguard by " + names[n.Gateway]
}
