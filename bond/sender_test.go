package bond

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft/wire"
)

const tick = time.Millisecond

func two(control func() Control) *Sender {
	s := NewSender(SenderConfig{Control: control})
	s.SetPaths(time.Second, []Path{{ID: 1, RTT: 20 * tick, Overhead: 28}, {ID: 2, RTT: 30 * tick, Overhead: 28}})
	return s
}

func controls() map[string]func() Control {
	return map[string]func() Control{"bbr": NewBBR, "cubic": NewCubic, "reno": NewReno}
}

// A message says its own counter, so that it can be recognised.
func numbered(b []byte, counter uint64) []byte {
	binary.BigEndian.PutUint64(b, counter)
	return b
}

func TestWhatIsSentAgainIsWhatWasSent(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s, now := two(nil), time.Second
		sent, due := map[uint64]int{}, map[uint64]bool{}
		counter := uint64(0)
		for range rapid.IntRange(1, 400).Draw(t, "steps") {
			now += time.Duration(rapid.IntRange(0, 5000).Draw(t, "us")) * time.Microsecond
			switch rapid.IntRange(0, 9).Draw(t, "what") {
			case 0:
				s.Tick(now)
			case 1:
				s.SetPaths(now, []Path{{ID: 2, RTT: 30 * tick}, {ID: PathID(rapid.IntRange(1, 4).Draw(t, "path"))}})
			case 2:
				f := wire.Feedback{Session: 7, Clock: uint64(now / time.Microsecond), NWords: 4}
				if counter > 256 {
					f.Base = counter - 256
				}
				for i := range f.Words {
					if i < f.NWords {
						f.Words[i] = rapid.Uint64().Draw(t, "came")
					}
				}
				s.Feedback(now, now, &f)
			case 3:
				size := rapid.IntRange(32, 1400).Draw(t, "size")
				s.Assigned(now, PathID(rapid.IntRange(1, 4).Draw(t, "path")), 7, counter, numbered(make([]byte, size), counter))
				sent[counter] = size
				counter++
			default:
				size := rapid.IntRange(32, 1400).Draw(t, "size")
				if p, room, ok := s.Next(now, size, size); ok {
					if room < size {
						t.Fatalf("room for %d bytes where %d may go", room, size)
					}
					s.Sent(now, p, 7, counter, numbered(make([]byte, size), counter))
					sent[counter] = size
					counter++
				}
			}
			for n := 0; ; n++ {
				_, m, ok := s.Again(now)
				if !ok {
					break
				}
				c := binary.BigEndian.Uint64(m)
				if sent[c] != len(m) || !bytes.Equal(m[8:], make([]byte, len(m)-8)) {
					t.Fatalf("%d bytes are sent again of message %d, which had %d", len(m), c, sent[c])
				}
				if n > 10_000 {
					t.Fatal("there is no end to what is sent again")
				}
			}
			for p, m, ok := s.Due(now); ok; p, m, ok = s.Due(now) {
				c := binary.BigEndian.Uint64(m)
				if s.lane(p) == nil || sent[c] != len(m) || !bytes.Equal(m[8:], make([]byte, len(m)-8)) || due[c] {
					t.Fatalf("message %d of %d bytes is sent with %d by path %d; before: %v", c, sent[c], len(m), p, due[c])
				}
				due[c] = true
			}
			check(t, s)
		}
	})
}

// check holds what the Sender believes against its books.
func check(t *rapid.T, s *Sender) {
	t.Helper()
	for _, l := range s.lanes {
		sum := 0
		for i := l.flights.tail; i != l.flights.head; i++ {
			if f := l.flights.at(i); f.state.flying() {
				sum += int(f.size)
			}
		}
		waits := 0
		for i := l.assigned.tail; i != l.assigned.head; i++ {
			waits += int(l.assigned.at(i).size)
		}
		if waits != l.assigned.bytes {
			t.Fatalf("path %d has %d bytes assigned, and says %d", l.ID, waits, l.assigned.bytes)
		}
		if sum != l.inFlight {
			t.Fatalf("path %d has %d bytes in flight, and says %d", l.ID, sum, l.inFlight)
		}
		if len(l.flights.ring) > flightsMost {
			t.Fatalf("path %d remembers %d flights", l.ID, len(l.flights.ring))
		}
		if r := l.ctl.Rate(); !(r > 0 && r < 1e12) || l.ctl.Window() < leastWindow {
			t.Fatalf("path %d is to be sent %v bytes/s with a window of %d", l.ID, r, l.ctl.Window())
		}
	}
	copies := 0
	for seq := s.ledger.tail; seq < s.ledger.head; seq++ {
		if s.ledger.msg(seq).size > 0 {
			copies++
		}
	}
	if copies != s.ledger.copies || len(s.ledger.ring) > logMost || len(s.ledger.bytes) > s.cfg.Memory {
		t.Fatalf("%d copies, said to be %d; %d messages, %d bytes", copies, s.ledger.copies, len(s.ledger.ring), len(s.ledger.bytes))
	}
}

