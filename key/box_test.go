package key_test

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"weft/key"
)

// pair returns the two ends of one box.
func pair(t testing.TB, purpose string) (a, b key.Box) {
	t.Helper()
	node, relay := key.NewPrivate[key.Node](), key.NewPrivate[key.Relay]()
	a, errA := key.Agree(node, relay.Public(), purpose)
	b, errB := key.Agree(relay, node.Public(), purpose)
	if err := errors.Join(errA, errB); err != nil {
		t.Fatal(err)
	}
	return a, b
}

func TestABoxOpensAtTheOtherEndAndNowhereElse(t *testing.T) {
	a, b := pair(t, "test")
	stranger, _ := pair(t, "test")
	rapid.Check(t, func(t *rapid.T) {
		from, to := a, b
		if rapid.Bool().Draw(t, "the other way") {
			from, to = b, a
		}
		plain := rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "plaintext")
		additional := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "additional")
		dst := rapid.SliceOfN(rapid.Byte(), 0, 20).Draw(t, "dst")

		out := from.Seal(bytes.Clone(dst), plain, additional)
		sealed := out[len(dst):]
		if !bytes.HasPrefix(out, dst) || len(sealed) != len(plain)+key.Overhead {
			t.Fatalf("%d bytes sealed behind %d are %d", len(plain), len(dst), len(out))
		}
		got, err := to.Open(bytes.Clone(dst), sealed, additional)
		if err != nil || !bytes.Equal(got, append(bytes.Clone(dst), plain...)) {
			t.Fatalf("does not open: %v", err)
		}

		refused := func(what string, box key.Box, sealed, additional []byte) {
			if _, err := box.Open(nil, sealed, additional); !errors.Is(err, key.ErrOpen) {
				t.Fatalf("%s: %v", what, err)
			}
		}
		refused("reflected to its sender", from, sealed, additional)
		refused("opened by a stranger", stranger, sealed, additional)
		refused("opened by no box", key.Box{}, sealed, additional)
		refused("with more additional data", to, sealed, append(bytes.Clone(additional), 0))
		if len(additional) > 0 {
			changed := bytes.Clone(additional)
			bit := rapid.IntRange(0, 8*len(changed)-1).Draw(t, "bit of the additional data")
			changed[bit/8] ^= 1 << (bit % 8)
			refused("with changed additional data", to, sealed, changed)
			refused("without its additional data", to, sealed, nil)
		}
		refused("cut", to, sealed[:rapid.IntRange(0, len(sealed)-1).Draw(t, "cut")], additional)
		bit := rapid.IntRange(0, 8*len(sealed)-1).Draw(t, "bit of the sealed message")
		sealed[bit/8] ^= 1 << (bit % 8)
		refused("changed", to, sealed, additional)
	})
}

func TestAMessageIsSealedWhereItStands(t *testing.T) {
	a, b := pair(t, "test")
	buf := append(make([]byte, 0, 200), "headmessage"...)
	sealed := a.Seal(buf[:4], buf[4:], buf[:4])
	if got, err := b.Open(nil, sealed[4:], []byte("head")); err != nil || string(got) != "message" {
		t.Errorf("%q, %v", got, err)
	}
	if &sealed[0] != &buf[0] {
		t.Error("a buffer that was long enough was left")
	}
}

func TestBoxesOfDifferentPurposesAreApart(t *testing.T) {
	node, relay := key.NewPrivate[key.Node](), key.NewPrivate[key.Relay]()
	a := must(key.Agree(node, relay.Public(), "one"))
	b := must(key.Agree(relay, node.Public(), "other"))
	if _, err := b.Open(nil, a.Seal(nil, []byte("x"), nil), nil); !errors.Is(err, key.ErrOpen) {
		t.Errorf("a message for one purpose opens under another: %v", err)
	}
}

const (
	goldenToBob   = "774de07a2393097ae73eac8cfdbae905f5313f4517d16e633509ab31cb8b484934034cc948e00717"
	goldenToAlice = "965a21d3e1e083a3cc2379440b73a92f2954a8cb7b5b8a75da908b391a9c78b07edffe60b91e6f57"
)

