//go:build !linux

package host

import (
	"net/netip"
)

// WriteUDPTTL sends one datagram; here with the system's time to live. Openers that arrive all the way cost some
// NATs an extra port, those that are not sent cost all of them the path.
func WriteUDPTTL(conn DatagramConn, b []byte, to netip.AddrPort, _ uint8) error {
	_, err := conn.WriteToUDPAddrPort(b, to)
	return err
}
