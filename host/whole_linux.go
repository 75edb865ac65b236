package host

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// whole is held while a socket's setting is another for one datagram: two of them must not undo each other's.
var whole sync.Mutex

// WriteUDPWhole sends one datagram that nobody may make fragments of: neither this machine nor a router. ErrTooLong says
// that the interface is too narrow for it; what the system believes of the rest of the path is not asked
// (IP_PMTUDISC_PROBE). For this moment the setting is the socket's; what others send by it meanwhile, and would need
// fragments, is lost. The address is of the socket's own family.
func WriteUDPWhole(conn DatagramConn, b []byte, to netip.AddrPort) error {
	whole.Lock()
	defer whole.Unlock()
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("sending a datagram whole: %w", err)
	}
	discover := func(mode int) (before int, err error) {
		var optErr error
		err = raw.Control(func(fd uintptr) {
			var level, name int
			if level, name, optErr = discovery(int(fd)); optErr != nil {
				return
			}
			if before, optErr = unix.GetsockoptInt(int(fd), level, name); optErr == nil {
				optErr = unix.SetsockoptInt(int(fd), level, name, mode)
			}
		})
		return before, errors.Join(err, optErr)
	}
	before, err := discover(unix.IP_PMTUDISC_PROBE) // IPv6's has the same number
	if err != nil {
		return fmt.Errorf("sending a datagram whole: %w", err)
	}
	_, sendErr := conn.WriteToUDPAddrPort(b, to)
	_, err = discover(before)
	switch err = errors.Join(sendErr, err); {
	case errors.Is(sendErr, syscall.EMSGSIZE):
		return ErrTooLong
	case err != nil:
		return fmt.Errorf("sending a datagram whole: %w", err)
	}
	return nil
}

// discovery is the option by which a socket's family is told what to do about long datagrams.
func discovery(fd int) (level, name int, err error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if domain == unix.AF_INET6 {
		return unix.SOL_IPV6, unix.IPV6_MTU_DISCOVER, err
	}
	return unix.SOL_IP, unix.IP_MTU_DISCOVER, err
}

// AllowFragments has routers make fragments of what a socket sends over IPv4 where it does not fit, as WireGuard in the
// kernel has it: by default the system forbids it and goes by what routers say, and many say nothing. IPv6 has no
// such choice.
func AllowFragments(conn DatagramConn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("allowing fragments: %w", err)
	}
	var optErr error
	err = raw.Control(func(fd uintptr) {
		var level, name int
		if level, name, optErr = discovery(int(fd)); optErr == nil && level == unix.SOL_IP {
			optErr = unix.SetsockoptInt(int(fd), level, name, unix.IP_PMTUDISC_DONT)
		}
	})
	if err = errors.Join(err, optErr); err != nil {
		return fmt.Errorf("allowing fragments: %w", err)
	}
	return nil
}
