// Package interop holds weft's data plane against everybody else's WireGuard. It is tests only.
//
// # Who is there
//
//	engine        package engine on a TUN interface, as the daemon runs it
//	library       wireguard-go as a library, of the version that weft's tests pin
//	debian        Debian's wireguard-go, set up by Debian's wg
//	kernel        the kernel's, in the guest of lab/guest, set up by Debian's wg
//
// Each is a program of its own in a namespace of its own; the first two are this test binary, started again. The networks
// between them are those of lab/netns, with its cables where packets are to be lost, late and out of order.
//
// # What is compared
//
// Two ends have a tunnel, and through it go connections and datagrams whose every byte is known, and is looked at where it
// arrives. That is done with either end beginning, over IPv4 and IPv6, with and without a pre-shared key, and for ten
// minutes with loss, new sessions and changing addresses (make test-interop).
//
// The same inner packets - whole, wrong, and super-packets - go through pairs of engine and library, and come out as they do where both ends
// are wireguard-go: what passes there passes here, to the bit, and what is dropped there is dropped here.
package interop
