//go:build !linux

package host

// DefaultLinks is not known here.
func DefaultLinks() (map[int]int, error) { return nil, ErrNotSupported }
