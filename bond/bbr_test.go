package bond

import (
	"math"
	"testing"
	"time"
)

// carried is the rate of the path in these tests: 16 Mbit/s.
const carried = 2e6

// fed is a control that knows a path of 20 ms, at a sender that sleeps for as long now and then, and so allows for a queue twice as long.
func fed(bw float64) (*bbr, func(s Sample)) {
	b := &bbr{}
	b.Restart(0, 20*time.Millisecond)
	now := time.Duration(0)
	feed := func(s Sample) {
		now += 20 * time.Millisecond
		s.Bytes, s.InFlight, s.RTT, s.MinRTT, s.Nap, s.Sent, s.Round = 20*segment, 20*segment, 20*time.Millisecond+s.Queue, 20*time.Millisecond, 20*time.Millisecond, now-20*time.Millisecond, true
		if s.Load == 0 { // it fills the path by itself
			s.Load = int(carried * s.RTT.Seconds())
		}
		b.Sample(now, s)
	}
	feed(Sample{Rate: bw, Limited: true})
	return b, feed
}

// TestWhatAQueueDrainsAtEndsStartup has what was held up on its way come at once, so that a path that is back seemed to carry 44 Mbit/s, and the queue
// behind it be no longer than a sender allows for that sleeps. All of a connection went by it then, since it was taken to have no queue.
func TestWhatAQueueDrainsAtEndsStartup(t *testing.T) {
	b, feed := fed(2.75 * carried)
	if b.Capacity() < 2*carried {
		t.Fatalf("it is not held to carry more than it does: %.1f Mbit/s", b.Capacity()*8/1e6)
	}
	feed(Sample{Rate: carried, Limited: true, Queue: 30 * time.Millisecond, Drain: carried})
	if got := b.Capacity(); math.Abs(got-carried) > 0.05*carried {
		t.Errorf("with a queue that drains at 16 Mbit/s it is held to carry %.1f", got*8/1e6)
	}
	if b.Seeking() {
		t.Error("it is not known what it carries")
	}
}

// TestWhatAQueueDrainsAtIsWhatAPathCarries has a path that never was seen to be full have a queue no longer than a sender allows for that sleeps. It had copies of what
// went by the other path for as long as that was so, seconds, and half of what it carried was copies.
func TestWhatAQueueDrainsAtIsWhatAPathCarries(t *testing.T) {
	b, feed := fed(carried / 2)
	for range 3 {
		feed(Sample{Rate: carried / 2, Limited: true, Lost: 4 * segment})
	}
	if b.mode != steady || !b.Seeking() {
		t.Fatalf("mode %d, seeking %v", b.mode, b.Seeking())
	}
	for range 3 {
		feed(Sample{Rate: carried, Limited: true, Queue: 12 * time.Millisecond, Drain: carried})
	}
	if b.Seeking() {
		t.Error("it is not known what it carries")
	}
	if got := b.Capacity(); math.Abs(got-carried) > 0.05*carried {
		t.Errorf("with a queue that drains at 16 Mbit/s it is held to carry %.1f", got*8/1e6)
	}
}

// TestLittleThatComesLateSaysNothingOfWhatAPathCarries has some pings go by a path, and come late on machines that are busy. It was held to carry two packets in a
// round trip since then, so all went by the other one; and when that failed it took a second until it was known what this one carries.
func TestLittleThatComesLateSaysNothingOfWhatAPathCarries(t *testing.T) {
	b, now := &bbr{}, time.Duration(0)
	b.Restart(0, 60*time.Millisecond)
	first := b.Capacity()
	for i := range 200 {
		now += 60 * time.Millisecond
		s := Sample{
			Bytes: 300, RTT: 60 * time.Millisecond, MinRTT: 60 * time.Millisecond, Nap: 5 * time.Millisecond, Sent: now - 60*time.Millisecond, Load: 300,
			Rate: 5000, Limited: true, Starved: true, Round: true,
		}
		if i%3 == 0 {
			s.Queue, s.Drain = 50*time.Millisecond, 5000
			s.RTT += s.Queue
		}
		b.Sample(now, s)
	}
	if got := b.Capacity(); got < first {
		t.Errorf("it is held to carry %.2f Mbit/s, and %.2f before anything was sent", got*8/1e6, first*8/1e6)
	}
}

// TestWhatWasHeldUpIsNotTakenForWhatAPathCarries has the queue of a path of 16 Mbit/s come at 37 after the whole machine has slept. All that its connection had
// then went there at once, and its queue overflowed.
func TestWhatWasHeldUpIsNotTakenForWhatAPathCarries(t *testing.T) {
	b, feed := fed(carried)
	queued := Sample{Rate: carried, Queue: 80 * time.Millisecond, Drain: carried}
	feed(queued)
	feed(queued)
	held := queued
	held.Drain = 37.0 / 16 * carried
	feed(held)
	if got := b.Capacity(); got > 1.3*carried {
		t.Errorf("it is held to carry %.1f Mbit/s", got*8/1e6)
	}
	feed(queued)
	if got := b.Capacity(); math.Abs(got-carried) > 0.05*carried {
		t.Errorf("a round trip later it is held to carry %.1f Mbit/s", got*8/1e6)
	}
	for range 6 { // and it does carry more
		feed(held)
	}
	if got := b.Capacity(); got < 37.0/16*carried {
		t.Errorf("after six round trips in which its queue drained at 37 Mbit/s it is held to carry %.1f", got*8/1e6)
	}
}

// beside is a sample of a path in whose queue others keep so much that a packet waits so long, and little is sent here.
func beside(queue time.Duration) Sample {
	return Sample{Rate: carried / 4, Limited: true, Starved: true, Queue: queue, Load: 5 * segment}
}

// TestOthersAreMetByWhoSleepsToo has others keep a queue that is shorter than a sender allows for that sleeps. It gave way to them, and did not take them for
// others: for seconds it had a tenth of the link.
func TestOthersAreMetByWhoSleepsToo(t *testing.T) {
	b, feed := fed(carried)
	feed(Sample{Rate: carried, Queue: 60 * time.Millisecond, Drain: carried})
	if b.mode != steady {
		t.Fatalf("mode %d", b.mode)
	}
	for range 25 {
		feed(beside(15 * time.Millisecond))
	}
	if b.mode != compete {
		t.Errorf("after half a second beside others: mode %d, %.1f Mbit/s", b.mode, b.Rate()*8/1e6)
	}
}

// TestOthersThatAreSeenAreNotLookedFor has others stay for half a minute, and leave. Each look whether they were there yet was a fifth of a second without the
// path: the others took that, and what waited in front meanwhile cost the connection some of its window.
func TestOthersThatAreSeenAreNotLookedFor(t *testing.T) {
	b, feed := fed(carried)
	feed(Sample{Rate: carried, Queue: 60 * time.Millisecond, Drain: carried})
	for range 25 {
		feed(beside(30 * time.Millisecond))
	}
	for i := range 1500 {
		if feed(beside(30 * time.Millisecond)); b.mode != compete {
			t.Fatalf("after %d round trips beside others: mode %d", i, b.mode)
		}
	}
	for i := 0; b.mode != steady; i++ {
		if feed(beside(time.Millisecond)); i > 5 {
			t.Fatalf("they have gone: mode %d", b.mode)
		}
	}
}
