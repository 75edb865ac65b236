package bond

import (
	"time"

	"weft/wire"
)

// ReceiverConfig says how a [Receiver] is to be.
type ReceiverConfig struct {
	Memory int // bytes held at most; 0: DefaultHold
	// Unread reports whether there is something to read where a path's packets come, that Arrive was not told of: then the path is not
	// silent because of what feedback does not acknowledge. It is asked for each path when Feedback fills a frame. Nil: there never is.
	Unread func(PathID) bool
}

// DefaultHold is how many bytes a Receiver holds back at most: what comes at 400 Mbit/s in the longest time that a gap stays.
const DefaultHold = 8 << 20

const (
	// longestHold is how long a gap stays at most: longer, and the inner flow's own timers (RFC 6298 has 200 ms in practice) take it for lost.
	longestHold = 150 * time.Millisecond
	// shortestHold is room for the jitter of links of short delay, and for feedback's interval.
	shortestHold = 20 * time.Millisecond
	// firstHold stands until it is known how long packets take that are sent again.
	firstHold = 100 * time.Millisecond
	// holdMemory is for how long it is remembered, at least, how long they took.
	holdMemory = 10 * time.Second
	// liveFor is how long a path is waited for that brings nothing: two of the longest gaps.
	liveFor = 2 * longestHold
	// strayFor is for how long what comes of a session that is over is late, and not a sign that it goes on.
	strayFor = 3 * time.Second
	// shownFor is how long a path that brings nothing is told of in feedback: as long as a sender without feedback goes on.
	shownFor = 3 * time.Second
)

// maxCounter is beyond all counters that a session reaches.
const maxCounter = 1 << 63

// maxSpaces is how many sessions are in order at once at most: one, the one before it, and one that both ends began at once.
const maxSpaces = 3

// A Receiver puts the packets of one peer in order and tells the peer's Sender which came. Make it with [NewReceiver]; one
// goroutine at a time may use it.
type Receiver struct {
	spaces []*space // of the sessions, oldest first
	spare  []*space
	over   [8]uint32 // sessions that were, in a ring
	overAt int
	serial uint32

	routes  [wire.MaxBondPaths]route
	nroutes int

	store  store
	claim  claim
	word   word
	unread func(PathID) bool
	out    []byte // what Next gave last
	hold   hold
	told   told
	now    time.Duration // the latest that was given
	stats  ReceiverStats
}

// A route is a path, as the receiver sees it.
type route struct {
	path           PathID
	name           uint16        // the sender's number
	last           time.Duration // when it brought something
	serial         uint32        // of the latest session of which it brought something
	packets, bytes uint32
}

// ReceiverStats counts what became of packets.
type ReceiverStats struct {
	Delivered  uint64 // given out, at once or later
	Held       uint64 // of them, that had to wait
	HeldBytes  int    // that wait now
	Reordered  uint64 // given out after a later one, without being urgent
	Late       uint64 // that came when their gap had been released
	Duplicates uint64
	Ignored    uint64 // too far ahead of what is waited for, and given out at once
	ByPaths    uint64 // gaps released since all paths had passed them for long enough
	ByTime     uint64 // since they were as old as a gap may be
	ByMemory   uint64 // since there was no room
}

// NewReceiver makes a Receiver.
func NewReceiver(c ReceiverConfig) *Receiver {
	if c.Memory <= 0 {
		c.Memory = DefaultHold
	}
	r := &Receiver{unread: c.Unread, store: store{limit: c.Memory}, spaces: make([]*space, 0, maxSpaces+1)}
	r.told.last = -feedbackSlow
	return r
}

