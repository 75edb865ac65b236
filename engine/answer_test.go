package engine

import (
	"encoding/binary"
	"testing"
	"time"
)

// asleep waits until the sender's goroutine waits for its device.
func asleep(t *testing.T, o *sender) {
	t.Helper()
	eventually(t, "the sender sleeps", func() bool { return o.turn.Load() == nobodys })
}

// arrived waits for a packet and gives its number.
func arrived(t *testing.T, n *node) uint32 {
	t.Helper()
	select {
	case p := <-n.tun.in:
		return binary.BigEndian.Uint32(p[20:])
	case <-time.After(patience):
		t.Fatalf("nothing came to %d; drops: %+v", n.id, n.Drops())
		return 0
	}
}

func TestWhoDeliversAPacketToAnIdleDeviceSendsItsAnswer(t *testing.T) {
	a, b := talking(t)
	answersAsleep(t, a, b)
}

// answersAsleep has the device of b answer packets of a, whose sender sleeps and is not woken.
func answersAsleep(t *testing.T, a, b *node) {
	t.Helper()
	b.tun.echoes.Store(true)
	o := b.senders[0]
	for seq := uint32(10); seq < 30; seq++ {
		asleep(t, o) // and answers do not wake it
		o.lately.Store(0)
		exchange(t, a, b, seq)
		if got := arrived(t, a); got != seq {
			t.Fatalf("packet %d is answered by %d", seq, got)
		}
	}
}

func TestWhatADeviceSendsAfterAnAnswerIsSentAsItIs(t *testing.T) {
	a, b := talking(t)
	o := b.senders[0]
	for seq := uint32(10); seq < 30; seq++ {
		asleep(t, o)
		if !o.turn.CompareAndSwap(nobodys, openers) {
			t.Fatal("the sender is awake")
		}
		o.scratch, o.larges, o.slabs = nil, 0, nil // as an answer of several segments leaves it
		o.turn.Store(nobodys)
		b.tun.out <- packet(addrOf(b.id), addrOf(a.id), 1000+seq, 60) // for which the sender has waited since before the answer
		if got := arrived(t, a); got != 1000+seq {
			t.Fatalf("packet %d came as %d", 1000+seq, got)
		}
	}
}

func TestTheAnswersOfABusyDeviceAreItsSenders(t *testing.T) {
	a, b := talking(t)
	b.tun.echoes.Store(true)
	o := b.senders[0]
	asleep(t, o)
	o.lately.Store(b.now() + int64(time.Hour))
	exchange(t, a, b, 10)
	exchange(t, a, b, 11) // by the same goroutine, behind what it does with the first
	if n := len(b.tun.answers); n == 0 || len(a.tun.in) > 0 {
		t.Fatalf("%d answers are left in the device", n)
	}
	b.tun.Wake()
	if first, second := arrived(t, a), arrived(t, a); first != 10 || second != 11 {
		t.Errorf("answers %d and %d", first, second)
	}
}

func TestNoAnswerIsLostOrSentTwiceWhereTheSenderIsWokenAsWell(t *testing.T) {
	a, b := talking(t)
	b.tun.echoes.Store(true)
	for seq := range uint32(2000) {
		b.senders[0].lately.Store(0)
		a.tun.out <- packet(addrOf(a.id), addrOf(b.id), seq, 60)
		if seq%3 != 0 {
			b.tun.Wake() // ahead of it
		}
		if got := arrived(t, b); got != seq {
			t.Fatalf("packet %d came, want %d", got, seq)
		}
		b.tun.Wake()
		if got := arrived(t, a); got != seq {
			t.Fatalf("packet %d is answered by %d", seq, got)
		}
	}
	if len(a.tun.in) > 0 {
		t.Errorf("%d answers too many", len(a.tun.in))
	}
}
