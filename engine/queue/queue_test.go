package queue

import (
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"pgregory.net/rapid"
)

// A sender puts packets into a queue for a link of some rate, in virtual time.
type sender struct {
	peer   uint32
	flow   uint32
	class  Class
	ecn    bool
	size   int
	every  time.Duration // at a constant rate; 0: it keeps window packets under way, as TCP does
	window float64
	anew   bool // each packet is of another flow

	next            time.Time
	inside          int
	got, bytes      int
	marked, dropped int
	longest, sum    time.Duration
	reactedAt       time.Time
	reacts          bool // halves its window when it learns of congestion
}

type packet struct {
	s  *sender
	at time.Time
}

// run plays senders against a link, in bits per second, for a time, and returns how long it was busy.
func run(t *testing.T, rate float64, d time.Duration, limit int, senders ...*sender) Stats {
	t.Helper()
	now := time.Unix(1e9, 0)
	q := New(limit, 4096, func(p packet) { p.s.dropped++; p.s.inside--; p.s.react(now) })
	end, free := now.Add(d), now
	for _, s := range senders {
		s.next = now
	}
	for now.Before(end) {
		for _, s := range senders {
			for n := 0; n < 64 && (s.every > 0 && !now.Before(s.next) || s.every == 0 && float64(s.inside) < s.window); n++ {
				q.Push(now, Item[packet]{Value: packet{s, now}, Size: s.size, Peer: s.peer, Flow: s.flow, Class: s.class, ECN: s.ecn})
				if s.inside++; s.anew {
					s.flow++
				}
				s.next = s.next.Add(s.every)
			}
		}
		if now.Before(free) {
			now = free
			continue
		}
		if it, ok := q.Pop(now); ok {
			s, waited := it.Value.s, now.Sub(it.Value.at)
			s.got++
			s.bytes += it.Size
			s.inside--
			s.sum += waited
			s.longest = max(s.longest, waited)
			if s.window > 0 {
				s.window += 1 / s.window
			}
			if it.Marked {
				s.marked++
				s.react(now)
			}
			free = now.Add(time.Duration(float64(it.Size) * 8 / rate * 1e9))
			continue
		}
		now = now.Add(100 * time.Microsecond)
	}
	return q.Stats()
}

func (s *sender) react(now time.Time) {
	if s.reacts && now.Sub(s.reactedAt) > 20*time.Millisecond {
		s.window, s.reactedAt = max(s.window/2, 2), now
	}
}

func TestASmallFlowDoesNotWaitForABulkOne(t *testing.T) {
	bulk := &sender{flow: 1, size: 1400, window: 500}
	call := &sender{flow: 2, size: 200, every: 20 * time.Millisecond}
	run(t, 10e6, 10*time.Second, 4<<20, bulk, call)
	if call.dropped > 0 || call.longest > 5*time.Millisecond {
		t.Errorf("the call lost %d packets and waited %v at most", call.dropped, call.longest)
	}
	if bulk.bytes < 11_000_000 {
		t.Errorf("the link was left idle: %d bytes", bulk.bytes)
	}
}

func TestFlowsShareByBytesWhateverTheirPacketsAre(t *testing.T) {
	// One sends super-packets, one full packets, one small ones, one twice as much as all others offer.
	list := []*sender{
		{flow: 1, size: 60_000, window: 50}, {flow: 2, size: 1400, window: 400}, {flow: 3, size: 100, window: 800}, {flow: 4, size: 1400, window: 1000},
	}
	run(t, 100e6, 2*time.Second, 4<<20, list...)
	for _, s := range list {
		if share := float64(s.bytes) / (100e6 / 8 * 2); share < 0.21 || share > 0.29 {
			t.Errorf("flow %d of packets of %d bytes got %.1f %% of the link", s.flow, s.size, 100*share)
		}
	}
}

