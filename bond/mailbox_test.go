package bond_test

import (
	"encoding/binary"
	"slices"
	"testing"
	"time"

	"weft/bond"
	"weft/wire"
)

const ms = time.Millisecond

// A mailbox has a Receiver, asks it whenever it wants to be asked, and writes down what it gives.
type mailbox struct {
	t   testing.TB
	r   *bond.Receiver
	now time.Duration
	got []parcelID
	at  []time.Duration
	fed []fed
}

type parcelID struct {
	session uint32
	counter uint64
}

type fed struct {
	at time.Duration
	f  wire.Feedback
}

func newMailbox(t testing.TB, c bond.ReceiverConfig) *mailbox {
	return &mailbox{t: t, r: bond.NewReceiver(c), now: time.Hour}
}

func payload(session uint32, counter uint64, size int) []byte {
	b := make([]byte, max(size, 12))
	binary.BigEndian.PutUint32(b, session)
	binary.BigEndian.PutUint64(b[4:], counter)
	for i := 12; i < len(b); i++ {
		b[i] = byte(counter)
	}
	return b
}

func (m *mailbox) take(b []byte) {
	id := parcelID{binary.BigEndian.Uint32(b), binary.BigEndian.Uint64(b[4:])}
	for _, x := range b[12:] {
		if x != byte(id.counter) {
			m.t.Fatalf("packet %v was changed", id)
		}
	}
	m.got, m.at = append(m.got, id), append(m.at, m.now)
}

// wait lets time pass.
func (m *mailbox) wait(d time.Duration) { m.until(m.now + d) }

func (m *mailbox) until(end time.Duration) {
	for spins := 0; ; spins++ {
		m.drain()
		w := m.r.Wake()
		if w > end {
			break
		}
		if w > m.now {
			m.now, spins = w, 0
		}
		if spins > 10 {
			m.t.Fatalf("it wants to be asked at %v, and has nothing at %v", w, m.now)
		}
	}
	m.now = end
}

func (m *mailbox) drain() {
	for b := m.r.Next(m.now); b != nil; b = m.r.Next(m.now) {
		m.take(b)
	}
	var f wire.Feedback
	for m.r.Feedback(m.now, &f) {
		m.fed = append(m.fed, fed{m.now, f})
	}
}

// arrive is told of a packet by a path.
func (m *mailbox) arrive(p bond.PathID, session uint32, counters ...uint64) {
	for _, c := range counters {
		m.arriveAs(p, session, c, 100, false)
	}
}

func (m *mailbox) arriveAs(p bond.PathID, session uint32, counter uint64, size int, urgent bool) {
	b := payload(session, counter, size)
	if m.r.Arrive(m.now, m.now, p, session, counter, len(b)+32, b, urgent) {
		m.take(b)
	}
	clear(b) // it is the caller's
	m.drain()
}

func (m *mailbox) want(session uint32, counters ...uint64) {
	m.t.Helper()
	var want []parcelID
	for _, c := range counters {
		want = append(want, parcelID{session, c})
	}
	if !slices.Equal(m.got, want) {
		m.t.Errorf("delivered %v, want %v", m.got, want)
	}
	m.got, m.at = nil, nil
}
