// Package host is the only home of operating-system calls of the product:
// what the machine has (links, addresses, routes), what weft asks of it
// (an overlay link with addresses and routes, names that resolve, bigger
// socket buffers, one process per state directory) and what weft tells it
// (ready, stopping). Nothing else in the product opens a netlink socket, calls
// another program or writes below /etc.
//
// # What holds for every call
//
// The calls reconcile: they look at what is there, change only what differs
// and may be repeated at will. A converged call changes nothing, so it
// causes no netlink notice that would wake [WatchLinks] and start the next
// round.
//
// What weft adds is marked and what is not marked is left alone. Routes carry
// [RouteProtocol]; an /etc/resolv.conf of ours begins with a header, and what it
// replaced is on disk before it is replaced. Somebody else's later change wins
// over our memory of an earlier state, always.
//
// Errors are sentences that say what to do. The few that a caller decides on
// are values: [ErrNotSupported], [ErrIPv6Disabled], [ErrLocked],
// [ErrSharedResolver].
//
// # Routers and exits
//
// [SetOverlayRoutes] leads packets for networks behind routers, or all, into the overlay, by a table and a rule of the
// interface's own; weft's own packets have [Mark] and do not look there. [SetRouter] has this machine pass packets on, by
// rules in a table of nftables of its own. Both can be taken back by the interface's name alone, so that the next process
// finds what a killed one left. What closes is put up before what opens, and taken down after it.
//
// # How names get to our resolver
//
// [ConfigureResolver] looks at who owns /etc/resolv.conf and asks that owner, in
// this order: systemd-resolved over D-Bus (only the overlay's domain is routed to
// us), resolvconf(8) by argument list, and where nobody owns it the file
// itself. In the last two cases every question of the machine comes to us
// first, so [Resolver.Upstreams] names the servers that answered until then.
// A record in the state directory is written before anything is changed;
// [RepairResolver] undoes from that record what a killed process left behind.
//
// Several daemons of one machine [Announce] their overlays to each other, so that each sends questions for another's names there, and
// forwards to none of them what is nobody's. Of two that take the file over in turn, the later one's is in place, with the
// earlier one's server behind its own; either may leave first.
//
// A network namespace without a resolv.conf of its own sees the machine's. Such
// a file is never touched from inside the namespace, because the overlay address
// in it would be unreachable for the rest of the machine.
//
// # Other systems
//
// Linux is what is implemented. Elsewhere everything that needs the system
// returns [ErrNotSupported].
//
// All functions may be called at once from several goroutines, except that two
// calls that configure the same link or the same resolver must follow one
// another.
package host

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
)

var (
	// ErrNotSupported is returned on systems that this package does not know.
	ErrNotSupported = errors.New("not supported on this system yet")

	// ErrIPv6Disabled is returned by ConfigureLink when the IPv6 part
	// could not be done because IPv6 is switched off on this machine. The IPv4
	// part and the MTU are in place.
	ErrIPv6Disabled = errors.New("IPv6 is switched off on this machine (sysctl disable_ipv6), the overlay has IPv4 only")

	// ErrLocked is returned by LockFile when another process holds the lock.
	ErrLocked = errors.New("in use")

	// ErrSharedResolver is returned by ConfigureResolver inside a network
	// namespace that has no resolv.conf of its own.
	ErrSharedResolver = errors.New("this network namespace shares /etc/resolv.conf with the machine, which was left alone: " +
		"give it a file of its own (/etc/netns/NAME/resolv.conf and ip netns exec) to resolve overlay names")
)

// A Carrier says whether an interface can carry packets: it is switched on, and a cable is in or a radio associated.
type Carrier struct {
	Index int
	Up    bool
}

// Interface is a network interface as candidate gathering needs it.
type Interface struct {
	Index int
	Name  string
	MTU   int // bytes

	// Up: switched on and carrying (a cable in, a radio associated).
	Up           bool
	Loopback     bool
	PointToPoint bool

	// Addrs are addresses that packets can be sent from, with the length of
	// their on-link prefix, in the kernel's order. Left out are IPv6
	// addresses that are link-local, deprecated, or still or finally in
	// duplicate address detection. Temporary (privacy) addresses are in.
	Addrs []netip.Prefix
}

// Credentials are those of the process at the other end of a unix socket, at
// the moment it connected.
type Credentials struct {
	UID uint32
	GID uint32
	PID int32
}

// ResolverFile is what Resolver.Mode says where /etc/resolv.conf itself is ours.
const ResolverFile = "resolv.conf"

// ResolverConfig says which questions should come to which server.
type ResolverConfig struct {
	// Interface is the overlay link that the server's address is on.
	Interface string

	// Server answers on port 53.
	Server netip.Addr

	// Domains are those that our server answers for ("weft.internal"), without a leading "~". They are routed where the
	// system can route; elsewhere every question comes to us.
	Domains []string

	// Search are domains that short names are tried in, after those that the machine tries by itself.
	Search []string

	// All has every question come to our server where the system can route, too.
	All bool

	// StateDir is where the record for RepairResolver is kept.
	StateDir string

	// Logger hears when the preferred way fails and the next is taken. Nil
	// means slog.Default.
	Logger *slog.Logger
}

func (c ResolverConfig) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.Default()
}

// sentence joins errors, as errors.Join does, but in one line.
func sentence(errs ...error) error {
	var out error
	for _, err := range errs {
		switch {
		case err == nil:
		case out == nil:
			out = err
		default:
			out = fmt.Errorf("%w; %w", out, err)
		}
	}
	return out
}
