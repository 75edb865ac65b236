package key_test

import (
	"bytes"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"weft/key"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// someKey draws 32 bytes that are not all zero.
func someKey() *rapid.Generator[[]byte] {
	return rapid.SliceOfN(rapid.Byte(), key.Size, key.Size).Filter(func(b []byte) bool {
		return !bytes.Equal(b, make([]byte, key.Size))
	})
}

func TestThePublicHalfIsThatOfRFC7748(t *testing.T) {
	// RFC 7748 section 6.1.
	for _, c := range []struct{ private, public string }{
		{"77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a",
			"8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a"},
		{"5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb",
			"de9edb7d7b7dc1b4d35b61c2ece435373f8343c85b78674dadfc7e146f882b4f"},
	} {
		p := must(key.PrivateFrom[key.Node](unhex(t, c.private)))
		if got := p.Public().Bytes(); hex.EncodeToString(got[:]) != c.public {
			t.Errorf("public half of %s is %x, want %s", c.private, got, c.public)
		}
	}
}

func TestAPrivateKeyIsClampedOnItsWayIn(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		raw := someKey().Draw(t, "raw")
		p := must(key.PrivateFrom[key.Node](raw))
		b := p.RevealBytes()
		if b[0]&7 != 0 || b[31]&128 != 0 || b[31]&64 == 0 {
			t.Fatalf("%x is not clamped", b)
		}
		if q := must(key.PrivateFrom[key.Node](b[:])); q.RevealBytes() != b {
			t.Fatal("clamping twice is not clamping once")
		}
		raw[0] ^= 0xFF
		if p.RevealBytes() != b {
			t.Fatal("the key shares the caller's bytes")
		}
	})
}

func TestNewKeysDiffer(t *testing.T) {
	a, b := key.NewPrivate[key.Node](), key.NewPrivate[key.Node]()
	if a.IsZero() || a.RevealBytes() == b.RevealBytes() || a.Public() == b.Public() {
		t.Error("two new keys are the same")
	}
	if one, other := key.NewSigning(), key.NewSigning(); one.Reveal() == other.Reveal() {
		t.Error("two new signing keys are the same")
	}
}

// testRole checks the text forms of one role; others are every role's prefixes.
func testRole[R key.Role](t *testing.T, name string, others []string) {
	t.Run(name, func(t *testing.T) {
		rapid.Check(t, func(t *rapid.T) {
			private := must(key.PrivateFrom[R](someKey().Draw(t, "raw")))
			text := private.Reveal()
			if !strings.HasPrefix(text, "private-"+name+":") {
				t.Fatalf("a private %s begins %q", name, text[:20])
			}
			again, err := key.ParsePrivate[R](text)
			if err != nil || again.RevealBytes() != private.RevealBytes() {
				t.Fatalf("private key does not come back: %v", err)
			}

			public := private.Public()
			if !strings.HasPrefix(public.String(), name+":") {
				t.Fatalf("a %s prints as %q", name, public)
			}
			if got, err := key.ParsePublic[R](public.String()); err != nil || got != public {
				t.Fatalf("%s does not come back: %v", public, err)
			}
			type document struct {
				Key  key.Public[R] `json:"key"`
				None key.Public[R] `json:"none,omitzero"`
			}
			var back document
			b := must(json.Marshal(document{Key: public}))
			if err := json.Unmarshal(b, &back); err != nil || back.Key != public || !back.None.IsZero() {
				t.Fatalf("%s does not come back: %v", b, err)
			}
			bytes := public.Bytes()
			if got := must(key.PublicFrom[R](bytes[:])); got != public {
				t.Fatal("bytes do not come back")
			}
			if got := must(key.PublicFrom[R](public.Append([]byte("x"))[1:])); got != public {
				t.Fatal("appended bytes do not come back")
			}

			for _, other := range others {
				if other == name {
					continue
				}
				_, body, _ := strings.Cut(public.String(), ":")
				if _, err := key.ParsePublic[R](other + ":" + body); err == nil || !strings.Contains(err.Error(), name) {
					t.Fatalf("a %s was read as a %s: %v", other, name, err)
				}
				if _, err := key.ParsePrivate[R]("private-" + other + ":" + body); err == nil {
					t.Fatalf("a private %s was read as a private %s", other, name)
				}
			}
			if _, err := key.ParsePublic[R](text); err == nil || strings.Contains(err.Error(), text[len(text)-20:]) {
				t.Fatalf("a private key pasted as a public one: %v", err)
			}
			if _, err := key.ParsePrivate[R](public.String()); err == nil {
				t.Fatal("a public key was read as a private one")
			}
		})
	})
}

