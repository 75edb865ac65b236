package bond

import "time"

// arm sets a path's timer by its oldest flight of which there will be word: of data, or of what data has followed, that the receiver may hold for it.
func (s *Sender) arm(l *lane) {
	l.health.due = Never
	for i := l.skip(); i != l.flights.head; i++ {
		if f := l.flights.at(i); f.state == away && (!f.quiet || f.seq < s.data) {
			l.health.due = max(f.sent+l.patience(), s.remote.at+gapMost)
			break
		}
	}
	s.due = min(s.due, l.health.due)
}

// patience is how long after a packet was sent there is word of it, if anything works.
func (l *lane) patience() time.Duration {
	d := l.est.report.smooth + 2*l.est.report.dev + timerMargin
	if !l.est.report.some {
		if d = 2*l.RTT + firstRTT; l.RTT == 0 {
			d = 3 * firstRTT
		}
	}
	d = max(d, timerLeast, l.est.rtt.smooth+gapMost)
	return min(d<<min(l.health.backoff, 6), timerMost)
}

// rearm sets all timers.
func (s *Sender) rearm(now time.Duration) {
	s.due = Never
	for _, l := range s.lanes {
		s.arm(l)
		h := &l.health
		switch {
		case h.state == Silent:
			s.due = min(s.due, max(h.rest, now))
		case h.state == Returning:
			s.due = min(s.due, max(h.since+returnWithin, now))
		case h.doubted > 0:
			s.due = min(s.due, max(h.doubted+confirmAfter, now))
		}
	}
	s.due = max(s.due, s.slept)
}

// Tick is to be called when Wake is due.
func (s *Sender) Tick(now time.Duration) {
	s.now = max(s.now, now)
	if now < s.due {
		return
	}
	if s.sleeps(now, s.due); now < s.slept {
		s.due = s.slept
		return
	}
	for _, l := range s.lanes {
		h := &l.health
		switch {
		case h.state == Silent && now >= h.rest:
			s.back(now, l, "it has rested, and is said to live")
		case h.state != Silent && h.doubted > 0 && now >= h.doubted+confirmAfter:
			if s.others(l) && s.remote.at > h.doubted {
				s.silence(now, l)
			} else {
				h.doubted = now // nothing is heard of anything
			}
		}
		if now >= h.due {
			s.overdue(now, l)
		}
	}
	s.rank(now)
	s.rearm(now)
	s.wake = now
}

// sleeps notes if whoever calls has slept since something was due, or had come: then other things that came meanwhile are still to be told, and until they
// are, nothing is concluded from time that passed.
func (s *Sender) sleeps(now, since time.Duration) {
	if s.slept < now && now-since > oversleep {
		s.slept = now + oversleep
	}
}

// alone reports whether a path carries nearly all that is on its way. If others carry as much, and there is no word of that either, it is
// rather the receiver that does not look.
func (s *Sender) alone(l *lane) bool {
	for _, o := range s.lanes {
		if o != l && o.inFlight > 2*segment {
			return false
		}
	}
	return true
}

// oversleep is how late a timer may be looked at for its conclusions to hold.
const oversleep = 10 * time.Millisecond

// overdue has what no word came of in time sent again, by others if there are. Nobody knows yet who is to blame: the path,
// or what feedback comes by. If feedback comes for what others carry, judge knows.
func (s *Sender) overdue(now time.Duration, l *lane) {
	h := &l.health
	limit := now - l.patience()
	h.due = Never
	if h.doubted == 0 {
		h.trusted = l.est.loss
	}
	silence := false // there should have been word: of data
	for i := l.skip(); i != l.flights.head; i++ {
		f := l.flights.at(i)
		if f.state != away {
			continue
		}
		if f.sent > limit {
			break
		}
		s.lose(now, l, i)
		if h.overdue++; f.quiet && h.overdue < l.few() {
			continue
		}
		silence = silence || !f.quiet
		if h.doubted == 0 && s.others(l) {
			h.doubted = max(now, 1)
			if s.alone(l) {
				s.strand(now, l)
				s.ease(now)
				break
			}
		}
	}
	l.news.gone = 0
	if !silence {
		return
	}
	if h.backoff++; h.backoff == 3 && now-s.remote.at > l.patience() {
		l.restart(now) // nothing is heard of anything
	}
}
