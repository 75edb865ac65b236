//go:build !linux

package host

import (
	"net/netip"
)

// WriteUDPWhole cannot keep the system from making fragments here, and sends nothing: what would be concluded from an
// answer may not be so.
func WriteUDPWhole(DatagramConn, []byte, netip.AddrPort) error { return ErrTooLong }

// AllowFragments leaves it to the system here.
func AllowFragments(DatagramConn) error { return nil }
