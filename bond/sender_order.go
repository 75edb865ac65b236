package bond

import "time"

const (
	// holdMost is how long what comes by other paths may have to wait for what goes by a slower one: the receiver waits half as long again
	// (longestHold), so there is room for what was not foreseen.
	holdMost = 100 * time.Millisecond
	// standsFor is how long a backlog has to stand, half of it at least, to be more than a burst of a connection: what is acknowledged in that time
	// brings more.
	standsFor = 100 * time.Millisecond
	// eager is the part of its round trip by which what goes by a path that competes may be later than by another, as far as that is others' queue. Others
	// have what is not taken of it, and their queue is longer for that when the next packet is looked at: who waits until it pays gets ever less. In simulation
	// a connection has 0.27 of such a link without, 0.35 with a 12th and 0.37 with a 5th (from the 5th to the 20th second, CUBIC in it and in the other's), and
	// with BBR in both 0.34, 0.38 and 0.41, at the same round trip; on real kernels with BBR in both 0.26, 0.29 and 0.36.
	eager = 1.0 / 5
	// unsteady is how many times the jitter of a path a packet is taken to come later than it would, since all wait for the latest of several.
	unsteady = 2
	// doubtEvery is how often a path that is known to lose much gets a copy: few bytes, and enough to find within two seconds that it does no more.
	doubtEvery = 10 * time.Millisecond
)

// worth reports whether the packet at the head of the queue may go by a path by which it comes soonest, though others, which may not send
// now, would have brought it, or what follows it, before. All that follows waits for it at the receiver. Meanwhile nothing of that is
// acknowledged, and a connection whose window is under way sends nothing new. So the others need enough to do until the
// packet comes; and then until what is acknowledged brings more, which is a round trip, or a hold if that is shorter: as far as what this path adds does not
// outweigh it. A backlog that has stood for a while is renewed all the time, and needs to last until the packet comes only.
func (s *Sender) worth(now time.Duration, l *lane, size, backlog int, soonest time.Duration, from pool, stands bool) bool {
	o := s.rest(now, l, size, from, stands)
	if o.n == 0 {
		return true
	}
	hold := soonest - o.begin[0]
	if hold <= 0 {
		return true
	}
	if hold > holdMost {
		return false
	}
	at := o.drained(backlog + l.Overhead)
	if s.orderly(l, o.first, from) {
		enough := l.enough(now)
		if at+enough-alike < soonest {
			return false
		}
		if hold > enough {
			s.assign = o.first
		}
		return hold <= enough
	}
	if at < soonest {
		return false
	}
	all := o.capacity()
	margin := time.Duration(float64(min(o.first.est.rtt.smooth, hold)) * all / (all + l.ctl.Capacity()))
	return at >= soonest+margin || o.drained(int(s.standing.lowest())+l.Overhead) >= soonest
}

// enough is how much later than by another what goes by a path may be for that to be as good.
func (l *lane) enough(now time.Duration) time.Duration {
	if !l.ctl.Loses() {
		return alike
	}
	return alike + min(l.line.crowd.wait(now), time.Duration(eager*float64(l.est.rtt.smooth)))
}

// rest are other paths, in the order in which what they are given next arrives.
type rest struct {
	begin [maxLanes]time.Duration // when that is
	rate  [maxLanes]float64       // bytes/s from then on
	n     int
	first *lane
}

// rest are the paths of a pool without one of them.
func (s *Sender) rest(now time.Duration, without *lane, size int, from pool, stands bool) (o rest) {
	for _, l := range s.lanes {
		if l == without || !l.in(from) {
			continue
		}
		wait := s.ready(now, l, size) + l.queued()
		at, rate := now+wait+l.delay(now)+l.risk(now, stands), max(min(l.ctl.Rate(), l.ctl.Capacity()), 1)
		i := o.n
		for ; i > 0 && o.begin[i-1] > at; i-- {
			o.begin[i], o.rate[i] = o.begin[i-1], o.rate[i-1]
		}
		o.begin[i], o.rate[i] = at, rate
		if i == 0 {
			o.first = l
		}
		o.n++
	}
	return o
}

// drained is when the last of a backlog arrives if they take it all: it drains at the rates of those that have begun.
func (o *rest) drained(backlog int) time.Duration {
	left, rate, at := float64(backlog), 0.0, o.begin[0]
	for i := range o.n {
		if rate > 0 {
			if span := (o.begin[i] - at).Seconds(); rate*span >= left {
				break
			} else {
				left -= rate * span
			}
		}
		at = o.begin[i]
		rate += o.rate[i]
	}
	if t := left / rate; t < 3600 {
		return at + time.Duration(t*1e9)
	}
	return at + time.Hour
}

// capacity is what they carry together, in bytes/s.
func (o *rest) capacity() (all float64) {
	for _, r := range o.rate[:o.n] {
		all += r
	}
	return all
}

// Explore finds a path that is to have a copy of what Next has just given another one for, so that it is known what it carries before
// anything waits for what it brings.
func (s *Sender) Explore(now time.Duration, size int) (PathID, bool) {
	l := s.explore
	if l == nil {
		return 0, false
	}
	if wait, open := s.wait(now, l, size); !open || wait > 0 {
		return 0, false
	}
	if l.line.explored = now; !l.ctl.Seeking() {
		s.explore = nil
	}
	return l.ID, true
}

// unexplored finds a path that may send now too, and of which it is not known how much it carries; or one that is known to lose so much that
// it is hardly used, which may have changed. While nothing stands in the queue there is no need to know: one copy in a burst would show nothing, and who has
// little to send pays for no copies. A path that seems to carry more than the others is not shown to do so by what they carry.
func (s *Sender) unexplored(now time.Duration, best *lane, size int, from pool, stands bool) *lane {
	if len(s.lanes) == 1 || !stands {
		return nil
	}
	half := s.capacity(from) / 2
	for _, l := range s.lanes {
		if l == best || !l.in(from) {
			continue
		}
		if !(l.ctl.Seeking() && l.ctl.Capacity() < half) && !(l.repairs(now) > 0 && now-l.line.explored >= doubtEvery) {
			continue
		}
		if wait, open := s.wait(now, l, size); open && wait == 0 {
			return l
		}
	}
	return nil
}
