package host

import (
	"sync"

	"golang.org/x/sys/unix"
)

// slabs are those that were given back: their memory is the kernel's again, their addresses stay ours, so that what still points
// there points at nothing else.
var slabs struct {
	mu   sync.Mutex
	free []Slab
}

// TakeSlab is a slab from the kernel, of zeros, until it is given back. Go's own memory is cleared before it is used again, all of it, so
// that buffers of which little is ever written would take what they could hold; and the collector, which counts them, would
// wait for as much garbage.
func TakeSlab() Slab {
	slabs.mu.Lock()
	defer slabs.mu.Unlock()
	if n := len(slabs.free); n > 0 {
		s := slabs.free[n-1]
		slabs.free = slabs.free[:n-1]
		return s
	}
	b, err := unix.Mmap(-1, 0, SlabPackets*slabStride, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return make(Slab, SlabPackets*slabStride) // a process may have so many mappings and no more
	}
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // or a kernel may give 2 MiB for the first byte
	return b
}

// Give gives a slab back. Nobody may use it any more.
func (s Slab) Give() {
	_ = unix.Madvise(s, unix.MADV_DONTNEED)
	slabs.mu.Lock()
	defer slabs.mu.Unlock()
	slabs.free = append(slabs.free, s)
}
