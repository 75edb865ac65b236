package path

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"
)

// A behaviour is how a NAT maps or filters, in RFC 4787's words.
type behaviour int

const (
	endpointIndependent behaviour = iota
	addressDependent
	addressAndPortDependent
)

var mappingNames = [...]string{"EIM", "ADM", "APDM"}
var filteringNames = [...]string{"EIF", "ADF", "APDF"}

// A natKind is one of the nine NATs of RFC 4787.
type natKind struct{ mapping, filtering behaviour }

func (k natKind) String() string { return mappingNames[k.mapping] + "-" + filteringNames[k.filtering] }

func allNATs() (kinds []natKind) {
	for m := range addressAndPortDependent + 1 {
		for f := range addressAndPortDependent + 1 {
			kinds = append(kinds, natKind{m, f})
		}
	}
	return kinds
}

// A nat translates for the hosts behind it, with sessions: a reply to a packet that was let in leaves from the
// mapping that it came in by, as Linux does.
type nat struct {
	kind     natKind
	public   netip.Addr
	rng      *rand.Rand
	timeout  time.Duration // of a session
	mappings []*mapping
}

type mapping struct {
	inside   netip.AddrPort
	port     uint16
	key      netip.AddrPort // as much of the first destination as the mapping depends on
	sessions []session
}

type session struct {
	remote netip.AddrPort
	used   time.Time
}

func partOf(b behaviour, a netip.AddrPort) netip.AddrPort {
	switch b {
	case endpointIndependent:
		return netip.AddrPort{}
	case addressDependent:
		return netip.AddrPortFrom(a.Addr(), 0)
	}
	return a
}

// out translates the source of a packet from inside.
func (n *nat) out(now time.Time, inside, to netip.AddrPort) netip.AddrPort {
	n.expire(now)
	var m *mapping
	for _, x := range n.mappings {
		if x.inside == inside && x.session(to) != nil {
			m = x
			break
		}
	}
	key := partOf(n.kind.mapping, to)
	for _, x := range n.mappings {
		if m == nil && x.inside == inside && x.key == key {
			m = x
		}
	}
	if m == nil {
		m = &mapping{inside: inside, port: n.freePort(), key: key}
		n.mappings = append(n.mappings, m)
	}
	m.touch(now, to)
	return netip.AddrPortFrom(n.public, m.port)
}

// in finds who a packet from outside is for, if it is let in.
func (n *nat) in(now time.Time, port uint16, from netip.AddrPort) (netip.AddrPort, bool) {
	n.expire(now)
	for _, m := range n.mappings {
		if m.port != port {
			continue
		}
		for _, s := range m.sessions {
			if partOf(n.kind.filtering, s.remote) == partOf(n.kind.filtering, from) {
				m.touch(now, from)
				return m.inside, true
			}
		}
	}
	return netip.AddrPort{}, false
}

func (m *mapping) session(remote netip.AddrPort) *session {
	for i := range m.sessions {
		if m.sessions[i].remote == remote {
			return &m.sessions[i]
		}
	}
	return nil
}

func (m *mapping) touch(now time.Time, remote netip.AddrPort) {
	s := m.session(remote)
	if s == nil {
		m.sessions = append(m.sessions, session{remote: remote})
		s = &m.sessions[len(m.sessions)-1]
	}
	s.used = now
}

func (n *nat) expire(now time.Time) {
	kept := n.mappings[:0]
	for _, m := range n.mappings {
		live := m.sessions[:0]
		for _, s := range m.sessions {
			if now.Sub(s.used) <= n.timeout {
				live = append(live, s)
			}
		}
		if m.sessions = live; len(live) > 0 {
			kept = append(kept, m)
		}
	}
	n.mappings = kept
}

func (n *nat) freePort() uint16 {
	for {
		port := uint16(1024 + n.rng.IntN(1<<16-1024))
		taken := false
		for _, m := range n.mappings {
			taken = taken || m.port == port
		}
		if !taken {
			return port
		}
	}
}

// forget is what a NAT does when it is switched off and on.
func (n *nat) forget() { n.mappings = nil }

func (n *nat) String() string { return fmt.Sprintf("%v at %v", n.kind, n.public) }
