package host

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"

	"golang.org/x/sys/unix"
)

// SourceAddr tells from which address of this machine datagrams to somewhere are sent, by a network interface or, with "",
// as the routes say. Nothing is sent.
func SourceAddr(device string, to netip.AddrPort) (netip.Addr, error) {
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) error {
		if device == "" {
			return nil
		}
		var optErr error
		err := raw.Control(func(fd uintptr) { optErr = unix.BindToDevice(int(fd), device) })
		return errors.Join(err, optErr)
	}}
	c, err := dialer.Dial("udp", to.String())
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the address that %s is reached from: %w", to, err)
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Addr().Unmap(), nil
}
