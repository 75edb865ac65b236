package queue

import (
	"testing"
	"time"
)

// waits is how long packets of one flow wait that fills a slow link and takes no notice.
func waits(target, interval time.Duration) (dropped int) {
	q := New[int](4<<20, 2048, func(int) { dropped++ })
	q.SetTarget(target, interval)
	now := time.Unix(1000, 0)
	for i := range 12 { // 12 packets, of which one leaves every millisecond and one comes
		q.Push(now, Item[int]{Value: i, Size: 1400})
	}
	for i := range 1000 {
		now = now.Add(time.Millisecond)
		q.Pop(now)
		q.Push(now, Item[int]{Value: i, Size: 1400})
	}
	return dropped
}

func TestALongerTargetLeavesMoreStanding(t *testing.T) {
	if n := waits(Target, Interval); n == 0 {
		t.Error("12 ms stand, and none is dropped")
	}
	if n := waits(20*time.Millisecond, Interval); n != 0 {
		t.Errorf("12 ms stand where 20 may, and %d are dropped", n)
	}
	if soon, late := waits(Target, 50*time.Millisecond), waits(Target, 400*time.Millisecond); soon <= late {
		t.Errorf("%d are dropped with a short interval, %d with a long one", soon, late)
	}
}

func TestWhatIsLeftBehindALossHasNotWaitedLongerThanItMay(t *testing.T) {
	for _, x := range []struct{ again, ecn, cut bool }{{true, false, true}, {true, true, false}, {false, false, false}} {
		dropped, most := 0, 0
		q := New[int](4<<20, 2048, func(int) { dropped++ })
		q.SetMost(60 * time.Millisecond)
		now := time.Unix(1000, 0)
		for i := range 1000 { // one comes each millisecond, and one goes in two
			q.Push(now, Item[int]{Value: i, Size: 1400, Again: x.again, End: uint32(i + 1), ECN: x.ecn})
			now = now.Add(time.Millisecond)
			if i%2 == 0 {
				continue
			}
			before := dropped
			it, ok := q.Pop(now)
			if !ok {
				t.Fatal("nothing comes out")
			}
			if waited := i + 1 - it.Value; x.cut && dropped > before && waited > 60 {
				t.Fatalf("%d are dropped, and what follows has waited %d ms", dropped-before, waited)
			}
			most = max(most, dropped-before)
		}
		if x.ecn && dropped > 0 || x.cut && most < 10 || !x.cut && most > 1 {
			t.Errorf("%+v: %d are dropped, at most %d at once", x, dropped, most)
		}
		now = now.Add(time.Minute)
		for left := q.Len() > 0; left; left = q.Len() > 0 { // the last one stays, however late it is
			if _, ok := q.Pop(now); !ok {
				t.Errorf("%+v: all are dropped", x)
			}
		}
	}
}

// TestWhatIsSentAgainIsNotDroppedAgain has a connection that sends again at once what is dropped, behind what waits, whether it was dropped alone or with all
// that had waited for too long.
func TestWhatIsSentAgainIsNotDroppedAgain(t *testing.T) {
	now := time.Unix(1000, 0)
	var dropped []int
	times := map[int]int{}
	q := New[int](4<<20, 2048, func(v int) { dropped = append(dropped, v) })
	q.SetTarget(60*time.Millisecond, 240*time.Millisecond)
	push := func(v int) { q.Push(now, Item[int]{Value: v, Size: 1400, Again: true, End: uint32(v+1) * 1400}) }
	for i := range 300 {
		push(i)
	}
	var alone, cut int
	for n := 300; n < 4000; n++ { // as many go as come
		now = now.Add(time.Millisecond)
		if n == 700 { // in the round trip after one that was dropped alone
			q.SetTarget(60*time.Millisecond, 100*time.Millisecond)
			q.SetMost(100 * time.Millisecond)
		}
		dropped = dropped[:0]
		if _, ok := q.Pop(now); !ok {
			t.Fatal("nothing comes out")
		}
		push(n)
		again := append([]int(nil), dropped...)
		switch {
		case len(again) == 1:
			alone++
		case len(again) > 1:
			cut++
		}
		for _, v := range again {
			if times[v]++; times[v] > 1 {
				t.Fatalf("packet %d is dropped for the second time", v)
			}
			push(v)
		}
	}
	if alone == 0 || cut == 0 {
		t.Errorf("%d are dropped alone, and %d times several: there have to be both", alone, cut)
	}
}

func TestTellsWhatIsSentAgain(t *testing.T) {
	const first, second = 7, 7 + Flows // share a queue
	var f flow
	for i, x := range []struct {
		hash, end uint32
		again     bool
	}{
		{first, 1000, false}, {first, 2000, false}, {first, 1000, true}, {first, 2000, true}, {first, 3000, false},
		{second, 1000, false}, {second, 1000, true}, {first, 3000, false}, // of another connection nothing is known any more
		{first, 1<<32 - 500, true}, {first, 1 << 31, false}, // as far back as no window is: it began anew
		{first, 1<<31 - 1000, true}, {first, 1<<32 - 1000, false}, {first, 500, false}, {first, 1<<32 - 1000, true}, // around the end
	} {
		if got := f.repeats(x.hash, x.end); got != x.again {
			t.Errorf("%d: what ends at %d of %d is sent again: %v", i, x.end, x.hash, got)
		}
	}
}
