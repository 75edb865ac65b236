package key

import (
	"crypto/ed25519"
	"encoding/base64"
	"errors"
	"fmt"
)

// SignatureSize is the length in bytes of an Ed25519 signature (RFC 8032).
const SignatureSize = ed25519.SignatureSize

// SigningPrivate signs relay tickets. Like [Private] it does not print or compare. Its zero value signs
// nothing: Sign panics.
type SigningPrivate struct {
	_    [0]func()
	seed hidden
}

// NewSigning makes a signing key from the system's random source.
func NewSigning() SigningPrivate {
	return SigningPrivate{seed: hide(random())}
}

// ParseSigning reads what Reveal wrote.
func ParseSigning(s string) (SigningPrivate, error) {
	b, err := parseText("private-signingkey", s)
	if err != nil {
		return SigningPrivate{}, err
	}
	seed := [Size]byte(b)
	if seed == [Size]byte{} {
		return SigningPrivate{}, errors.New("a private signingkey of zeros is none")
	}
	return SigningPrivate{seed: hide(seed)}, nil
}

// IsZero reports that there is no key.
func (p SigningPrivate) IsZero() bool { return p.seed == nil }

// Reveal returns the text form for a file of mode 0600. Call it for nothing else.
func (p SigningPrivate) Reveal() string {
	var b [Size]byte
	if p.seed != nil {
		b = **p.seed
	}
	return "private-signingkey:" + base64.RawURLEncoding.EncodeToString(b[:])
}

// String hides the key.
func (p SigningPrivate) String() string { return "[redacted]" }

// GoString hides the key under %#v.
func (p SigningPrivate) GoString() string { return "[redacted]" }

// Format hides the key under every verb.
func (p SigningPrivate) Format(f fmt.State, _ rune) { fmt.Fprint(f, "[redacted]") }

// MarshalText refuses, as for [Private].
func (p SigningPrivate) MarshalText() ([]byte, error) {
	return nil, fmt.Errorf("a private signingkey is not marshalled")
}

// Public returns the verifying half; of no key, no key.
func (p SigningPrivate) Public() SigningPublic {
	var pub SigningPublic
	if p.IsZero() {
		return pub
	}
	copy(pub.k[:], ed25519.NewKeyFromSeed((*p.seed)[:]).Public().(ed25519.PublicKey))
	return pub
}

// Sign appends the signature of message to dst.
func (p SigningPrivate) Sign(dst, message []byte) []byte {
	return append(dst, ed25519.Sign(ed25519.NewKeyFromSeed((*p.seed)[:]), message)...)
}

// SigningPublic verifies what the server signed. Its zero value verifies nothing.
type SigningPublic struct{ k [Size]byte }

// ParseSigningPublic reads the text form.
func ParseSigningPublic(s string) (SigningPublic, error) {
	b, err := parseText("signingkey", s)
	if err != nil {
		return SigningPublic{}, err
	}
	var p SigningPublic
	copy(p.k[:], b)
	return p, nil
}

// IsZero reports that there is no key.
func (p SigningPublic) IsZero() bool { return p.k == [Size]byte{} }

// Verify reports whether signature is the key's own over message.
func (p SigningPublic) Verify(message, signature []byte) bool {
	return !p.IsZero() && len(signature) == SignatureSize && ed25519.Verify(p.k[:], message, signature)
}

// String returns the text form.
func (p SigningPublic) String() string {
	return "signingkey:" + base64.RawURLEncoding.EncodeToString(p.k[:])
}

// MarshalText writes the text form, and nothing for no key.
func (p SigningPublic) MarshalText() ([]byte, error) {
	if p.IsZero() {
		return nil, nil
	}
	return []byte(p.String()), nil
}

// UnmarshalText reads the text form, and no key from nothing.
func (p *SigningPublic) UnmarshalText(b []byte) error {
	if len(b) == 0 {
		*p = SigningPublic{}
		return nil
	}
	q, err := ParseSigningPublic(string(b))
	if err == nil {
		*p = q
	}
	return err
}
