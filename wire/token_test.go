package wire

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft"
	"weft/key"
)

func someToken() *rapid.Generator[Token] {
	return rapid.Custom(func(t *rapid.T) Token {
		k, s := some16().Draw(t, "key"), some16().Draw(t, "secret")
		token := Token{
			URL: rapid.SampledFrom([]string{
				"https://weft.example", "https://weft.example:8443", "http://192.0.2.1", "https://[2001:db8::1]:443",
				"https://weft.example/behind/a/proxy", "https://" + strings.Repeat("a", 247),
			}).Draw(t, "url"),
			Server: must(key.PublicFrom[key.Server](append(k[:], k[:]...))),
			Relay:  rapid.Bool().Draw(t, "relay"),
		}
		copy(token.Secret[:], append(s[:], s[:]...))
		if rapid.Bool().Draw(t, "self-signed") {
			sum := sha256.Sum256(s[:])
			token.Fingerprint = sum[:]
		}
		return token
	})
}

// fixedToken is one token with everything in it.
func fixedToken() Token {
	t := Token{URL: "https://weft.example:8443", Server: serverS.Public(), Fingerprint: bytes.Repeat([]byte{0xF1}, 32)}
	copy(t.Secret[:], "twenty secret bytes!")
	return t
}

// assemble makes the text of any content, with a check that is right.
func assemble(content []byte) string {
	sum := sha256.Sum256(content)
	return TokenPrefix + base64.RawURLEncoding.EncodeToString(append(bytes.Clone(content), sum[:4]...))
}

// refusedToken parses what must not parse, and looks at what the person is told.
func refusedToken(t interface {
	Helper()
	Errorf(string, ...any)
}, what, text, whole string) string {
	t.Helper()
	got, err := ParseToken(text)
	if err == nil {
		t.Errorf("%s: a token for %q was read", what, got.URL)
		return ""
	}
	message := err.Error()
	if weft.CodeOf(err) != weft.CodeBadToken || !errors.Is(err, &weft.Error{Code: weft.CodeBadToken}) {
		t.Errorf("%s: code %q", what, weft.CodeOf(err))
	}
	if len(message) < 20 || strings.ContainsAny(message, "\n\r\x00") {
		t.Errorf("%s: %q is no sentence", what, message)
	}
	// None of the token's own text, behind the prefix, comes back in any eight characters.
	body := strings.TrimPrefix(whole, TokenPrefix)
	for i := 0; i+8 <= len(body); i++ {
		if strings.Contains(message, body[i:i+8]) {
			t.Errorf("%s: %q shows the token", what, message)
			break
		}
	}
	return message
}

func TestATokenComesBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := someToken().Draw(t, "token")
		text := want.String()
		got, err := ParseToken(text)
		if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
			t.Fatalf("%v: %s", err, diff)
		}
		if got.String() != text {
			t.Fatalf("%q is written again as %q", text, got)
		}
		if strings.Trim(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_") != "" {
			t.Fatalf("%q does not survive a double click and a shell", text)
		}
	})
}

func TestATokenIsReadAsItWasPasted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := someToken().Draw(t, "token")
		pasted := want.String()
		for range rapid.IntRange(1, 6).Draw(t, "breaks") {
			at := rapid.IntRange(0, len(pasted)).Draw(t, "at")
			space := rapid.SampledFrom([]string{"\n", "\r\n", " ", "\t", "\n    ", "\u00a0"}).Draw(t, "space")
			pasted = pasted[:at] + space + pasted[at:]
		}
		// A break of two bytes may have been split by another: both halves are space all the same, but for
		// the bytes of U+00A0.
		if strings.ToValidUTF8(pasted, "") != pasted {
			t.Skip("split a character")
		}
		got, err := ParseToken(pasted)
		if diff := cmp.Diff(want, got, sameValues); err != nil || diff != "" {
			t.Fatalf("%q: %v: %s", pasted, err, diff)
		}
	})
}

func TestATokenThatIsCutIsKnownForOne(t *testing.T) {
	text := fixedToken().String()
	for n := range text {
		message := refusedToken(t, fmt.Sprintf("the first %d characters", n), text[:n], text)
		if n > len(TokenPrefix) && !strings.Contains(message, "cut or mistyped") {
			t.Errorf("the first %d characters: %q", n, message)
		}
		if n > 0 {
			refusedToken(t, fmt.Sprintf("all but the first %d characters", n), text[n:], text)
		}
		refusedToken(t, fmt.Sprintf("without character %d", n), text[:n]+text[n+1:], text)
	}
	refusedToken(t, "twice", text+text, text)
	refusedToken(t, "with a character behind it", text+"A", text)
}

