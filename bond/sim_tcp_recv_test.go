package bond_test

import (
	"encoding/binary"
	"time"
)

// A receiving is the other end.
type receiving struct {
	back   func([]byte)
	next   uint64
	blocks [][2]uint64 // that came beyond next, the latest first
	quick  int
	wait   int // segments not acknowledged
	alarm  time.Duration
	echo   time.Duration

	came     int // first transmissions
	disorder int // of them, that came after a later one
	top      uint64
	stall    time.Duration // longest time without a new segment in order
	stallAt  time.Duration // its beginning
	lastNew  time.Duration
}

func (c *tcp) data(b []byte) {
	r := &c.recvd
	if b[6] != 1 {
		return
	}
	i, stamp := binary.BigEndian.Uint64(b[8:]), time.Duration(binary.BigEndian.Uint64(b[16:]))
	if b[7] == 0 {
		r.came++
		if i < r.top {
			r.disorder++
		}
	}
	r.top = max(r.top, i+1)
	if i == r.next || r.wait == 0 {
		r.echo = stamp
	}
	held := false
	for _, x := range r.blocks {
		held = held || i >= x[0] && i < x[1]
	}
	switch {
	case i < r.next || held:
		c.acknowledge([2]uint64{i, i + 1}, true)
		return
	case i > r.next:
		x := [2]uint64{i, i + 1}
		keep := r.blocks[:0:0]
		for _, o := range r.blocks {
			switch {
			case o[1] == x[0]:
				x[0] = o[0]
			case o[0] == x[1]:
				x[1] = o[1]
			default:
				keep = append(keep, o)
			}
		}
		r.blocks = append([][2]uint64{x}, keep...)
		r.echo = stamp
		c.acknowledge([2]uint64{}, false)
		return
	}
	r.next++
	if d := c.w.now - r.lastNew; r.lastNew > 0 && d > r.stall {
		r.stall, r.stallAt = d, r.lastNew
	}
	r.lastNew = c.w.now
	for k, x := range r.blocks {
		if x[0] == r.next {
			r.next = x[1]
			r.blocks = append(append([][2]uint64{}, r.blocks[:k]...), r.blocks[k+1:]...)
			c.acknowledge([2]uint64{}, false)
			return
		}
	}
	r.wait++
	if r.quick--; r.wait >= 2 || r.quick > 0 || len(r.blocks) > 0 {
		c.acknowledge([2]uint64{}, false)
		return
	}
	if r.alarm == 0 {
		at := c.w.now + delayAck
		r.alarm = at
		c.w.at(at, func() {
			if r.alarm == at {
				c.acknowledge([2]uint64{}, false)
			}
		})
	}
}

func (c *tcp) acknowledge(dup [2]uint64, dsack bool) {
	r := &c.recvd
	r.wait, r.alarm = 0, 0
	b := make([]byte, 26, 80)
	b[0], b[6] = 0x45, 2
	binary.BigEndian.PutUint16(b[4:], c.id)
	binary.BigEndian.PutUint64(b[8:], r.next)
	binary.BigEndian.PutUint64(b[16:], uint64(r.echo))
	if dsack {
		b[24], b[25] = 1, 1
		b = binary.BigEndian.AppendUint64(b, dup[0])
		b = binary.BigEndian.AppendUint64(b, dup[1])
	}
	for _, x := range r.blocks[:min(len(r.blocks), 3)] {
		b[24]++
		b = binary.BigEndian.AppendUint64(b, x[0])
		b = binary.BigEndian.AppendUint64(b, x[1])
	}
	for len(b) < 64 {
		b = append(b, 0)
	}
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	r.back(b)
}

// goodput is bytes of payload in order at the receiver.
func (c *tcp) goodput() float64 { return float64(c.recvd.next) * mss }
