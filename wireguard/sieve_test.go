package wireguard

import (
	"bytes"
	"testing"
	"time"
)

// handshakeMessages are one of each kind that a sends to b or the other way, and whom they are for.
func handshakeMessages(t testing.TB) (w *world, toB, toA [][]byte) {
	t.Helper()
	w = newWorld(t, 3)
	w.a.d.Want(w.now, w.a.p, &w.a.actions)
	initiation := bytes.Clone(w.a.actions.Send[0].Message)
	if err := w.b.d.Handle(w.now, here, initiation, true, &w.b.actions); err != ErrCookie {
		t.Fatal(err)
	}
	cookie := bytes.Clone(w.b.actions.Send[0].Message)
	if err := w.b.d.Handle(w.now, here, initiation, false, &w.b.actions); err != nil {
		t.Fatal(err)
	}
	return w, [][]byte{initiation}, [][]byte{bytes.Clone(w.b.actions.Send[0].Message), cookie}
}

func TestASieveLetsThroughWhatIsForUsAndNothingThatIsOneBitOff(t *testing.T) {
	w, toB, toA := handshakeMessages(t)
	a, b := NewSieve(w.a.d.Public()), NewSieve(w.b.d.Public())
	check := func(mine, others *Sieve, msg []byte) {
		if !mine.Valid(msg) {
			t.Errorf("a message of type %d is held back", msg[0])
		}
		if msg[0] != TypeCookieReply && others.Valid(msg) {
			t.Errorf("a message of type %d for somebody else passes", msg[0])
		}
		if mine.Valid(msg[:len(msg)-1]) || mine.Valid(append(bytes.Clone(msg), 0)) {
			t.Errorf("a message of type %d passes with another length", msg[0])
		}
		for i := range len(msg) * 8 {
			off := bytes.Clone(msg)
			off[i/8] ^= 1 << (i % 8)
			// The second MAC is of no interest here, nor is what is in a cookie reply.
			free := i/8 >= len(msg)-macSize || msg[0] == TypeCookieReply && i/8 >= 4
			if mine.Valid(off) != free {
				t.Fatalf("a message of type %d with bit %d turned passes: %v", msg[0], i, !free)
			}
		}
	}
	for _, msg := range toB {
		check(b, a, msg)
	}
	for _, msg := range toA {
		check(a, b, msg)
	}
}

func TestASieveAllocatesNothing(t *testing.T) {
	w, toB, _ := handshakeMessages(t)
	s := NewSieve(w.b.d.Public())
	wrong := bytes.Clone(toB[0])
	wrong[20] ^= 1
	if n := testing.AllocsPerRun(100, func() { s.Valid(toB[0]); s.Valid(wrong); s.Valid(wrong[:60]) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzSieve holds the Sieve against the Device: what it holds back is what the Device refuses by its form or first MAC.
func FuzzSieve(f *testing.F) {
	w, toB, toA := handshakeMessages(f)
	for _, msg := range append(toB, toA...) {
		f.Add(msg)
	}
	f.Add([]byte{})
	f.Add([]byte{4, 0, 0, 0, 1, 2, 3, 4})
	s, actions, at := NewSieve(w.b.d.Public()), Actions{}, w.now
	f.Fuzz(func(t *testing.T, msg []byte) {
		at = at.Add(time.Second)
		err := w.b.d.Handle(at, here, msg, true, &actions)
		if want := err != ErrMessage && err != ErrMAC; s.Valid(msg) != want {
			t.Fatalf("the sieve lets %x through: %v; the device says %v", msg, !want, err)
		}
	})
}

func BenchmarkSieveOfAnInitiation(b *testing.B) {
	s, msg := NewSieve(Key{1}), make([]byte, InitiationSize)
	msg[0] = TypeInitiation
	b.ReportAllocs()
	for b.Loop() {
		s.Valid(msg)
	}
}
