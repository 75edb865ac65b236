package underlay

import (
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"weft"
	"weft/host"
)

// lightRead is the longest datagram in bytes that a spare socket takes before it carries data: any that fits an Ethernet.
const lightRead = 2048

var lightReads = sync.Pool{New: func() any { return new([lightRead]byte) }}

// Spares opens spare sockets of one address family, each on a free port and a link of its own, of which it returns the
// numbers and the ports. With an error it returns those that could be opened all the same.
func (s *Sockets) Spares(n int, v6 bool) ([]weft.LinkID, []uint16, error) {
	return s.SparesOn(0, n, v6)
}

// SparesOn is Spares with sockets that are bound to the interface of another link, as that link's are.
func (s *Sockets) SparesOn(of weft.LinkID, n int, v6 bool) ([]weft.LinkID, []uint16, error) {
	network := "udp4"
	if v6 {
		network = "udp6"
	}
	links, ports := make([]weft.LinkID, 0, n), make([]uint16, 0, n)
	on := s.find(of)
	if on == nil {
		return links, ports, ErrNoWay
	}
	for range n {
		l, err := s.spare(on.Device, network)
		if err != nil {
			return links, ports, fmt.Errorf("opening UDP socket %d of %d: %w", len(links)+1, n, err)
		}
		links, ports = append(links, l.ID), append(ports, l.port)
	}
	return links, ports, nil
}

// spare opens one.
func (s *Sockets) spare(device, network string) (*link, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, net.ErrClosed
	case s.spared >= MaxSpares:
		return nil, ErrTooManySockets
	}
	c, err := host.UDPAnyPort(device, network)
	if err != nil {
		return nil, err
	}
	for used := true; used; { // there are far more numbers than sockets
		if s.last++; s.last < FirstSpare {
			s.last = FirstSpare
		}
		_, used = s.links[s.last]
	}
	l := &link{Link: Link{ID: s.last, Device: device}, spare: true}
	x := &socket{link: l, conn: c, light: c, six: network == "udp6", stamps: &s.stamps}
	l.port = x.port()
	if x.six {
		l.six = []*socket{x}
	} else {
		l.four = []*socket{x}
	}
	s.links[l.ID] = l
	s.spared++
	s.begin(l)
	return l, nil
}

// CloseSpare closes a spare socket. A link that is none is none to close.
func (s *Sockets) CloseSpare(id weft.LinkID) {
	if id < FirstSpare {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.links[id]
	if l == nil {
		return
	}
	l.close()
	delete(s.links, id)
	s.spared--
	if l.sockets()[0].carries.Load() { // no other has destinations
		s.generation.Add(1)
	}
}

// Spared is how many spare sockets are open.
func (s *Sockets) Spared() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.spared
}

// Carry says that a link is a route now. For links that are no spare sockets, it does nothing.
func (s *Sockets) Carry(id weft.LinkID) {
	l := s.find(id)
	if l == nil || !l.spare {
		return
	}
	if err := s.carry(l.sockets()[0]); err != nil {
		s.say("a peer's own UDP socket cannot carry data", "port", l.port, "error", err)
	}
}

// carry makes a spare socket one that carries data. Its packets come in runs, for which the small buffer of its reader is
// too short, when the reader, which waits for a packet and is woken, has another.
func (s *Sockets) carry(x *socket) error {
	if x.carries.CompareAndSwap(false, true) {
		x.light.SetReadDeadline(time.Unix(1, 0))
	}
	return x.enlarge()
}

// light reads single packets, and returns true when the socket is to carry data.
func (s *Sockets) light(x *socket) bool {
	buf := lightReads.Get().(*[lightRead]byte)
	defer lightReads.Put(buf)
	reads := make([]host.UDPRead, 1)
	var in Incoming
	list := []*reading{{x: x}}
	for !x.carries.Load() {
		n, from, err := x.light.ReadFromUDPAddrPort(buf[:])
		switch {
		case err != nil && !s.again(x, err):
			return false
		case err != nil, n == 0:
		case n == len(buf): // it was longer, and has lost its end
		default:
			reads[0] = host.UDPRead{Data: buf[:n:n], Segment: n, From: netip.AddrPortFrom(from.Addr().Unmap(), from.Port())}
			in = Incoming{list: list, read: reads}
			s.cfg.Receive(&in)
			in.Next() // if it was not looked at to the end
		}
	}
	if err := x.enlarge(); err != nil {
		s.say("a peer's own UDP socket is closed, since it cannot carry data", "port", x.link.port, "error", err)
		s.CloseSpare(x.link.ID)
		return false
	}
	return true
}
