//go:build !linux

package host

import "net/netip"

// Leads is for systems that have TUN interfaces here.
func Leads(string, netip.Addr) (bool, error) { return false, ErrNotSupported }
