package vnet

import (
	"errors"
	"fmt"
	"net/netip"

	"weft"
)

// DefaultHops is how many routers the internet's segment counts for: a packet whose time to live is not more than
// that passes the NATs on its sender's side and reaches nobody. Paths across the real one have 10 to 20.
const DefaultHops = 10

// Segment is a network whose members reach each other without a NAT in between: the internet, or what is inside a
// router.
type Segment struct {
	network *Network
	number  int
	gateway *Router // nil: the internet
	plugs   map[netip.Addr]*plug
	last4   int
	last6   uint64
	hops    int
	has6    bool
	// isolated members reach the gateway only.
	isolated bool
}

func (n *Network) newSegment(gateway *Router) *Segment {
	s := &Segment{network: n, number: n.segments, gateway: gateway, plugs: map[netip.Addr]*plug{}, has6: gateway == nil}
	n.segments++
	return s
}

// publicPrefixes are where the internet's IPv4 addresses come from: what RFC 5737 keeps for examples, and then
// what RFC 2544 keeps for measuring. None of them is private.
var publicPrefixes = []struct {
	first netip.Addr
	count int
}{
	{netip.MustParseAddr("203.0.113.1"), 254},
	{netip.MustParseAddr("198.51.100.1"), 254},
	{netip.MustParseAddr("198.18.0.1"), 1<<17 - 2},
}

var errFull = errors.New("its network has no free address left")

// SetHops sets how many routers the segment counts for in a packet's time to live.
func (s *Segment) SetHops(hops int) { s.hops = hops }

// HasIPv6 reports whether members can have IPv6 addresses.
func (s *Segment) HasIPv6() bool { return s.has6 }

// translated reports whether the members' IPv4 addresses mean something only here.
func (s *Segment) translated() bool {
	return s.gateway != nil && s.gateway.nat.config.Mapping != weft.NoNAT
}

// NewAddr is an IPv4 address of the segment's that nobody has: for Public of a router that is to have several.
func (s *Segment) NewAddr() (netip.Addr, error) {
	for {
		a, err := s.peekAddr()
		if err != nil {
			return a, err
		}
		top := s.top()
		top.last4++
		if top.plugs[a] == nil {
			return a, nil
		}
	}
}

// top is the segment whose addresses this one's members have.
func (s *Segment) top() *Segment {
	for s.gateway != nil && !s.translated() {
		s = s.gateway.plug.segment
	}
	return s
}

// peekAddr is the next address, perhaps taken by somebody who chose it.
func (s *Segment) peekAddr() (netip.Addr, error) {
	s = s.top()
	if s.gateway != nil {
		// 10.N.0.0/16 inside the N-th router; .0.1 is the router's own.
		if s.number > 255 || s.last4 >= 1<<16-3 {
			return netip.Addr{}, errFull
		}
		i := s.last4 + 2
		return netip.AddrFrom4([4]byte{10, byte(s.number), byte(i >> 8), byte(i)}), nil
	}
	i := s.last4
	for _, p := range publicPrefixes {
		if i < p.count {
			a := p.first.As4()
			v := uint32(a[0])<<24 | uint32(a[1])<<16 | uint32(a[2])<<8 | uint32(a[3]) + uint32(i)
			return netip.AddrFrom4([4]byte{byte(v >> 24), byte(v >> 16), byte(v >> 8), byte(v)}), nil
		}
		i -= p.count
	}
	return netip.Addr{}, errFull
}

// join gives a plug an address, known to all segments in which it means something.
func (s *Segment) join(l *plug, v6 bool) (a netip.Addr, err error) {
	if v6 {
		s.last6++
		a16 := [16]byte{0x20, 0x01, 0x0d, 0xb8, byte(s.number >> 8), byte(s.number)} // RFC 3849
		for i := range 8 {
			a16[15-i] = byte(s.last6 >> (8 * i))
		}
		a = netip.AddrFrom16(a16)
	} else if a, err = s.NewAddr(); err != nil {
		return a, err
	}
	s.add(l, a)
	return a, nil
}

