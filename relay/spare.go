package relay

import "sync/atomic"

const (
	// sureBytes is what every queue may hold, up to its own bound, whatever others hold. It is 80 ms at 100 Mbit/s.
	sureBytes = 1 << 20
	// spareBytes is what all queues of the process together may hold beyond it: that of some dozen fast streams.
	spareBytes = 64 << 20
	// spareStep is in bytes, so that a queue asks seldom.
	spareStep = chunkSize
)

// lent is how many bytes of spareBytes queues have.
var lent atomic.Int64

// fits reports whether n bytes more may wait. Room beyond sureBytes is borrowed from what all queues share.
func (q *queue) fits(n int) bool {
	if n <= q.free() {
		return true
	}
	if q.size+n > q.most {
		return false
	}
	step := max(spareStep, n-q.free())
	if lent.Add(int64(step)) > spareBytes {
		lent.Add(-int64(step))
		return false
	}
	q.borrowed += step
	return true
}

// free is how many bytes more fit as it is.
func (q *queue) free() int { return min(q.most, sureBytes+q.borrowed) - q.size }

// giveBack gives back what is borrowed and not in use.
func (q *queue) giveBack() {
	if n := q.borrowed - max(0, q.size-sureBytes); n > spareStep || n > 0 && q.size <= sureBytes {
		q.borrowed -= n
		lent.Add(-int64(n))
	}
}
