package queue

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pgregory.net/rapid"
)

// check holds what the Queue believes against what is in its lists.
func check[T any](t *rapid.T, q *Queue[T]) {
	t.Helper()
	packets, flows, bytes := 0, 0, 0
	listed := map[int32]bool{}
	list := func(l list, at []links, do func(int32)) {
		prev := int32(none)
		for i := l.head; i != none; prev, i = i, at[i].next {
			if at[i].prev != prev {
				t.Fatalf("%d comes after %d, and says after %d", i, prev, at[i].prev)
			}
			do(i)
		}
		if l.tail != prev {
			t.Fatalf("the list ends with %d, and says %d", prev, l.tail)
		}
	}
	turn := func(fresh bool) func(int32) {
		return func(i int32) {
			if listed[i] || q.flows[i].fresh != fresh {
				t.Fatalf("flow %d is in two lists, or in the wrong one", i)
			}
			listed[i] = true
		}
	}
	for c := range q.ready {
		list(q.ready[c].fresh, q.turnLinks, turn(true))
		list(q.ready[c].peers, q.peerLinks, func(n int32) {
			if p := q.peers[n]; !p.listed || int(p.class) != c || p.waiting.head == none {
				t.Fatalf("peer %d is listed and has %+v", n, p)
			}
			list(q.peers[n].waiting, q.turnLinks, turn(false))
		})
	}
	for pos, n := range q.active {
		p := q.peers[n]
		if int(p.pos) != pos || p.mine.head == none || p.deficit > Quantum || p.ahead > aheadPeer {
			t.Fatalf("peer %d in place %d is %+v", n, pos, p)
		}
		sum := 0
		list(p.mine, q.mineLinks, func(i int32) {
			f := q.flows[i]
			if flows++; f.peer != n || !listed[i] {
				t.Fatalf("flow %d of peer %d is %+v", i, n, f)
			}
			for x := f.head; x != none; x = q.nodes[x].next {
				packets++
				sum += q.nodes[x].item.Size
			}
		})
		if bytes += sum; p.bytes != sum {
			t.Fatalf("peer %d has %d bytes, and says %d", n, sum, p.bytes)
		}
	}
	empty := 0
	list(q.idle, q.idleLinks, func(i int32) {
		if empty++; q.flows[i].head != none || !listed[i] {
			t.Fatalf("flow %d is no empty one", i)
		}
	})
	full := 0
	for i := range listed {
		f := q.flows[i]
		if f.deficit > aheadFlow {
			t.Fatalf("flow %d is %+v", i, f)
		}
		if f.head != none {
			full++
		}
	}
	if packets != q.packets || bytes != q.bytes || flows != len(listed) || full+empty != flows {
		t.Fatalf("%d packets of %d bytes in %d flows, %d empty; said to be %d of %d in %d", packets, bytes, flows, empty, q.packets, q.bytes, len(listed))
	}
}

func TestAPeerWithManyFlowsGetsNoMoreThanOneWithASingle(t *testing.T) {
	one := &sender{peer: 1, flow: 1, size: 1400, window: 300}
	list := []*sender{one, {peer: 2, flow: 1, size: 60_000, window: 30}}
	for i := range 50 {
		list = append(list, &sender{peer: 3, flow: uint32(i), size: 1400, window: 30})
	}
	run(t, 100e6, 4*time.Second, 16<<20, list...)
	got := map[uint32]int{}
	for _, s := range list {
		got[s.peer] += s.bytes
	}
	third := 100e6 / 8 * 4 / 3
	for id, n := range got {
		if share := float64(n) / third; share < 0.97 || share > 1.03 {
			t.Errorf("peer %d got %.2f of its share", id, share)
		}
	}
	for _, s := range list[2:] {
		if share := float64(s.bytes) / (third / 50); share < 0.85 || share > 1.15 {
			t.Errorf("flow %d of the peer with 50 got %.2f of its share", s.flow, share)
		}
	}
}

