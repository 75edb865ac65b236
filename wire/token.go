package wire

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"log/slog"
	"net/url"
	"strconv"
	"strings"

	"weft"
	"weft/key"
)

// A Token is what an administrator gives to a machine: where the server is, which key it must prove to hold,
// and the secret that lets the machine in. Its text form is "weft1_" and, in base64url without padding:
//
//	| flags (1) | server key (32) | secret (20) | certificate fingerprint (0 or 32) | URL length (1) | URL | check (4) |
//
// The first flag says that a fingerprint is there; the second that the token is for a relay; the third that it has no
// secret (all zeros), and somebody has to sign in. The check is the
// beginning of the SHA-256 of all before it: a token that was cut or mistyped is known for one before anything
// is sent.
type Token struct {
	URL    string // https://host[:port] or http://, as CheckServerURL takes it
	Server key.ServerPublic
	Secret [TokenSecretSize]byte
	// Fingerprint is the SHA-256 of the server's self-signed certificate; empty where TLS is somebody
	// else's. Trust does not rest on it: the Noise handshake proves the server's key in any case.
	Fingerprint []byte
	Relay       bool
	SignIn      bool // there is no secret: the token may be told to everybody
}

// TokenSecretSize is the length in bytes of the secret: 160 bits, drawn at random, out of reach of guessing
// and so stored as a plain SHA-256.
const TokenSecretSize = 20

// TokenPrefix begins every token.
const TokenPrefix = "weft1_"

const (
	tokenFlagFingerprint = 1 << iota
	tokenFlagRelay
	tokenFlagSignIn
)

// String returns the token's text form. It is a secret.
func (t Token) String() string {
	var flags byte
	if len(t.Fingerprint) == sha256.Size {
		flags |= tokenFlagFingerprint
	}
	if t.Relay {
		flags |= tokenFlagRelay
	}
	if t.SignIn {
		flags |= tokenFlagSignIn
	}
	b := t.Server.Append([]byte{flags})
	b = append(b, t.Secret[:]...)
	if flags&tokenFlagFingerprint != 0 {
		b = append(b, t.Fingerprint...)
	}
	b = append(append(b, byte(len(t.URL))), t.URL...)
	sum := sha256.Sum256(b)
	return TokenPrefix + base64.RawURLEncoding.EncodeToString(append(b, sum[:4]...))
}

// LogValue keeps the secret out of logs.
func (t Token) LogValue() slog.Value { return slog.StringValue("[redacted]") }

// ParseToken reads a token as somebody pasted it: surrounding space and line breaks inside are taken away.
func ParseToken(s string) (Token, error) {
	bad := func(format string, args ...any) (Token, error) {
		return Token{}, &weft.Error{Code: weft.CodeBadToken, Message: fmt.Sprintf(format, args...)}
	}
	s = strings.Join(strings.Fields(s), "")
	if s == "" {
		return bad("the token is empty: paste the whole line that `weft admin key create` printed")
	}
	rest, ok := strings.CutPrefix(s, TokenPrefix)
	if !ok {
		return bad("that is not a weft token: it must begin with %q (make one on the server with `weft admin key create`)", TokenPrefix)
	}
	b, err := base64.RawURLEncoding.Strict().DecodeString(rest)
	const least = 1 + key.Size + TokenSecretSize + 1 + 4
	if err != nil || len(b) < least {
		return bad("the token is cut or mistyped: copy it again, whole")
	}
	b, check := b[:len(b)-4], b[len(b)-4:]
	if sum := sha256.Sum256(b); string(sum[:4]) != string(check) {
		return bad("the token is cut or mistyped: copy it again, whole")
	}
	var t Token
	flags := b[0]
	if flags&^(tokenFlagFingerprint|tokenFlagRelay|tokenFlagSignIn) != 0 {
		return bad("the token is of a newer weft than this one (%s): update this machine", weft.Version)
	}
	t.Relay, t.SignIn = flags&tokenFlagRelay != 0, flags&tokenFlagSignIn != 0
	t.Server, _ = key.PublicFrom[key.Server](b[1:33])
	copy(t.Secret[:], b[33:53])
	if b = b[53:]; t.SignIn && t.Secret != [TokenSecretSize]byte{} {
		return bad("the token is damaged: make a new one with `weft admin key create`")
	}
	if flags&tokenFlagFingerprint != 0 {
		if len(b) < sha256.Size+1 {
			return bad("the token is damaged: make a new one with `weft admin key create`")
		}
		t.Fingerprint, b = b[:sha256.Size:sha256.Size], b[sha256.Size:]
	}
	if len(b) != 1+int(b[0]) {
		return bad("the token is damaged: make a new one with `weft admin key create`")
	}
	t.URL = string(b[1:])
	if err := CheckServerURL(t.URL); err != nil {
		return bad("the token names no usable server: %v", err)
	}
	return t, nil
}

// CheckServerURL says what is wrong with the URL of a server or relay.
func CheckServerURL(s string) error {
	u, err := url.Parse(s)
	if err == nil && u.User != nil {
		return fmt.Errorf("%q may have no user or password", u.Redacted())
	}
	switch {
	case err != nil:
		return fmt.Errorf("%q is not a URL", s)
	case u.Scheme != "https" && u.Scheme != "http":
		return fmt.Errorf("%q must begin with https:// (or http://)", s)
	case u.Hostname() == "":
		return fmt.Errorf("%q names no host", s)
	case !usablePort(u):
		return fmt.Errorf("%q has a port that is not 1 to 65535", s)
	case u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q may have scheme, host, port and path only", s)
	case len(s) > 255:
		return fmt.Errorf("%q is longer than 255 bytes", s)
	}
	return nil
}

func usablePort(u *url.URL) bool {
	if u.Port() == "" {
		return true
	}
	n, err := strconv.ParseUint(u.Port(), 10, 16)
	return err == nil && n > 0
}
