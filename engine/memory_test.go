package engine

import (
	"log/slog"
	"runtime"
	"testing"

	"weft"
	"weft/host"
	"weft/key"
)

// heap is what lies in Go's heap after a collection, in bytes.
func heap() int {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC() // what the first one had finalised
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// A node is one process of many on a small machine, and most of the time it has nothing to do: what is only used by bonds, by a full
// queue or by a burst is there when one of them comes.
func TestAnEngineAtRestTakesLittleMemory(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector's notes are on the heap, too")
	}
	const engines, most = 8, 256 << 10
	before := heap()
	var all []*Engine
	for range engines {
		e, err := New(Config{Key: key.NewPrivate[key.Node](), Self: 1, Device: &wide{of: []*memTUN{{bell: newBell()}}}, Handler: &recorder{}, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
	}
	each := (heap() - before) / engines
	for _, e := range all {
		e.Close()
	}
	if each > most {
		t.Errorf("an engine takes %d bytes before it does anything, more than %d", each, most)
	}
}

// However much is to be sent at once, to however many peers: super-packets wait in the slabs of one sender, and Go's heap has little more
// than what one burst takes.
func TestABusySenderTakesTheMemoryOfItsSuperPackets(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector's notes are on the heap, too")
	}
	a, _ := talking(t)
	_, unread := listener(t)
	a.SetRoute(2, weft.DirectVia(0, unread))
	l := &loop{packet: super(addrOf(1), addrOf(2), 44)}
	o := newSender(a.Engine, l)
	before := heap()
	for range 50 {
		for l.give = 2 * largePackets; l.give > 0; {
			left := l.give
			for i := 0; i < 2*largePackets/drainMost && l.give > 0; i++ {
				o.fill(false)
			}
			if l.give == left && o.queue.Len() == 0 {
				t.Fatal("no packet is taken and none waits")
			}
			o.send()
		}
		for o.queue.Len() > 0 {
			o.send()
		}
	}
	if got, most := heap()-before, 512<<10; got > most {
		t.Errorf("%d bytes more are on the heap than before, more than %d", got, most)
	}
	if got, most := len(o.slabs)*host.SlabPackets, largePackets; got > most {
		t.Errorf("there is room for %d super-packets, more than %d", got, most)
	}
	runtime.KeepAlive(o)
}
