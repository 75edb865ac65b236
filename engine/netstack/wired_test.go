package netstack

import (
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"weft/engine"
	"weft/engine/segment"
)

func newStack(t testing.TB, addrs ...netip.Addr) (engine.Device, *Netstack) {
	t.Helper()
	return newStackOf(t, engine.MTU, addrs...)
}

func newStackOf(t testing.TB, mtu int, addrs ...netip.Addr) (engine.Device, *Netstack) {
	t.Helper()
	dev, n, err := New(addrs, mtu, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dev.Close() })
	return dev, n
}

// A cable carries packets from one device to another until they are closed.
type cable func(t testing.TB, to, from engine.Queue)

// merged carries pieces and puts together what comes at once, as two engines do.
func merged(t testing.TB, to, from engine.Queue) {
	m, spare := segment.NewMerger(64), segment.NewMerger(64)
	apart(t, from, func(p []byte, last bool) {
		if p != nil {
			dst := m.Place(len(p))
			if dst == nil {
				to.Write(m.Take())
				dst = m.Place(len(p))
			}
			copy(dst[:len(p)], p)
			if !m.Add(len(p)) {
				m.Move(len(p), spare)
				to.Write(m.Take())
				m, spare = spare, m
			}
		}
		if last && m.Len() > 0 {
			to.Write(m.Take())
		}
	})
}

// pieces carries each packet by itself.
func pieces(t testing.TB, to, from engine.Queue) {
	apart(t, from, func(p []byte, _ bool) {
		if p != nil {
			to.Write(bare(p))
		}
	})
}

// bare is a packet with a header that says nothing.
func bare(p []byte) []byte { return append(make([]byte, segment.HeaderSize), p...) }

// apart gives the packets that come out of a device, taken apart. The last of what comes at once is followed by nil.
func apart(t testing.TB, from engine.Queue, give func(p []byte, last bool)) {
	var s segment.Splitter
	buf := make([]byte, engine.ReadSize)
	for {
		n, err := readOf(from, buf)
		if err != nil {
			return
		}
		for ; n > 0; n, _ = from.TryRead(buf) {
			if err := s.Begin(segment.ParseHeader(buf), buf[segment.HeaderSize:n]); err != nil {
				t.Error(err)
				continue
			}
			for p := s.Next(); p != nil; p = s.Next() {
				give(p, false)
			}
		}
		give(nil, true)
	}
}

// wired joins two stacks as two engines do.
func wired(t testing.TB) (a, b *Netstack) { return wiredBy(t, merged, engine.MTU) }

func wiredBy(t testing.TB, w cable, mtu int) (a, b *Netstack) {
	t.Helper()
	devA, a := newStackOf(t, mtu, addrA4, addrA6)
	devB, b := newStackOf(t, mtu, addrB4, addrB6)
	var wg sync.WaitGroup
	wg.Go(func() { w(t, devA.Queues()[0], devB.Queues()[0]) })
	wg.Go(func() { w(t, devB.Queues()[0], devA.Queues()[0]) })
	t.Cleanup(func() { devA.Close(); devB.Close(); wg.Wait() })
	return a, b
}
