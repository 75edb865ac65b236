package relay

import (
	"encoding/binary"
	"iter"
	"maps"
	"net/netip"
	"sync/atomic"
	"time"

	"weft"
	"weft/host"
	"weft/key"
	"weft/wire"
)

// shards is into how many maps a table is divided: what is copied when one entry comes or goes is a 256th.
const shards = 256

// table is a map that is read without a lock. Whoever changes it holds the server's.
type table[K comparable, V any] struct {
	maps  [shards]atomic.Pointer[map[K]V]
	shard func(K) uint8
	size  atomic.Int64
}

func (t *table[K, V]) get(k K) (v V) {
	if m := t.maps[t.shard(k)].Load(); m != nil {
		return (*m)[k]
	}
	return v
}

func (t *table[K, V]) set(k K, v V) {
	t.change(k, func(m map[K]V) { m[k] = v })
}

func (t *table[K, V]) delete(k K) {
	t.change(k, func(m map[K]V) { delete(m, k) })
}

func (t *table[K, V]) change(k K, f func(map[K]V)) {
	at := &t.maps[t.shard(k)]
	m, before := map[K]V{}, 0
	if old := at.Load(); old != nil {
		m, before = maps.Clone(*old), len(*old)
	}
	f(m)
	t.size.Add(int64(len(m) - before))
	at.Store(&m)
}

// all yields the entries as they are when their shard is reached; they may be changed meanwhile.
func (t *table[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for i := range t.maps {
			if m := t.maps[i].Load(); m != nil {
				for k, v := range *m {
					if !yield(k, v) {
						return
					}
				}
			}
		}
	}
}

// spread makes a shard's number of 64 bits (the multiplier is 2^64 divided by the golden ratio).
func spread(x uint64) uint8 { return uint8(x * 0x9E3779B97F4A7C15 >> 56) }

// A nodeName says which node is meant: NodeIDs are a network's own.
type nodeName struct {
	network [8]byte
	id      weft.NodeID
}

func (n nodeName) shard() uint8 { return spread(uint64(n.id)) }

type addrName netip.AddrPort

func (a addrName) shard() uint8 {
	ip := netip.AddrPort(a).Addr().As16()
	return spread(binary.BigEndian.Uint64(ip[:8]) ^ binary.BigEndian.Uint64(ip[8:])<<16 ^ uint64(netip.AddrPort(a).Port()))
}

// node is a node that is bound, in one way or both.
type node struct {
	name      nodeName
	guest     *guestNetwork // nil: of the relay's own network
	admission atomic.Pointer[admission]
	udp       atomic.Pointer[binding]
	stream    atomic.Pointer[session]
	locates   pace
	probes    pace
}

// admission is a ticket that was verified, and what follows from it. It is not changed.
type admission struct {
	guest  bool
	ticket wire.Ticket
	raw    [wire.TicketSize]byte
	box    key.Box
}

// ends says when the ticket does, on the server's own clock, by what the machine's clock says now: that may be
// set while the server runs.
func (a *admission) ends(s *Server) time.Duration {
	wall := s.clock()
	return wall.Sub(s.start) + a.ticket.NotAfter.Sub(wall)
}

// binding is a node at a UDP address.
type binding struct {
	node   *node
	addr   netip.AddrPort
	local  netip.Addr // address of ours that it was hit at
	socket *host.UDPSocket
	dest   host.UDPDest
	issued uint64       // when its cookie was made
	ends   atomic.Int64 // nanoseconds on the server's clock; 0: it is gone
}

// session returns the node's stream if its ticket still holds.
func (n *node) session(now time.Duration) *session {
	if ss := n.stream.Load(); ss != nil && int64(now) < ss.ends.Load() {
		return ss
	}
	return nil
}

func (n *node) binding(now time.Duration) *binding {
	if b := n.udp.Load(); b != nil && int64(now) < b.ends.Load() {
		return b
	}
	return nil
}

// admit finds or makes the node of a verified ticket. The server's lock is held.
func (s *Server) admit(a *admission) (*node, wire.Refusal) {
	name := nodeName{network: a.ticket.Network, id: a.ticket.Node}
	if !a.guest && s.revoked[name.id] {
		return nil, wire.RefusedRevoked
	}
	n := s.nodes.get(name)
	if n == nil {
		if int(s.nodes.size.Load()) >= s.limits.Nodes {
			return nil, wire.RefusedFull
		}
		n = &node{name: name}
		if a.guest {
			if why := s.guests.enter(n); why != wire.RefusedNot {
				return nil, why
			}
		}
		n.admission.Store(a)
		s.nodes.set(name, n)
		return n, wire.RefusedNot
	}
	if a.guest != (n.guest != nil) { // two networks of one name: never but by design
		return nil, wire.RefusedForged
	}
	switch old := n.admission.Load(); {
	case old.ticket.Key != a.ticket.Key:
		// The node has a new key. The later ticket is the newer one; what was admitted by the other goes.
		if a.ticket.NotAfter.Before(old.ticket.NotAfter) {
			return nil, wire.RefusedForged
		}
		s.unbind(n)
		if ss := n.stream.Swap(nil); ss != nil {
			ss.end(errReplaced)
		}
	case a.ticket.NotAfter.Before(old.ticket.NotAfter):
		return n, wire.RefusedNot // an older ticket of the same node: the later one stands
	}
	n.admission.Store(a)
	return n, wire.RefusedNot
}

// bindUDP puts a node at an address. It reports false for a cookie older than that of the address where the node
// is: the Bind is not newer than what is known. The server's lock is held.
func (s *Server) bindUDP(n *node, b *binding) bool {
	old := n.udp.Load()
	if old != nil && old.ends.Load() > int64(s.now()) && b.issued < old.issued && old.addr != b.addr {
		return false
	}
	// Who was at this address before is not any more: two nodes cannot be told apart there.
	if other := s.addrs.get(addrName(b.addr)); other != nil && other.node != n {
		s.unbind(other.node)
		s.forget(other.node)
	}
	s.unbind(n)
	b.node = n
	n.udp.Store(b)
	s.addrs.set(addrName(b.addr), b)
	return true
}

// unbind takes a node's UDP address away. The server's lock is held.
func (s *Server) unbind(n *node) {
	b := n.udp.Swap(nil)
	if b == nil {
		return
	}
	b.ends.Store(0)
	if s.addrs.get(addrName(b.addr)) == b {
		s.addrs.delete(addrName(b.addr))
	}
}

// drop removes a node. The server's lock is held.
func (s *Server) drop(n *node, why wire.Refusal) {
	s.unbind(n)
	if ss := n.stream.Swap(nil); ss != nil {
		ss.refuse(why)
	}
	s.strike(n)
}

// forget removes a node that is bound in no way any more. The server's lock is held.
func (s *Server) forget(n *node) {
	if n.udp.Load() == nil && n.stream.Load() == nil && s.nodes.get(n.name) == n {
		s.strike(n)
	}
}

// strike takes a node out of the table. The server's lock is held.
func (s *Server) strike(n *node) {
	if s.nodes.get(n.name) != n {
		return
	}
	s.nodes.delete(n.name)
	if n.guest != nil {
		s.guests.leave(n)
	}
}

// sweep takes out what has ended.
func (s *Server) sweep() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	for _, b := range s.addrs.all() {
		if int64(now) >= b.ends.Load() && b.node.udp.Load() == b {
			s.unbind(b.node)
			s.forget(b.node)
		}
	}
}
