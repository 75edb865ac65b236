package vnet

import (
	"net/netip"
	"time"

	"weft"
)

// A Bench is a NAT that a classifier knows nothing about, with hosts inside and servers outside that it has send
// packets. Every function reports whether the packet arrived. Inside are whatever sockets of whatever hosts are
// named; they exist from then on.
type Bench struct {
	// Hosts are some inside addresses, two at least; Servers some outside ones, three at least, with any port.
	Hosts, Servers []netip.Addr
	// Out sends from an inside socket to a server, which sees it come from somewhere.
	Out func(src, server netip.AddrPort) (from netip.AddrPort, ok bool)
	// In sends from a server to an outside endpoint, and says which inside socket it came to.
	In func(server, dst netip.AddrPort) (inside netip.AddrPort, ok bool)
	// Across sends from an inside socket to an outside endpoint of the NAT's own, and says from where it seemed to
	// come to which inside socket.
	Across func(src, dst netip.AddrPort) (from, inside netip.AddrPort, ok bool)
	// Wait lets time pass.
	Wait func(time.Duration)
}

// Findings are what packets tell of a NAT.
type Findings struct {
	// NAT is unknown in what packets cannot tell: hairpinning where the mapping depends on the destination and
	// the filter on the sender, for then nobody can say where to send.
	NAT weft.NAT
	// Pooling is arbitrary where one host was seen at several of Addresses.
	Pooling   Pooling
	Addresses int
	// Timeout is how long a mapping lives without traffic, to a second; 0: longer than maxObserved.
	Timeout time.Duration
	// RefreshOutbound and RefreshInbound tell what prolongs that.
	RefreshOutbound, RefreshInbound bool
	// SessionRule: replies to whom the filter let in leave from the mapping that was written to.
	SessionRule bool
	// OpensLate: the filter lets in others than who was written to only after a while.
	OpensLate bool
	// Spoils: an unsolicited packet takes a mapping away from later ones to where it came from. Packets tell where
	// the mapping is endpoint-independent and the filter is not.
	Spoils bool
	// Blocked: nothing passes.
	Blocked bool
}

const (
	// maxObserved bounds the search for a mapping's timeout. RFC 4787 REQ-5 recommends 5 minutes or more.
	maxObserved = 30 * time.Minute
	// settles is how long a filter that opens late is given.
	settles = 5 * time.Second
	// allocations is how many new mappings are looked at for the order of their ports; mostly is how many of
	// those have to follow it, as ports may be taken and numbers start over.
	allocations = 32
	mostly      = 2.0 / 3
)

// A classifier takes a bench through RFC 5780's tests and further ones, each with sockets of its own.
type classifier struct {
	Bench
	port uint16 // of the last socket
	f    Findings
}

// Classify finds out by packets alone what a NAT is.
func Classify(b Bench) Findings {
	c := &classifier{Bench: b, port: 20000}
	if from, ok := c.Out(c.socket(0), c.server(0, 0)); !ok || !from.IsValid() {
		c.f.Blocked = true
		return c.f
	}
	c.mapping()
	c.filtering()
	c.allocation()
	c.pooling()
	c.timeout()
	c.rules()
	c.hairpin()
	return c.f
}

// socket is a new one of a host. Ports are not in a row, so that a NAT's preserving them does not look like an
// order of its own.
func (c *classifier) socket(host int) netip.AddrPort {
	c.port += 7 + c.port%11*13
	return netip.AddrPortFrom(c.Hosts[host], c.port)
}

func (c *classifier) server(address, port int) netip.AddrPort {
	return netip.AddrPortFrom(c.Servers[address], uint16(3478+port))
}

// opened is a new socket of a host that has sent to the first server, and where that saw it.
func (c *classifier) opened(host int) (socket, seen netip.AddrPort) {
	socket = c.socket(host)
	seen, _ = c.Out(socket, c.server(0, 0))
	return socket, seen
}

// mapping is RFC 5780 section 4.3: one socket, the primary address, the alternate one, and both with another port.
func (c *classifier) mapping() {
	s := c.socket(0)
	var seen [4]netip.AddrPort
	for i, to := range [4]netip.AddrPort{c.server(0, 0), c.server(1, 0), c.server(1, 1), c.server(0, 0)} {
		seen[i], _ = c.Out(s, to)
	}
	switch {
	case seen[0] != seen[3]: // not even the same to the same
	case seen[0] == s:
		c.f.NAT.Mapping = weft.NoNAT
	case seen[0] == seen[1] && seen[1] == seen[2]:
		c.f.NAT.Mapping = weft.EndpointIndependentMapping
	case seen[1] == seen[2]:
		c.f.NAT.Mapping = weft.AddressDependentMapping
	default:
		c.f.NAT.Mapping = weft.AddressAndPortDependentMapping
	}
}

// filtering is RFC 5780 section 4.4: who was written to has somebody else answer, at another address and port, and
// then at another port.
func (c *classifier) filtering() {
	s, seen := c.opened(0)
	c.Wait(settles)
	switch {
	case !c.comes(c.server(0, 0), seen, s):
	case c.comes(c.server(1, 1), seen, s):
		c.f.NAT.Filtering = weft.EndpointIndependentFiltering
	case c.comes(c.server(0, 1), seen, s):
		c.f.NAT.Filtering = weft.AddressDependentFiltering
	default:
		c.f.NAT.Filtering = weft.AddressAndPortDependentFiltering
	}
}

