package bond

import "time"

// blockSizes are the lengths in bytes of the blocks that hold packets: acknowledgements, full packets of Ethernet, all others.
var blockSizes = [...]int{256, 1536, 65536}

// storePeriod is after how long what was not needed is given back.
const storePeriod = 10 * time.Second

// A store keeps copies of packets, in blocks that are used again.
type store struct {
	limit  int // bytes
	bytes  int // of blocks in use
	spare  [len(blockSizes)][][]byte
	least  [len(blockSizes)]int // spare in this period
	until  time.Duration        // its end
	spared int                  // bytes of spare
}

// full reports that no more is to be held than is.
func (t *store) full() bool { return t.bytes > t.limit-blockSizes[1] }

// keep copies a packet. It fails when there is an eighth more than the limit: who gives out what is to be given out once the store is full has room.
func (t *store) keep(packet []byte) ([]byte, bool) {
	class := 0
	for class < len(blockSizes)-1 && blockSizes[class] < len(packet) {
		class++
	}
	size := blockSizes[class]
	if t.bytes+size > t.limit+t.limit/8 || len(packet) > size {
		return nil, false
	}
	t.bytes += size
	var b []byte
	if n := len(t.spare[class]); n > 0 {
		b = t.spare[class][n-1]
		t.spare[class] = t.spare[class][:n-1]
		t.spared -= size
		t.least[class] = min(t.least[class], n-1)
	} else {
		t.least[class] = 0
		b = make([]byte, size)
	}
	return append(b[:0], packet...), true
}

// free takes a copy back.
func (t *store) free(b []byte) {
	for class, size := range blockSizes {
		if cap(b) == size {
			t.bytes -= size
			if t.spared+t.bytes < t.limit {
				t.spare[class] = append(t.spare[class], b)
				t.spared += size
			}
			return
		}
	}
}

// age lets go, once in a period, of the blocks of which none was needed in it.
func (t *store) age(now time.Duration) {
	if now < t.until {
		return
	}
	t.until = now + storePeriod
	for class, size := range blockSizes {
		list := t.spare[class]
		keep := len(list) - min(t.least[class], len(list))
		clear(list[keep:])
		t.spared -= (len(list) - keep) * size
		t.spare[class] = list[:keep]
		t.least[class] = keep
	}
}
