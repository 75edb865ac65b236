package host

import (
	"sync"

	"golang.org/x/sys/unix"
)

// readerPages are buffers of readers that were closed, for the next: their memory is the kernel's again, their addresses stay ours, so
// that what still points there points at nothing else.
var readerPages struct {
	mu   sync.Mutex
	free [][]byte
}

// takePages is a reader's memory, from the kernel: zeros, and a page of it costs nothing until something is written to it. Go's own is
// cleared before it is used again, all of it, so that buffers of which little is ever written would take what they could hold.
func takePages() []byte {
	readerPages.mu.Lock()
	defer readerPages.mu.Unlock()
	if n := len(readerPages.free); n > 0 {
		b := readerPages.free[n-1]
		readerPages.free = readerPages.free[:n-1]
		return b
	}
	b, err := unix.Mmap(-1, 0, UDPBatch*udpStride, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return make([]byte, UDPBatch*udpStride) // a process may have so many mappings and no more
	}
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE) // or a kernel may give 2 MiB for the first byte
	return b
}

// givePages gives a reader's memory back.
func givePages(b []byte) {
	_ = unix.Madvise(b, unix.MADV_DONTNEED)
	readerPages.mu.Lock()
	defer readerPages.mu.Unlock()
	readerPages.free = append(readerPages.free, b)
}