// Arrive is told of an authentic message that came by a path at some time, now or while it lay unread; size is its length, packet what is to be
// delivered of it, nil: nothing (a keepalive, or a frame of weft's). If it is true the caller delivers the packet now; else a copy is held, and Next gives it
// when its turn comes. What is urgent never waits.
func (r *Receiver) Arrive(now, came time.Duration, p PathID, session uint32, counter uint64, size int, packet []byte, urgent bool) bool {
	r.begin(now)
	c := r.claim
	r.claim = claim{}
	if counter >= maxCounter {
		r.stats.Ignored++
		return r.deliver(packet, urgent)
	}
	i := r.routeOf(p, true)
	s := r.spaceOf(session, counter)
	w := &r.routes[i]
	w.last, w.packets, w.bytes = r.now, w.packets+1, w.bytes+uint32(size)
	if s == nil { // of a session that is over
		r.stats.Late++
		return r.deliver(packet, urgent)
	}
	late := s.over || counter < s.next
	if !late && counter-s.next >= maxWindow {
		if s.next != s.top {
			r.stats.Ignored++
			return r.deliver(packet, urgent)
		}
		s.skipTo(counter) // nothing is held: who sends has left these out
	}
	r.learn(s, counter)
	w.serial = max(w.serial, s.serial)
	s.last = r.now
	if c.kind != noClaim {
		r.heed(c, i, s, counter)
	}
	s.came(i, counter, min(came, r.now))
	if !late && s.has(counter) {
		r.stats.Duplicates++
		return false
	}
	if !late {
		s.take(counter)
	}
	r.mark()
	if !r.alone(s, counter) {
		r.told.note(r.now, s, size, packet != nil)
	}
	if late {
		if s.over { // its end came late
			s.skipTo(max(s.next, counter+1))
		}
		r.stats.Late++
		return r.deliver(packet, urgent)
	}
	if s.next == counter && r.first() == s {
		s.skipTo(counter + 1)
		return r.deliver(packet, true)
	}
	if packet == nil || urgent {
		return r.deliver(packet, true)
	}
	held, ok := r.store.keep(packet)
	if !ok { // Next was not asked for long
		r.stats.Ignored++
		return r.deliver(packet, false)
	}
	s.put(counter, held)
	r.stats.Held++
	return false
}

// deliver counts a packet that is given out at once, in turn or not.
func (r *Receiver) deliver(packet []byte, inTurn bool) bool {
	if packet == nil {
		return false
	}
	r.stats.Delivered++
	if !inTurn {
		r.stats.Reordered++
	}
	return true
}

// Duplicate is told of a message whose counter had come before. It was not opened, so anybody may have sent it: it counts
// for its path only, and once, and not if it is old. True: it counts, and the path works.
func (r *Receiver) Duplicate(now, came time.Duration, p PathID, session uint32, counter uint64, size int) bool {
	r.begin(now)
	r.stats.Duplicates++
	s := r.find(session)
	if s == nil || counter >= s.top || s.top-counter > maxWindow {
		return false
	}
	i := r.routeOf(p, false)
	if i < 0 {
		return false
	}
	r.told.again = true // who sent it again may not have heard of the first
	if at, ok := s.marks.reached(counter); ok {
		r.told.repeated(r.now, at)
	}
	if n := &s.seen[i]; !n.some || counter > n.counter {
		w := &r.routes[i]
		w.last, w.packets, w.bytes = r.now, w.packets+1, w.bytes+uint32(size)
		w.serial = max(w.serial, s.serial)
		s.came(i, counter, min(came, r.now))
		r.mark()
		return true
	}
	return false
}

// begin sees to it that time does not run backwards, and takes back what Next gave.
func (r *Receiver) begin(now time.Duration) {
	r.now = max(r.now, now)
	if r.out != nil {
		r.store.free(r.out)
		r.out = nil
	}
	r.store.age(r.now)
}

// routeOf finds a path. A new one takes the place of the one that has been silent longest, if it may: else it is -1.
func (r *Receiver) routeOf(p PathID, force bool) int {
	oldest := 0
	for i := range r.nroutes {
		if r.routes[i].path == p {
			return i
		}
		if r.routes[i].last < r.routes[oldest].last {
			oldest = i
		}
	}
	if r.nroutes < len(r.routes) {
		oldest = r.nroutes
		r.nroutes++
	} else if !force {
		return -1
	}
	r.routes[oldest] = route{path: p, last: r.now}
	for _, s := range r.spaces {
		s.seen[oldest] = newest{}
	}
	return oldest
}

// find is the space of a session that is not forgotten.
func (r *Receiver) find(session uint32) *space {
	for _, s := range r.spaces {
		if s.session == session {
			return s
		}
	}
	return nil
}

// farStart is the largest counter with which a session can begin for the receiver and still be waited for from zero on.
const farStart = 1024

// spaceOf finds a session's space, or begins one. It is nil for a session that is over, unless nothing else has come for a while: then it
// was not over.
func (r *Receiver) spaceOf(session uint32, counter uint64) *space {
	s := r.find(session)
	if s != nil && !s.over {
		return s
	}
	quiet := true
	for _, o := range r.spaces {
		quiet = quiet && (o.over || r.now-o.last > strayFor)
	}
	if s != nil && !quiet {
		return s
	}
	if s != nil {
		r.forget(s)
	} else if !quiet {
		for _, o := range r.over {
			if o == session {
				return nil
			}
		}
	}
	start := uint64(0)
	if r.serial == 0 || counter > farStart || s != nil {
		start = counter // what was before did not come this way
	}
	if len(r.spaces) == maxSpaces {
		r.spaces[0].expire()
		if r.spaces[0].next == r.spaces[0].top {
			r.forget(r.spaces[0])
		}
	}
	if len(r.spaces) > maxSpaces { // Next was not asked: what is held is lost
		r.forget(r.spaces[0])
	}
	r.serial++
	s = r.fresh()
	s.begin(session, r.serial, start, r.now)
	r.spaces = append(r.spaces, s)
	return s
}

