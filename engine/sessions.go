package engine

import (
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"weft/wireguard"
)

// A session is a WireGuard session with what both directions count.
type session struct {
	*wireguard.Session
	peer  *peer
	until int64       // nanoseconds after Engine.began: neither sends nor receives from then on
	fresh atomic.Bool // nothing has come by it yet, and the peer began it: what comes first confirms it

	mu     sync.Mutex // held for a run of packets, which come by one socket
	fromBy uint64     // the routing by whose number
	from   netip.Addr // an inner source address is the peer's
	window wireguard.Window

	next            atomic.Uint64  // the counter of the next packet; who sends changes it, far from what who receives needs
	sends, receives unsafe.Pointer // where the ciphers have their keys
}

func (e *Engine) newSession(s *wireguard.Session, p *peer) *session {
	x := &session{Session: s, peer: p, until: int64(s.Began.Add(wireguard.RejectAfterTime).Sub(e.began))}
	x.sends, x.receives = s.Keys()
	x.fresh.Store(!s.Initiator)
	return x
}

// take reserves the counter of one packet; false: the session is used up.
func (s *session) take() (uint64, bool) {
	c := s.next.Add(1) - 1
	return c, c < wireguard.RejectAfterMessages
}

// sealPadded appends the message of a packet to dst. Padding is zeros up to an MTU, and lies where the next packet's bytes may be.
func (s *session) sealPadded(dst []byte, counter uint64, packet []byte, most int) []byte {
	n := len(packet)
	padded := wireguard.Padded(n, most)
	if padded == n {
		return s.Seal(dst, counter, packet)
	}
	var behind [wireguard.PaddingMultiple]byte
	packet = packet[:padded]
	copy(behind[:], packet[n:])
	clear(packet[n:])
	dst = s.Seal(dst, counter, packet)
	copy(packet[n:], behind[:])
	return dst
}

// A table finds sessions by our index of them. Any number of threads look, without a lock; one goroutine changes it.
// It is an array that is probed from where the index points, and made anew when it fills: indices are random, so that
// they need no hashing.
type table struct{ now atomic.Pointer[slots] }

type slots struct {
	slot []atomic.Pointer[session] // a power of two of them
	used int                       // taken, or given up
	live int
}

// gone marks a slot that was given up: what was put behind it is still found.
var gone = &session{Session: &wireguard.Session{}}

const leastSlots = 16

func newTable() *table {
	t := &table{}
	t.now.Store(&slots{slot: make([]atomic.Pointer[session], leastSlots)})
	return t
}

// find finds the session of an index; nil: there is none.
func (t *table) find(index uint32) *session {
	now := t.now.Load()
	mask := uint32(len(now.slot) - 1)
	for i := index & mask; ; i = (i + 1) & mask {
		s := now.slot[i].Load()
		if s == nil || s != gone && s.Local == index {
			return s
		}
	}
}

// add puts a session in.
func (t *table) add(s *session) {
	now := t.now.Load()
	if 2*(now.used+1) > len(now.slot) { // it stays half empty, so that what is not there is soon missed
		size := leastSlots
		for size < 4*(now.live+1) {
			size *= 2
		}
		next := &slots{slot: make([]atomic.Pointer[session], size)}
		for i := range now.slot {
			if old := now.slot[i].Load(); old != nil && old != gone {
				next.put(old)
			}
		}
		next.put(s)
		t.now.Store(next)
		return
	}
	now.put(s)
}

func (x *slots) put(s *session) {
	mask := uint32(len(x.slot) - 1)
	i := s.Local & mask
	for x.slot[i].Load() != nil {
		i = (i + 1) & mask
	}
	x.slot[i].Store(s)
	x.used, x.live = x.used+1, x.live+1
}

// remove takes a session out; one that is not there is none to take out.
func (t *table) remove(index uint32) *session {
	now := t.now.Load()
	mask := uint32(len(now.slot) - 1)
	for i := index & mask; ; i = (i + 1) & mask {
		s := now.slot[i].Load()
		if s == nil {
			return nil
		}
		if s != gone && s.Local == index {
			now.slot[i].Store(gone)
			now.live--
			return s
		}
	}
}

// now is the time of the hot path: nanoseconds since the engine began.
func (e *Engine) now() int64 { return int64(time.Since(e.began)) }

// at is the time of a moment of the hot path; zero stays zero.
func (e *Engine) at(nanos int64) time.Time {
	if nanos == 0 {
		return time.Time{}
	}
	return e.began.Add(time.Duration(nanos))
}
