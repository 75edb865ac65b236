package bond

import (
	"bytes"
	"testing"
	"time"

	"weft/wire"
)

// TestAPathSaysItsOwnNumberBeforeItRepeatsAnothers: what is sent again is the same bytes, and the receiver takes what an offer says for the number of the
// path by which it came.
func TestAPathSaysItsOwnNumberBeforeItRepeatsAnothers(t *testing.T) {
	offer := bytes.Repeat([]byte{1}, 48)
	lost := func() (*Sender, time.Duration) { // path 1 has carried an offer and data, and is gone
		s, now := two(nil), time.Second
		s.SentName(now, 1, 7, 0, offer)
		s.Sent(now, 1, 7, 1, make([]byte, 1000))
		s.SetPaths(now, []Path{{ID: 2, RTT: 30 * tick}})
		return s, now
	}
	again := func(s *Sender, now time.Duration, want []byte) {
		t.Helper()
		if p, m, ok := s.Again(now); !ok || p != 2 || !bytes.Equal(m, want) {
			t.Errorf("by path %d goes %.4x, %v, and not %.4x by path 2", p, m, ok, want)
		}
	}
	s, now := lost()
	again(s, now, nil)
	s.SentName(now, 2, 7, 2, offer)
	again(s, now+20*tick, offer) // when pacing lets it
	again(s, now+40*tick, make([]byte, 1000))

	s, now = lost() // who cannot say it is not asked again
	again(s, now, nil)
	again(s, now, offer)

	s, now = lost() // by path 2 something newer went, so the receiver believes nothing older of it
	s.Sent(now, 2, 7, 2, make([]byte, 1000))
	again(s, now+20*tick, offer)
}

// TestNothingIsLearnedFromACounterThatWasNeverSent has the receiver tell of a message that went before there was a bond, by a path that it does not
// know the number of.
func TestNothingIsLearnedFromACounterThatWasNeverSent(t *testing.T) {
	s, now := two(nil), time.Second
	s.Sent(now, 1, 7, 5, make([]byte, 1000))
	s.SentCopy(now, 2, 7, 5, 1000)
	for range 2 {
		now += 20 * tick
		clock := uint64(now / time.Microsecond)
		f := wire.Feedback{Session: 7, Base: 6, Clock: clock, NPaths: 2}
		f.Paths[0] = wire.FeedbackPath{ID: 1, Newest: 5, At: clock - 10_000}
		f.Paths[1] = wire.FeedbackPath{Newest: 3, At: clock - 900_000}
		s.Feedback(now, now, &f)
	}
	if p := s.Status(nil)[1]; p.InFlight == 0 {
		t.Errorf("nothing has come by path %d, and it counts as arrived", p.ID)
	}
}
