package bench

import (
	"slices"
	"sync"
	"time"
)

// paceEvery is how often what has come for the benchmark itself is looked at. A stall is known to that. Woken for each segment of each
// connection, the benchmark would cost the machine more than its links do, and who wakes it, the nodes that are measured, as much again.
const paceEvery = 4 * time.Millisecond

// A pace looks at all there is to look at, again and again, while there is anything: one goroutine wakes up for all worlds.
var pace struct {
	sync.Mutex
	looks []func(now time.Time, buf []byte) (again bool)
}

// everyPace has look called every paceEvery, in a goroutine that all share, until it returns false. It must not wait. The buffer is its own
// until it returns.
func everyPace(look func(now time.Time, buf []byte) (again bool)) {
	pace.Lock()
	defer pace.Unlock()
	if pace.looks = append(pace.looks, look); len(pace.looks) == 1 {
		go keepPace()
	}
}

func keepPace() {
	tick := time.NewTicker(paceEvery)
	defer tick.Stop()
	buf := make([]byte, 256<<10) // what comes at 500 Mbit/s meanwhile
	for range tick.C {
		pace.Lock()
		pace.looks = slices.DeleteFunc(pace.looks, func(look func(time.Time, []byte) bool) bool { return !look(time.Now(), buf) })
		left := len(pace.looks)
		pace.Unlock()
		if left == 0 {
			return // who comes next starts it anew
		}
	}
}

// lately knows how many bytes come in paceEvery. The zero one has seen nothing.
type lately struct {
	since time.Time
	bytes int
}

// in takes n bytes, and says every sampleEvery, with news, how many came in paceEvery since it last did.
func (l *lately) in(now time.Time, n int) (each int, news bool) {
	if l.since.IsZero() {
		l.since = now
		return 0, false
	}
	l.bytes += n
	took := now.Sub(l.since)
	if took < sampleEvery {
		return 0, false
	}
	each = int(float64(l.bytes) * paceEvery.Seconds() / took.Seconds())
	l.since, l.bytes = now, 0
	return each, true
}
