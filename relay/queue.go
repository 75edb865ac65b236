package relay

import (
	"errors"
	"sync"
	"time"

	"weft"
	"weft/wire"
)

const (
	// chunkSize is how much is written at once, in bytes: a frame of any length fits, and the cost of a system
	// call is divided by 40 datagrams.
	chunkSize = wire.StreamHeaderSize + wire.MaxStreamBody
	// chunkTime is for how long frames are gathered into one chunk that nobody takes: how exactly the age of a
	// frame is known.
	chunkTime = 20 * time.Millisecond
	// unsentLimit bounds what the kernel queues beyond what is on its way, in bytes, so that frames wait where
	// they can be dropped. Together with a chunk being written it is 0.1 s of 10 Mbit/s.
	unsentLimit = 64 << 10
	// crowd is from how many bytes on whoever adds is ahead of the one who writes, and lets others have the
	// processor: what is read and cannot be written in time was read in vain. Two writes wait then, one of them
	// full. Without this a relay that is offered 1.5 times what it can forward forwards a quarter of that.
	crowd = 2 * chunkSize
	// ownLimit is how many bytes of the protocol's own frames wait for a node's stream at a relay.
	ownLimit = 1 << 10
)

var errStreamEnded = errors.New("the stream to the relay has ended")

// chunk is a stretch of whole frames.
type chunk struct {
	start, end int
	count      int           // of frames
	born       time.Duration // when its first frame came
	next       *chunk
	b          [chunkSize]byte
}

var chunks = sync.Pool{New: func() any { return new(chunk) }}

// queue holds the frames that wait for one stream: any number of goroutines add, one takes. It is bounded in
// bytes and in age, is kept from standing by CoDel, and drops from its head. Nobody who adds ever waits for the stream.
type queue struct {
	most int
	age  time.Duration
	now  func() time.Duration
	// dropped hears what was dropped, with the lock held.
	dropped func(why Drop, frames int)

	mu         sync.Mutex
	head, tail *chunk
	size       int // bytes in chunks
	borrowed   int // of what all queues share, in bytes
	codel      codel
	urgent     []byte // frames of the protocol's own: not dropped, and ahead of all others
	ahead      int    // how many bytes of them may wait
	waiting    bool   // the taker is
	closed     bool
	wake       chan struct{}
}

func newQueue(most int, age time.Duration, now func() time.Duration, dropped func(Drop, int)) *queue {
	return &queue{most: most, age: age, now: now, dropped: dropped, ahead: ownLimit, wake: make(chan struct{}, 1)}
}

// datagrams adds a run of UDP Data frames of at most segment bytes as Data frames of a stream, from a sender. It
// reports whether the queue is crowded.
func (q *queue) datagrams(from weft.NodeID, data []byte, segment int) (crowded bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for len(data) > 0 && !q.closed {
		n := min(segment, len(data))
		payload := data[wire.DataPrefix:n]
		dst := q.room(now, wire.StreamDataPrefix+len(payload))
		dst = wire.AppendStreamData(dst, from, len(payload))
		q.added(append(dst, payload...), 1)
		data = data[n:]
	}
	q.rouse()
	return q.crowded()
}

// crowded reports that more waits than crowd. The lock is held.
func (q *queue) crowded() bool { return q.size > crowd }

// send adds datagrams as Data frames for or from a node.
func (q *queue) send(id weft.NodeID, datagrams [][]byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for _, d := range datagrams {
		if len(d) == 0 || 4+len(d) > wire.MaxStreamBody {
			q.dropped(DropTooLong, 1)
			continue
		}
		if q.closed {
			return errStreamEnded
		}
		dst := q.room(now, wire.StreamDataPrefix+len(d))
		q.added(append(wire.AppendStreamData(dst, id, len(d)), d...), 1)
	}
	q.rouse()
	return nil
}

// frames adds whole frames as they are. It reports whether the queue is crowded.
func (q *queue) frames(b []byte) (crowded bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	now := q.now()
	for len(b) > 0 && !q.closed {
		n, count := frameSize(b), 1
		dst := q.room(now, n)
		for most := min(cap(dst), q.free()); n < len(b); count++ {
			next := frameSize(b[n:])
			if n+next > most {
				break
			}
			n += next
		}
		q.added(append(dst, b[:n]...), count)
		b = b[n:]
	}
	q.rouse()
	return q.crowded()
}

// frameSize is the length of the frame that b begins with, header included.
func frameSize(b []byte) int { return wire.StreamHeaderSize + int(b[2])<<8 + int(b[3]) }

// control adds a frame of the protocol's own. Of those that nobody takes, what is over the limit is not kept: the other end
// asks faster than it listens.
func (q *queue) control(add func(dst []byte) []byte) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed || len(q.urgent) > q.ahead {
		return
	}
	q.urgent = add(q.urgent)
	q.rouse()
}

// room returns memory for n bytes at the end of the queue, of length 0, having made room for them.
func (q *queue) room(now time.Duration, n int) []byte {
	q.expire(now)
	for !q.fits(n) && q.head != nil {
		q.dropFirst(DropQueue)
	}
	t := q.tail
	if t == nil || len(t.b)-t.end < n || now-t.born > chunkTime {
		c := chunks.Get().(*chunk)
		c.start, c.end, c.count, c.born, c.next = 0, 0, 0, now, nil
		if t == nil {
			q.head = c
		} else {
			t.next = c
		}
		q.tail, t = c, c
	}
	return t.b[t.end:t.end:len(t.b)]
}

// added says that what room returned was filled.
func (q *queue) added(b []byte, frames int) {
	q.tail.end += len(b)
	q.tail.count += frames
	q.size += len(b)
}

// expire drops what is too old.
func (q *queue) expire(now time.Duration) {
	for q.head != nil && now-q.head.born > q.age {
		for c := q.head; q.head == c; {
			q.dropFirst(DropAge)
		}
	}
	q.giveBack()
}

// dropFirst drops the oldest frame.
func (q *queue) dropFirst(why Drop) {
	c := q.head
	if c.start < c.end {
		n := frameSize(c.b[c.start:])
		c.start += n
		c.count--
		q.size -= n
		q.dropped(why, 1)
	}
	if c.start >= c.end {
		q.unlink()
		chunks.Put(c)
	}
}

func (q *queue) unlink() {
	if q.head = q.head.next; q.head == nil {
		q.tail = nil
	}
}

// rouse wakes the taker if it waits. The lock is held.
func (q *queue) rouse() {
	if q.waiting && (q.head != nil || len(q.urgent) > 0 || q.closed) {
		q.waiting = false
		q.wake <- struct{}{} // has room: it was waiting
	}
}

// take returns what is to be written next: whole frames. A chunk is the caller's until it is put back. Both are
// empty when nothing waits; then wake tells of more.
func (q *queue) take(urgent []byte) (first []byte, c *chunk, open bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = false
	select { // a signal from before
	case <-q.wake:
	default:
	}
	first = append(urgent[:0], q.urgent...)
	q.urgent = q.urgent[:0]
	now := q.now()
	q.expire(now)
	if len(first) == 0 {
		q.shorten(now)
	}
	if len(first) == 0 && q.head != nil {
		c = q.head
		q.size -= c.end - c.start
		q.unlink()
	}
	q.giveBack()
	q.waiting = !q.closed && len(first) == 0 && c == nil
	return first, c, !q.closed || len(first) > 0
}

// close ends the queue: what is urgent may still be taken, all else is gone.
func (q *queue) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	for q.head != nil {
		c := q.head
		q.unlink()
		chunks.Put(c)
	}
	q.size = 0
	q.giveBack()
	q.rouse()
}