func (r *Receiver) fresh() *space {
	if n := len(r.spare); n > 0 {
		s := r.spare[n-1]
		r.spare = r.spare[:n-1]
		return s
	}
	return &space{}
}

// forget drops a space, and all that is held in it.
func (r *Receiver) forget(s *space) {
	for ; s.next < s.top; s.next++ {
		if b := s.drop(s.next); b != nil {
			r.store.free(b)
		}
	}
	for i, o := range r.spaces {
		if o == s {
			r.spaces = append(r.spaces[:i], r.spaces[i+1:]...)
			break
		}
	}
	r.over[r.overAt%len(r.over)] = s.session
	r.overAt++
	r.spare = append(r.spare, s)
}

// first is the space whose turn it is: the oldest that is not over. What all paths have left behind, and has no gaps, ends here.
func (r *Receiver) first() *space {
	for i, s := range r.spaces {
		if s.over {
			continue
		}
		if i == len(r.spaces)-1 || s.next != s.top || !(s.expired || r.left(s) || r.now >= r.spaces[i+1].born+longestHold) {
			return s
		}
		s.over = true
	}
	return nil
}

// left reports whether all live paths have brought something of a later session.
func (r *Receiver) left(s *space) bool {
	for i := range r.nroutes {
		if w := &r.routes[i]; r.now-w.last <= liveFor && w.serial <= s.serial {
			return false
		}
	}
	return true
}

// mark writes down how far the paths are in all sessions that are not over.
func (r *Receiver) mark() {
	for _, s := range r.spaces {
		if s.over {
			continue
		}
		floor := s.top
		for i := range r.nroutes {
			w := &r.routes[i]
			if w.serial > s.serial || r.now-w.last > liveFor {
				continue
			}
			if n := &s.seen[i]; n.some {
				floor = min(floor, n.counter+1)
			} else {
				floor = 0
			}
		}
		if s.marks.add(r.now, floor, s.top); s.lost(floor) {
			r.told.hole = true
		}
	}
}

// learn is told that a counter came: if all paths had passed it, it was sent again, and that took so long.
func (r *Receiver) learn(s *space, counter uint64) {
	if at, ok := s.marks.passed(counter); ok {
		r.hold.learn(r.now, r.now-at)
	}
}

// Next is the held packet whose turn it is, nil if there is none; valid until the next call of any method.
func (r *Receiver) Next(now time.Duration) []byte {
	r.begin(now)
	for {
		s := r.first()
		if s == nil || s.next == s.top {
			return nil
		}
		if s.has(s.next) {
			b := s.drop(s.next)
			s.next++
			if b == nil {
				continue
			}
			r.out = b
			r.stats.Delivered++
			return b
		}
		at, reason := r.release(s)
		if r.now < at {
			return nil
		}
		*reason++
		s.skipGap()
	}
}

// release is when the gap at which a space stands is released, and the count of the reason.
func (r *Receiver) release(s *space) (time.Duration, *uint64) {
	if s.expired || r.store.full() || s.top-s.next > maxWindow*7/8 {
		return r.now, &r.stats.ByMemory
	}
	if r.alone(s, s.next) {
		return r.now, &r.stats.ByPaths
	}
	at := s.marks.later(s.next) + longestHold
	if passed, ok := s.marks.passed(s.next); ok {
		if t := passed + r.hold.length(r.now); t < at {
			return t, &r.stats.ByPaths
		}
	}
	return at, &r.stats.ByTime
}

// Wake is when Next or Feedback may have something, Never if nothing is waited for.
func (r *Receiver) Wake() time.Duration {
	at := r.due()
	s := r.first()
	switch {
	case s == nil:
	case s.next != s.top && s.has(s.next):
		at = min(at, r.now)
	case s.next != s.top:
		t, _ := r.release(s)
		at = min(at, t)
	case s != r.spaces[len(r.spaces)-1]:
		for i, o := range r.spaces[:len(r.spaces)-1] {
			if o == s {
				at = min(at, r.spaces[i+1].born+longestHold)
			}
		}
	}
	return at
}

// Stats returns the counts.
func (r *Receiver) Stats() ReceiverStats {
	st := r.stats
	st.HeldBytes = r.store.bytes
	return st
}