func TestAbsurdFeedbackChangesNothingAndIsCounted(t *testing.T) {
	s := two(nil)
	for c := range uint64(10) {
		p, _, ok := s.Next(time.Second, 100, 100)
		if !ok {
			break
		}
		s.Sent(time.Second, p, 7, c, make([]byte, 100))
	}
	before := s.Status(nil)
	for name, f := range map[string]*wire.Feedback{
		"another session":       {Session: 8, Clock: 1},
		"a base never sent":     {Session: 7, Clock: 1, Base: 1000},
		"a bit never sent":      {Session: 7, Clock: 1, NWords: 1, Words: [64]uint64{1 << 60}},
		"a newest never sent":   {Session: 7, Clock: 1, NPaths: 1, Paths: [16]wire.FeedbackPath{{Newest: 5000}}},
		"arrival after its own": {Session: 7, Clock: 1, NPaths: 1, Paths: [16]wire.FeedbackPath{{Newest: 1, At: 5}}},
		"a clock out of range":  {Session: 7, Clock: 1 << 60},
		"too many words":        {Session: 7, Clock: 1, NWords: 65},
		"too many paths":        {Session: 7, Clock: 1, NPaths: 17},
	} {
		n := s.ignored
		s.Feedback(time.Second+20*tick, time.Second+20*tick, f)
		if s.ignored != n+1 {
			t.Errorf("%s is not counted", name)
		}
	}
	for i, p := range s.Status(nil) {
		if p.InFlight != before[i].InFlight || p.Rate != before[i].Rate {
			t.Errorf("path %d is %+v after absurd feedback, and was %+v", p.ID, p, before[i])
		}
	}
}

func TestWhoAcknowledgesEverythingAtOnceGetsNoMoreThanIsThere(t *testing.T) {
	for name, control := range controls() {
		s, counter := two(control), uint64(0)
		message := make([]byte, 1400)
		for now := time.Second; now < 6*time.Second; now += tick {
			s.Tick(now)
			for range 5 { // 7 kB a millisecond are there to be sent
				if p, _, ok := s.Next(now, len(message), 7000); ok {
					s.Sent(now, p, 7, counter, message)
					counter++
				}
			}
			s.Idle(now)
			s.Feedback(now, now, &wire.Feedback{Session: 7, Clock: uint64(now / time.Microsecond), Base: counter})
		}
		for _, p := range s.Status(nil) {
			if p.Rate > 20e6 || p.InFlight > 1<<20 {
				t.Errorf("%s: path %d is believed to deliver %.0f bytes/s, with %d in flight", name, p.ID, p.Rate, p.InFlight)
			}
		}
	}
}

// evenly sends and acknowledges, as a path of constant delay would.
type evenly struct {
	s       *Sender
	now     time.Duration
	counter uint64
	message []byte
	f       wire.Feedback
	last    [3]wire.FeedbackPath
}

func (x *evenly) step() {
	x.now += 100 * time.Microsecond
	if x.now >= x.s.Wake() {
		x.s.Tick(x.now)
	}
	x.s.Again(x.now)
	if p, _, ok := x.s.Next(x.now, len(x.message), 100_000); ok {
		x.s.Sent(x.now, p, 7, x.counter, x.message)
		x.last[p] = wire.FeedbackPath{ID: uint16(p), Newest: x.counter, At: uint64((x.now + 10*tick) / time.Microsecond)}
		x.counter++
	}
	if x.counter%8 == 0 && x.counter > 0 {
		x.f = wire.Feedback{Session: 7, Clock: uint64((x.now + 10*tick) / time.Microsecond), Base: x.counter}
		for _, l := range x.last {
			if l.ID != 0 {
				x.f.Paths[x.f.NPaths] = l
				x.f.NPaths++
			}
		}
		x.s.Feedback(x.now+20*tick, x.now+20*tick, &x.f)
		x.now += 20 * tick
	}
}

