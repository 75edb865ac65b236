package host

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// listenBound opens sockets that are bound to an interface, as UDPListenOn says.
func listenBound(device, network string, port uint16, n int) ([]*net.UDPConn, error) {
	var conns []*net.UDPConn
	fail := func(err error) ([]*net.UDPConn, error) {
		for _, c := range conns {
			c.Close()
		}
		return nil, fmt.Errorf("listening on UDP port %d of %s: %w", port, device, err)
	}
	for range max(1, n) {
		// Where the kernel looks for a free port, those that are shared count as free (udp_lib_lport_inuse).
		share := port != 0
		config := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) error {
			var optErr error
			err := raw.Control(func(fd uintptr) {
				if optErr = errors.Join(own(int(fd)), unix.BindToDevice(int(fd), device)); optErr == nil && share {
					optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
				}
			})
			return errors.Join(err, optErr)
		}}
		c, err := config.ListenPacket(context.Background(), network, ":"+strconv.Itoa(int(port)))
		if err != nil {
			return fail(err)
		}
		conns = append(conns, c.(*net.UDPConn))
		if port == 0 && n > 1 {
			port = conns[0].LocalAddr().(*net.UDPAddr).AddrPort().Port()
			if err := SharePort(conns[0]); err != nil {
				return fail(err)
			}
		}
	}
	return conns, nil
}

// SharePort lets sockets of this process that are opened from now on use the port of this one (SO_REUSEPORT).
func SharePort(conn DatagramConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("sharing a UDP port: %w", err)
	}
	if err := reusePort(raw); err != nil {
		return fmt.Errorf("sharing a UDP port: %w", err)
	}
	return nil
}

func reusePort(raw syscall.RawConn) error {
	var optErr error
	err := raw.Control(func(fd uintptr) {
		optErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEPORT, 1)
	})
	return errors.Join(err, optErr)
}

// SizeUDPBuffers is [SetUDPBuffers] with a size in bytes for each direction.
func SizeUDPBuffers(conn DatagramConn, receive, send int) (gotReceive, gotSend int, err error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return 0, 0, fmt.Errorf("sizing the buffers of a UDP socket: %w", err)
	}
	var recvErr, sendErr error
	err = raw.Control(func(fd uintptr) {
		gotReceive, recvErr = setBuffer(int(fd), unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, receive)
		gotSend, sendErr = setBuffer(int(fd), unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, send)
	})
	if err = errors.Join(err, recvErr, sendErr); err != nil {
		return gotReceive, gotSend, fmt.Errorf("sizing the buffers of a UDP socket: %w", err)
	}
	return gotReceive, gotSend, nil
}
