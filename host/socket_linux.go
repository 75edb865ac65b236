package host

import (
	"errors"
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// PeerCredentials says which process connected to a local socket (SO_PEERCRED).
func PeerCredentials(conn *net.UnixConn) (Credentials, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return Credentials{}, fmt.Errorf("who is at the other end of a local connection: %w", err)
	}
	var ucred *unix.Ucred
	var optErr error
	err = raw.Control(func(fd uintptr) {
		ucred, optErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err = errors.Join(err, optErr); err != nil {
		return Credentials{}, fmt.Errorf("who is at the other end of a local connection: %w", err)
	}
	return Credentials{UID: ucred.Uid, GID: ucred.Gid, PID: ucred.Pid}, nil
}

// SetUDPBuffers asks for socket buffers of this many bytes in each direction and
// returns what the kernel granted. With CAP_NET_ADMIN the limits net.core.rmem_max
// and wmem_max do not apply; without it they do, and less than asked for
// is not an error.
func SetUDPBuffers(conn DatagramConn, bytes int) (receive, send int, err error) {
	return SizeUDPBuffers(conn, bytes, bytes)
}

func setBuffer(fd, force, plain, bytes int) (granted int, err error) {
	if unix.SetsockoptInt(fd, unix.SOL_SOCKET, force, bytes) != nil {
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, plain, bytes); err != nil {
			return 0, err
		}
	}
	granted, err = unix.GetsockoptInt(fd, unix.SOL_SOCKET, plain)
	// socket(7): the kernel doubles the value for its bookkeeping and reports
	// the doubled one.
	return granted / 2, err
}

// FreeBind is for net.ListenConfig.Control: the socket may be bound to an
// address that the machine does not have yet (IP_FREEBIND), such as the one of an
// overlay link that is about to be configured.
func FreeBind(network, _ string, conn syscall.RawConn) error {
	var optErr error
	err := conn.Control(func(fd uintptr) {
		switch network {
		case "udp4", "tcp4":
			optErr = unix.SetsockoptInt(int(fd), unix.SOL_IP, unix.IP_FREEBIND, 1)
		default:
			optErr = unix.SetsockoptInt(int(fd), unix.SOL_IPV6, unix.IPV6_FREEBIND, 1)
		}
	})
	if err = errors.Join(err, optErr); err != nil {
		return fmt.Errorf("allow to bind an address ahead of its link: %w", err)
	}
	return nil
}
