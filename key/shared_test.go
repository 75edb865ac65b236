package key_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"weft/key"
)

func TestWhoSharesASecretDerivesTheSameKeysAndNobodyElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := someKey().Draw(t, "secret")
		ours, theirs := must(key.SharedFrom(text)), must(key.ParseShared("sharedsecret:"+base64.RawURLEncoding.EncodeToString(text)))
		message := rapid.SliceOf(rapid.Byte()).Draw(t, "message")
		if must(ours.Signing("a")).Public() != must(theirs.Signing("a")).Public() {
			t.Fatal("two who share a secret sign by different keys")
		}
		sealed := must(ours.Box("a")).Seal(nil, message, []byte("x"))
		if got, err := must(theirs.Box("a")).Open(nil, sealed, []byte("x")); err != nil || !bytes.Equal(got, message) {
			t.Fatalf("what one sealed does not open for the other: %v", err)
		}
		if must(ours.Signing("a")).Public() == must(ours.Signing("b")).Public() {
			t.Fatal("two purposes have one key")
		}
		changed := bytes.Clone(text)
		changed[rapid.IntRange(0, key.Size-1).Draw(t, "byte")] ^= 1
		if bytes.Equal(changed, make([]byte, key.Size)) {
			return
		}
		stranger := must(key.SharedFrom(changed))
		if must(stranger.Signing("a")).Public() == must(ours.Signing("a")).Public() {
			t.Fatal("another secret makes the same key")
		}
		for name, box := range map[string]key.Box{"a stranger's": must(stranger.Box("a")), "another purpose's": must(ours.Box("b"))} {
			if _, err := box.Open(nil, sealed, []byte("x")); !errors.Is(err, key.ErrOpen) {
				t.Fatalf("%s box opens it: %v", name, err)
			}
		}
		if again := must(key.ParseShared(ours.Reveal())); again.Reveal() != ours.Reveal() {
			t.Fatal("a shared secret does not come back from its text")
		}
	})
}

func TestASharedSecretIsNotShownAndNoneIsNotUsed(t *testing.T) {
	p := must(key.SharedFrom(bytes.Repeat([]byte{0xA7}, key.Size)))
	type holder struct{ Inside key.Shared }
	var said strings.Builder
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%c", "%U"} {
		fmt.Fprintf(&said, verb+verb+verb, p, &p, holder{p})
	}
	for _, secret := range []string{"a7a7", "A7A7", "167 167", "§§", p.Reveal()[13:]} {
		if strings.Contains(said.String(), secret) {
			t.Errorf("%q is shown: %s", secret, said.String())
		}
	}
	if b, err := json.Marshal(holder{p}); err == nil {
		t.Errorf("it is marshalled: %s", b)
	}
	var none key.Shared
	if _, err := none.Signing("a"); err == nil || !none.IsZero() || p.IsZero() {
		t.Error("no secret signs")
	}
	if _, err := none.Box("a"); err == nil {
		t.Error("no secret seals")
	}
	for _, b := range [][]byte{nil, make([]byte, key.Size), make([]byte, key.Size-1)} {
		if _, err := key.SharedFrom(b); err == nil {
			t.Errorf("%d bytes are a shared secret", len(b))
		}
	}
	for _, s := range []string{"", "sharedsecret:", key.NewSigning().Reveal(), none.Reveal()} {
		if _, err := key.ParseShared(s); err == nil {
			t.Errorf("%q is a shared secret", s)
		}
	}
}
