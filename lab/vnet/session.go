package vnet

import (
	"net/netip"
	"time"

	"weft"
)

// spoilTimeout is how long an unsolicited packet occupies its 5-tuple: Linux's nf_conntrack_udp_timeout, of flows
// that were never answered.
const spoilTimeout = 30 * time.Second

// maxSpoiled bounds what unsolicited packets occupy; the oldest go first. It is the least that Linux's conntrack
// table holds by default on a machine with a gigabyte or more.
const maxSpoiled = 1 << 16

// tick sets the time and lets go of what has expired.
func (n *NAT) tick(now time.Time) {
	if n.epoch.IsZero() {
		n.epoch = now
	}
	n.now = max(n.now, now.Sub(n.epoch))
	for s := n.order.next; s != &n.order && s.expires <= n.now; s = n.order.next {
		n.drop(s)
	}
	for n.spoils.len() > 0 && (n.spoils.first().expires <= n.now || n.spoils.len() > maxSpoiled) {
		e := n.spoils.pop()
		if n.spoiled[e.flow] == e.expires {
			delete(n.spoiled, e.flow)
		}
	}
}

// addSession adds one that ends with another, which let it in: a filter's opening is not prolonged by who comes in
// by it. Where there is no other, refresh gives it its time.
func (n *NAT) addSession(m *mapping, remote netip.AddrPort, like *session) *session {
	s := n.free.session()
	*s = session{m: m, remote: remote}
	if like != nil {
		s.expires = like.expires
		s.insert(like)
	} else {
		s.insert(n.order.prev)
	}
	n.sessions[sessionKey{m, remote}] = s
	m.sessions++
	if n.config.Filtering == weft.AddressDependentFiltering {
		k := permitKey{m, remote.Addr()}
		p := n.permits[k]
		if p == nil {
			p = n.free.permit()
			*p = permit{key: k, opens: n.now + n.config.OpensLate}
			n.permits[k] = p
		}
		p.sessions++
		s.permit = p
	}
	return s
}

// refresh puts off a session's end to a timeout from now.
func (n *NAT) refresh(s *session) {
	s.expires = n.now + n.config.Timeout
	s.m.latest = s
	if p := s.permit; p != nil {
		p.latest = s
	}
	if n.order.prev != s {
		s.remove()
		s.insert(n.order.prev)
	}
}

// drop ends a session, and its mapping with the last one.
func (n *NAT) drop(s *session) {
	m := s.m
	s.remove()
	delete(n.sessions, sessionKey{m, s.remote})
	if f := (flow{m.inside, s.remote}); n.replies[f] == s {
		delete(n.replies, f)
	}
	if p := s.permit; p != nil {
		if p.sessions--; p.sessions == 0 {
			delete(n.permits, p.key)
			n.free.putPermit(p)
		}
	}
	n.free.putSession(s)
	if m.sessions--; m.sessions == 0 {
		n.unmap(m)
	}
}

func (n *NAT) unmap(m *mapping) {
	delete(n.outside, m.outside)
	if !m.alone {
		delete(n.mapped, flow{m.inside, m.key})
	}
	if m.public >= 0 {
		n.used[m.public]--
	}
	if n.config.MaxPerHost > 0 {
		if a := m.inside.Addr(); n.perHost[a] > 1 {
			n.perHost[a]--
		} else {
			delete(n.perHost, a)
		}
	}
	n.free.putMapping(m)
}

func (s *session) insert(after *session) {
	s.prev, s.next = after, after.next
	s.prev.next, s.next.prev = s, s
}

func (s *session) remove() { s.prev.next, s.next.prev = s.next, s.prev }

// spoil lets an unsolicited packet occupy its 5-tuple.
func (n *NAT) spoil(outside, remote netip.AddrPort) {
	if !n.config.Spoils || !n.Owns(outside.Addr()) {
		return
	}
	f := flow{outside, remote}
	n.spoiled[f] = n.now + spoilTimeout
	n.spoils.push(spoilEntry{f, n.now + spoilTimeout})
}

func (n *NAT) isSpoiled(outside, remote netip.AddrPort) bool {
	if !n.config.Spoils {
		return false
	}
	_, ok := n.spoiled[flow{outside, remote}]
	return ok
}

// A spoilQueue is what unsolicited packets occupy, the oldest first.
type spoilQueue struct {
	entries []spoilEntry
	head    int
}

type spoilEntry struct {
	flow
	expires time.Duration
}

func (q *spoilQueue) len() int          { return len(q.entries) - q.head }
func (q *spoilQueue) first() spoilEntry { return q.entries[q.head] }

func (q *spoilQueue) push(e spoilEntry) {
	if q.head > 0 && q.head >= len(q.entries)/2 {
		q.entries = q.entries[:copy(q.entries, q.entries[q.head:])]
		q.head = 0
	}
	q.entries = append(q.entries, e)
}

func (q *spoilQueue) pop() spoilEntry {
	e := q.entries[q.head]
	q.head++
	return e
}

// freeLists keep what a NAT has let go of, so that a table in steady change allocates little.
type freeLists struct {
	mappings *mapping
	sessions *session
	permits  *permit
}

func (f *freeLists) mapping() *mapping {
	if m := f.mappings; m != nil {
		f.mappings = m.link
		return m
	}
	return new(mapping)
}

func (f *freeLists) putMapping(m *mapping) {
	*m = mapping{link: f.mappings}
	f.mappings = m
}

func (f *freeLists) session() *session {
	if s := f.sessions; s != nil {
		f.sessions = s.next
		return s
	}
	return new(session)
}

func (f *freeLists) putSession(s *session) {
	*s = session{next: f.sessions}
	f.sessions = s
}

func (f *freeLists) permit() *permit {
	if p := f.permits; p != nil {
		f.permits = p.link
		return p
	}
	return new(permit)
}

func (f *freeLists) putPermit(p *permit) {
	*p = permit{link: f.permits}
	f.permits = p
}
