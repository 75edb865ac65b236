package host

import "errors"

// ErrForwardIPv6 is returned by ForwardWithin when the IPv6 part could not be done. The IPv4 part is in place.
var ErrForwardIPv6 = errors.New("this kernel (older than Linux 6.17) forwards IPv6 for all interfaces or for none, and could not be told to do so behind a guard")
