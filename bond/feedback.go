package bond

import (
	"time"

	"weft/wire"
)

const (
	// feedbackFast is how soon feedback follows feedback when there is much to tell, or a loss.
	feedbackFast = 5 * time.Millisecond
	// feedbackSlow is how late it comes when there is little; and it is repeated once after that time, since the last one may be lost.
	feedbackSlow = 25 * time.Millisecond
	// feedbackMuch is much, in bytes: any data is, for a sender that starts waits for each frame.
	feedbackMuch = 1
)

// A told is what the Sender has been told, and what it has not.
type told struct {
	last  time.Duration // feedback was given
	bytes int           // that came since
	dirty bool          // a space is
	hole  bool          // since, a gap was found that all paths have passed
	again bool          // the last is to be repeated
}

// note is told of a message. One in which nothing was makes no feedback due, or two idle ends would answer each other's for ever
// (as in QUIC, RFC 9000 section 13.2.1).
func (t *told) note(s *space, size int, eliciting bool) {
	if eliciting {
		s.dirty, t.dirty = true, true
	}
	t.bytes += size
}

// due is when the next feedback is.
func (r *Receiver) due() time.Duration {
	t := &r.told
	switch {
	case t.dirty && (t.hole || t.bytes >= feedbackMuch):
		return t.last + feedbackFast
	case t.dirty || t.again:
		return t.last + feedbackSlow
	}
	return Never
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
	t.again = s != nil
	if s == nil {
		if len(r.spaces) == 0 {
			*t = told{last: r.now}
			return false
		}
		s = r.spaces[len(r.spaces)-1]
	}
	s.dirty = false
	if t.dirty = more; !more {
		t.last, t.bytes, t.hole = r.now, 0, false
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
