package vnet

import "fmt"

// Sides describes for Possible where two hosts of one network are at present.
func Sides(a, b *Host) (Side, Side) {
	x, y := a.side(), b.side()
	s, t := a.routers(), b.routers()
	for i, j := len(s)-1, len(t)-1; i >= 0 && j >= 0 && s[i] == t[j]; i, j = i-1, j-1 {
		x.Shared++
	}
	y.Shared = x.Shared
	meet := a.Segment() // inside the innermost NAT that both share
	if own := len(s) - x.Shared; own > 0 {
		meet = s[own-1].plug.segment
	}
	x.Isolated = meet.isolated
	y.Isolated = meet.isolated
	return x, y
}

// routers are those between the host and the internet, from the host outwards.
func (h *Host) routers() (rs []*Router) {
	for s := h.Segment(); s.gateway != nil; s = s.gateway.plug.segment {
		rs = append(rs, s.gateway)
	}
	return rs
}

func (h *Host) side() Side {
	s := Side{Name: h.Name(), IPv6: h.addr6.IsValid()}
	for _, r := range h.routers() {
		s.NATs = append(s.NATs, r.nat.config)
		if r.nat6 != nil {
			s.Firewalls6 = append(s.Firewalls6, r.nat6.config)
		}
	}
	return s
}

// SetIsolated keeps the segment's members apart, as guests of a hotel are: they reach its gateway, and what is
// beyond, but not each other.
func (s *Segment) SetIsolated(isolated bool) error {
	if s.gateway == nil {
		return fmt.Errorf("the internet cannot keep its members apart")
	}
	s.isolated = isolated
	return nil
}
