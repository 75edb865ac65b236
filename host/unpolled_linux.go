package host

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// An UnpolledUDP is a UDP socket for which its readers and writers wait themselves (see gate).
type UnpolledUDP struct {
	gate  *gate
	local net.Addr
	six   bool
}

// Unpolled takes a socket out of the runtime's poller: it is for one that carries data all the time. The connection must
// not be used any more.
func Unpolled(conn *net.UDPConn) (DatagramConn, error) {
	u := &UnpolledUDP{local: conn.LocalAddr()}
	raw, err := conn.SyscallConn()
	if err == nil {
		var callErr error
		err = raw.Control(func(fd uintptr) {
			domain, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_DOMAIN)
			if callErr = err; err != nil {
				return
			}
			u.six = domain == unix.AF_INET6
			// The poller watches the open socket, not the number: it forgets it when conn is closed.
			own, err := unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0)
			if callErr = err; err == nil {
				if u.gate, callErr = newGate(own); callErr != nil {
					unix.Close(own)
				}
			}
		})
		if err == nil {
			err = callErr
		}
	}
	if err != nil {
		return nil, fmt.Errorf("a UDP socket of its own thread: %w", err)
	}
	conn.Close()
	return u, nil
}

// SyscallConn gives what waits.
func (u *UnpolledUDP) SyscallConn() (syscall.RawConn, error) { return u.gate, nil }

// LocalAddr is the socket's.
func (u *UnpolledUDP) LocalAddr() net.Addr { return u.local }

// Close ends what waits, with net.ErrClosed, and closes the socket.
func (u *UnpolledUDP) Close() error { return u.gate.close() }

// WriteToUDPAddrPort sends one datagram, or fails where there is no room for it: it does not wait.
func (u *UnpolledUDP) WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error) {
	n, _, err := u.WriteMsgUDPAddrPort(b, nil, to)
	return n, err
}

// WriteMsgUDPAddrPort is WriteToUDPAddrPort with control messages. It allocates nothing unless it fails.
func (u *UnpolledUDP) WriteMsgUDPAddrPort(b, oob []byte, to netip.AddrPort) (n, oobn int, err error) {
	var (
		name unix.RawSockaddrInet6
		iov  unix.Iovec
		h    unix.Msghdr
	)
	if h.Namelen = u.nameOf(&name, to); h.Namelen == 0 {
		return 0, 0, u.failure(to, unix.EAFNOSUPPORT)
	}
	h.Name = (*byte)(unsafe.Pointer(&name))
	if len(b) > 0 {
		iov.Base = &b[0]
		iov.SetLen(len(b))
	}
	h.Iov = &iov
	h.SetIovlen(1)
	if len(oob) > 0 {
		h.Control = &oob[0]
		h.SetControllen(len(oob))
	}
	g := u.gate
	g.mu.RLock()
	defer g.mu.RUnlock()
	for !g.closed.Load() {
		n, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, uintptr(g.fd), uintptr(unsafe.Pointer(&h)), unix.MSG_DONTWAIT)
		switch errno {
		case 0:
			return int(n), len(oob), nil
		case unix.EINTR:
		default:
			return 0, 0, u.failure(to, errno)
		}
	}
	return 0, 0, net.ErrClosed
}

func (u *UnpolledUDP) failure(to netip.AddrPort, errno syscall.Errno) error {
	return &net.OpError{Op: "write", Net: "udp", Source: u.local, Addr: net.UDPAddrFromAddrPort(to), Err: os.NewSyscallError("sendmsg", errno)}
}

// nameOf writes an address as the kernel has it, and returns its length; 0: it is of the other family.
func (u *UnpolledUDP) nameOf(name *unix.RawSockaddrInet6, to netip.AddrPort) uint32 {
	port := (*[2]byte)(unsafe.Pointer(&name.Port)) // at the same place in both families' names
	binary.BigEndian.PutUint16(port[:], to.Port())
	ip := to.Addr()
	switch {
	case u.six && ip.Is6():
		name.Family, name.Addr, name.Scope_id = unix.AF_INET6, ip.As16(), scopeOf(ip)
		return unix.SizeofSockaddrInet6
	case !u.six && ip.Unmap().Is4():
		four := (*unix.RawSockaddrInet4)(unsafe.Pointer(name))
		four.Family, four.Addr = unix.AF_INET, ip.Unmap().As4()
		return unix.SizeofSockaddrInet4
	}
	return 0
}
