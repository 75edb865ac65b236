package vnet

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft"
)

// A slowNAT is what NAT is, written for being obviously right: lists that are searched, and nothing is remembered
// that can be counted. It cannot know which port a NAT will choose; it says whether the choice was permitted.
type slowNAT struct {
	c        NATConfig
	mappings []*slowMapping
	replies  []slowReply
	spoiled  []slowSpoil
	last     map[netip.Addr]uint16 // given sequentially
}

type slowMapping struct {
	inside, outside netip.AddrPort
	key             netip.AddrPort
	alone           bool
	since           time.Time
	opened          map[netip.Addr]time.Time // when the first of the present sessions with an address began
	sessions        []*slowSession
}

type slowSession struct {
	remote  netip.AddrPort
	expires time.Time
}

// A slowReply says by which mapping packets from inside to remote leave.
type slowReply struct {
	inside, remote netip.AddrPort
	m              *slowMapping
}

type slowSpoil struct {
	outside, remote netip.AddrPort
	expires         time.Time
}

func (n *slowNAT) expire(now time.Time) {
	for _, m := range n.mappings {
		m.sessions = slices.DeleteFunc(m.sessions, func(s *slowSession) bool { return !now.Before(s.expires) })
		for a := range m.opened {
			if !slices.ContainsFunc(m.sessions, func(s *slowSession) bool { return s.remote.Addr() == a }) {
				delete(m.opened, a)
			}
		}
	}
	n.mappings = slices.DeleteFunc(n.mappings, func(m *slowMapping) bool { return len(m.sessions) == 0 })
	n.replies = slices.DeleteFunc(n.replies, func(r slowReply) bool { return r.m.session(r.remote) == nil })
	n.spoiled = slices.DeleteFunc(n.spoiled, func(s slowSpoil) bool { return !now.Before(s.expires) })
}

func (m *slowMapping) session(remote netip.AddrPort) *slowSession {
	for _, s := range m.sessions {
		if s.remote == remote {
			return s
		}
	}
	return nil
}

func (n *slowNAT) taken(outside, remote netip.AddrPort) bool {
	return slices.ContainsFunc(n.mappings, func(m *slowMapping) bool { return m.outside == outside }) ||
		n.isSpoiled(outside, remote)
}

func (n *slowNAT) isSpoiled(outside, remote netip.AddrPort) bool {
	return slices.ContainsFunc(n.spoiled, func(s slowSpoil) bool { return s.outside == outside && s.remote == remote })
}

func (n *slowNAT) reply(inside, remote netip.AddrPort, m *slowMapping) {
	n.replies = slices.DeleteFunc(n.replies, func(r slowReply) bool { return r.inside == inside && r.remote == remote })
	n.replies = append(n.replies, slowReply{inside, remote, m})
}

// key is what the mapping behaviour looks at.
func (n *slowNAT) key(dst netip.AddrPort) netip.AddrPort {
	switch n.c.Mapping {
	case weft.AddressDependentMapping:
		return netip.AddrPortFrom(dst.Addr(), 0)
	case weft.AddressAndPortDependentMapping:
		return dst
	}
	return netip.AddrPort{}
}

// outbound takes what the NAT said of a packet from inside, and says what is wrong about it.
func (n *slowNAT) outbound(now time.Time, src, dst, outside netip.AddrPort, v Verdict) error {
	n.expire(now)
	if n.c.BlockUDP {
		return differs(v, DropBlocked)
	}
	var m *slowMapping
	for _, r := range n.replies {
		if r.inside == src && r.remote == dst {
			m = r.m
		}
	}
	spoiled := false
	for _, x := range n.mappings {
		if m == nil && x.inside == src && x.key == n.key(dst) && !x.alone {
			if m = x; n.isSpoiled(x.outside, dst) {
				m, spoiled = nil, true
				break
			}
		}
	}
	if m == nil {
		if n.full(src) {
			return differs(v, DropTableFull)
		}
		if err := n.mayGive(src, dst, outside); err != nil || v != Forward {
			return fmt.Errorf("a new mapping of %v to %v at %v: %v, %w", src, dst, outside, v, err)
		}
		m = &slowMapping{inside: src, outside: outside, key: n.key(dst), alone: spoiled, since: now,
			opened: map[netip.Addr]time.Time{}}
		n.mappings = append(n.mappings, m)
	}
	if v != Forward || outside != m.outside {
		return fmt.Errorf("%v to %v: %v at %v, want it to leave by %v", src, dst, v, outside, m.outside)
	}
	m.touch(now, dst, now.Add(n.c.Timeout))
	n.reply(src, dst, m)
	return nil
}

