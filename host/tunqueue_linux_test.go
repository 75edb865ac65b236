package host

import (
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

func TestAWaitEndsWithItsTimeOrWithAPacket(t *testing.T) {
	c := newCell(t)
	q := c.tun(t, 1, 1, tunFeatures).Queues()[0]
	buf := make([]byte, 1<<16)
	for range 3 {
		began, ended := time.Now(), 0
		for left := 20 * time.Millisecond; left > 0; left = 20*time.Millisecond - time.Since(began) {
			if err := q.Await(left); err != nil {
				t.Fatal(err)
			}
			n, err := q.TryRead(buf)
			if err != nil {
				t.Fatal(err)
			}
			if ended++; n > 0 {
				began, ended = time.Now(), 0 // a packet of the kernel's own
			}
		}
		if ended > 5 { // a signal ends it, too
			t.Errorf("a wait of 20 ms took %d waits", ended)
		}
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