// comes reports whether a server's packet to an outside endpoint comes to a socket.
func (c *classifier) comes(server, dst, socket netip.AddrPort) bool {
	inside, ok := c.In(server, dst)
	return ok && inside == socket
}

// allocation looks at the ports of new sockets. Where an address counts for itself, it is followed by itself.
func (c *classifier) allocation() {
	if c.f.NAT.Mapping == weft.NoNAT {
		return
	}
	last := map[netip.Addr]uint16{}
	steps := map[int16]int{}
	preserved, followed := 0, 0
	for range allocations {
		s, seen := c.opened(0)
		if seen.Port() == s.Port() {
			preserved++
		}
		if p, ok := last[seen.Addr()]; ok {
			followed++
			steps[int16(seen.Port()-p)]++
		}
		last[seen.Addr()] = seen.Port()
	}
	c.f.NAT.Allocation = weft.RandomAllocation
	if float64(preserved) >= mostly*allocations {
		c.f.NAT.Allocation = weft.PreservingAllocation
		return
	}
	for step, times := range steps {
		if float64(times) >= mostly*float64(followed) {
			c.f.NAT.Allocation, c.f.NAT.Step = weft.SequentialAllocation, step
		}
	}
}

// pooling has sockets of one host, and one of them, write to many places, and then other hosts.
func (c *classifier) pooling() {
	seen, own := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	one := c.socket(0)
	for i := range allocations {
		for _, s := range [2]netip.AddrPort{one, c.socket(0)} {
			if from, ok := c.Out(s, c.server(i%len(c.Servers), i)); ok {
				own[from.Addr()] = true
			}
		}
	}
	for h := range c.Hosts {
		if _, from := c.opened(h); from.IsValid() {
			seen[from.Addr()] = true
		}
	}
	for a := range own {
		seen[a] = true
	}
	if c.f.NAT.Mapping == weft.NoNAT {
		return
	}
	c.f.Addresses = len(seen)
	if len(own) > 1 {
		c.f.Pooling = ArbitraryPooling
	}
}

// hairpin is RFC 5780 section 4.5, but both sides write, as the filter may ask for that, and the source counts.
func (c *classifier) hairpin() {
	if c.f.NAT.Mapping == weft.NoNAT {
		return
	}
	a, seenA := c.opened(0)
	b, seenB := c.opened(1)
	external := false
	across := func(src, dst, to netip.AddrPort) {
		from, inside, ok := c.Across(src, dst)
		external = external || ok && inside == to && from != src
	}
	across(a, seenB, b)
	pause := settles
	if c.f.Spoils {
		pause = spoilTimeout + time.Second // until what that may have spoiled is good again
	}
	c.Wait(pause)
	across(b, seenA, a)
	c.Wait(settles)
	across(a, seenB, b)
	switch {
	case external:
		c.f.NAT.Hairpin = weft.Supported
	case c.f.Spoils && c.f.Timeout > 0 && c.f.Timeout <= pause+settles:
		// The mappings were gone before they could be used.
	case c.f.NAT.Mapping == weft.EndpointIndependentMapping, c.f.NAT.Filtering == weft.EndpointIndependentFiltering:
		c.f.NAT.Hairpin = weft.Unsupported
	}
}

// timeout is RFC 5780 section 4.6, by halves.
func (c *classifier) timeout() {
	lives := func(d time.Duration) bool {
		s, seen := c.opened(0)
		c.Wait(d)
		return c.comes(c.server(0, 0), seen, s)
	}
	low, high := time.Duration(0), maxObserved
	if lives(high) {
		return
	}
	for high-low > time.Second {
		mid := ((low + high) / 2).Round(time.Second)
		if lives(mid) {
			low = mid
		} else {
			high = mid
		}
	}
	c.f.Timeout = high
	outlives := func(refresh func(s, seen netip.AddrPort)) bool {
		s, seen := c.opened(0)
		c.Wait(high * 3 / 4)
		refresh(s, seen)
		c.Wait(high * 3 / 4)
		return c.comes(c.server(0, 0), seen, s)
	}
	c.f.RefreshOutbound = outlives(func(s, _ netip.AddrPort) { c.Out(s, c.server(0, 0)) })
	c.f.RefreshInbound = outlives(func(_, seen netip.AddrPort) { c.In(c.server(0, 0), seen) })
}

// rules are those beyond RFC 5780.
func (c *classifier) rules() {
	stranger := c.server(1, 1)
	if c.f.NAT.Filtering == weft.AddressDependentFiltering {
		stranger = c.server(0, 1)
	}
	s, seen := c.opened(0)
	at := c.comes(stranger, seen, s)
	if c.f.NAT.Filtering == weft.AddressAndPortDependentFiltering {
		stranger = c.server(0, 0)
	} else if !at {
		c.Wait(settles)
		c.f.OpensLate = c.comes(stranger, seen, s)
	}
	c.In(stranger, seen)
	back, ok := c.Out(s, stranger)
	c.f.SessionRule = ok && back == seen

	if c.f.NAT.Mapping != weft.EndpointIndependentMapping || c.f.NAT.Filtering == weft.EndpointIndependentFiltering {
		return
	}
	s, seen = c.opened(0)
	c.In(c.server(2, 0), seen)
	moved, ok := c.Out(s, c.server(2, 0))
	c.f.Spoils = ok && moved != seen
}