func (m *slowMapping) touch(now time.Time, remote netip.AddrPort, expires time.Time) {
	s := m.session(remote)
	if s == nil {
		s = &slowSession{remote: remote}
		m.sessions = append(m.sessions, s)
	}
	s.expires = expires
	if _, ok := m.opened[remote.Addr()]; !ok {
		m.opened[remote.Addr()] = now
	}
}

func (n *slowNAT) full(src netip.AddrPort) bool {
	own := 0
	for _, m := range n.mappings {
		if m.inside.Addr() == src.Addr() {
			own++
		}
	}
	return n.c.MaxMappings > 0 && len(n.mappings) >= n.c.MaxMappings || n.c.MaxPerHost > 0 && own >= n.c.MaxPerHost
}

// mayGive says what is wrong with an outside endpoint for a new mapping.
func (n *slowNAT) mayGive(src, dst, outside netip.AddrPort) error {
	if n.c.Mapping == weft.NoNAT {
		if outside != src {
			return fmt.Errorf("a firewall has translated %v", src)
		}
		return nil
	}
	if !slices.Contains(n.c.Public, outside.Addr()) {
		return fmt.Errorf("%v is no public address", outside.Addr())
	}
	if n.taken(outside, dst) {
		return fmt.Errorf("%v is taken", outside)
	}
	if own := netip.AddrPortFrom(outside.Addr(), src.Port()); n.c.Allocation == weft.PreservingAllocation &&
		outside != own && !n.taken(own, dst) {
		return fmt.Errorf("%v has not kept its free port", src)
	}
	if n.c.Allocation == weft.SequentialAllocation {
		if last := n.last[outside.Addr()]; last != 0 {
			for {
				last = wrapped(int(last) + int(n.c.Step))
				if candidate := netip.AddrPortFrom(outside.Addr(), last); !n.taken(candidate, dst) {
					break
				}
			}
			if outside.Port() != last {
				return fmt.Errorf("port %d comes next, not %d", last, outside.Port())
			}
		}
		n.last[outside.Addr()] = outside.Port()
	}
	if n.c.Pooling == PairedPooling {
		for _, m := range n.mappings {
			if m.inside.Addr() == src.Addr() && m.outside.Addr() != outside.Addr() {
				return fmt.Errorf("%v is paired with %v", src.Addr(), m.outside.Addr())
			}
		}
	}
	return nil
}

// wrapped brings a number back among the ports that are allocated.
func wrapped(port int) uint16 {
	for port > 65535 {
		port -= 65536 - 1024
	}
	for port < 1024 {
		port += 65536 - 1024
	}
	return uint16(port)
}

// inbound is what becomes of a packet from outside.
func (n *slowNAT) inbound(now time.Time, src, dst netip.AddrPort) (netip.AddrPort, Verdict) {
	n.expire(now)
	if n.c.BlockUDP {
		return netip.AddrPort{}, DropBlocked
	}
	for _, m := range n.mappings {
		if m.outside != dst {
			continue
		}
		s := m.session(src)
		var expires time.Time // of the session that lets it in
		for _, x := range m.sessions {
			var open bool
			switch n.c.Filtering {
			case weft.EndpointIndependentFiltering:
				open = !now.Before(m.since.Add(n.c.OpensLate))
			case weft.AddressDependentFiltering:
				open = x.remote.Addr() == src.Addr() && !now.Before(m.opened[src.Addr()].Add(n.c.OpensLate))
			}
			if open && x.expires.After(expires) {
				expires = x.expires
			}
		}
		switch {
		case s == nil && expires.IsZero():
			n.spoil(now, dst, src)
			return netip.AddrPort{}, DropFiltered
		case n.c.RefreshInbound:
			m.touch(now, src, now.Add(n.c.Timeout))
		case s == nil:
			m.touch(now, src, expires)
		}
		n.reply(m.inside, src, m)
		return m.inside, Forward
	}
	n.spoil(now, dst, src)
	if n.c.Mapping == weft.NoNAT {
		return netip.AddrPort{}, DropFiltered
	}
	return netip.AddrPort{}, DropNoMapping
}

func (n *slowNAT) spoil(now time.Time, outside, remote netip.AddrPort) {
	if !n.c.Spoils || !slices.Contains(n.c.Public, outside.Addr()) {
		return
	}
	n.spoiled = slices.DeleteFunc(n.spoiled, func(s slowSpoil) bool { return s.outside == outside && s.remote == remote })
	n.spoiled = append(n.spoiled, slowSpoil{outside, remote, now.Add(30 * time.Second)})
}

func differs(got, want Verdict) error {
	if got != want {
		return fmt.Errorf("%v, want %v", got, want)
	}
	return nil
}
