package host

import (
	"errors"
	"fmt"
	"net"

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
