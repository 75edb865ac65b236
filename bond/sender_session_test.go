package bond

import (
	"testing"
	"time"

	"weft/wire"
)

// TestAFrameAtTheEndOfASessionDoesNotStopWhatFollows has the last message of a session be weft's own, of which the receiver never tells, and then
// more data go by the next session than one feedback has room for. It came to a stand once, for good.
func TestAFrameAtTheEndOfASessionDoesNotStopWhatFollows(t *testing.T) {
	for name, by := range map[string][]PathID{"by the path of the data": {1}, "by another": {2}, "by both": {2, 1}} {
		s, now := NewSender(SenderConfig{}), time.Second
		s.SetPaths(now, []Path{{ID: 1, RTT: 20 * tick}, {ID: 2, RTT: 20 * tick, Metric: 1}})
		s.Sent(now, 1, 7, 0, make([]byte, 1000))
		s.SentControl(now, by[0], 7, 1, make([]byte, 96))
		if len(by) > 1 {
			s.SentCopy(now, by[1], 7, 1, 96)
		}
		tell := func(session uint32, newest uint64) {
			clock := uint64(now / time.Microsecond)
			s.Feedback(now, now, &wire.Feedback{Session: session, Base: newest + 1, Clock: clock, NPaths: 1,
				Paths: [wire.MaxBondPaths]wire.FeedbackPath{{ID: 1, Newest: newest, At: clock - 10_000}}})
		}
		now += 20 * tick
		f := wire.Feedback{Session: 7, Base: 1, Clock: uint64(now / time.Microsecond), NPaths: 1}
		f.Paths[0] = wire.FeedbackPath{ID: 1, At: f.Clock - 10_000}
		s.Feedback(now, now, &f)
		stood := time.Duration(0)
		for c := uint64(0); c < 3*stretchMost; {
			before := c
			for p, _, ok := s.Next(now, 1000, 1000); ok && c-before < 200; p, _, ok = s.Next(now, 1000, 1000) {
				s.Sent(now, p, 8, c, make([]byte, 1000))
				c++
			}
			if stood += 20 * tick; c > before {
				stood = 0
			} else if stood > time.Second {
				t.Fatalf("%s: nothing may be sent any more after message %d of the next session", name, c)
			}
			now += 20 * tick
			if c > 0 {
				tell(8, c-1)
			}
			if now >= s.Wake() {
				s.Tick(now)
			}
		}
		if s.ledger.stretch() > 1 {
			t.Errorf("%s: %d messages are still waited for", name, s.ledger.stretch())
		}
	}
}
