package host

import "errors"

// ErrForwardIPv6 is returned by ForwardWithin when the IPv6 part could not be done. The IPv4 part is in place.
var ErrForwardIPv6 = errors.New("this kernel (older than Linux 6.17) forwards IPv6 for all interfaces or for none, and for none so far: " +
	"sysctl net.ipv6.conf.all.forwarding=1 changes that (and net.ipv6.conf.IFACE.accept_ra=2 before, where the address comes by router advertisements)")
