//go:build !linux

package host

import (
	"net"
	"net/netip"
)

// WriteUDPWhole cannot keep the system from making fragments here, and sends nothing: what would be concluded from an
// answer may not be so.
func WriteUDPWhole(*net.UDPConn, []byte, netip.AddrPort) error { return ErrTooLong }

// AllowFragments leaves it to the system here.
func AllowFragments(*net.UDPConn) error { return nil }
