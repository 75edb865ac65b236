package vnet

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"weft"
)

// NAT is one NAT or firewall. It judges addresses and translates them; who calls it rewrites packets. Everything
// is O(1), amortised, and what follows a mapping's first packet to or from an endpoint allocates nothing. The zero
// NAT is not usable. One goroutine may call it at a time.
//
// A mapping ties an inside endpoint to an outside one, alone: no two mappings share an outside endpoint. A session
// is a mapping and a remote endpoint that has been written to, or let in. A packet from inside leaves by
//
//  1. the mapping that a packet from its destination was let in by last (the session rule), or else
//  2. the mapping that the mapping behaviour says, if there is one and its 5-tuple is not spoiled, or else
//  3. a new mapping, on a port that the allocation behaviour says.
type NAT struct {
	config  NATConfig
	rng     *rand.Rand
	epoch   time.Time     // what all times count from; the first now
	now     time.Duration // never goes back
	mapped  map[flow]*mapping
	outside map[netip.AddrPort]*mapping
	// sessions has them all, replies those by which packets from inside leave.
	sessions map[sessionKey]*session
	replies  map[flow]*session
	permits  map[permitKey]*permit  // with address-dependent filtering
	perHost  map[netip.Addr]int     // mappings
	spoiled  map[flow]time.Duration // outside endpoint and remote one, until when
	spoils   spoilQueue
	order    session // the ring of all sessions by when they expire, its root
	next     []uint16
	used     []int // ports, of each public address
	free     freeLists
}

// A flow is two endpoints: one of ours and a remote one, or what the mapping behaviour looks at of it.
type flow struct{ ours, remote netip.AddrPort }

type sessionKey struct {
	m      *mapping
	remote netip.AddrPort
}

type permitKey struct {
	m      *mapping
	remote netip.Addr
}

type mapping struct {
	inside, outside netip.AddrPort
	public          int            // which of the public addresses
	key             netip.AddrPort // of its first destination, what the mapping behaviour looks at
	alone           bool           // made beside another that has the key, for one spoiled session
	opens           time.Duration  // when an endpoint-independent filter does
	sessions        int
	latest          *session // that expires last
	link            *mapping // in the free list
}

type session struct {
	m          *mapping
	remote     netip.AddrPort
	permit     *permit
	expires    time.Duration
	prev, next *session
}

// A permit is an address-dependent filter's opening for one remote address.
type permit struct {
	key      permitKey
	opens    time.Duration
	sessions int
	latest   *session // that expires last
	link     *permit  // in the free list
}

// The ports that a NAT allocates (RFC 4787 section 4.2.2 keeps them from the well-known ones); 64,512.
const (
	lowestPort = 1024
	portCount  = 1<<16 - lowestPort
)

// NewNAT makes a NAT, or says in one sentence what is impossible about the config.
func NewNAT(c NATConfig) (*NAT, error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	c.Public = append([]netip.Addr(nil), c.Public...)
	c.Timeout = cmp.Or(c.Timeout, DefaultTimeout)
	c.Allocation = cmp.Or(c.Allocation, weft.RandomAllocation)
	if c.Allocation == weft.SequentialAllocation {
		c.Step = cmp.Or(c.Step, 1)
	}
	n := &NAT{config: c, rng: rand.New(rand.NewPCG(c.Seed, 0x6e6174))}
	n.Forget()
	return n, nil
}

// Config is what the NAT was made from, with the defaults filled in.
func (n *NAT) Config() NATConfig { return n.config }

// Owns reports whether the address is one of the NAT's public ones. A packet from inside to such an address is
// for Hairpin, every other one for Outbound.
func (n *NAT) Owns(a netip.Addr) bool {
	for _, p := range n.config.Public {
		if p == a {
			return true
		}
	}
	return false
}

// Forget is what a NAT does when it is switched off and on: it has no mappings any more.
func (n *NAT) Forget() {
	n.mapped = map[flow]*mapping{}
	n.outside = map[netip.AddrPort]*mapping{}
	n.sessions = map[sessionKey]*session{}
	n.replies = map[flow]*session{}
	n.permits = map[permitKey]*permit{}
	n.perHost = map[netip.Addr]int{}
	n.spoiled = map[flow]time.Duration{}
	n.spoils = spoilQueue{}
	n.order.prev, n.order.next = &n.order, &n.order
	n.next = make([]uint16, len(n.config.Public))
	for i := range n.next {
		n.next[i] = uint16(lowestPort + n.rng.IntN(portCount))
	}
	n.used = make([]int, len(n.config.Public))
	n.free = freeLists{}
}

// Rebind moves every mapping to another outside port. Sessions and filters stay what they were, so that flows go
// on from the new ports as soon as something is sent from inside.
func (n *NAT) Rebind(now time.Time) {
	n.tick(now)
	if n.config.Mapping == weft.NoNAT {
		return
	}
	seen := map[*mapping]bool{}
	for s := n.order.next; s != &n.order; s = s.next {
		m := s.m
		if seen[m] {
			continue
		}
		seen[m] = true
		port, ok := n.otherPort(m.public, s.remote)
		if !ok {
			continue // every port is taken: it has nowhere to go
		}
		delete(n.outside, m.outside)
		m.outside = netip.AddrPortFrom(m.outside.Addr(), port)
		n.outside[m.outside] = m
	}
}