func TestWhoReactsKeepsTheQueueShort(t *testing.T) {
	for _, ecn := range []bool{false, true} {
		s := &sender{flow: 1, size: 1400, window: 10, reacts: true, ecn: ecn}
		run(t, 20e6, 30*time.Second, 4<<20, s)
		if mean := s.sum / time.Duration(s.got); mean > 4*Target {
			t.Errorf("ECN %v: packets waited %v on average", ecn, mean)
		}
		if ecn && (s.dropped > 0 || s.marked == 0) || !ecn && (s.marked > 0 || s.dropped == 0) {
			t.Errorf("ECN %v: %d packets dropped, %d marked", ecn, s.dropped, s.marked)
		}
		if s.bytes < 70_000_000 {
			t.Errorf("ECN %v: %d of 75 MB passed", ecn, s.bytes)
		}
	}
}

func TestUrgentPacketsGoFirstButNotAtEverybodysCost(t *testing.T) {
	urgent := &sender{flow: 1, class: Urgent, size: 1400, window: 300}
	usual := &sender{flow: 2, class: BestEffort, size: 1400, window: 300}
	late := &sender{flow: 3, class: Background, size: 1400, window: 300}
	run(t, 50e6, 20*time.Second, 4<<20, urgent, usual, late)
	all := float64(urgent.bytes + usual.bytes + late.bytes)
	for _, c := range []struct {
		s    *sender
		want float64
	}{{urgent, 4. / 16}, {usual, 11. / 16}, {late, 1. / 16}} {
		if share := float64(c.s.bytes) / all; share < c.want-0.03 || share > c.want+0.03 {
			t.Errorf("class %d got %.1f %%, want %.1f %%", c.s.class, 100*share, 100*c.want)
		}
	}
	call := &sender{flow: 1, class: Urgent, size: 200, every: 5 * time.Millisecond}
	many := []*sender{call}
	for i := range 100 {
		many = append(many, &sender{flow: uint32(2 + i), size: 1400, window: 20})
	}
	run(t, 10e6, 10*time.Second, 8<<20, many...)
	if call.longest > 4*time.Millisecond { // three full packets of 1.1 ms
		t.Errorf("among 100 flows an urgent packet waited %v", call.longest)
	}
	lone := &sender{flow: 3, class: Background, size: 1400, window: 100}
	run(t, 10e6, 5*time.Second, 4<<20, lone)
	if lone.bytes < 6_000_000 {
		t.Errorf("background traffic alone got %d bytes of 6.25 MB", lone.bytes)
	}
}

func TestAQueueIsNeverLongerThanItsLimitAndLosesNothingUnsaid(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		limit := rapid.IntRange(2000, 50_000).Draw(t, "limit")
		packets := rapid.IntRange(1, 300).Draw(t, "packets")
		peers := rapid.SampledFrom([]int{3, 2000}).Draw(t, "peers")
		flows := rapid.SampledFrom([]int{1, 5, 2000}).Draw(t, "flows")
		inside, now := map[int]bool{}, time.Unix(1e9, 0)
		q := New(limit, packets, func(v int) {
			if !inside[v] {
				t.Fatalf("packet %d was dropped twice, or never there", v)
			}
			delete(inside, v)
		})
		order := map[Item[int]]int{}
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		for i := range 500 {
			if rng.IntN(3) > 0 {
				inside[i] = true
				q.Push(now, Item[int]{
					Value: i, Size: 1 + rng.IntN(min(limit, 3000)), Peer: uint32(rng.IntN(peers)), Flow: uint32(rng.IntN(flows)), Class: Class(rng.IntN(4)), ECN: rng.IntN(2) == 0,
				})
			} else if it, ok := q.Pop(now); ok {
				if !inside[it.Value] {
					t.Fatalf("packet %d came out twice", it.Value)
				}
				delete(inside, it.Value)
				id := Item[int]{Peer: it.Peer, Flow: it.Flow, Class: it.Class}
				if last, ok := order[id]; ok && last > it.Value {
					t.Fatalf("flow %d: packet %d came after %d", it.Flow, it.Value, last)
				}
				order[id] = it.Value
			} else if len(inside) > 0 {
				t.Fatalf("nothing came out with %d packets inside", len(inside))
			}
			if q.Len() != len(inside) || q.Bytes() > limit || q.Len() > packets {
				t.Fatalf("%d packets of %d bytes, want %d packets and at most %d bytes", q.Len(), q.Bytes(), len(inside), limit)
			}
			now = now.Add(time.Duration(rng.IntN(int(20 * time.Millisecond))))
			check(t, q)
		}
		for range packets + 1 {
			if it, ok := q.Pop(now); ok {
				delete(inside, it.Value)
			}
		}
		if q.Len() != 0 || q.Bytes() != 0 || len(inside) != 0 {
			t.Fatalf("%d packets of %d bytes are left, %d unaccounted for", q.Len(), q.Bytes(), len(inside))
		}
	})
}

