package host

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// SetUnsentLimit bounds in bytes what the kernel queues of a connection's data before it was ever sent
// (TCP_NOTSENT_LOWAT). What is on its way is not counted, so the send buffer may still grow with the path; but
// data waits where it can be dropped, in our queue, and not behind seconds of older data.
func SetUnsentLimit(conn *net.TCPConn, bytes int) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("limit what a connection queues: %w", err)
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.SOL_TCP, unix.TCP_NOTSENT_LOWAT, bytes)
	})
	if err = errors.Join(err, optErr); err != nil {
		return fmt.Errorf("limit what a connection queues: %w", err)
	}
	return nil
}

// A BusyTCP is a connection that carries data all the time. The runtime is not told of its system calls, none of which waits:
// else it takes a thread that writes 64 KiB, which is 0.05 ms, for one that sleeps, gives its place to another, and keeps a thread
// of its own awake to look for such. It waits in the runtime's poller as ever. One goroutine at a time may read, and one write.
type BusyTCP struct {
	*net.TCPConn
	raw syscall.RawConn
	in  transfer
	out transfer
}

// A transfer is what is under way in one direction.
type transfer struct {
	b     []byte
	n     int
	errno syscall.Errno
	try   func(fd uintptr) bool
}

// NewBusyTCP makes one of a connection, which is not to be read or written any more by itself.
func NewBusyTCP(conn *net.TCPConn) (*BusyTCP, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("a connection's descriptor: %w", err)
	}
	c := &BusyTCP{TCPConn: conn, raw: raw}
	c.in.try = func(fd uintptr) bool {
		return c.in.once(unix.SYS_RECVFROM, fd, unix.MSG_DONTWAIT)
	}
	c.out.try = func(fd uintptr) bool {
		for c.out.once(unix.SYS_SENDTO, fd, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL) {
			if c.out.errno != 0 || c.out.n == len(c.out.b) {
				return true
			}
		}
		return false
	}
	return c, nil
}

// once is one system call with what is left; false: it would have to wait.
func (t *transfer) once(call, fd, flags uintptr) bool {
	for {
		left := t.b[t.n:]
		n, _, errno := unix.RawSyscall6(call, fd, uintptr(unsafe.Pointer(unsafe.SliceData(left))), uintptr(len(left)), flags, 0, 0)
		switch errno {
		case 0:
			t.n += int(n)
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			return false
		}
		t.errno = errno
		return true
	}
}

// run has a transfer of b done, and tells how much of it was.
func (t *transfer) run(b []byte, with func(func(fd uintptr) bool) error, call string) (int, error) {
	t.b, t.n, t.errno = b, 0, 0
	err := with(t.try)
	t.b = nil
	if err == nil && t.errno != 0 {
		err = os.NewSyscallError(call, t.errno)
	}
	return t.n, err
}

// NetConn returns the connection, as tls.Conn does.
func (c *BusyTCP) NetConn() net.Conn { return c.TCPConn }

// Read reads what there is, or waits for some.
func (c *BusyTCP) Read(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, err := c.in.run(b, c.raw.Read, "recv")
	if n == 0 && err == nil {
		err = io.EOF
	}
	return n, err
}

// Write writes all, and waits where there is no room for it.
func (c *BusyTCP) Write(b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	return c.out.run(b, c.raw.Write, "send")
}
