package host

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Own is for net.Dialer.Control and net.ListenConfig.Control: what the socket sends is weft's own and has [Mark]. Without
// the right to mark (CAP_NET_ADMIN) there is no route table to keep it out of either, and it is left unmarked.
func Own(_, _ string, raw syscall.RawConn) error {
	var optErr error
	err := raw.Control(func(fd uintptr) { optErr = own(int(fd)) })
	return errors.Join(err, optErr)
}

func own(fd int) error {
	err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_MARK, Mark)
	if errors.Is(err, unix.EPERM) {
		return nil
	}
	return err
}

// lookupPatience bounds one question to one of the system's name servers, as Go's resolver does by default.
const lookupPatience = 5 * time.Second

// OwnResolver is the system's, but while an exit is in force (SetOverlayRoutes) it looks names up for weft itself, past the overlay: where all of the machine's questions go into the overlay, it
// still finds the server that the overlay is come into by. A resolver on this machine, which would ask by routes that weft made, is
// passed by: those that it asks are asked.
func OwnResolver() *net.Resolver {
	if !exitInForce() {
		return net.DefaultResolver
	}
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
		d := net.Dialer{Control: Own, Timeout: lookupPatience}
		if at, err := netip.ParseAddrPort(address); err == nil && at.Addr().IsLoopback() {
			for _, s := range NameServers() {
				if !s.Addr().IsLoopback() {
					return d.DialContext(ctx, network, s.String())
				}
			}
		}
		return d.DialContext(ctx, network, address)
	}}
}