func TestPeersThatWaitDifferByAFewPacketsAtMost(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rng := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		peers := rapid.IntRange(2, 6).Draw(t, "peers")
		longest := rapid.SampledFrom([]int{100, 1400, 20_000}).Draw(t, "longest")
		flows := make([]int, peers)
		for i := range flows {
			flows[i] = rapid.SampledFrom([]int{1, 2, 30, 100_000}).Draw(t, "flows")
		}
		now, q := time.Unix(1e9, 0), New[int](1<<30, 256, nil)
		waiting, got := make([]int, peers), make([]int, peers)
		for range 3000 {
			for i := range peers { // each always has enough
				for waiting[i] < 20 {
					q.Push(now, Item[int]{Value: i, Size: 1 + rng.IntN(longest), Peer: uint32(i * 7), Flow: uint32(rng.IntN(flows[i]))})
					waiting[i]++
				}
			}
			it, ok := q.Pop(now)
			if !ok {
				t.Fatal("nothing comes out")
			}
			waiting[it.Value]--
			got[it.Value] += it.Size
			// Deficit round robin: two that wait differ by a quantum and the longest packet each (Shreedhar and Varghese 1995,
			// theorem 2); and by what one may have sent ahead.
			for i, n := range got {
				if most := 2*(Quantum+longest) + aheadPeer; n-got[0] > most || got[0]-n > most {
					t.Fatalf("peer %d with %d flows got %d bytes, peer 0 with %d flows %d", i, flows[i], n, flows[0], got[0])
				}
			}
		}
	})
}

func TestAPeerWhoseEveryPacketIsANewFlowGainsNothing(t *testing.T) {
	for _, size := range []int{100, 1400, 60_000} {
		sly := &sender{peer: 1, size: size, window: max(3, 100_000/float64(size)), anew: true}
		fair := &sender{peer: 2, size: 1400, window: 300}
		run(t, 100e6, 2*time.Second, 16<<20, sly, fair)
		if share := float64(sly.bytes) / (100e6 / 8); share > 1.05 {
			t.Errorf("with packets of %d bytes it got %.2f of its share, the other %.2f", size, share, float64(fair.bytes)/(100e6/8))
		}
	}
}

func TestACallDoesNotWaitForItsOwnPeersBulkNorForOthers(t *testing.T) {
	for _, size := range []int{1400, 60_000} {
		call := &sender{peer: 1, flow: 77, size: 200, every: 20 * time.Millisecond}
		list := []*sender{call}
		for i := range 8 {
			for j := range 3 {
				list = append(list, &sender{peer: uint32(i), flow: uint32(j), size: size, window: max(3, 60_000/float64(size))})
			}
		}
		rate := 50e6
		run(t, rate, 10*time.Second, 32<<20, list...)
		// What is on its way cannot be overtaken; one more may be for the round in which the call paid.
		if most := 2 * time.Duration(float64(size)*8/rate*1e9); call.longest > most || call.dropped > 0 {
			t.Errorf("among packets of %d bytes the call waited %v, at most %v is right; %d were lost", size, call.longest, most, call.dropped)
		}
	}
}

func TestWhoFillsTheQueueLosesAndNobodyElse(t *testing.T) {
	for _, anew := range []bool{false, true} {
		flood := &sender{peer: 1, size: 1400, every: 20 * time.Microsecond, anew: anew} // 560 Mbit/s
		other := &sender{peer: 2, size: 1400, every: 600 * time.Microsecond}            // 19 Mbit/s of its 25
		run(t, 50e6, 3*time.Second, 1<<20, flood, other)
		if other.dropped > 0 {
			t.Errorf("flood of new flows %v: who sends less than its share lost %d of %d packets", anew, other.dropped, other.got)
		}
		if flood.dropped == 0 || flood.bytes < 10_000_000 {
			t.Errorf("flood of new flows %v: the flood lost %d packets and passed %d bytes", anew, flood.dropped, flood.bytes)
		}
	}
}

// BenchmarkPeers is a packet in and one out while others wait, of many peers with some flows each.
func BenchmarkPeers(b *testing.B) {
	for _, c := range []struct{ peers, flows, size int }{{1, 1, 1400}, {1, 8, 1400}, {1, 8, 60_000}, {50, 8, 1400}, {50, 8, 60_000}, {1000, 2, 1400}} {
		b.Run(fmt.Sprintf("%d-peers-%d-flows-%d-bytes", c.peers, c.flows, c.size), func(b *testing.B) {
			q, now := New[*int](1<<30, 4096, nil), time.Unix(1e9, 0)
			n := 0
			push := func() {
				q.Push(now, Item[*int]{Size: c.size, Peer: uint32(n % c.peers), Flow: uint32(n / c.peers % c.flows)})
				n++
			}
			for range 2 * c.peers * c.flows {
				push()
			}
			b.ReportAllocs()
			for b.Loop() {
				push()
				q.Pop(now)
			}
		})
	}
}

// BenchmarkFlood is a packet into a queue that is full of packets that are a flow each.
func BenchmarkFlood(b *testing.B) {
	q, now := New[*int](1<<30, 4096, nil), time.Unix(1e9, 0)
	n := uint32(0)
	b.ReportAllocs()
	for b.Loop() {
		q.Push(now, Item[*int]{Size: 1400, Peer: n % 500, Flow: n / 500})
		n++
	}
}
