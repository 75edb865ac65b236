package bond

import (
	"math/bits"
	"sort"
	"time"

	"weft/wire"
)

const (
	// firstWindow and maxWindow are how many counters from the one that is waited for on a space has room for: at first, and at most, which is what comes at 1 Gbit/s in
	// longestHold.
	firstWindow = 256
	maxWindow   = 16384
)

// A space is the counters of one session. Those from next on that came are bits in a ring; with them is what is held.
type space struct {
	session uint32
	serial  uint32        // grows from session to session
	born    time.Duration // when the first of it came
	last    time.Duration // and the latest
	over    bool          // all of it was given out, and a later session's turn has come
	expired bool          // no gap of it is waited for any more

	next uint64 // whose turn it is; all below are settled
	top  uint64 // one more than the largest that came
	scan uint64 // below it all that all paths have passed was looked at for gaps
	bits []uint64
	held [][]byte // nil: nothing to give out

	seen  [wire.MaxBondPaths]newest // by route
	marks marks
	dirty bool // something came that no feedback has told
}

// A newest is how far a path is in a session.
type newest struct {
	counter uint64
	at      time.Duration
	some    bool
}

func (s *space) begin(session, serial uint32, start uint64, now time.Duration) {
	bits, held := s.bits, s.held
	clear(bits)
	clear(held)
	*s = space{session: session, serial: serial, born: now, last: now, next: start, top: start, scan: start, bits: bits, held: held}
}

// expire has all gaps released at once.
func (s *space) expire() { s.expired = true }

// came is told of a counter, which is less than maxWindow beyond next, or settled.
func (s *space) came(route int, counter uint64, at time.Duration) {
	if n := &s.seen[route]; !n.some || counter > n.counter {
		*n = newest{counter, at, true}
	}
	if counter >= s.top {
		s.top = counter + 1
	}
	if need := s.top - s.next; !s.over && need > uint64(len(s.held)) {
		s.grow(need)
	}
}

// grow makes room for so many counters.
func (s *space) grow(need uint64) {
	size := max(firstWindow, uint64(1)<<bits.Len64(need-1))
	if len(s.held) == 0 {
		s.bits, s.held = make([]uint64, size/64), make([][]byte, size)
		return
	}
	was := *s
	s.bits, s.held = make([]uint64, size/64), make([][]byte, size)
	for c := was.next; c < was.next+uint64(len(was.held)); c++ {
		if was.has(c) {
			s.take(c)
			s.held[c&uint64(size-1)] = was.held[c%uint64(len(was.held))]
		}
	}
}

func (s *space) word(c uint64) *uint64 { return &s.bits[c/64&uint64(len(s.bits)-1)] }

func (s *space) has(c uint64) bool { return *s.word(c)>>(c%64)&1 != 0 }

func (s *space) take(c uint64) { *s.word(c) |= 1 << (c % 64) }

func (s *space) put(c uint64, b []byte) { s.held[c&uint64(len(s.held)-1)] = b }

// drop takes a counter out of the ring.
func (s *space) drop(c uint64) []byte {
	at := &s.held[c&uint64(len(s.held)-1)]
	b := *at
	*at = nil
	*s.word(c) &^= 1 << (c % 64)
	return b
}

// skipTo has all counters below settled, of which none is held.
func (s *space) skipTo(counter uint64) {
	for n := uint64(0); s.next < counter; s.next++ {
		if n++; n > uint64(len(s.held)) { // the ring is empty by now
			s.next = counter
			break
		}
		*s.word(s.next) &^= 1 << (s.next % 64)
	}
	s.top = max(s.top, s.next)
	s.scan = max(s.scan, s.next)
}

// skipGap has the counters settled that are waited for, up to one that came.
func (s *space) skipGap() {
	for s.next < s.top && !s.has(s.next) {
		s.next++
	}
	s.scan = max(s.scan, s.next)
}

// lost reports whether there are gaps below floor that it has not told of.
func (s *space) lost(floor uint64) (some bool) {
	for s.scan = max(s.scan, s.next); s.scan < floor; s.scan++ {
		some = some || !s.has(s.scan)
	}
	return some
}

// fill writes the bits from next on into f, as far as it has room.
func (s *space) fill(f *wire.Feedback) {
	f.NWords = 0
	for c := s.next; c < s.top && f.NWords < len(f.Words); c += 64 {
		w := *s.word(c) >> (c % 64)
		if c%64 != 0 {
			w |= *s.word(c + 64) << (64 - c%64)
		}
		f.Words[f.NWords] = w
		f.NWords++
	}
}

// marks is when all paths, and the first of them, had come how far: in a ring, one entry a millisecond at most. Its zero value is empty.
type marks struct {
	ring [256]mark // longer than longestHold
	n    int       // entries ever made
}

type mark struct {
	at         time.Duration
	floor, top uint64 // all live paths have brought counters up to floor or beyond it, one has up to top
}

const markEvery = time.Millisecond

func (m *marks) add(now time.Duration, floor, top uint64) {
	if m.n > 0 {
		last := &m.ring[(m.n-1)%len(m.ring)]
		floor, top = max(floor, last.floor), max(top, last.top)
		if floor == last.floor && top == last.top {
			return
		}
		if now-last.at < markEvery && m.n > 1 {
			last.floor, last.top = floor, top
			return
		}
	}
	m.ring[m.n%len(m.ring)] = mark{now, floor, top}
	m.n++
}

// search finds the oldest entry for which f holds; if it holds for one it does for all that follow.
func (m *marks) search(f func(*mark) bool) (time.Duration, bool) {
	have := min(m.n, len(m.ring))
	i := sort.Search(have, func(i int) bool { return f(&m.ring[(m.n-have+i)%len(m.ring)]) })
	if i == have {
		return 0, false
	}
	return m.ring[(m.n-have+i)%len(m.ring)].at, true
}

// passed is when all live paths had brought something beyond a counter.
func (m *marks) passed(counter uint64) (time.Duration, bool) {
	if m.n == 0 || m.ring[(m.n-1)%len(m.ring)].floor <= counter {
		return 0, false
	}
	return m.search(func(k *mark) bool { return k.floor > counter })
}

// later is when the first beyond a counter came; if there is none, the beginning of time.
func (m *marks) later(counter uint64) time.Duration {
	at, _ := m.reached(counter + 1)
	return at
}

// reached is when the first came that is a counter's or beyond it, as far back as is remembered.
func (m *marks) reached(counter uint64) (time.Duration, bool) {
	return m.search(func(k *mark) bool { return k.top > counter })
}

// A hold is how long packets that are sent again take to come, once all paths have passed them: the longest of late. The zero value knows of none.
type hold struct {
	now, before time.Duration // longest in this period and the one before it; 0: none
	until       time.Duration // end of this period
}

// leastRepair is what is no packet sent again, but links' jitter.
const leastRepair = 5 * time.Millisecond

func (h *hold) learn(now, took time.Duration) {
	if took < leastRepair {
		return
	}
	h.turn(now)
	h.now = max(h.now, min(took, longestHold))
}

func (h *hold) turn(now time.Duration) {
	if now < h.until {
		return
	}
	h.before, h.now = h.now, 0
	if now >= h.until+holdMemory {
		h.before = 0
	}
	h.until = now + holdMemory
}

// length is how long to wait for one.
func (h *hold) length(now time.Duration) time.Duration {
	h.turn(now)
	d := max(h.now, h.before)
	if d == 0 {
		return firstHold
	}
	return min(max(d+d/2+leastRepair, shortestHold), longestHold)
}
