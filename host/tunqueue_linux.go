package host

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A TUNQueue is one queue of a TUN. One goroutine at a time may read, any number may write and wake.
type TUNQueue struct {
	name string // of the interface
	gate *gate

	// A reader that waits says so, then looks whether it is woken; who wakes it says so, then looks whether it waits.
	// So one of the two sees the other.
	waiting, woken atomic.Bool
}

func newTUNQueue(name string, fd int) (*TUNQueue, error) {
	g, err := newGate(fd)
	if err != nil {
		return nil, err
	}
	return &TUNQueue{name: name, gate: g}, nil
}

// once reads once, without waiting.
func (q *TUNQueue) once(buf []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, uintptr(q.gate.fd), uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
		switch errno {
		case 0:
			return int(n), 0
		case unix.EINTR:
		default:
			return 0, errno
		}
	}
}

// Read waits for a packet and reads it: header and packet. Zero without an error means that it was woken.
func (q *TUNQueue) Read(buf []byte) (int, error) { return q.ReadFor(buf, forever) }

// ReadFor is Read that waits so long at most, if it is not negative. Zero without an error means that time is over, too.
func (q *TUNQueue) ReadFor(buf []byte, most time.Duration) (int, error) {
	var end time.Time
	if most >= 0 {
		end = time.Now().Add(most)
	}
	q.gate.mu.RLock()
	defer q.gate.mu.RUnlock()
	for again := 0; ; again++ {
		if q.gate.closed.Load() {
			return 0, os.ErrClosed
		}
		n, errno := q.once(buf)
		switch {
		case errno != unix.EAGAIN:
			return n, q.failure(errno)
		case again < looks:
			letOthers()
			continue
		}
		q.waiting.Store(true)
		woken := q.woken.Load()
		var err error
		if !woken {
			left := most
			if most >= 0 {
				left = max(0, time.Until(end))
			}
			woken, err = q.gate.wait(unix.POLLIN, left)
		}
		q.waiting.Store(false)
		switch {
		case err != nil:
			return 0, fmt.Errorf("waiting for packets of interface %s: %w", q.name, err)
		case woken && !q.gate.closed.Load():
			q.gate.rest()
			q.woken.Store(false) // behind the rest: who wakes from now on does it anew
			return 0, nil
		case most >= 0 && !time.Now().Before(end):
			n, errno := q.once(buf) // it may have come with the end
			if errno == unix.EAGAIN {
				return 0, nil
			}
			return n, q.failure(errno)
		}
	}
}

// TryRead is Read without waiting: zero means that there is none.
func (q *TUNQueue) TryRead(buf []byte) (int, error) {
	q.gate.mu.RLock()
	defer q.gate.mu.RUnlock()
	if q.gate.closed.Load() {
		return 0, os.ErrClosed
	}
	n, errno := q.once(buf)
	if errno == unix.EAGAIN {
		return 0, nil
	}
	return n, q.failure(errno)
}

// Write writes one packet: header and packet. It never waits.
func (q *TUNQueue) Write(packet []byte) error {
	q.gate.mu.RLock()
	defer q.gate.mu.RUnlock()
	if q.gate.closed.Load() {
		return os.ErrClosed
	}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_WRITE, uintptr(q.gate.fd), uintptr(unsafe.Pointer(unsafe.SliceData(packet))), uintptr(len(packet)))
		if errno != unix.EINTR {
			return q.failure(errno)
		}
	}
}

// failure makes an error of an errno. Those that a packet can cause are the errno itself, which costs nothing.
func (q *TUNQueue) failure(errno syscall.Errno) error {
	switch errno {
	case 0:
		return nil
	case unix.EBADFD:
		return fmt.Errorf("interface %s was removed (%w): start weft again", q.name, errno)
	}
	return errno
}

// Wake has the Read that waits, or else the next that would, return at once.
func (q *TUNQueue) Wake() {
	if !q.woken.Swap(true) && q.waiting.Load() {
		q.gate.mu.RLock()
		defer q.gate.mu.RUnlock()
		if !q.gate.closed.Load() {
			q.gate.wake()
		}
	}
}

// close may be called again.
func (q *TUNQueue) close() error {
	if err := q.gate.close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}
