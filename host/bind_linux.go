package host

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// BindTo is for net.Dialer.Control and net.ListenConfig.Control: the socket sends and receives by one network interface
// alone (SO_BINDTODEVICE), whatever the routes say; "" is by any. With share, sockets of this process on other interfaces may
// have the same port (SO_REUSEPORT). What it sends is weft's own (see [Own]).
func BindTo(device string, share bool) func(network, address string, c syscall.RawConn) error {
	return func(_, _ string, raw syscall.RawConn) error {
		var optErr error
		err := raw.Control(func(fd uintptr) {
			if device != "" {
				optErr = unix.BindToDevice(int(fd), device)
			}
			if optErr == nil {
				optErr = own(int(fd))
			}
			if optErr == nil && share {
				optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
			}
		})
		if err = errors.Join(err, optErr); err != nil {
			return fmt.Errorf("a socket of interface %q: %w", device, err)
		}
		return nil
	}
}