func TestPushAndPopAllocateNothing(t *testing.T) {
	q, now := New[*int](1<<20, 256, nil), time.Unix(1e9, 0)
	if n := testing.AllocsPerRun(1000, func() {
		for i := range 20 {
			q.Push(now, Item[*int]{Size: 1400, Flow: uint32(i % 3)})
		}
		for range 20 {
			now = now.Add(time.Millisecond)
			q.Pop(now)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// A sender has a queue for each processor or two, and a bond one in each sender; hardly one ever holds what it may.
func TestAQueueTakesMemoryForWhatItHolds(t *testing.T) {
	const packets = 2048
	q, now := New[*int](4<<20, packets, nil), time.Unix(1e9, 0)
	bytes := func() int {
		return cap(q.nodes)*int(unsafe.Sizeof(q.nodes[0])) + cap(q.flows)*int(unsafe.Sizeof(q.flows[0])) + cap(q.peers)*int(unsafe.Sizeof(q.peers[0])) +
			(cap(q.turnLinks)+cap(q.mineLinks)+cap(q.idleLinks)+cap(q.peerLinks))*int(unsafe.Sizeof(links{})) +
			(cap(q.flowTable)+cap(q.peerTable)+cap(q.active))*int(unsafe.Sizeof(int32(0)))
	}
	wave := func(flows, of int) {
		for i := range flows * of {
			q.Push(now, Item[*int]{Size: 100, Peer: uint32(i % flows), Flow: uint32(i % flows)})
		}
		for range flows * of {
			q.Pop(now)
		}
		now = now.Add(time.Second)
	}
	for range 1000 {
		wave(8, 16)
	}
	if got, most := bytes(), 48<<10; got > most {
		t.Errorf("for 8 flows of 16 packets it takes %d bytes, more than %d", got, most)
	}
	wave(packets, 1)
	least := bytes()
	for range 100 {
		wave(packets, 1)
	}
	if got := bytes(); got != least || got > 1<<20 {
		t.Errorf("when it was full once it takes %d bytes, and when it was full often %d", least, got)
	}
}

func TestDSCPsAreOfTheClassThatTheirDocumentsSay(t *testing.T) {
	for dscp, want := range map[uint8]Class{0: BestEffort, 46: Urgent, 8: Background, 1: Background, 10: BestEffort, 34: Urgent, 48: Urgent} {
		if got := ClassOf(dscp); got != want {
			t.Errorf("DSCP %d is of class %d, want %d", dscp, got, want)
		}
	}
}

func BenchmarkPushPopOfAnEmptyQueue(b *testing.B) {
	q, now := New[*int](1<<20, 256, nil), time.Unix(1e9, 0)
	b.ReportAllocs()
	for b.Loop() {
		q.Push(now, Item[*int]{Size: 1400, Flow: 7})
		q.Pop(now)
	}
}
