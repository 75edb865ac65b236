//go:build !linux

package host

import "net"

// Unpolled leaves the socket where it is.
func Unpolled(conn *net.UDPConn) (DatagramConn, error) { return conn, nil }

// MakePlaces has nothing to do: no thread waits by itself.
func MakePlaces() {}
