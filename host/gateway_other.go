//go:build !linux

package host

func Gateways() ([]Gateway, error) { return nil, ErrNotSupported }
