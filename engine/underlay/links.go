package underlay

import (
	"errors"
	"fmt"
	"slices"
	"syscall"

	"weft"
	"weft/host"
)

// SetLinks has exactly these links from 1 on be there. Links that were and still are, the same interface under the same
// number, are not touched. Those that cannot be opened are left out, and the error says why; calling again tries again.
func (s *Sockets) SetLinks(links []Link) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil
	}
	for id, l := range s.links {
		if !l.spare && !slices.Contains(links, l.Link) {
			l.close()
			delete(s.links, id)
			s.generation.Add(1)
		}
	}
	var errs []error
	for _, want := range links {
		if s.links[want.ID] != nil {
			continue
		}
		if want.ID == 0 || want.ID >= FirstSpare {
			errs = append(errs, fmt.Errorf("%d is no number of a link", want.ID))
			continue
		}
		l, err := s.openDevice(want)
		if err != nil {
			errs = append(errs, deviceError(want.Device, err))
			continue
		}
		s.links[want.ID] = l
		s.begin(l)
	}
	return errors.Join(errs...)
}

// openDevice opens the sockets of an interface, on the port of link 0 if that can be.
func (s *Sockets) openDevice(of Link) (*link, error) {
	for _, x := range s.shared.sockets() {
		if err := host.SharePort(x.conn); err != nil {
			return nil, err
		}
	}
	l, err := s.openLink(of, s.port)
	if errors.Is(err, syscall.EADDRINUSE) {
		s.cfg.Logger.Warn("UDP port is in use by another program on an interface, taking any there",
			"port", s.port, "interface", of.Device)
		l, err = s.openLink(of, 0)
	}
	return l, err
}

func deviceError(device string, err error) error {
	switch {
	case errors.Is(err, syscall.ENODEV):
		return fmt.Errorf("there is no interface %s now: %w", device, err)
	case errors.Is(err, syscall.EPERM):
		return fmt.Errorf("no permission to send by interface %s alone: run as root or with CAP_NET_RAW: %w", device, err)
	}
	return fmt.Errorf("opening sockets on interface %s: %w", device, err)
}

// SocketStatus is what weft status tells of the sockets of a link in one address family.
type SocketStatus struct {
	Link          weft.LinkID `json:"link"`
	Interface     string      `json:"interface,omitempty"` // of link 0 there is none
	IPv6          bool        `json:"ipv6"`
	Port          uint16      `json:"port"`
	Sockets       int         `json:"sockets"`
	SendOffload   bool        `json:"send_offload"` // UDP_SEGMENT: false once a network card refused it
	RecvOffload   bool        `json:"receive_offload"`
	ReceiveBuffer int         `json:"receive_buffer"` // bytes that the kernel granted
	SendBuffer    int         `json:"send_buffer"`
}

// Status is the state of all links but spare sockets, in the order of their numbers, IPv4 first.
func (s *Sockets) Status() []SocketStatus {
	s.mu.RLock()
	links := []*link{s.shared}
	for _, l := range s.links {
		if !l.spare {
			links = append(links, l)
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(links, func(a, b *link) int { return int(a.ID) - int(b.ID) })
	var out []SocketStatus
	for _, l := range links {
		for _, list := range [][]*socket{l.four, l.six} {
			if len(list) == 0 {
				continue
			}
			first := list[0]
			st := SocketStatus{
				Link: l.ID, Interface: l.Device, IPv6: first.six, Port: l.port, Sockets: len(list),
				SendOffload: true, RecvOffload: true, ReceiveBuffer: first.granted[0], SendBuffer: first.granted[1],
			}
			for _, x := range list {
				send, receive := x.batch.Load().Offload()
				st.SendOffload, st.RecvOffload = st.SendOffload && send, st.RecvOffload && receive
			}
			out = append(out, st)
		}
	}
	return out
}
