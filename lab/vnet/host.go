package vnet

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// DefaultTTL is what a packet starts with where its sender does not say, as Linux has it.
const DefaultTTL = 64

// The ports that a socket gets which asks for none in particular: Linux's net.ipv4.ip_local_port_range.
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// Host is a machine with one IPv4 address on its link, perhaps an IPv6 address, and UDP sockets. It may have more links
// than the first, which is its own [Leg]: what it sends by no link in particular leaves by that one.
type Host struct {
	Leg
	legs    []*Leg // the others
	wants6  bool
	sockets map[uint16]*Socket
}

// A Leg is one link of a host's, and the host's addresses there.
type Leg struct {
	host        *Host
	plug        *plug
	addr, addr6 netip.Addr
	bound       map[uint16]*Socket // to this link alone, by port
}

// Name is the host's.
func (h *Host) Name() string { return h.plug.name }

// AddLeg gives the host another link, to another segment. It has an IPv6 address there if the host has them and the
// segment has some. Names are for traces.
func (h *Host) AddLeg(name string, to *Segment, link LinkConfig) (*Leg, error) {
	l, err := to.attach(name, link)
	if err != nil {
		return nil, err
	}
	g := &Leg{host: h, plug: l}
	l.leg = g
	if g.addr, err = to.join(l, false); err == nil {
		err = g.join6()
	}
	if err != nil {
		return nil, fmt.Errorf("%s cannot be added: %w", name, err)
	}
	to.network.names[name] = true
	h.legs = append(h.legs, g)
	return g, nil
}

// Legs are all links of the host, the first first.
func (h *Host) Legs() []*Leg { return append([]*Leg{&h.Leg}, h.legs...) }

// Addr is the present IPv4 address there.
func (g *Leg) Addr() netip.Addr { return g.addr }

// Addr6 is the present IPv6 address there; the zero Addr if there is none.
func (g *Leg) Addr6() netip.Addr { return g.addr6 }

// Segment is where it leads at present.
func (g *Leg) Segment() *Segment { return g.plug.segment }

// EnableIPv6 gives it an address where the segment has some, at once and wherever it moves.
func (h *Host) EnableIPv6() error {
	if !slices.ContainsFunc(h.Legs(), func(g *Leg) bool { return g.plug.segment.HasIPv6() }) {
		return fmt.Errorf("%s cannot have an IPv6 address: there is no IPv6 where it is", h.Name())
	}
	h.wants6 = true
	for _, g := range h.Legs() {
		if err := g.join6(); err != nil {
			return err
		}
	}
	return nil
}

func (g *Leg) join6() (err error) {
	if g.host.wants6 && !g.addr6.IsValid() && g.plug.segment.HasIPv6() {
		g.addr6, err = g.plug.segment.join(g.plug, true)
	}
	return err
}

// Move takes the host to another segment, or anew to the same, where it gets other addresses. Its sockets live on.
func (h *Host) Move(to *Segment, link LinkConfig) error {
	if err := link.Check(); err != nil {
		return err
	}
	old, oldAddr, oldAddr6 := h.plug, h.addr, h.addr6
	plug := &plug{network: old.network, name: old.name, segment: to, leg: &h.Leg, up: lane{config: link}, down: lane{config: link}}
	addr, err := to.join(plug, false)
	if err != nil {
		return fmt.Errorf("%s cannot move: %w", h.Name(), err)
	}
	old.segment.leave(oldAddr)
	if oldAddr6.IsValid() {
		old.segment.leave(oldAddr6)
	}
	old.off = true // what is under way to it is lost
	h.plug, h.addr, h.addr6 = plug, addr, netip.Addr{}
	return h.join6()
}

// SetLink changes what the link does, in both directions.
func (g *Leg) SetLink(c LinkConfig) error { return g.plug.setLinks(c, c) }

// SetLinks changes what it does on the way out and on the way in.
func (g *Leg) SetLinks(out, in LinkConfig) error { return g.plug.setLinks(out, in) }

// Links are what it does on the way out and on the way in.
func (g *Leg) Links() (out, in LinkConfig) { return g.plug.up.config, g.plug.down.config }

// SetUp cuts the link, or mends it. What is under way inwards is lost.
func (g *Leg) SetUp(up bool) { g.plug.off = !up }

// SetCut makes a black hole of it, on the way out, on the way in, or both. What is under way arrives.
func (g *Leg) SetCut(out, in bool) { g.plug.up.cut, g.plug.down.cut = out, in }

