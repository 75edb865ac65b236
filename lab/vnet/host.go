package vnet

import (
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// DefaultTTL is what a packet starts with where its sender does not say, as Linux has it.
const DefaultTTL = 64

// The ports that a socket gets which asks for none in particular: Linux's net.ipv4.ip_local_port_range.
const (
	firstEphemeral = 32768
	lastEphemeral  = 60999
)

// Host is a machine with one link, one IPv4 address, perhaps an IPv6 address, and UDP sockets.
type Host struct {
	plug        *plug
	addr, addr6 netip.Addr
	wants6      bool
	sockets     map[uint16]*Socket
}

// Name is the host's.
func (h *Host) Name() string { return h.plug.name }

// Addr is its present IPv4 address.
func (h *Host) Addr() netip.Addr { return h.addr }

// Addr6 is its present IPv6 address; the zero Addr if it has none.
func (h *Host) Addr6() netip.Addr { return h.addr6 }

// Segment is where it is at present.
func (h *Host) Segment() *Segment { return h.plug.segment }

// EnableIPv6 gives it an address where the segment has some, at once and wherever it moves.
func (h *Host) EnableIPv6() error {
	if !h.plug.segment.HasIPv6() {
		return fmt.Errorf("%s cannot have an IPv6 address: there is no IPv6 where it is", h.Name())
	}
	h.wants6 = true
	return h.join6()
}

func (h *Host) join6() (err error) {
	if h.wants6 && !h.addr6.IsValid() && h.plug.segment.HasIPv6() {
		h.addr6, err = h.plug.segment.join(h.plug, true)
	}
	return err
}

// Move takes the host to another segment, or anew to the same, where it gets other addresses. Its sockets live on.
func (h *Host) Move(to *Segment, link LinkConfig) error {
	if err := link.Check(); err != nil {
		return err
	}
	old, oldAddr, oldAddr6 := h.plug, h.addr, h.addr6
	plug := &plug{network: old.network, name: old.name, segment: to, host: h, config: link}
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

// SetLink changes what its link does.
func (h *Host) SetLink(c LinkConfig) error { return h.plug.setLink(c) }

// Link is what its link does.
func (h *Host) Link() LinkConfig { return h.plug.config }

// SetUp cuts the link, or mends it.
func (h *Host) SetUp(up bool) { h.plug.off = !up }

// Socket is a UDP socket, of both families, bound to every address that its host ever has.
type Socket struct {
	host   *Host
	port   uint16
	handle func(now time.Time, from netip.AddrPort, b []byte)
}

// ErrClosed says that a socket has been closed.
var ErrClosed = errors.New("the socket is closed")

// Listen makes a socket on a port; 0: any free one.
func (h *Host) Listen(port uint16) (*Socket, error) {
	if port == 0 {
		if port = h.ephemeral(); port == 0 {
			return nil, fmt.Errorf("%s has no free port left", h.Name())
		}
	}
	if h.sockets[port] != nil {
		return nil, fmt.Errorf("%s has a socket on port %d already", h.Name(), port)
	}
	s := &Socket{host: h, port: port}
	h.sockets[port] = s
	return s, nil
}

func (h *Host) ephemeral() uint16 {
	const count = lastEphemeral - firstEphemeral + 1
	first := h.plug.network.rng.IntN(count)
	for i := range count {
		if port := uint16(firstEphemeral + (first+i)%count); h.sockets[port] == nil {
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
	if s.host.sockets[s.port] == s {
		delete(s.host.sockets, s.port)
	}
}

// Send sends a datagram; ttl 0: DefaultTTL. An error says that this host cannot send it, never that it got lost.
func (s *Socket) Send(to netip.AddrPort, b []byte, ttl uint8) error {
	h := s.host
	if h.sockets[s.port] != s {
		return ErrClosed
	}
	to = netip.AddrPortFrom(to.Addr().Unmap(), to.Port())
	from := h.addr
	switch {
	case !to.IsValid() || to.Port() == 0:
		return fmt.Errorf("%v is nowhere to send to", to)
	case to.Addr().Is6():
		if from = h.addr6; !from.IsValid() {
			return fmt.Errorf("%s has no IPv6 address to send to %v from", h.Name(), to)
		}
	}
	if ttl == 0 {
		ttl = DefaultTTL
	}
	n := h.plug.network
	p := n.packet()
	n.sent++
	p.id, p.src, p.dst, p.ttl = n.sent, netip.AddrPortFrom(from, s.port), to, int(ttl)
	p.data = append(p.data[:0], b...)
	n.tell(p, Sent, h.Name(), Forward, p.src, p.dst)
	h.plug.cross(p, true)
	return nil
}

func (h *Host) receive(p *packet) {
	n := h.plug.network
	s := h.sockets[p.dst.Port()]
	if s == nil || p.dst.Addr() != h.addr && p.dst.Addr() != h.addr6 {
		n.drop(p, h.Name(), DropNoListener)
		return
	}
	n.tell(p, Arrived, h.Name(), Forward, p.src, p.dst)
	if s.handle != nil {
		s.handle(n.Now(), p.src, p.data)
	}
	n.release(p)
}
