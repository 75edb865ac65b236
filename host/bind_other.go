//go:build !linux

package host

import "syscall"

// BindTo is for systems whose sockets can be bound to an interface.
func BindTo(device string, _ bool) func(network, address string, c syscall.RawConn) error {
	return func(string, string, syscall.RawConn) error {
		if device != "" {
			return ErrNotSupported
		}
		return nil
	}
}
