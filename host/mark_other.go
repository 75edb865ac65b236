//go:build !linux

package host

import (
	"net"
	"syscall"
)

// Own does nothing: there are no marks.
func Own(string, string, syscall.RawConn) error { return nil }

// OwnResolver is the system's.
func OwnResolver() *net.Resolver { return net.DefaultResolver }