// add has packets for a go to the plug, from here and from all segments in which a means the same.
func (s *Segment) add(l *plug, a netip.Addr) {
	s.plugs[a] = l
	for s.gateway != nil && (a.Is6() || !s.translated()) {
		l = s.gateway.plug
		s = l.segment
		s.plugs[a] = l
	}
}

func (s *Segment) leave(a netip.Addr) {
	for {
		delete(s.plugs, a)
		if s.gateway == nil || a.Is4() && s.translated() {
			return
		}
		s = s.gateway.plug.segment
	}
}

// AddHost attaches a host by a link.
func (s *Segment) AddHost(name string, link LinkConfig) (*Host, error) {
	h := &Host{sockets: map[uint16]*Socket{}}
	l, err := s.attach(name, link)
	if err != nil {
		return nil, err
	}
	l.leg, h.plug, h.host = &h.Leg, l, h
	if h.addr, err = s.join(l, false); err != nil {
		return nil, fmt.Errorf("%s cannot be added: %w", name, err)
	}
	s.network.names[name] = true
	return h, nil
}

func (s *Segment) attach(name string, link LinkConfig) (*plug, error) {
	if err := link.Check(); err != nil {
		return nil, fmt.Errorf("%s cannot be added: %w", name, err)
	}
	if err := s.network.vacant(name); err != nil {
		return nil, err
	}
	return &plug{network: s.network, name: name, segment: s, up: lane{config: link}, down: lane{config: link}}, nil
}

// AddRouter attaches a router by a link of its outside; a segment of its own is inside. Without public addresses
// it gets one; without a seed, one of the network's.
func (s *Segment) AddRouter(name string, c NATConfig, link LinkConfig) (*Router, error) {
	l, err := s.attach(name, link)
	if err != nil {
		return nil, err
	}
	for _, a := range c.Public {
		if s.plugs[a] != nil {
			return nil, fmt.Errorf("%s cannot have the address %v: %s has it", name, a, s.plugs[a].name)
		}
	}
	if len(c.Public) == 0 && c.Mapping != weft.NoNAT {
		a, err := s.NewAddr()
		if err != nil {
			return nil, fmt.Errorf("%s cannot be added: %w", name, err)
		}
		c.Public = []netip.Addr{a}
	}
	if c.Seed == 0 {
		c.Seed = s.network.rng.Uint64()
	}
	r := &Router{plug: l}
	if r.nat, err = NewNAT(c); err != nil {
		return nil, fmt.Errorf("%s cannot be added: %w", name, err)
	}
	l.router = r
	for _, a := range c.Public {
		s.add(l, a)
	}
	r.inside = s.network.newSegment(r)
	s.network.names[name] = true
	return r, nil
}

// route takes a packet on from a plug, or from the gateway where from is nil.
func (s *Segment) route(p *packet, from *plug) {
	if s.hops > 0 {
		if p.ttl <= s.hops {
			p.ttl = 0
			s.network.drop(p, "internet", DropTTL)
			return
		}
		p.ttl -= s.hops
	}
	switch to := s.plugs[p.dst.Addr()]; {
	case to != nil && from != nil && s.isolated:
		s.network.drop(p, s.gateway.plug.name, DropNoRoute)
	case to != nil:
		to.cross(p, false)
	case from != nil && s.gateway != nil:
		s.gateway.outbound(p)
	case s.gateway != nil:
		s.network.drop(p, s.gateway.plug.name, DropNoRoute)
	default:
		s.network.drop(p, "internet", DropNoRoute)
	}
}

// Router is a NAT for IPv4, perhaps a firewall for IPv6, and the segment inside.
type Router struct {
	plug   *plug
	nat    *NAT
	nat6   *NAT // nil: no IPv6
	inside *Segment
}

// Name is the router's.
func (r *Router) Name() string { return r.plug.name }