// Outbound judges a packet from inside to an address that the NAT does not own, and says which source address
// and port it has outside.
func (n *NAT) Outbound(now time.Time, src, dst netip.AddrPort) (outside netip.AddrPort, v Verdict) {
	n.tick(now)
	switch {
	case n.config.BlockUDP:
		return netip.AddrPort{}, DropBlocked
	case n.open():
		return src, Forward
	case n.Owns(dst.Addr()):
		return netip.AddrPort{}, DropNoHairpin
	}
	return n.leave(src, dst)
}

// Inbound judges a packet from outside, and says which inside endpoint it is for.
func (n *NAT) Inbound(now time.Time, src, dst netip.AddrPort) (inside netip.AddrPort, v Verdict) {
	n.tick(now)
	switch {
	case n.config.BlockUDP:
		return netip.AddrPort{}, DropBlocked
	case n.open():
		return dst, Forward
	}
	return n.enter(src, dst)
}

// Hairpin judges a packet from inside to one of the NAT's own public addresses. It leaves like any other and comes
// in like any other: its source becomes the external mapping's, its destination the inside endpoint, and the
// filter has its say.
func (n *NAT) Hairpin(now time.Time, src, dst netip.AddrPort) (newSrc, newDst netip.AddrPort, v Verdict) {
	n.tick(now)
	switch {
	case n.config.BlockUDP:
		return newSrc, newDst, DropBlocked
	case !n.config.Hairpin:
		return newSrc, newDst, DropNoHairpin
	}
	if newSrc, v = n.leave(src, dst); !v.Passed() {
		return netip.AddrPort{}, newDst, v
	}
	if newDst, v = n.enter(newSrc, dst); !v.Passed() {
		return netip.AddrPort{}, netip.AddrPort{}, v
	}
	return newSrc, newDst, HairpinBack
}

// open is a plain router, which keeps no state.
func (n *NAT) open() bool { return n.config.Filtering == weft.FilteringUnknown }

func (n *NAT) leave(src, dst netip.AddrPort) (netip.AddrPort, Verdict) {
	f := flow{src, dst}
	s := n.replies[f]
	if s == nil {
		m, v := n.mappingFor(src, dst)
		if m == nil {
			return netip.AddrPort{}, v
		}
		if s = n.sessions[sessionKey{m, dst}]; s == nil {
			s = n.addSession(m, dst, nil)
		}
		n.replies[f] = s
	}
	n.refresh(s)
	return s.m.outside, Forward
}

func (n *NAT) enter(src, dst netip.AddrPort) (netip.AddrPort, Verdict) {
	m := n.outside[dst]
	if m == nil {
		n.spoil(dst, src)
		if n.config.Mapping == weft.NoNAT {
			return netip.AddrPort{}, DropFiltered
		}
		return netip.AddrPort{}, DropNoMapping
	}
	s := n.sessions[sessionKey{m, src}]
	if s == nil {
		like := n.admits(m, src)
		if like == nil {
			n.spoil(dst, src)
			return netip.AddrPort{}, DropFiltered
		}
		s = n.addSession(m, src, like)
	}
	if n.config.RefreshInbound {
		n.refresh(s)
	}
	if f := (flow{m.inside, src}); n.replies[f] != s {
		n.replies[f] = s
	}
	return m.inside, Forward
}

// admits is the session by which the filter is open for a sender with whom there is none; nil: it is not.
func (n *NAT) admits(m *mapping, src netip.AddrPort) *session {
	switch n.config.Filtering {
	case weft.EndpointIndependentFiltering:
		if n.now >= m.opens {
			return m.latest
		}
	case weft.AddressDependentFiltering:
		if p := n.permits[permitKey{m, src.Addr()}]; p != nil && n.now >= p.opens {
			return p.latest
		}
	}
	return nil
}

// mappingFor is the mapping that the behaviour says, made if there is none.
func (n *NAT) mappingFor(src, dst netip.AddrPort) (*mapping, Verdict) {
	key := n.depends(dst)
	m, alone := n.mapped[flow{src, key}], false
	if m != nil && n.isSpoiled(m.outside, dst) {
		m, alone = nil, true
	}
	if m != nil {
		return m, Forward
	}
	c := &n.config
	if c.MaxMappings > 0 && len(n.outside) >= c.MaxMappings ||
		c.MaxPerHost > 0 && n.perHost[src.Addr()] >= c.MaxPerHost {
		return nil, DropTableFull
	}
	outside, public, ok := n.allocate(src, key, dst)
	if !ok {
		return nil, DropTableFull
	}
	m = n.free.mapping()
	*m = mapping{inside: src, outside: outside, public: public, key: key, alone: alone, opens: n.now + c.OpensLate}
	n.outside[outside] = m
	if !alone {
		n.mapped[flow{src, key}] = m
	}
	if public >= 0 {
		n.used[public]++
	}
	if c.MaxPerHost > 0 {
		n.perHost[src.Addr()]++
	}
	return m, Forward
}

// depends is what the mapping behaviour looks at of a destination.
func (n *NAT) depends(dst netip.AddrPort) netip.AddrPort {
	switch n.config.Mapping {
	case weft.AddressDependentMapping:
		return netip.AddrPortFrom(dst.Addr(), 0)
	case weft.AddressAndPortDependentMapping:
		return dst
	}
	return netip.AddrPort{}
}

// String is the NAT's behaviour and addresses.
func (n *NAT) String() string {
	if n.config.Mapping == weft.NoNAT {
		return "a firewall, " + n.config.Filtering.Abbreviation()
	}
	return fmt.Sprintf("%v at %v", n.config.NAT(), n.config.Public)
}
