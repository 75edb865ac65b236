//go:build !linux

package host

import "net"

// listenBound is for systems whose sockets can be bound to an interface.
func listenBound(string, string, uint16, int) ([]*net.UDPConn, error) { return nil, ErrNotSupported }

// SharePort is, too.
func SharePort(DatagramConn) error { return ErrNotSupported }

// SizeUDPBuffers leaves the system's sizes.
func SizeUDPBuffers(DatagramConn, int, int) (int, int, error) { return 0, 0, nil }
