package wire

import (
	"bytes"
	"encoding/binary"
	"testing"

	"pgregory.net/rapid"

	"weft"
)

func someGreeting() *rapid.Generator[Greeting] {
	return rapid.Custom(func(t *rapid.T) Greeting {
		return Greeting{
			Kind: Kind(rapid.Uint8Range(uint8(KindHello), uint8(KindConfirm)).Draw(t, "kind")), Time: rapid.Uint64().Draw(t, "time"),
			Answers: some8().Draw(t, "answers"), Token: some8().Draw(t, "token"), Link: weft.LinkID(rapid.Uint16().Draw(t, "link")),
		}
	})
}

func TestAGreetingComesBackToThePeerItIsForAndToNobodyElse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		g := someGreeting().Draw(t, "greeting")
		id := weft.NodeID(rapid.Uint32().Draw(t, "sender"))
		b := AppendGreeting([]byte("before"), boxAB, id, g)[len("before"):]
		if len(b) != GreetingSize {
			t.Fatalf("it has %d bytes", len(b))
		}
		if got, err := GreetingSender(b, g.Kind); err != nil || got != id {
			t.Fatalf("from %d: %v", got, err)
		}
		if got, err := OpenGreeting(b, g.Kind, boxBA); err != nil || got != g {
			t.Fatalf("%+v comes back as %+v, %v", g, got, err)
		}
		if _, err := OpenGreeting(b, g.Kind, boxAB); err == nil {
			t.Fatal("its sender takes it for the other's")
		}
		if _, ok := KindOf(b); ok {
			t.Fatal("it passes for a frame over UDP")
		}
		if _, err := OpenPeer(b, boxBA); err == nil {
			t.Fatal("it passes for a peer frame")
		}
		other := KindHello + (g.Kind-KindHello+1)%3
		if _, err := OpenGreeting(b, other, boxBA); err == nil {
			t.Fatalf("a greeting of kind %d opens as one of kind %d", g.Kind, other)
		}
		b[2] = byte(other)
		if _, err := OpenGreeting(b, other, boxBA); err == nil {
			t.Fatalf("one of kind %d that was made one of kind %d opens", g.Kind, other)
		}
		b[2] = byte(g.Kind)
		bit := rapid.IntRange(0, 8*len(b)-1).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		if _, err := OpenGreeting(b, g.Kind, boxBA); err == nil {
			t.Fatalf("it opens with bit %d changed", bit)
		}
	})
}

func FuzzOpenGreeting(f *testing.F) {
	addGoldens(f, "greeting")
	f.Fuzz(func(t *testing.T, b []byte) {
		for k := KindHello; k <= KindConfirm; k++ {
			id, err := GreetingSender(b, k)
			g, openErr := OpenGreeting(b, k, boxBA)
			if openErr == nil && (err != nil || g.Kind != k) {
				t.Fatalf("%+v opens, of sender %d, %v", g, id, err)
			}
			if err != nil {
				continue
			}
			if len(b) != GreetingSize || binary.BigEndian.Uint32(b[4:]) != uint32(id) {
				t.Fatalf("%x is from %d", b, id)
			}
			// What is inside, through the seal.
			sealed := append([]byte{Magic, Version, byte(k), 0}, b[4:8]...)
			inside := b[8 : 8+greetingBody]
			sealed = boxAB.Seal(sealed, inside, bytes.Clone(sealed))
			g, err = OpenGreeting(sealed, k, boxBA)
			if err != nil {
				t.Fatalf("what was sealed does not open: %v", err)
			}
			again := AppendGreeting(nil, boxAB, id, g)
			if back, err := OpenGreeting(again, k, boxBA); err != nil || back != g {
				t.Fatalf("%+v comes back as %+v, %v", g, back, err)
			}
		}
	})
}
