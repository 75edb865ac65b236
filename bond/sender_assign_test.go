package bond

import (
	"encoding/binary"
	"testing"
	"time"

	"weft/wire"
)

// assign gives a Sender messages that wait for their turn at a path.
func assign(s *Sender, now time.Duration, p PathID, first, n uint64) {
	for c := first; c < first+n; c++ {
		s.Assigned(now, p, 7, c, numbered(make([]byte, 1400), c))
	}
}

func TestWhatIsAssignedToAPathGoesInItsOrderAndInThePathsTime(t *testing.T) {
	s, now := NewSender(SenderConfig{}), time.Second
	s.SetPaths(now, []Path{{ID: 1, RTT: 20 * tick, Overhead: 28}})
	assign(s, now, 1, 0, 100)
	next, last := uint64(0), now
	for next < 100 && now < time.Minute {
		if p, m, ok := s.Due(now); ok {
			if c := binary.BigEndian.Uint64(m); c != next || p != 1 {
				t.Fatalf("message %d goes by path %d, and %d was to go by path 1", c, p, next)
			}
			next, last = next+1, now
			continue
		}
		s.Idle(now)
		f := wire.Feedback{Session: 7, Clock: uint64(now / time.Microsecond), Base: next, NPaths: 1}
		if next > 0 {
			f.Paths[0] = wire.FeedbackPath{ID: 1, Newest: next - 1, At: f.Clock, Packets: uint32(next)}
		}
		if at := s.Wake(); at > now+20*tick { // closed by its window
			now += 20 * tick
			s.Feedback(now, now, &f)
		} else {
			now = max(at, now+tick/10)
		}
	}
	if next < 100 || last == time.Second {
		t.Errorf("%d of 100 messages went, the last at %v", next, last)
	}
}

func TestWhatIsAssignedGoesByAnotherPathIfItComesSooner(t *testing.T) {
	s, now := two(nil), time.Second
	assign(s, now, 1, 0, 100)
	by := map[PathID]int{}
	for p, _, ok := s.Due(now); ok; p, _, ok = s.Due(now) {
		by[p]++
	}
	if by[1] == 0 || by[2] == 0 {
		t.Errorf("at once go by each path: %v", by)
	}
}

func TestWhatIsAssignedToAPathThatGoesGoesByAnother(t *testing.T) {
	s, now := two(nil), time.Second
	assign(s, now, 1, 0, 5)
	s.SetPaths(now, []Path{{ID: 2, RTT: 30 * tick, Overhead: 28}})
	for want := range uint64(5) {
		p, m, ok := s.Again(now)
		if !ok || p != 2 || binary.BigEndian.Uint64(m) != want {
			t.Fatalf("message %d does not go by path 2: %d, %v, %v", want, p, m[:min(len(m), 8)], ok)
		}
		now += 20 * tick
	}
	if s.Assigns() {
		t.Error("something waits for a path that is gone")
	}
}

// A receiver that has waited for too long goes on. What it gave up and was never sent is sent: late is better than never.
func TestWhatTheReceiverGaveUpBeforeItWasSentIsSentYet(t *testing.T) {
	s, now := two(nil), time.Second
	assign(s, now, 1, 0, 3)
	s.Sent(now, 2, 7, 3, numbered(make([]byte, 1400), 3))
	now += 200 * tick
	s.Feedback(now, now, &wire.Feedback{Session: 7, Base: 4, Clock: uint64(now / time.Microsecond)})
	for want := range uint64(3) {
		_, m, ok := s.Due(now)
		if !ok || binary.BigEndian.Uint64(m) != want {
			t.Fatalf("message %d is not sent: %v", want, ok)
		}
		now += 20 * tick
	}
}
