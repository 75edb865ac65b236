package bench

import (
	"sync/atomic"
	"syscall"

	"weft/host"
)

// An awakeConn is a socket whose reader, of which there is one, never waits for it: it looks again and again. On loopback it is who sends
// that wakes who waits, in his own system call, which takes an interrupt of the other core and longer than the sending does: a hub would pay for
// its far ends' waking, and with fifty more often, for what is for one of them comes as one message. In the world that is the
// far ends' machines' work.
type awakeConn struct {
	host.DatagramConn
	closed atomic.Bool
}

func (c *awakeConn) Close() error {
	c.closed.Store(true)
	return c.DatagramConn.Close()
}

func (c *awakeConn) SyscallConn() (syscall.RawConn, error) {
	raw, err := c.DatagramConn.SyscallConn()
	if err != nil {
		return nil, err
	}
	x := &awakeRaw{RawConn: raw, conn: c}
	x.again = x.until
	return x, nil
}

type awakeRaw struct {
	syscall.RawConn
	conn  *awakeConn
	read  func(fd uintptr) bool
	again func(fd uintptr) bool
}

func (x *awakeRaw) Read(f func(fd uintptr) bool) error {
	x.read = f
	return x.RawConn.Read(x.again)
}

// until reads until there was something, or the socket is closed.
func (x *awakeRaw) until(fd uintptr) bool {
	for !x.read(fd) {
		if x.conn.closed.Load() {
			return false
		}
	}
	return true
}
