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

// A TUNQueue is one queue of a TUN. One goroutine at a time may wait, and one at a time may read; any number may write and wake.
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

// Await waits until there may be a packet, until it is woken, or so long at most; if that is negative, without an end. A signal to the thread ends
// it, too.
func (q *TUNQueue) Await(most time.Duration) error {
	q.gate.mu.RLock()
	defer q.gate.mu.RUnlock()
	if q.gate.closed.Load() {
		return os.ErrClosed
	}
	q.waiting.Store(true)
	woken := q.woken.Load()
	var err error
	if !woken {
		woken, err = q.gate.wait(unix.POLLIN, most)
	}
	q.waiting.Store(false)
	switch {
	case q.gate.closed.Load():
		return os.ErrClosed
	case err != nil:
		return fmt.Errorf("waiting for packets of interface %s: %w", q.name, err)
	case woken:
		q.gate.rest()
		q.woken.Store(false) // behind the rest: who wakes from now on does it anew
	}
	return nil
}

// TryRead reads a packet, header and packet. Zero without an error means that there is none.
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

// Wake has the Await that waits, or else the next that would, return at once.
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