func TestASealedMessageOfEarlierStillOpens(t *testing.T) {
	// Sealed once by this package between the keys of RFC 7748 section 6.1. When it no longer opens, the
	// derivation has changed, and nodes of two versions cannot talk.
	alice := must(key.PrivateFrom[key.Node](unhex(t, "77076d0a7318a57d3c16c17251b26645df4c2f87ebc0992ab177fba51db92c2a")))
	bob := must(key.PrivateFrom[key.Relay](unhex(t, "5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb")))
	for _, c := range []struct {
		from, to string
		box      key.Box
		sealed   string
	}{
		{"alice", "bob", must(key.Agree(bob, alice.Public(), "golden")), goldenToBob},
		{"bob", "alice", must(key.Agree(alice, bob.Public(), "golden")), goldenToAlice},
	} {
		got, err := c.box.Open(nil, unhex(t, c.sealed), []byte("additional"))
		if want := fmt.Sprintf("%s to %s", c.from, c.to); err != nil || string(got) != want {
			t.Errorf("%q, %v; want %q", got, err, want)
		}
	}
}

func TestAKeyOfLowOrderIsRefused(t *testing.T) {
	// The points whose order divides 8 and their other encodings, with and without the bit that X25519
	// ignores: with any of them everybody knows the agreed secret (RFC 7748 section 6.1).
	own := key.NewPrivate[key.Node]()
	for _, s := range []string{
		"0000000000000000000000000000000000000000000000000000000000000000",
		"0100000000000000000000000000000000000000000000000000000000000000",
		"e0eb7a7c3b41b8ae1656e3faf19fc46ada098deb9c32b1fd866205165f49b800",
		"5f9c95bca3508c24b1d0b1559c83ef5b04445cc4581c8e86d8224eddd09f1157",
		"ecffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"edffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
		"eeffffffffffffffffffffffffffffffffffffffffffffffffffffffffffff7f",
	} {
		b := unhex(t, s)
		for _, high := range []byte{0, 0x80} {
			b[31] |= high
			box, err := key.Agree(own, must(key.PublicFrom[key.Node](b)), "test")
			if err == nil {
				t.Errorf("%x was agreed with", b)
			}
			if _, err := box.Open(nil, make([]byte, 100), nil); !errors.Is(err, key.ErrOpen) {
				t.Errorf("the box of a refused agreement opens something: %v", err)
			}
		}
	}
}

func TestNothingIsAgreedWithoutAPrivateKey(t *testing.T) {
	if _, err := key.Agree(key.NodePrivate{}, key.NewPrivate[key.Node]().Public(), "test"); err == nil {
		t.Error("no key agreed with a key")
	}
}

func TestABoxIsUsedByManyAtOnce(t *testing.T) {
	a, b := pair(t, "test")
	var wg sync.WaitGroup
	nonces := make(chan [12]byte, 8*200)
	for g := range 8 {
		wg.Go(func() {
			for i := range 200 {
				from, to := a, b
				if (g+i)%2 == 0 {
					from, to = b, a
				}
				want := fmt.Appendf(nil, "%d of %d", i, g)
				sealed := from.Seal(nil, want, nil)
				nonces <- [12]byte(sealed)
				if got, err := to.Open(nil, sealed, nil); err != nil || !bytes.Equal(got, want) {
					t.Errorf("%q, %v", got, err)
				}
			}
		})
	}
	wg.Wait()
	close(nonces)
	seen := map[[12]byte]bool{}
	for n := range nonces {
		if seen[n] {
			t.Fatal("a nonce came twice")
		}
		seen[n] = true
	}
}

func TestSealAndOpenAllocateNothing(t *testing.T) {
	a, b := pair(t, "test")
	plain, additional := make([]byte, 1200), make([]byte, 8)
	sealed, opened := make([]byte, 0, 1300), make([]byte, 0, 1300)
	if n := testing.AllocsPerRun(100, func() {
		sealed = a.Seal(sealed[:0], plain, additional)
		var err error
		if opened, err = b.Open(opened[:0], sealed, additional); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSeal(b *testing.B) {
	box, _ := pair(b, "bench")
	for _, size := range []int{16, 64, 1280} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			plain, out := make([]byte, size), make([]byte, 0, size+key.Overhead)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				out = box.Seal(out[:0], plain, nil)
			}
		})
	}
}

func BenchmarkOpen(b *testing.B) {
	box, other := pair(b, "bench")
	for _, size := range []int{16, 64, 1280} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			sealed, out := other.Seal(nil, make([]byte, size), nil), make([]byte, 0, size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if out, err = box.Open(out[:0], sealed, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkAgree is what a relay pays for a Bind whose cookie was right.
func BenchmarkAgree(b *testing.B) {
	own, other := key.NewPrivate[key.Relay](), key.NewPrivate[key.Node]().Public()
	b.ReportAllocs()
	for b.Loop() {
		if _, err := key.Agree(own, other, "bench"); err != nil {
			b.Fatal(err)
		}
	}
}