func TestTheHotPathAllocatesNothing(t *testing.T) {
	for name, control := range controls() {
		x := &evenly{s: two(control), now: time.Second, message: make([]byte, 1400)}
		for range 20_000 {
			x.step()
		}
		if n := testing.AllocsPerRun(2000, x.step); n > 0 {
			t.Errorf("%s: %v allocations a packet", name, n)
		}
	}
}

func BenchmarkSender(b *testing.B) {
	for name, control := range controls() {
		b.Run(name, func(b *testing.B) {
			x := &evenly{s: two(control), now: time.Second, message: make([]byte, 1400)}
			for range 10_000 {
				x.step()
			}
			from := x.counter
			b.ReportAllocs()
			b.ResetTimer()
			for b.Loop() {
				x.step()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(max(x.counter-from, 1)), "ns/packet")
		})
	}
}

func TestWhatWasSentBeforeALongGapOfCountersHoldsNothingUp(t *testing.T) {
	s := NewSender(SenderConfig{})
	s.SetPaths(0, []Path{{ID: 1, RTT: 10 * time.Millisecond}, {ID: 2, RTT: 10 * time.Millisecond}})
	message := make([]byte, 100)
	s.SentControl(0, 1, 7, 5, message)
	const first = 5 + 2*holesMost // what was between went by no path of the bond
	now, counter := time.Millisecond, uint64(first)
	for range 4 * stretchMost {
		p, _, ok := s.Next(now, len(message), len(message))
		if !ok {
			now += time.Millisecond
			if now > time.Hour {
				t.Fatalf("after %d messages none may be sent any more", counter-first)
			}
		} else {
			s.Sent(now, p, 7, counter, message)
			counter++
		}
		f := wire.Feedback{Session: 7, Clock: uint64(now / time.Microsecond), Base: counter, NPaths: 0}
		s.Feedback(now+5*time.Millisecond, now+5*time.Millisecond, &f)
	}
	if counter-first <= stretchMost {
		t.Errorf("%d messages were sent", counter-first)
	}
}

func TestAPathThatSeemedSlowBeginsAnewWhenItIsSaidToBeQuick(t *testing.T) {
	for name, control := range controls() {
		s := NewSender(SenderConfig{Control: control})
		quick, slow := Path{ID: 1, RTT: 20 * tick}, Path{ID: 2, RTT: 500 * tick}
		s.SetPaths(time.Second, []Path{quick, slow})
		one, two := s.lane(1).ctl, s.lane(2).ctl
		if two.Capacity() > one.Capacity()/10 {
			t.Fatalf("%s: a path of 500 ms is taken to carry %.0f bytes/s, one of 20 ms %.0f", name, two.Capacity(), one.Capacity())
		}
		slow.RTT = quick.RTT
		s.SetPaths(2*time.Second, []Path{quick, slow})
		if two.Capacity() != one.Capacity() {
			t.Errorf("%s: of two paths of 20 ms one is taken to carry %.0f bytes/s, and the other %.0f", name, two.Capacity(), one.Capacity())
		}
	}
}

// TestFlightsAreFoundNeedlessWhenTheirNumbersHaveGoneAround: a path without such flights for two thousand million packets has the latest of them, which is
// none, as far behind as ahead.
func TestFlightsAreFoundNeedlessWhenTheirNumbersHaveGoneAround(t *testing.T) {
	for _, first := range []uint32{0, 1, 1<<31 - 1, 1 << 31, 1<<31 + 1, 1<<32 - 2} {
		l := &lane{}
		l.flights.tail, l.flights.head = first, first
		for range 3 {
			_, f := l.flights.add()
			*f = flight{size: 1000}
			l.inFlight += 1000
		}
		l.expire(1)
		if l.inFlight != 3000 {
			t.Errorf("from %d on: %d bytes are in flight, and nothing was needless", first, l.inFlight)
		}
		l.spare(first + 1)
		if l.expire(-1); l.inFlight != 3000 {
			t.Errorf("from %d on: %d bytes are in flight before it should have arrived", first, l.inFlight)
		}
		if l.expire(1); l.inFlight != 2000 || l.delivered != 1000 {
			t.Errorf("from %d on: %d bytes are in flight, %d delivered", first, l.inFlight, l.delivered)
		}
	}
}