func TestATokenThatIsMistypedIsKnownForOne(t *testing.T) {
	text := fixedToken().String()
	for i := range text {
		for _, c := range []byte("Aa0-_=+/.\"'\x00\xff" + string(text[i]^0x20) + string(text[i]+1)) {
			if c != text[i] {
				refusedToken(t, fmt.Sprintf("character %d as %q", i, c), text[:i]+string([]byte{c})+text[i+1:], text)
			}
		}
		if i > 0 && text[i] != text[i-1] {
			refusedToken(t, fmt.Sprintf("characters %d and %d swapped", i-1, i),
				text[:i-1]+string([]byte{text[i], text[i-1]})+text[i+1:], text)
		}
	}
}

func TestWhatIsNoTokenIsCalledSo(t *testing.T) {
	text := fixedToken().String()
	for _, c := range []struct{ what, text, says string }{
		{"nothing", "", "empty"},
		{"blanks", " \n\t ", "empty"},
		{"a URL", "https://weft.example", "must begin with"},
		{"a node key", nodeA.Public().String(), "must begin with"},
		{"a private key", nodeA.Reveal(), "must begin with"},
		{"of another system", "tskey-auth-abc", "must begin with"},
		{"in capitals", strings.ToUpper(text), "must begin with"},
		{"of another form", "weft2_" + text[6:], "must begin with"},
		{"without its prefix", text[6:], "must begin with"},
		{"a command line", "weft up " + text, "must begin with"},
	} {
		if got := refusedToken(t, c.what, c.text, text); !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", c.what, got, c.says)
		}
	}
	if got := refusedToken(t, "a private key", nodeA.Reveal(), nodeA.Reveal()); strings.Contains(got, "AQEB") {
		t.Errorf("%q shows the key", got)
	}
}

func TestATokenWhoseContentMakesNoSenseIsRefused(t *testing.T) {
	head := func(flags byte) []byte {
		return append(append([]byte{flags}, bytes.Repeat([]byte{4}, key.Size)...), bytes.Repeat([]byte{7}, TokenSecretSize)...)
	}
	url := func(s string) []byte { return append([]byte{byte(len(s))}, s...) }
	for _, c := range []struct {
		what    string
		content []byte
		says    string
	}{
		{"without a URL", append(head(0), 0), "no usable server"},
		{"of a newer version", append(head(8), url("https://a")...), "newer weft"},
		{"of a newer version, with another layout", append(head(0x81), 1), "newer weft"},
		{"without a secret, with one in it", append(head(4), url("https://a")...), "damaged"},
		{"with half a fingerprint", append(head(1), make([]byte, 20)...), "damaged"},
		{"with a fingerprint and no URL length", append(head(1), make([]byte, 32)...), "damaged"},
		{"with a URL that is longer than the token", append(head(0), 200, 'h'), "damaged"},
		{"with something behind the URL", append(append(head(0), url("https://a")...), 'x'), "damaged"},
		{"with a URL of another scheme", append(head(0), url("ftp://a")...), "https://"},
		{"with a URL of controls", append(head(0), url("https://a\x1b[2J")...), "not a URL"},
	} {
		if got := refusedToken(t, c.what, assemble(c.content), assemble(c.content)); !strings.Contains(got, c.says) {
			t.Errorf("%s: %q, want %q", c.what, got, c.says)
		}
	}
	if _, err := ParseToken(assemble(append(head(2), url("https://a")...))); err != nil {
		t.Errorf("this test does not assemble tokens: %v", err)
	}
}

func TestATokenIsNotLogged(t *testing.T) {
	token := fixedToken()
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("joining", "token", token)
	slog.New(slog.NewJSONHandler(&log, nil)).Info("joining", "token", &token)
	if strings.Contains(log.String(), TokenPrefix) || strings.Count(log.String(), "[redacted]") != 2 {
		t.Errorf("logged: %s", log.String())
	}
}

func TestAServerURLIsChecked(t *testing.T) {
	for _, s := range []string{
		"https://weft.example", "http://weft.example", "https://weft.example:443", "https://weft.example/", "https://192.0.2.1",
		"https://[2001:db8::1]", "https://[2001:db8::1]:8443", "https://weft.example/a/b", "https://weft.example:",
		"https://weft.example:65535", "HTTPS://weft.example", "https://" + strings.Repeat("a", 247),
	} {
		if err := CheckServerURL(s); err != nil {
			t.Errorf("%q: %v", s, err)
		}
	}
	for s, says := range map[string]string{
		"": "must begin with https://", "weft.example": "must begin with https://", "weft.example:443": "", "//weft.example": "must begin",
		"ftp://weft.example": "must begin", "https://": "names no host", "https:weft.example": "names no host",
		"https://:443": "names no host", "https://weft.example?a=b": "scheme, host, port and path only",
		"https://weft.example#a": "scheme, host", "https://weft.example:0": "1 to 65535", "https://weft.example:65536": "1 to 65535",
		"https://weft.example:99999999999999999999": "1 to 65535", "https://weft.example:http": "not a URL",
		"https://a b": "not a URL", "https://[::1": "not a URL", "https://" + strings.Repeat("a", 248): "longer than 255",
	} {
		if err := CheckServerURL(s); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", s, err, says)
		}
	}
	if err := CheckServerURL("https://anna:hunter2@weft.example"); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a password: %v", err)
	}
}
