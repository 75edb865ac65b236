//go:build !linux

package host

import "net"

// SetUnsentLimit sizes the send buffer instead: here the one bounds the other.
func SetUnsentLimit(conn *net.TCPConn, bytes int) error { return conn.SetWriteBuffer(4 * bytes) }
