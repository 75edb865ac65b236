package engine

import (
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"weft"
	"weft/engine/segment"
	"weft/host"
	"weft/key"
	"weft/wireguard"
)

// mirror is a device whose other side answers each packet at once, as a kernel does an echo. It knows who reads it.
type mirror struct {
	bell
	t       *testing.T
	readers atomic.Int32
	reading func() // hears of each look
	packets atomic.Int64

	mu      sync.Mutex
	answers [][]byte
}

func newMirror(t *testing.T) *mirror {
	return &mirror{t: t, bell: newBell(), reading: func() {}}
}

func (m *mirror) Await(most time.Duration) error {
	var late <-chan time.Time
	if most >= 0 {
		late = time.After(most)
	}
	select {
	case <-m.closed:
		return os.ErrClosed
	case <-m.woken:
	case <-late:
	}
	return nil
}

func (m *mirror) TryRead(buf []byte) (int, error) {
	if m.readers.Add(1) != 1 {
		m.t.Error("two read at once")
	}
	defer m.readers.Add(-1)
	m.reading()
	select {
	case <-m.closed:
		return 0, os.ErrClosed
	default:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.answers) == 0 {
		return 0, nil
	}
	p := m.answers[0]
	m.answers = m.answers[1:]
	return frame(buf, p), nil
}

func (m *mirror) Write(packet []byte) error {
	p := packet[segment.HeaderSize:]
	m.mu.Lock()
	if len(m.answers) < 64 {
		m.answers = append(m.answers, slices.Concat(p[:12], p[16:20], p[12:16], p[20:]))
	}
	m.mu.Unlock()
	m.packets.Add(1)
	m.Wake() // a kernel wakes who waits, too
	return nil
}

func (m *mirror) Name() string    { return "mirror" }
func (m *mirror) Queues() []Queue { return []Queue{m} }

// mirrored is a node, and another with a mirror for a device that has a session with it.
func mirrored(t *testing.T) (a, b *node, m *mirror) {
	t.Helper()
	a, m = start(t, 1), newMirror(t)
	b = &node{id: 2, key: key.NewPrivate[key.Node](), seen: &recorder{}}
	e, err := New(Config{Key: b.key, Self: b.id, Device: m, Handler: b.seen, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	b.Engine = e
	t.Cleanup(func() { e.Close() })
	mustSetPeers(t, a, b.peer())
	mustSetPeers(t, b, a.peer())
	a.SetRoute(b.id, weft.DirectVia(0, b.addr()))
	b.SetRoute(a.id, weft.DirectVia(0, a.addr()))
	return a, b, m
}

// greet has a packet go there and back.
func greet(t *testing.T, a, b *node) {
	t.Helper()
	a.tun.out <- packet(addrOf(a.id), addrOf(b.id), 1, 60)
	arrived(t, a)
}

// What an opener does with the turn keeps others from its socket, and the sender from the device.
func TestAnAnswerDoesNotWaitForASocket(t *testing.T) {
	a, b, m := mirrored(t)
	o := b.senders[0]
	var answers, sends atomic.Int64
	m.reading = func() {
		patient := o.burst.writer.Patient
		if o.turn.Load() == openers {
			answers.Add(1)
			if patient {
				t.Error("who answers would wait")
			}
			return
		}
		sends.Add(1)
		if !patient {
			t.Error("the sender would drop what its socket does not take at once")
		}
	}
	if err := b.Up(); err != nil {
		t.Fatal(err)
	}
	greet(t, a, b)
	for range 20 {
		asleep(t, o)
		o.lately.Store(0)
		greet(t, a, b)
	}
	if answers.Load() == 0 || sends.Load() == 0 {
		t.Errorf("%d looks of openers, %d of the sender", answers.Load(), sends.Load())
	}
}

// Four openers, the sender, whoever wakes it, a bond that comes and goes, and at last the end of the engine.
func TestNoTwoHaveASendersTurn(t *testing.T) {
	for range 5 {
		a, b, m := mirrored(t)
		if err := b.Up(); err != nil {
			t.Fatal(err)
		}
		greet(t, a, b)
		d := newDetour(t, b.addr(), 0)
		b.Learn(a.id, addrPortOf(d.out))
		a.Learn(b.id, addrPortOf(d.c))
		o, current := b.senders[0], &a.Engine.peer(b.id).current
		eventually(t, "there is a session", func() bool { return current.Load() != nil }) // which sent what waited for it, first
		s := current.Load()
		done := make(chan struct{})
		running := func() bool {
			select {
			case <-done:
				return false
			default:
				return true
			}
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for seq := uint32(0); running(); seq++ {
					p := make([]byte, 64, 64+openSpare) // a multiple of what is padded to
					copy(p, packet(addrOf(a.id), addrOf(b.id), seq, 64))
					counter, _ := s.take()
					message := s.Seal(make([]byte, 0, len(p)+wireguard.Overhead), counter, p)
					o.lately.Store(0) // it is idle, whatever it did
					b.receives([]host.UDPRead{{Data: message, Segment: len(message), From: a.addr()}})
				}
			})
		}
		wg.Go(func() {
			for running() {
				<-a.tun.in
			}
		})
		wg.Go(func() {
			for running() {
				m.Wake()
				host.LetOthers()
			}
		})
		ways := func(n *node, direct, around weft.Via) {
			n.SetBond(3-n.id, Bond{Mode: BondAggregate, Ways: []BondWay{{Via: direct}, {Via: around}}})
		}
		ways(a, weft.DirectVia(0, b.addr()), weft.DirectVia(0, addrPortOf(d.c)))
		for i := range 5 {
			ways(b, weft.DirectVia(0, a.addr()), weft.DirectVia(0, addrPortOf(d.out)))
			if i < 2 {
				eventually(t, "packets go by the bond", func() bool { return b.BondStatus(a.id).On })
			}
			at := m.packets.Load()
			eventually(t, "packets come", func() bool { return m.packets.Load() > at+300 })
			b.SetBond(a.id, Bond{})
		}
		b.Close() // while openers have the turn
		close(done)
		a.tun.in <- nil
		wg.Wait()
	}
}
