package rendezvous

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"strings"
	"unicode"

	"golang.org/x/crypto/argon2"

	"weft"
	"weft/key"
	"weft/wire"
)

// Parameters of Argon2id: the second choice of RFC 9106 section 4, for where memory is scarce. It takes some 0.1 s.
const (
	argonPasses = 3
	argonMemory = 64 << 10 // KiB
	argonLanes  = 4
)

// MinSecret and maxSecret bound the secret's length in bytes. Eight random letters or digits are 2^41 tries of a tenth of
// a second each.
const (
	MinSecret = 8
	maxSecret = 1024
)

// DefaultRange is where addresses are picked from in a network that nobody has chosen one in.
var DefaultRange = netip.MustParsePrefix("10.0.0.0/16")

// Words are what people give: the name of a network, and its secret.
type Words struct {
	Name   string // a DNS label
	secret string
}

// ParseWords reads NAME:SECRET.
func ParseWords(s string) (Words, error) {
	bad := func(format string, args ...any) (Words, error) {
		return Words{}, &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf(format, args...)}
	}
	name, secret, ok := strings.Cut(strings.TrimSpace(s), ":")
	switch {
	case !ok:
		return bad("that is not NAME:SECRET: give the network's name, a colon, and its secret")
	case name == "" || name != weft.CleanName(name):
		return bad("the name before the colon is no network's: use lower-case letters, digits and single hyphens, %d at most", weft.MaxNameLength)
	case len(secret) < MinSecret:
		return bad("the secret behind the colon is too short: give at least %d characters, better 20 random ones, the same on every machine", MinSecret)
	case len(secret) > maxSecret:
		return bad("the secret behind the colon is longer than %d bytes", maxSecret)
	case strings.ContainsFunc(secret, unicode.IsControl):
		return bad("the secret behind the colon has a line break or another control character in it: give it in one line")
	}
	return Words{Name: name, secret: secret}, nil
}

// String hides the secret.
func (w Words) String() string { return w.Name + ":[redacted]" }

// Format hides the secret under every verb.
func (w Words) Format(f fmt.State, _ rune) { io.WriteString(f, w.String()) }

// LogValue keeps the secret out of logs.
func (w Words) LogValue() slog.Value { return slog.StringValue(w.String()) }

// Network derives the network of the words. It takes a tenth of a second and 64 MiB, on purpose.
func (w Words) Network() (Network, error) {
	salt := sha256.Sum256([]byte("weft two words v1\x00" + w.Name))
	shared, err := key.SharedFrom(argon2.IDKey([]byte(w.secret), salt[:16], argonPasses, argonMemory, argonLanes, key.Size))
	if err != nil {
		return Network{}, err
	}
	return NewNetwork(w.Name, shared)
}

// A Network is what members derive from the two words. It does not print its secrets.
type Network struct {
	Name   string
	Shared key.Shared // to be kept in place of the words
	Public key.SigningPublic

	signing key.SigningPrivate
	box     key.Box
}

// NewNetwork derives the network of a secret that was kept.
func NewNetwork(name string, shared key.Shared) (Network, error) {
	n := Network{Name: name, Shared: shared}
	var err error
	if n.signing, err = shared.Signing("network v1"); err != nil {
		return Network{}, err
	}
	if n.box, err = shared.Box("record v1"); err != nil {
		return Network{}, err
	}
	n.Public = n.signing.Public()
	return n, nil
}

// ID is what a network is called where its name is not known: 128 bits of the SHA-256 of its public key, in hexadecimal.
func ID(n key.SigningPublic) string {
	sum := sha256.Sum256([]byte("weft network v1\x00" + n.String()))
	return hex.EncodeToString(sum[:16])
}

// Enter is the answer to a challenge.
func (n Network) Enter(nonce []byte, node key.NodePublic, known bool) *wire.Enter {
	return &wire.Enter{
		Version: weft.Version, Network: n.Public, Name: wire.NameTag(n.Name), Node: node, Known: known,
		Proof: wire.SignEnter(nonce, node, n.signing),
	}
}

// Seal seals a record for the members.
func (n Network) Seal(r wire.Record) ([]byte, error) { return wire.SealRecord(r, n.box) }

// ranges are the overlay's IPv4 range and its IPv6 range: a ULA (RFC 4193) whose global identifier is a hash of the
// network's public key.
func (n Network) ranges(v4 netip.Prefix) []netip.Prefix {
	sum := sha256.Sum256([]byte("weft network ula v1\x00" + n.Public.String()))
	a := [16]byte{0: 0xfd}
	copy(a[1:6], sum[:])
	return []netip.Prefix{v4.Masked(), netip.PrefixFrom(netip.AddrFrom16(a), 48)}
}

// addrs are the overlay addresses of the member with an IPv4 address: that, and it as the last 32 bits of an IPv6 one.
func (n Network) addrs(v4 netip.Prefix) []netip.Addr {
	a := n.ranges(v4)[1].Addr().As16()
	low := v4.Addr().As4()
	copy(a[12:], low[:])
	return []netip.Addr{v4.Addr(), netip.AddrFrom16(a)}
}

// Number is a member's number: its IPv4 address.
func Number(a netip.Addr) weft.NodeID {
	b := a.As4()
	return weft.NodeID(binary.BigEndian.Uint32(b[:]))
}
