package host

import (
	"net"
	"net/netip"
	"syscall"
)

// A DatagramConn is what is done with a UDP socket, whoever waits for it: a *net.UDPConn, for which the runtime's poller
// does, or one that Unpolled took out of there.
type DatagramConn interface {
	SyscallConn() (syscall.RawConn, error)
	LocalAddr() net.Addr
	WriteToUDPAddrPort(b []byte, to netip.AddrPort) (int, error)
	WriteMsgUDPAddrPort(b, oob []byte, to netip.AddrPort) (n, oobn int, err error)
	Close() error
}
