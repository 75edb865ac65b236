package wireguard

import (
	"crypto/hmac"
	"hash"
	"testing"

	"golang.org/x/crypto/blake2s"
	"pgregory.net/rapid"
)

func TestOurHMACIsTheLibrarys(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(name string, most int) []byte { return rapid.SliceOfN(rapid.Byte(), 0, most).Draw(t, name) }
		k, a, b := draw("key", blake2sBlock), draw("a", 100), draw("b", 100)
		h := hmac.New(func() hash.Hash { h, _ := blake2s.New256(nil); return h }, k)
		h.Write(a)
		h.Write(b)
		if got := hmacOf(k, a, b); !hmac.Equal(got[:], h.Sum(nil)) {
			t.Fatalf("HMAC(%x, %x, %x) = %x", k, a, b, got)
		}
		if got, want := hashOf(a, b), blake2s.Sum256(append(a, b...)); got != want {
			t.Fatalf("the hash of %x is %x, want %x", a, got, want)
		}
	})
}

// BenchmarkHandshake is both sides of one, with keys that are new each time.
func BenchmarkHandshake(b *testing.B) {
	random := seeded(1)
	ka, kb := newKey(random), newKey(random)
	x, y := New(Config{Private: ka, Rand: random}), New(Config{Private: kb, Rand: random})
	px, _ := x.AddPeer(PeerConfig{Public: y.Public()})
	if _, err := y.AddPeer(PeerConfig{Public: x.Public()}); err != nil {
		b.Fatal(err)
	}
	now, ax, ay := newWorld(b, 1).now, Actions{}, Actions{}
	b.ReportAllocs()
	for b.Loop() {
		now = now.Add(RekeyTimeout)
		x.Greet(now, px, &ax)
		if err := y.Handle(now, here, ax.Send[0].Message, false, &ay); err != nil {
			b.Fatal(err)
		}
		if err := x.Handle(now, here, ay.Send[0].Message, false, &ax); err != nil {
			b.Fatal(err)
		}
	}
}