// Inside is the segment behind it.
func (r *Router) Inside() *Segment { return r.inside }

// NAT is what it does to IPv4.
func (r *Router) NAT() *NAT { return r.nat }

// Firewall6 is what it does to IPv6; nil: it knows none.
func (r *Router) Firewall6() *NAT { return r.nat6 }

// EnableIPv6 lets it route IPv6 by a firewall, whose Mapping is NoNAT.
func (r *Router) EnableIPv6(firewall NATConfig) (err error) {
	switch {
	case !r.plug.segment.has6:
		return fmt.Errorf("%s cannot route IPv6: there is none outside of it", r.Name())
	case firewall.Mapping != weft.NoNAT:
		return fmt.Errorf("%s cannot translate IPv6: its firewall's mapping is to be none", r.Name())
	}
	if r.nat6, err = NewNAT(firewall); err != nil {
		return fmt.Errorf("%s cannot route IPv6: %w", r.Name(), err)
	}
	r.inside.has6 = true
	return nil
}

// SetLink changes what its link outside does, in both directions.
func (r *Router) SetLink(c LinkConfig) error { return r.plug.setLinks(c, c) }

// SetLinks changes what it does outwards and inwards.
func (r *Router) SetLinks(out, in LinkConfig) error { return r.plug.setLinks(out, in) }

// Links are what it does outwards and inwards.
func (r *Router) Links() (out, in LinkConfig) { return r.plug.up.config, r.plug.down.config }

// SetUp cuts the link, or mends it. What is under way inwards is lost.
func (r *Router) SetUp(up bool) { r.plug.off = !up }

// SetCut makes a black hole of it, outwards, inwards, or both. What is under way arrives.
func (r *Router) SetCut(out, in bool) { r.plug.up.cut, r.plug.down.cut = out, in }

// Carried is how many bytes of IP packets it has taken so far, outwards and inwards.
func (r *Router) Carried() (out, in uint64) { return r.plug.up.bytes, r.plug.down.bytes }

func (r *Router) natFor(a netip.Addr) *NAT {
	if a.Is4() {
		return r.nat
	}
	return r.nat6
}

// hop counts a packet's passing. It comes before translation, as in Linux, so that a packet whose time is over
// makes no mapping.
func (r *Router) hop(p *packet) (*NAT, bool) {
	nat := r.natFor(p.dst.Addr())
	v := Forward
	switch {
	case nat == nil:
		v = DropNoRoute
	case p.ttl <= 1:
		p.ttl = 0
		v = DropTTL
	}
	if v != Forward {
		r.plug.network.drop(p, r.Name(), v)
		return nil, false
	}
	p.ttl--
	return nat, true
}

func (r *Router) outbound(p *packet) {
	n := r.plug.network
	nat, ok := r.hop(p)
	if !ok {
		return
	}
	if nat.Owns(p.dst.Addr()) {
		src, dst, v := nat.Hairpin(n.Now(), p.src, p.dst)
		r.forward(p, src, dst, v, func() { r.inside.route(p, nil) })
		return
	}
	src, v := nat.Outbound(n.Now(), p.src, p.dst)
	r.forward(p, src, p.dst, v, func() { r.plug.cross(p, true) })
}

func (r *Router) inbound(p *packet) {
	nat, ok := r.hop(p)
	if !ok {
		return
	}
	dst, v := nat.Inbound(r.plug.network.Now(), p.src, p.dst)
	r.forward(p, p.src, dst, v, func() { r.inside.route(p, nil) })
}

// forward rewrites a packet and sends it on, if the NAT lets it.
func (r *Router) forward(p *packet, src, dst netip.AddrPort, v Verdict, on func()) {
	n := r.plug.network
	if !v.Passed() {
		n.drop(p, r.Name(), v)
		return
	}
	wasSrc, wasDst := p.src, p.dst
	p.src, p.dst = src, dst
	n.tell(p, Forwarded, r.Name(), v, wasSrc, wasDst)
	on()
}