// Carried is how many bytes of IP packets it has taken so far, outwards and inwards.
func (g *Leg) Carried() (out, in uint64) { return g.plug.up.bytes, g.plug.down.bytes }

// Socket is a UDP socket, of both families, bound to every address that its host ever has, or to one link and every
// address that the host ever has there.
type Socket struct {
	host   *Host
	leg    *Leg // nil: any
	port   uint16
	handle func(now time.Time, from netip.AddrPort, b []byte)
}

// ErrClosed says that a socket has been closed.
var ErrClosed = errors.New("the socket is closed")

// Listen makes a socket on a port; 0: any free one.
func (h *Host) Listen(port uint16) (*Socket, error) { return h.listen(nil, h.sockets, port) }

// Listen makes a socket of the host's that is bound to this link, as by SO_BINDTODEVICE: what it sends leaves by the
// link, what comes in by the link for the port is its own before any other's. A port may be that of a socket that is
// bound to another link, or to none.
func (g *Leg) Listen(port uint16) (*Socket, error) {
	if g.bound == nil {
		g.bound = map[uint16]*Socket{}
	}
	return g.host.listen(g, g.bound, port)
}

func (h *Host) listen(on *Leg, taken map[uint16]*Socket, port uint16) (*Socket, error) {
	if port == 0 {
		if port = h.ephemeral(taken); port == 0 {
			return nil, fmt.Errorf("%s has no free port left", h.Name())
		}
	}
	if taken[port] != nil {
		return nil, fmt.Errorf("%s has a socket on port %d already", h.Name(), port)
	}
	s := &Socket{host: h, leg: on, port: port}
	taken[port] = s
	return s, nil
}

func (h *Host) ephemeral(taken map[uint16]*Socket) uint16 {
	const count = lastEphemeral - firstEphemeral + 1
	first := h.plug.network.rng.IntN(count)
	for i := range count {
		if port := uint16(firstEphemeral + (first+i)%count); taken[port] == nil {
			return port
		}
	}
	return 0
}

// Host is the socket's.
func (s *Socket) Host() *Host { return s.host }

// Port is its own, on its host.
func (s *Socket) Port() uint16 { return s.port }

// Handle has f called for every datagram that arrives. The bytes are valid during the call only.
func (s *Socket) Handle(f func(now time.Time, from netip.AddrPort, b []byte)) { s.handle = f }

// Close frees the port. What arrives from then on is dropped.
func (s *Socket) Close() {
	if m := s.among(); m[s.port] == s {
		delete(m, s.port)
	}
}

// among are the sockets that it is one of, until it is closed.
func (s *Socket) among() map[uint16]*Socket {
	if s.leg != nil {
		return s.leg.bound
	}
	return s.host.sockets
}

// Send sends a datagram; ttl 0: DefaultTTL. An error says that this host cannot send it, never that it got lost.
func (s *Socket) Send(to netip.AddrPort, b []byte, ttl uint8) error {
	h, by := s.host, s.leg
	if s.among()[s.port] != s {
		return ErrClosed
	}
	if by == nil {
		by = &h.Leg
	}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	from := by.addr
	switch {
	case !to.IsValid() || to.Port() == 0:
		return fmt.Errorf("%v is nowhere to send to", to)
	case to.Addr().Is6():
		if from = by.addr6; !from.IsValid() {
			return fmt.Errorf("%s has no IPv6 address to send to %v from", h.Name(), to)
		}
	}
	if ttl == 0 {
		ttl = DefaultTTL
	}
	n := by.plug.network
	p := n.packet()
	n.sent++
	p.id, p.src, p.dst, p.ttl = n.sent, netip.AddrPortFrom(from, s.port), to, int(ttl)
	p.data = append(p.data[:0], b...)
	n.tell(p, Sent, h.Name(), Forward, p.src, p.dst)
	by.plug.cross(p, true)
	return nil
}

func (g *Leg) receive(p *packet) {
	n := g.plug.network
	s := g.bound[p.dst.Port()]
	if s == nil {
		s = g.host.sockets[p.dst.Port()]
	}
	if s == nil || p.dst.Addr() != g.addr && p.dst.Addr() != g.addr6 {
		n.drop(p, g.host.Name(), DropNoListener)
		return
	}
	n.tell(p, Arrived, g.host.Name(), Forward, p.src, p.dst)
	if s.handle != nil {
		s.handle(n.Now(), p.src, p.data)
	}
	n.release(p)
}
