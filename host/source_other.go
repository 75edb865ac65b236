//go:build !linux

package host

import "net/netip"

// SourceAddr is for systems whose sockets can be bound to an interface.
func SourceAddr(string, netip.AddrPort) (netip.Addr, error) { return netip.Addr{}, ErrNotSupported }
