package router

import (
	"math/rand/v2"
	"time"

	"weft/lab/vnet"
)

// bufferSize holds a frame of any Ethernet without jumbo frames: 1500 bytes, its header and a VLAN tag.
const bufferSize = 2048

// What is reordered is held up between these, as in lab/vnet.
const (
	reorderLeast = time.Millisecond
	reorderMost  = 10 * time.Millisecond
)

// A wire is one direction of a link: it holds frames back for as long as its configuration says. The zero wire
// passes everything at once. Frames keep their order, but for those that Reorder picks, so it is a heap.
type wire struct {
	link vnet.LinkConfig
	down bool
	rng  *rand.Rand
	free time.Time // when the last frame taken will have left the transmitter
	last time.Time // when the last frame in order arrives
	seq  uint64
	held []heldFrame // heap, by arrival
	pool [][]byte
	WireCounts
}

// WireCounts are what one direction of a link has done so far.
type WireCounts struct {
	Frames, Bytes uint64 // that it took: they have passed, or are under way
	Lost          uint64 // frames, by chance
	Overflowed    uint64 // frames that the queue had no room for
	Unplugged     uint64 // frames that met a link that is down or cut
	MostQueued    int    // bytes: the longest that the queue at the link's rate was
}

type heldFrame struct {
	at    time.Time
	seq   uint64
	frame []byte // of the pool's capacity
}

// A passage is what a wire did with a frame.
type passage uint8

const (
	passes passage = iota // at once: the caller goes on with it
	held                  // it comes out of [wire.pop] later
	lost
	overflows
	unplugged
)

// push gives a frame to the wire, and counts what becomes of it.
func (w *wire) push(now time.Time, frame []byte) passage {
	p := w.take(now, frame)
	switch p {
	case passes, held:
		w.Frames++
		w.Bytes += uint64(len(frame))
	case lost:
		w.Lost++
	case overflows:
		w.Overflowed++
	case unplugged:
		w.Unplugged++
	}
	return p
}

// take gives a frame to the wire. Unless it passes at once, the caller keeps the buffer: what is held is a copy.
func (w *wire) take(now time.Time, frame []byte) passage {
	l := &w.link
	switch {
	case w.down:
		return unplugged
	case l.Loss > 0 && w.rng.Float64() < l.Loss:
		return lost
	case l.Rate <= 0 && l.Delay <= 0 && l.Jitter <= 0 && len(w.held) == 0:
		return passes
	case len(frame) > bufferSize:
		return overflows
	}
	at := now
	if l.Rate > 0 {
		queue := int(l.QueueBytes())
		if w.free.Before(now) {
			w.free = now
		}
		backlog := int(w.free.Sub(now).Seconds()*l.Rate/8) + len(frame)
		if backlog > queue {
			return overflows
		}
		w.MostQueued = max(w.MostQueued, backlog)
		w.free = w.free.Add(time.Duration(float64(len(frame)*8) / l.Rate * float64(time.Second)))
		at = w.free
	}
	at = at.Add(l.Delay)
	if l.Jitter > 0 {
		at = at.Add(time.Duration(w.rng.Int64N(int64(l.Jitter) + 1)))
	}
	if l.Reorder > 0 && w.rng.Float64() < l.Reorder {
		at = at.Add(reorderLeast + time.Duration(w.rng.Int64N(int64(reorderMost-reorderLeast))))
	} else {
		if at.Before(w.last) {
			at = w.last
		}
		w.last = at
	}
	w.seq++
	w.up(heldFrame{at, w.seq, append(w.buffer(), frame...)})
	return held
}

// next is when the first held frame arrives; zero: none is held.
func (w *wire) next() time.Time {
	if len(w.held) == 0 {
		return time.Time{}
	}
	return w.held[0].at
}

// pop returns a frame that has arrived by now, nil if there is none. It is the caller's until given to release.
func (w *wire) pop(now time.Time) []byte {
	if len(w.held) == 0 || w.held[0].at.After(now) {
		return nil
	}
	first := w.held[0].frame
	n := len(w.held) - 1
	moved := w.held[n]
	w.held[n] = heldFrame{}
	if w.held = w.held[:n]; n > 0 {
		w.sink(moved)
	}
	return first
}

func (w *wire) release(frame []byte) { w.pool = append(w.pool, frame[:0]) }

func (w *wire) buffer() []byte {
	if n := len(w.pool) - 1; n >= 0 {
		b := w.pool[n]
		w.pool = w.pool[:n]
		return b
	}
	return make([]byte, 0, bufferSize)
}

func (f heldFrame) before(g heldFrame) bool {
	if f.at.Equal(g.at) {
		return f.seq < g.seq
	}
	return f.at.Before(g.at)
}

// up inserts from the end of the heap.
func (w *wire) up(f heldFrame) {
	w.held = append(w.held, f)
	i := len(w.held) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if !f.before(w.held[parent]) {
			break
		}
		w.held[i] = w.held[parent]
		i = parent
	}
	w.held[i] = f
}

// sink inserts from the root of the heap, which is empty.
func (w *wire) sink(f heldFrame) {
	i := 0
	for {
		child := 2*i + 1
		if child >= len(w.held) {
			break
		}
		if child+1 < len(w.held) && w.held[child+1].before(w.held[child]) {
			child++
		}
		if !w.held[child].before(f) {
			break
		}
		w.held[i] = w.held[child]
		i = child
	}
	w.held[i] = f
}
