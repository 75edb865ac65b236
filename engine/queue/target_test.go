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
