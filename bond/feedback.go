package bond

import (
	"time"

	"weft/wire"
)

const (
	// feedbackFast is how soon feedback follows feedback when a full packet came, or a loss is to be told. Of small packets alone, which are
	// acknowledgements of data that goes the other way most often, it is told half as often: frames take away from that data.
	feedbackFast  = 5 * time.Millisecond
	feedbackSmall = 2 * feedbackFast
	// feedbackSlow is how late it comes when there is little; and it is repeated once after that time, since the last one may be lost.
	feedbackSlow = 25 * time.Millisecond
	// streamLeast is for how long messages have to come without a pause to be a stream, and streamPause is a pause. That a stream has stopped, for
	// so long as stopAfter, is told by another path as well: by the usual one the peer may hear nothing any more. Of a stream of feedback, too.
	streamLeast = 250 * time.Millisecond
	streamPause = 50 * time.Millisecond
	stopAfter   = 15 * time.Millisecond
	// What comes a second time, at least repeatLate after the first while data flows, was sent again: who sends has not heard of the first. A
	// copy by a slower path may be as late, so it is concluded once in repeatEvery.
	repeatLate  = 30 * time.Millisecond
	repeatEvery = 20 * time.Millisecond
	// quietMany is how many messages without data make feedback due all the same: or who sends nothing but them would never know that they
	// came, nor by which path. It is answered in its turn 64 times more seldom, so that the two ends fall silent.
	quietMany = 64
)

// A told is what the Sender has been told, and what it has not.
type told struct {
	last  time.Duration // feedback was given
	long  bool          // a full packet came since
	dirty bool          // a space is
	quiet int           // messages without data that came since one was answered
	hole  bool          // since, a gap was found that all paths have passed
	again bool          // the last is to be repeated
	soon  bool          // and at once: who sends does not seem to have heard of it

	came      time.Duration // a message came
	data      time.Duration // with data in it
	soonAt    time.Duration // soon was set
	stream    time.Duration // since when they come without a pause
	elsewhere bool          // the last is to go by another path as well
}

// note is told of a message. One in which nothing was makes no feedback due, or two idle ends would answer each other's for ever
// (as in QUIC, RFC 9000 section 13.2.1).
func (t *told) note(now time.Duration, s *space, size int, eliciting bool) {
	if eliciting {
		t.data = now
	} else {
		t.quiet++
	}
	if eliciting || t.quiet >= quietMany {
		s.dirty, t.dirty, t.quiet = true, true, 0
	}
	if now-t.came > streamPause {
		t.stream = now
	}
	t.came = now
	t.long = t.long || eliciting && size >= longFrom
}

// repeated is told of a message that came first at some time, and now again.
func (t *told) repeated(now, first time.Duration) {
	if now-first >= repeatLate && now-t.data < liveFor && now-t.soonAt >= repeatEvery {
		t.soon, t.soonAt = true, now
	}
}

// stopped is when a stream is held to have stopped, Never if there was none.
func (t *told) stopped() time.Duration {
	if t.came-t.stream < streamLeast {
		return Never
	}
	return t.came + stopAfter
}

// due is when the next feedback is.
func (r *Receiver) due() time.Duration {
	t := &r.told
	switch {
	case t.dirty && (t.hole || t.long) || t.again && t.soon:
		return t.last + feedbackFast
	case t.dirty:
		return t.last + feedbackSmall
	case t.again:
		return min(t.last+feedbackSlow, t.stopped())
	}
	return t.stopped()
}

// Feedback fills f if one is due. Of two sessions of which something came, the older one's is given first, and the other is due at once.
func (r *Receiver) Feedback(now time.Duration, f *wire.Feedback) bool {
	r.begin(now)
	if r.now < r.due() {
		return false
	}
	for len(r.spaces) > 0 && r.spaces[0].over && !r.spaces[0].dirty && r.now-r.spaces[0].last > liveFor {
		r.forget(r.spaces[0])
	}
	var s *space
	more := false
	for _, o := range r.spaces {
		if o.dirty && s != nil {
			more = true
		} else if o.dirty {
			s = o
		}
	}
	t := &r.told
	stop := r.now >= t.stopped()
	if stop {
		t.stream = t.came
	}
	t.elsewhere = stop || t.soon
	t.again, t.soon = s != nil || stop, false
	if s == nil {
		if len(r.spaces) == 0 {
			*t = told{last: r.now}
			return false
		}
		s = r.spaces[len(r.spaces)-1]
	}
	s.dirty = false
	if t.dirty = more; !more {
		t.last, t.long, t.hole = r.now, false, false
	}
	f.Session, f.Base, f.Clock = s.session, s.next, uint64(r.now/time.Microsecond)
	s.fill(f)
	f.NPaths = 0
	for i := range r.nroutes {
		w, n := &r.routes[i], &s.seen[i]
		if !n.some || r.now-w.last > shownFor {
			continue
		}
		f.Paths[f.NPaths] = wire.FeedbackPath{
			ID: w.name, Newest: n.counter, At: uint64(n.at / time.Microsecond), Packets: w.packets, Bytes: w.bytes,
			Unread: r.unread != nil && r.unread(w.path),
		}
		f.NPaths++
	}
	return true
}

// Elsewhere reports whether what Feedback gave last is to go by another path as well, whatever that is for: it seems that the peer does not
// hear what goes by the usual one.
func (r *Receiver) Elsewhere() bool { return r.told.elsewhere }
