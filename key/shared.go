package key

import (
	"crypto/hkdf"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
)

// Shared is a secret of 32 bytes that the members of a group have in common, and that keys are derived from. Like
// [Private] it does not print or compare. Its zero value is no secret.
type Shared struct {
	_ [0]func()
	k hidden
}

// SharedFrom takes 32 bytes that nobody but the group can know. It refuses zeros.
func SharedFrom(b []byte) (Shared, error) {
	if len(b) != Size {
		return Shared{}, fmt.Errorf("a shared secret has %d bytes, not %d", len(b), Size)
	}
	k := [Size]byte(b)
	if k == [Size]byte{} {
		return Shared{}, errors.New("a shared secret of zeros is none")
	}
	return Shared{k: hide(k)}, nil
}

// ParseShared reads what Reveal wrote.
func ParseShared(s string) (Shared, error) {
	b, err := parseText("sharedsecret", s)
	if err != nil {
		return Shared{}, err
	}
	return SharedFrom(b)
}

// IsZero reports that there is no secret.
func (p Shared) IsZero() bool { return p.k == nil }

// Reveal returns the text form for a file of mode 0600. Call it for nothing else.
func (p Shared) Reveal() string {
	var b [Size]byte
	if p.k != nil {
		b = **p.k
	}
	return "sharedsecret:" + base64.RawURLEncoding.EncodeToString(b[:])
}

// String hides the secret.
func (p Shared) String() string { return "[redacted]" }

// GoString hides the secret under %#v.
func (p Shared) GoString() string { return "[redacted]" }

// Format hides the secret under every verb.
func (p Shared) Format(f fmt.State, _ rune) { fmt.Fprint(f, "[redacted]") }

// MarshalText refuses, as for [Private].
func (p Shared) MarshalText() ([]byte, error) {
	return nil, fmt.Errorf("a shared secret is not marshalled")
}

// Signing derives a signing key for a purpose. All who have the secret derive the same one.
func (p Shared) Signing(purpose string) (SigningPrivate, error) {
	seed, err := p.derive("sign", purpose)
	if err != nil {
		return SigningPrivate{}, err
	}
	return SigningPrivate{seed: hide([Size]byte(seed))}, nil
}

// Box derives a box for a purpose, which opens what any box of the same secret and purpose sealed, itself included:
// who of the group sealed a message, it does not tell.
func (p Shared) Box(purpose string) (Box, error) {
	k, err := p.derive("seal", purpose)
	if err != nil {
		return Box{}, err
	}
	aead, err := sealer(k)
	return Box{seal: aead, open: aead}, err
}

func (p Shared) derive(what, purpose string) ([]byte, error) {
	if p.IsZero() {
		return nil, errors.New("there is no shared secret")
	}
	return hkdf.Expand(sha256.New, (*p.k)[:], "weft "+what+" "+purpose, Size)
}
