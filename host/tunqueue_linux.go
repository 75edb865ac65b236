package host

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// A TUNQueue is one queue of a TUN. One goroutine at a time may read, any number may write and wake.
type TUNQueue struct {
	name string // of the interface
	file *os.File
	raw  syscall.RawConn
	fd   uintptr

	// mu is held for reading while fd is in use, and for closing it.
	mu     sync.RWMutex
	closed atomic.Bool

	// A reader that waits says so, then looks whether it is woken; who wakes it says so, then looks whether it waits.
	// So one of the two sees the other.
	waiting, woken atomic.Bool

	// The reader's alone: what wait reads into, and what came of it.
	wait  func(fd uintptr) bool
	buf   []byte
	n     int
	errno syscall.Errno
}

func newTUNQueue(name string, file *os.File, fd int) (*TUNQueue, error) {
	raw, err := file.SyscallConn()
	if err != nil {
		return nil, err
	}
	q := &TUNQueue{name: name, file: file, raw: raw, fd: uintptr(fd)}
	q.wait = func(uintptr) bool {
		q.n, q.errno = q.once(q.buf)
		return q.errno != unix.EAGAIN
	}
	return q, nil
}

// once reads once, without waiting.
func (q *TUNQueue) once(buf []byte) (int, syscall.Errno) {
	for {
		n, _, errno := unix.RawSyscall(unix.SYS_READ, q.fd, uintptr(unsafe.Pointer(unsafe.SliceData(buf))), uintptr(len(buf)))
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
func (q *TUNQueue) Read(buf []byte) (int, error) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed.Load() {
		return 0, os.ErrClosed
	}
	for looks := 0; looks <= tunTries; looks++ {
		if looks > 0 {
			runtime.Gosched()
		}
		if n, errno := q.once(buf); errno != unix.EAGAIN {
			return n, q.failure(errno)
		}
	}
	var err error
	if q.waiting.Store(true); !q.woken.Load() {
		q.buf = buf
		err = q.raw.Read(q.wait)
		q.buf = nil
		if err == nil {
			q.waiting.Store(false)
			return q.n, q.failure(q.errno)
		}
	}
	q.waiting.Store(false)
	switch {
	case q.closed.Load():
		return 0, os.ErrClosed
	case err == nil:
	case errors.Is(err, os.ErrDeadlineExceeded):
		_ = q.file.SetReadDeadline(time.Time{})
	default: // the poller knows that something is wrong, the file what
		if n, errno := q.once(buf); errno != unix.EAGAIN {
			return n, q.failure(errno)
		}
		return 0, fmt.Errorf("waiting for packets of interface %s: %w", q.name, err)
	}
	q.woken.Store(false) // behind the deadline: who wakes from now on sets it anew
	return 0, nil
}

// TryRead is Read without waiting: zero means that there is none.
func (q *TUNQueue) TryRead(buf []byte) (int, error) {
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed.Load() {
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
	q.mu.RLock()
	defer q.mu.RUnlock()
	if q.closed.Load() {
		return os.ErrClosed
	}
	for {
		_, _, errno := unix.RawSyscall(unix.SYS_WRITE, q.fd, uintptr(unsafe.Pointer(unsafe.SliceData(packet))), uintptr(len(packet)))
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
		_ = q.file.SetReadDeadline(longAgo)
	}
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

func (q *TUNQueue) close() error {
	if q.closed.Swap(true) {
		return nil
	}
	_ = q.file.SetReadDeadline(longAgo)
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.file.Close()
}
