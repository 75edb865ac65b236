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
			q.Push(now, Item[int]{Value: i, Size: 1400, Again: x.again, ECN: x.ecn})
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

// TestWhatIsSentAgainAfterACutIsNotDroppedAgain has a connection that sends again at once what is dropped, behind what waits.
func TestWhatIsSentAgainAfterACutIsNotDroppedAgain(t *testing.T) {
	const most = 100 * time.Millisecond
	now := time.Unix(1000, 0)
	var dropped []int
	q := New[int](4<<20, 2048, func(v int) { dropped = append(dropped, v) })
	q.SetTarget(60*time.Millisecond, 240*time.Millisecond)
	q.SetMost(most)
	push := func(v int) { q.Push(now, Item[int]{Value: v, Size: 1400, Again: true}) }
	for i := range 300 {
		push(i)
	}
	var cutAt time.Time
	for n := 300; n < 1200; n++ { // as many go as come
		now = now.Add(time.Millisecond)
		dropped = dropped[:0]
		if _, ok := q.Pop(now); !ok {
			t.Fatal("nothing comes out")
		}
		push(n)
		again := append([]int(nil), dropped...)
		if len(again) == 0 {
			continue
		}
		if !cutAt.IsZero() && now.Sub(cutAt) < 2*240*time.Millisecond {
			t.Fatalf("%v after a cut %d more are dropped", now.Sub(cutAt), len(again))
		}
		if len(again) > 1 {
			cutAt = now
		}
		for _, v := range again {
			push(v)
		}
	}
}