func TestEachRoleReadsItsOwnTextAndNoOther(t *testing.T) {
	roles := []string{"nodekey", "machinekey", "serverkey", "relaykey", "signingkey"}
	testRole[key.Node](t, "nodekey", roles)
	testRole[key.Machine](t, "machinekey", roles)
	testRole[key.Server](t, "serverkey", roles)
	testRole[key.Relay](t, "relaykey", roles)
}

func TestATextIsReadAsItStandsInAFile(t *testing.T) {
	private := key.NewPrivate[key.Machine]()
	if got, err := key.ParsePrivate[key.Machine](" " + private.Reveal() + "\r\n"); err != nil ||
		got.RevealBytes() != private.RevealBytes() {
		t.Errorf("a line of a file is not read: %v", err)
	}
}

func TestATextThatIsCutOrMistypedIsNoKey(t *testing.T) {
	text := must(key.PrivateFrom[key.Node](bytes.Repeat([]byte{9}, key.Size))).Public().String()
	for _, s := range []string{
		"", ":", "nodekey", "nodekey:", text[:len(text)-1], text + "A", text + "=", text[8:], text[:20] + "\n" + text[20:], text[:20] + " " + text[20:],
		strings.ToUpper(text), text[:len(text)-1] + "_", // the last character has two spare bits
		strings.Replace(text, ":", ";", 1),
	} {
		if got, err := key.ParsePublic[key.Node](s); err == nil {
			t.Errorf("%q was read as %v", s, got)
		}
	}
	for n := range 64 {
		_, errPrivate := key.PrivateFrom[key.Node](bytes.Repeat([]byte{1}, n))
		_, errPublic := key.PublicFrom[key.Node](make([]byte, n))
		if want := n != key.Size; (errPrivate != nil) != want || (errPublic != nil) != want {
			t.Errorf("%d bytes: %v, %v", n, errPrivate, errPublic)
		}
	}
}

func TestTheZeroValueIsNoKey(t *testing.T) {
	var private key.NodePrivate
	var public key.NodePublic
	var signing key.SigningPrivate
	var verifying key.SigningPublic
	if !private.IsZero() || !public.IsZero() || !signing.IsZero() || !verifying.IsZero() {
		t.Error("a zero value reports that it is a key")
	}
	if !private.Public().IsZero() || !signing.Public().IsZero() {
		t.Error("no private key has a public half")
	}
	if private.RevealBytes() != [key.Size]byte{} {
		t.Error("no key has bytes")
	}
	if text, err := public.MarshalText(); err != nil || len(text) != 0 {
		t.Errorf("no key marshals as %q, %v", text, err)
	}
	public = key.NewPrivate[key.Node]().Public()
	if err := public.UnmarshalText(nil); err != nil || !public.IsZero() {
		t.Errorf("nothing unmarshals as %v, %v", public, err)
	}
	// What a disk that lost power makes of a key file must not become an identity that everybody knows.
	zeros := base64.RawURLEncoding.EncodeToString(make([]byte, key.Size))
	if _, err := key.PrivateFrom[key.Node](make([]byte, key.Size)); err == nil {
		t.Error("32 zero bytes were taken for a private key")
	}
	if _, err := key.ParsePrivate[key.Machine]("private-machinekey:" + zeros); err == nil {
		t.Error("the text of 32 zero bytes was taken for a private key")
	}
	if _, err := key.ParseSigning("private-signingkey:" + zeros); err == nil {
		t.Error("the text of 32 zero bytes was taken for a signing key")
	}
}

func TestAFailedUnmarshalLeavesTheKeyAsItWas(t *testing.T) {
	public := key.NewPrivate[key.Node]().Public()
	was := public
	if err := public.UnmarshalText([]byte("nodekey:short")); err == nil || public != was {
		t.Errorf("%v, %v", public, err)
	}
	verifying := key.NewSigning().Public()
	wasVerifying := verifying
	if err := verifying.UnmarshalText([]byte("nodekey:short")); err == nil || verifying != wasVerifying {
		t.Errorf("%v, %v", verifying, err)
	}
}

