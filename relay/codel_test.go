package relay

import (
	"testing"
	"time"

	"weft/wire"
)

// A standing is a queue that is filled as fast as it can be and written slower.
type standing struct {
	q       *queue
	now     time.Duration
	dropped map[Drop]int
	taken   int
	last    time.Duration // how long what was last taken had waited
}

func newStanding(most int) *standing {
	s := &standing{now: time.Second, dropped: map[Drop]int{}}
	s.q = newQueue(most, time.Hour, func() time.Duration { return s.now }, func(why Drop, n int) { s.dropped[why] += n })
	return s
}

// take writes a chunk, which takes as long as the path's rate in bytes per second says.
func (s *standing) take(rate float64) {
	_, c, _ := s.q.take(nil)
	if c == nil {
		s.now += time.Millisecond
		return
	}
	s.last = s.now - c.born
	s.taken += c.count
	s.now += time.Duration(float64(c.end-c.start) / rate * float64(time.Second))
	chunks.Put(c)
}

// A connection in its simplest form fills the queue: it has a window of frames, one more each round, and 0.7 of it after a round with a loss.
func TestAQueueThatOneConnectionFillsDoesNotStand(t *testing.T) {
	const size, rate = 1452, 12.5e6 // bytes, and bytes per second: 100 Mbit/s
	for _, x := range []struct {
		name string
		most int
	}{{"1 MiB", 1 << 20}, {"4 MiB", 4 << 20}} {
		s := newStanding(x.most)
		datagram := make([]byte, size)
		window, lost, waits, late, rounds := 4000.0, 0, 0, 0, 0
		for began := s.now; s.now < began+30*time.Second; {
			gone := s.dropped[DropAge] + s.dropped[DropQueue]
			if gone > lost {
				window *= 0.7
				lost = gone
			} else {
				window++
			}
			for waits = s.q.size / (size + wire.StreamDataPrefix); waits < int(window); waits++ {
				_ = s.q.send(1, [][]byte{datagram})
			}
			s.take(rate)
			if s.now > began+10*time.Second {
				if rounds++; s.last > 3*tooLong {
					late++
				}
			}
		}
		if s.dropped[DropQueue] > 0 && x.most > 4000*(size+wire.StreamDataPrefix) {
			t.Errorf("%s: %d were dropped because there was no room", x.name, s.dropped[DropQueue])
		}
		if late*10 > rounds {
			t.Errorf("%s: of %d writes %d were of what had waited longer than %v", x.name, rounds, late, 3*tooLong)
		}
		if got := float64(s.taken) * size / rate / 30; got < 0.9 {
			t.Errorf("%s: %.2f of the path was used", x.name, got)
		}
	}
}

// What queues may hold beyond what each may hold in any case is little beside what they could hold all together.
func TestManyQueuesThatNobodyWritesShareOneBound(t *testing.T) {
	before := lent.Load()
	var queues []*queue
	full := func(q *queue) {
		for range 4<<20/1460 + 10 {
			_ = q.send(1, [][]byte{make([]byte, 1452)})
		}
	}
	sum := 0
	for range 40 {
		s := newStanding(4 << 20)
		queues = append(queues, s.q)
		full(s.q)
		sum += s.q.size
		if s.q.size < sureBytes-1460 {
			t.Fatalf("one holds %d bytes", s.q.size)
		}
	}
	if queues[0].size < 4<<20-1460 {
		t.Errorf("the first holds %d bytes of 4 MiB", queues[0].size)
	}
	if most := 40*sureBytes + spareBytes; sum > most || sum < most-40*spareStep {
		t.Errorf("all hold %d bytes of %d", sum, most)
	}
	queues[0].close()
	if full(queues[39]); queues[39].size < 3<<20 {
		t.Errorf("the last holds %d bytes after the first was closed", queues[39].size)
	}
	for { // the second is written
		_, c, _ := queues[1].take(nil)
		if c == nil {
			break
		}
		chunks.Put(c)
	}
	if n := queues[1].borrowed; n != 0 {
		t.Errorf("an empty queue keeps %d bytes", n)
	}
	for _, q := range queues {
		q.close()
	}
	if n := lent.Load() - before; n != 0 {
		t.Errorf("%d bytes are lent to queues that are closed", n)
	}
}
