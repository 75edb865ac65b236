// Package key holds the keys of weft, one type per role, so that a node's key cannot be passed where a
// machine's is wanted, and a secret cannot be printed.
//
// There are two families. X25519 keys agree on secrets: [NodePrivate] is a node's WireGuard identity,
// [MachinePrivate] and [ServerPrivate] are the two ends of the control channel's Noise IK handshake,
// [RelayPrivate] is what a relay proves itself with. Ed25519 keys sign: [SigningPrivate] is the server's, for
// relay tickets. [Shared] is neither: a secret that many have, which keys of a group are derived from.
//
// Public keys are comparable and may be map keys; their text form carries the role as a prefix
// ("nodekey:..."), so that one pasted in the wrong place is refused by name. Private keys print as
// "[redacted]" under every verb, do not compile under ==, and give up their bytes only to a caller that says
// Reveal. The zero value of each type is "no key" and reports so by IsZero.
//
// The package leans on the standard library alone.
package key

import (
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
)

// Size is the length in bytes of every X25519 key and every Ed25519 public key (RFC 7748, RFC 8032).
const Size = 32

// A Role names what an X25519 key is for. Its only use is as a type argument.
type Role interface{ prefix() string }

// The roles of X25519 keys.
type (
	Node    struct{}
	Machine struct{}
	Server  struct{}
	Relay   struct{}
)

func (Node) prefix() string    { return "nodekey" }
func (Machine) prefix() string { return "machinekey" }
func (Server) prefix() string  { return "serverkey" }
func (Relay) prefix() string   { return "relaykey" }

// The typed keys.
type (
	NodePrivate    = Private[Node]
	NodePublic     = Public[Node]
	MachinePrivate = Private[Machine]
	MachinePublic  = Public[Machine]
	ServerPrivate  = Private[Server]
	ServerPublic   = Public[Server]
	RelayPrivate   = Private[Relay]
	RelayPublic    = Public[Relay]
)

// Private is an X25519 private key (clamped as RFC 7748 section 5 says) of role R. Copies share the bytes,
// which never change.
type Private[R Role] struct {
	_ [0]func() // not comparable: secrets are not compared with ==
	k hidden
}

// hidden holds secret bytes where fmt does not find them. On an unexported field of somebody's struct fmt calls
// no method: it prints what the field holds, and follows one pointer, under a verb that is not a pointer's, but
// never two. Nil is no secret.
type hidden **[Size]byte

func hide(b [Size]byte) hidden { p := &b; return &p }

// NewPrivate makes a key of role R from the system's random source.
func NewPrivate[R Role]() Private[R] {
	return Private[R]{k: hide(clamp(random()))}
}

func random() (b [Size]byte) {
	if _, err := rand.Read(b[:]); err != nil {
		panic("the system's random source failed: " + err.Error()) // never returns an error since Go 1.24
	}
	return b
}

// PrivateFrom takes the 32 bytes of a stored key. It refuses zeros, which are what a disk makes of a file
// that was never written, and would be a key that everybody knows.
func PrivateFrom[R Role](b []byte) (Private[R], error) {
	var p Private[R]
	if len(b) != Size {
		return p, fmt.Errorf("a %s has %d bytes, not %d", p.name(), Size, len(b))
	}
	k := [Size]byte(b)
	if k == [Size]byte{} {
		return p, fmt.Errorf("a %s of zeros is none", p.name())
	}
	p.k = hide(clamp(k))
	return p, nil
}

// ParsePrivate reads what Reveal wrote.
func ParsePrivate[R Role](s string) (Private[R], error) {
	var r R
	b, err := parseText("private-"+r.prefix(), s)
	if err != nil {
		return Private[R]{}, err
	}
	return PrivateFrom[R](b)
}

func clamp(b [Size]byte) [Size]byte {
	b[0] &= 248
	b[31] = b[31]&127 | 64
	return b
}

func (p Private[R]) name() string { var r R; return "private " + r.prefix() }

// IsZero reports that there is no key.
func (p Private[R]) IsZero() bool { return p.k == nil }

