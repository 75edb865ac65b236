//go:build !linux

package host

// AllowFiles leaves the limit as it is: what Go made of it at the start.
func AllowFiles(n uint64) (uint64, error) { return n, nil }