func TestTwoPeersAgreeOnWhoLeads(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := must(key.PublicFrom[key.Node](someKey().Draw(t, "a")))
		b := must(key.PublicFrom[key.Node](someKey().Draw(t, "b")))
		x, y := a.Bytes(), b.Bytes()
		if got := a.Compare(b); got != bytes.Compare(x[:], y[:]) || got != -b.Compare(a) || (got == 0) != (a == b) {
			t.Fatalf("%v and %v compare as %d", a, b, got)
		}
	})
}

func TestAShortKeyIsTheBeginningOfTheLongOne(t *testing.T) {
	p := key.NewPrivate[key.Relay]().Public()
	if !strings.HasPrefix(p.String(), "relaykey:"+p.Short()) || len(p.Short()) != 8 {
		t.Errorf("%s is short for %s", p.Short(), p)
	}
}

func TestPrivateKeysDoNotCompare(t *testing.T) {
	for _, private := range []any{key.NodePrivate{}, key.SigningPrivate{}} {
		if reflect.TypeOf(private).Comparable() {
			t.Errorf("== compiles for a %T, and stops at the first byte that differs", private)
		}
	}
	for _, public := range []any{key.NodePublic{}, key.SigningPublic{}} {
		if !reflect.TypeOf(public).Comparable() {
			t.Errorf("a %T cannot be the key of a map", public)
		}
	}
}

// traces are four bytes in a row of a secret, from every place in it, as fmt or an encoding would write them.
type traces []string

func tracesOf(secret [key.Size]byte) traces {
	seen := map[string]bool{}
	add := func(s string) {
		if len(s) >= 4 {
			seen[s] = true
		}
	}
	for at := range key.Size - 4 {
		run := secret[at : at+4]
		for _, verb := range []string{"%v", "%#v", "%x", "%X", "% x", "%# x", "%d", "%o", "%O", "%b", "%c", "%U", "%q", "%s"} {
			for _, form := range []any{run, [4]byte(run), string(run)} {
				_, s, _ := cutLast(fmt.Sprintf(verb, form), "{")
				add(strings.Trim(s, "[](){}\"'`"))
			}
		}
	}
	for at := range 3 {
		all := base64.RawStdEncoding.EncodeToString(secret[at:])
		for i := 0; i+6 <= len(all); i += 4 {
			add(all[i : i+6])
			add(strings.NewReplacer("+", "-", "/", "_").Replace(all[i : i+6]))
		}
	}
	return slices.Collect(maps.Keys(seen))
}

// in returns a trace that a text shows.
func (ts traces) in(text string) (string, bool) {
	for _, trace := range ts {
		if strings.Contains(text, trace) {
			return trace, true
		}
	}
	return "", false
}

func cutLast(s, sep string) (before, after string, found bool) {
	if i := strings.LastIndex(s, sep); i >= 0 {
		return s[:i], s[i+len(sep):], true
	}
	return "", s, false
}

// A daemon is what a careless debug line prints: a key in a field that fmt cannot call methods on.
type daemon struct {
	Name    string
	Shown   key.NodePrivate
	hidden  key.NodePrivate
	pointer *key.NodePrivate
	many    []key.NodePrivate
	byName  map[string]key.NodePrivate
	any     any
	sign    key.SigningPrivate
}

