//go:build !linux

package host

import "net"

// SetUnsentLimit sizes the send buffer instead: here the one bounds the other.
func SetUnsentLimit(conn *net.TCPConn, bytes int) error { return conn.SetWriteBuffer(4 * bytes) }

// A BusyTCP is a connection like any other here.
type BusyTCP struct{ *net.TCPConn }

// NewBusyTCP never fails here.
func NewBusyTCP(conn *net.TCPConn) (*BusyTCP, error) { return &BusyTCP{conn}, nil }

// NetConn returns the connection, as tls.Conn does.
func (c *BusyTCP) NetConn() net.Conn { return c.TCPConn }