// Reveal returns the text form for a file of mode 0600. Call it for nothing else.
func (p Private[R]) Reveal() string {
	var r R
	b := p.RevealBytes()
	return "private-" + r.prefix() + ":" + base64.RawURLEncoding.EncodeToString(b[:])
}

// RevealBytes returns the 32 bytes, for a cipher that takes bytes; zeros for no key. The caller does not keep
// or log them.
func (p Private[R]) RevealBytes() [Size]byte {
	if p.k == nil {
		return [Size]byte{}
	}
	return **p.k
}

// String hides the key.
func (p Private[R]) String() string { return "[redacted]" }

// GoString hides the key under %#v.
func (p Private[R]) GoString() string { return "[redacted]" }

// Format hides the key under every verb, %x and %d included.
func (p Private[R]) Format(f fmt.State, _ rune) { fmt.Fprint(f, "[redacted]") }

// MarshalText refuses: a private key is written to a file by name, never as part of a document.
func (p Private[R]) MarshalText() ([]byte, error) {
	return nil, fmt.Errorf("a %s is not marshalled", p.name())
}

// Public returns the public half; of no key, no key.
func (p Private[R]) Public() Public[R] {
	if p.IsZero() {
		return Public[R]{}
	}
	priv, err := ecdh.X25519().NewPrivateKey((*p.k)[:])
	if err != nil {
		panic("32 bytes are always an X25519 private key: " + err.Error())
	}
	var pub Public[R]
	copy(pub.k[:], priv.PublicKey().Bytes())
	return pub
}

// Public is an X25519 public key of role R: comparable, printable.
type Public[R Role] struct{ k [Size]byte }

// PublicFrom takes 32 bytes off the wire. Any 32 bytes are taken; a key of low order is refused by [Agree].
func PublicFrom[R Role](b []byte) (Public[R], error) {
	var p Public[R]
	if len(b) != Size {
		var r R
		return p, fmt.Errorf("a %s has %d bytes, not %d", r.prefix(), Size, len(b))
	}
	copy(p.k[:], b)
	return p, nil
}

// ParsePublic reads the text form, prefix included.
func ParsePublic[R Role](s string) (Public[R], error) {
	var r R
	b, err := parseText(r.prefix(), s)
	if err != nil {
		return Public[R]{}, err
	}
	return PublicFrom[R](b)
}

// IsZero reports that there is no key.
func (p Public[R]) IsZero() bool { return p.k == [Size]byte{} }

// Bytes returns the 32 bytes.
func (p Public[R]) Bytes() [Size]byte { return p.k }

// Append adds the 32 bytes to dst.
func (p Public[R]) Append(dst []byte) []byte { return append(dst, p.k[:]...) }

// Compare orders keys by their bytes; two peers use it to agree, without talking, on who leads.
func (p Public[R]) Compare(q Public[R]) int {
	return strings.Compare(string(p.k[:]), string(q.k[:]))
}

// String returns the text form.
func (p Public[R]) String() string {
	var r R
	return r.prefix() + ":" + base64.RawURLEncoding.EncodeToString(p.k[:])
}

// Short is enough of the key for a person to tell two apart in a log.
func (p Public[R]) Short() string { return base64.RawURLEncoding.EncodeToString(p.k[:6]) }

// MarshalText writes the text form, and nothing for no key.
func (p Public[R]) MarshalText() ([]byte, error) {
	if p.IsZero() {
		return nil, nil
	}
	return []byte(p.String()), nil
}

// UnmarshalText reads the text form, and no key from nothing.
func (p *Public[R]) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*p = Public[R]{}
		return nil
	}
	q, err := ParsePublic[R](string(b))
	if err == nil {
		*p = q
	}
	return err
}

func parseText(prefix, s string) ([]byte, error) {
	have, rest, ok := strings.Cut(strings.TrimSpace(s), ":") // a file ends in a line break
	if !ok || have != prefix {
		return nil, fmt.Errorf("not a %s: it must begin with %q", prefix, prefix+":")
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	if err != nil || len(b) != Size || strings.ContainsAny(rest, "\r\n") { // which package base64 passes over
		return nil, fmt.Errorf("a %s has %d bytes in base64url after its prefix; this one is cut or mistyped", prefix, Size)
	}
	return b, nil
}
