package host

import (
	"math"
	"testing"
	"time"
)

// readOf waits for a packet and reads it; zero without an error: the queue was woken.
func readOf(q *TUNQueue, buf []byte) (int, error) {
	if n, err := q.TryRead(buf); n > 0 || err != nil {
		return n, err
	}
	if err := q.Await(time.Hour); err != nil {
		return 0, err
	}
	return q.TryRead(buf)
}

// waitsFor tells of how many waits one of such a length consists, in which no packet comes.
func waitsFor(t *testing.T, q *TUNQueue, most time.Duration) int {
	t.Helper()
	buf := make([]byte, 1<<16)
	began, waits := time.Now(), 0
	for left := most; left > 0; left = most - time.Since(began) {
		if err := q.Await(left); err != nil {
			t.Fatal(err)
		}
		n, err := q.TryRead(buf)
		if err != nil {
			t.Fatal(err)
		}
		if waits++; n > 0 {
			began, waits = time.Now(), 0 // a packet of the kernel's own
		}
	}
	return waits
}

func TestAWaitEndsWithItsTimeOrWithAPacket(t *testing.T) {
	c := newCell(t)
	q := c.tun(t, 1, 1, tunFeatures).Queues()[0]
	buf := make([]byte, 1<<16)
	// A signal ends a wait, too, and the scheduler sends them when it likes: of many waits one has none.
	least := math.MaxInt
	for tries := 0; least > 1 && tries < 50; tries++ {
		least = min(least, waitsFor(t, q, 20*time.Millisecond))
	}
	if least > 1 {
		t.Errorf("a wait of 20 ms takes %d waits", least)
	}
	woken := make(chan error, 1)
	go func() {
		for {
			n, err := readOf(q, buf)
			if n == 0 {
				woken <- err
				return
			}
		}
	}()
	q.Wake()
	select {
	case err := <-woken:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(20 * time.Second):
		t.Error("who waits for an hour is not woken")
	}
}
