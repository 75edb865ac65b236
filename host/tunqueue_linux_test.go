package host

import (
	"testing"
	"time"
)

func TestAReadForEndsWithItsTimeOrWithAPacket(t *testing.T) {
	c := newCell(t)
	q := c.tun(t, 1, 1, tunFeatures).Queues()[0]
	buf := make([]byte, 1<<16)
	for range 3 {
		began := time.Now()
		for {
			n, err := q.ReadFor(buf, 20*time.Millisecond)
			if err != nil {
				t.Fatal(err)
			}
			if n == 0 {
				break
			}
			began = time.Now() // a packet of the kernel's own
		}
		if took := time.Since(began); took < 20*time.Millisecond {
			t.Errorf("it ended after %v", took)
		}
	}
	woken := make(chan error, 1)
	go func() {
		for {
			n, err := q.ReadFor(buf, time.Hour)
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