func TestNoVerbPrintsAPrivateKey(t *testing.T) {
	raw := [key.Size]byte(unhex(t, "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb"))
	private := must(key.PrivateFrom[key.Node](raw[:]))
	secret := private.RevealBytes()
	signing := must(key.ParseSigning("private-signingkey:" + base64.RawURLEncoding.EncodeToString(secret[:])))
	box := must(key.Agree(private, key.NewPrivate[key.Relay]().Public(), "test"))
	d := daemon{
		Name: "d", Shown: private, hidden: private, pointer: &private, many: []key.NodePrivate{private},
		byName: map[string]key.NodePrivate{"k": private}, any: private, sign: signing,
	}

	secrets := tracesOf(secret)
	if _, found := secrets.in(fmt.Sprint(struct{ k [key.Size]byte }{secret})); !found {
		t.Fatal("this test would not notice a leak of bytes")
	}
	if _, found := secrets.in(private.Reveal()); !found {
		t.Fatal("this test would not notice a leak in base64")
	}

	for _, flags := range []string{"", "+", "#", "-", " ", "0", "+#", "# ", "100", ".5"} {
		for _, verb := range "vTtbcdoOxXqUeEfFgGspwz" {
			format := "%" + flags + string(verb)
			for _, value := range []any{
				private, &private, signing, &signing, d, &d, []daemon{d}, map[string]*daemon{"d": &d}, struct{ inner daemon }{d},
				[]key.NodePrivate{private}, []any{private, &signing}, box, &box, struct{ b key.Box }{box},
			} {
				if needle, found := secrets.in(fmt.Sprintf(format, value)); found {
					t.Fatalf("Sprintf(%q, %T) shows %q of the secret", format, value, needle)
				}
			}
			if verb == 'T' || verb == 'p' || verb == 'w' {
				continue // fmt answers these before it asks the value
			}
			if got := fmt.Sprintf(format, private) + fmt.Sprintf(format, signing); got != "[redacted][redacted]" {
				t.Errorf("%s prints %q", format, got)
			}
		}
	}
	if private.String() != "[redacted]" || private.GoString() != "[redacted]" ||
		signing.String() != "[redacted]" || signing.GoString() != "[redacted]" {
		t.Error("String or GoString shows something")
	}
}

func TestAPrivateKeyIsNotMarshalledOrLogged(t *testing.T) {
	private, signing := key.NewPrivate[key.Node](), key.NewSigning()
	secrets := tracesOf(private.RevealBytes())
	for _, document := range []any{
		private, &private, signing, &signing,
		struct{ Key key.NodePrivate }{private}, struct{ Key *key.SigningPrivate }{&signing},
		map[string]key.NodePrivate{"k": private}, []key.SigningPrivate{signing},
	} {
		b, err := json.Marshal(document)
		if err == nil {
			t.Errorf("%T marshals as %d bytes", document, len(b))
			continue
		}
		if needle, found := secrets.in(err.Error()); found {
			t.Errorf("%T: the error shows %q", document, needle)
		}
	}
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("starting", "key", private, "of", struct{ Key key.NodePrivate }{private},
			"inner", struct{ key key.NodePrivate }{private}, "err", fmt.Errorf("with %v: %w", private, errors.New("no")))
	}
	if needle, found := secrets.in(log.String()); found {
		t.Errorf("the log shows %q", needle)
	}
	if n := strings.Count(log.String(), "\n"); n != 2 {
		t.Errorf("%d lines were logged", n)
	}
}

func TestPublicKeysSortAndCompareByBytesInDocuments(t *testing.T) {
	a, b := key.NewPrivate[key.Node]().Public(), key.NewPrivate[key.Node]().Public()
	want := map[key.NodePublic]int{a: 1, b: 2}
	var got map[key.NodePublic]int
	if err := json.Unmarshal(must(json.Marshal(want)), &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(x, y key.NodePublic) bool { return x == y })); diff != "" {
		t.Error(diff)
	}
}

func FuzzParsePublic(f *testing.F) {
	p := must(key.PrivateFrom[key.Node](bytes.Repeat([]byte{7}, key.Size)))
	for _, s := range []string{"", "nodekey:", p.Public().String(), p.Reveal(), p.Public().String()[:30]} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if p, err := key.ParsePublic[key.Node](s); err == nil && p.String() != strings.TrimSpace(s) {
			t.Errorf("%q reads as %v", s, p)
		}
		if p, err := key.ParsePrivate[key.Node](s); err == nil {
			again, err := key.ParsePrivate[key.Node](p.Reveal())
			if err != nil || again.RevealBytes() != p.RevealBytes() {
				t.Errorf("a private key does not come back: %v", err)
			}
		}
		if p, err := key.ParseSigningPublic(s); err == nil && p.String() != strings.TrimSpace(s) {
			t.Errorf("%q reads as %v", s, p)
		}
	})
}
