package key_test

import (
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"testing"

	"pgregory.net/rapid"

	"weft/key"
)

func TestSignaturesAreThoseOfRFC8032(t *testing.T) {
	// RFC 8032 section 7.1, tests 1 to 3.
	for _, c := range []struct{ seed, public, message, signature string }{
		{"9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60",
			"d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a", "",
			"e5564300c360ac729086e2cc806e828a84877f1eb8e5d974d873e06522490155" +
				"5fb8821590a33bacc61e39701cf9b46bd25bf5f0595bbe24655141438e7a100b"},
		{"4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb",
			"3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c", "72",
			"92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da" +
				"085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"},
		{"c5aa8df43f9f837bedb7442f31dcb7b166d38535076f094b85ce3a2e0b4458f7",
			"fc51cd8e6218a1a38da47ed00230f0580816ed13ba3303ac5deb911548908025", "af82",
			"6291d657deec24024827e69c3abe01a30ce548a284743a445e3680d7db5ac3ac" +
				"18ff9b538d16f290ae67f760984dc6594a7c15e9716ed28dc027beceea1ec40a"},
	} {
		text := func(s string) string { return base64.RawURLEncoding.EncodeToString(unhex(t, s)) }
		private := must(key.ParseSigning("private-signingkey:" + text(c.seed)))
		public := must(key.ParseSigningPublic("signingkey:" + text(c.public)))
		if private.Public() != public {
			t.Errorf("public half of %s is %s, want %s", c.seed, private.Public(), public)
		}
		got := private.Sign([]byte("before"), unhex(t, c.message))
		if string(got[:6]) != "before" || hex.EncodeToString(got[6:]) != c.signature {
			t.Errorf("signature of %q is %x, want %s", c.message, got[6:], c.signature)
		}
		if !public.Verify(unhex(t, c.message), got[6:]) {
			t.Errorf("signature of %q does not verify", c.message)
		}
	}
}

func TestAChangedMessageOrSignatureDoesNotVerify(t *testing.T) {
	private := key.NewSigning()
	public := private.Public()
	rapid.Check(t, func(t *rapid.T) {
		message := rapid.SliceOfN(rapid.Byte(), 1, 200).Draw(t, "message")
		signature := private.Sign(nil, message)
		if len(signature) != key.SignatureSize || !public.Verify(message, signature) {
			t.Fatal("a signature does not verify")
		}
		if key.NewSigning().Public().Verify(message, signature) || (key.SigningPublic{}).Verify(message, signature) {
			t.Fatal("another's key verifies it")
		}
		if n := rapid.IntRange(0, len(signature)-1).Draw(t, "cut"); public.Verify(message, signature[:n]) {
			t.Fatalf("%d bytes of it verify", n)
		}
		if public.Verify(message, append(signature[:64:64], 0)) {
			t.Fatal("a longer one verifies")
		}
		bit := rapid.IntRange(0, 8*len(signature)-1).Draw(t, "bit of the signature")
		signature[bit/8] ^= 1 << (bit % 8)
		if public.Verify(message, signature) {
			t.Fatal("a changed signature verifies")
		}
		signature[bit/8] ^= 1 << (bit % 8)
		bit = rapid.IntRange(0, 8*len(message)-1).Draw(t, "bit of the message")
		message[bit/8] ^= 1 << (bit % 8)
		if public.Verify(message, signature) {
			t.Fatal("a changed message verifies")
		}
	})
}

func TestNoKeyVerifiesNothing(t *testing.T) {
	// 32 zero bytes are a point of order 4, for which one message in four is "signed" by this.
	signature := append([]byte{1}, make([]byte, key.SignatureSize-1)...)
	forged := 0
	for i := range 64 {
		message := []byte{byte(i)}
		if ed25519.Verify(make([]byte, key.Size), message, signature) {
			forged++
		}
		if (key.SigningPublic{}).Verify(message, signature) {
			t.Errorf("no key verifies message %d", i)
		}
	}
	if forged == 0 {
		t.Error("this test forges nothing")
	}
}

func TestSigningKeysComeBackFromTheirText(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := base64.RawURLEncoding.EncodeToString(someKey().Draw(t, "seed"))
		private := must(key.ParseSigning("private-signingkey:" + seed))
		if private.Reveal() != "private-signingkey:"+seed || private.IsZero() {
			t.Fatal("a signing key does not come back")
		}
		public := private.Public()
		var got key.SigningPublic
		if err := json.Unmarshal(must(json.Marshal(public)), &got); err != nil || got != public {
			t.Fatalf("%s does not come back: %v", public, err)
		}
		if again, err := key.ParseSigningPublic(public.String()); err != nil || again != public {
			t.Fatalf("%s does not come back: %v", public, err)
		}
	})
	for _, s := range []string{"", "signingkey:", "nodekey:" + key.NewSigning().Public().String()[11:], key.NewSigning().Reveal()} {
		if _, err := key.ParseSigningPublic(s); err == nil {
			t.Errorf("%q was read as a signing key", s)
		}
	}
	if _, err := key.ParseSigning(key.NewSigning().Public().String()); err == nil {
		t.Error("a public key was read as a private one")
	}
}
