package relay

import (
	"bytes"
	"context"
	"net/netip"
	"sync"
	"time"

	"weft/host"
	"weft/key"
	"weft/wire"
)

// Verifying a ticket and agreeing on a box costs some 150 us, as much as forwarding a thousand datagrams in a
// run. It is done once per node and ticket, beside the goroutines that forward.
const (
	// maxWaiting is how many Binds wait to be verified at most: a sixth of a second's work. Nodes ask again.
	maxWaiting = 1024
	// maxPerSource is how many Binds per second of one address (IPv6: of one /64) get to be verified by all sockets
	// of a port: who has
	// an address, and so a cookie, but no ticket takes no more than a hundredth of a core. An office whose
	// machines start together is through in some seconds.
	maxPerSource = 64
	// sources is how many counters there are; addresses share them by chance.
	sources = 4096
)

// admissions are the Binds that wait to be verified.
type admissions struct {
	waiting chan bind

	mu      sync.Mutex
	sockets []*host.UDPSocket
}

// bind is a Bind with a good cookie, from a node that is not known, or not by this ticket.
type bind struct {
	frame  []byte
	from   netip.AddrPort
	local  netip.Addr
	socket *host.UDPSocket
	issued uint64
}

func (a *admissions) init() { a.waiting = make(chan bind, maxWaiting) }

func (a *admissions) add(s *host.UDPSocket) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sockets = append(a.sockets, s)
}

func (a *admissions) known() []*host.UDPSocket {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sockets
}

// verify verifies what waits, until ctx ends.
func (s *Server) verify(ctx context.Context) {
	w := host.NewUDPWriter()
	var dest host.UDPDest
	for {
		select {
		case <-ctx.Done():
			return
		case b := <-s.slow.waiting:
			if reply := s.takeBind(nil, b); reply != nil {
				b.socket.SetDest(&dest, b.from, b.local)
				w.Add(&dest, reply, 0)
				w.Flush()
			}
		}
	}
}

// takeBind looks into a Bind whose cookie is good and adds the answer to dst; nil is none.
func (s *Server) takeBind(dst []byte, b bind) []byte {
	f, err := wire.ParseBind(b.frame)
	if err != nil {
		return nil
	}
	a, why := s.examine(f.Ticket, f.Proves)
	if why == wire.RefusedNot {
		why = s.stand(a, b)
	}
	if why != wire.RefusedNot {
		s.count.refused.Add(1)
		return wire.AppendRefused(dst, f.Nonce, why)
	}
	return s.bound(dst, f.Nonce, a, b.from)
}

// examine verifies a ticket, and by a proof that who brings it holds its node's key.
func (s *Server) examine(raw []byte, proves func(key.Box) bool) (*admission, wire.Refusal) {
	t, guest, why := s.readTicket(raw)
	if why != wire.RefusedNot {
		return nil, why
	}
	box, err := wire.RelayBox(s.key, t.Key)
	if err != nil || !proves(box) {
		return nil, wire.RefusedForged
	}
	return &admission{guest: guest, ticket: t, raw: [wire.TicketSize]byte(raw), box: box}, wire.RefusedNot
}

// stand puts an admitted node at the address of its Bind.
func (s *Server) stand(a *admission, b bind) wire.Refusal {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, why := s.admit(a)
	if why != wire.RefusedNot {
		return why
	}
	at := &binding{addr: b.from, local: b.local, socket: b.socket, issued: b.issued}
	b.socket.SetDest(&at.dest, b.from, b.local)
	at.ends.Store(int64(s.bindEnds(n.admission.Load())))
	if !s.bindUDP(n, at) {
		s.forget(n)
		return wire.RefusedForged
	}
	return wire.RefusedNot
}

// bindEnds says until when a Bind of now stands.
func (s *Server) bindEnds(a *admission) time.Duration { return min(s.now()+bindLifetime, a.ends(s)) }

func (s *Server) bound(dst []byte, nonce [8]byte, a *admission, at netip.AddrPort) []byte {
	s.count.binds.Add(1)
	return wire.AppendBound(dst, wire.Bound{Nonce: nonce, Lifetime: s.bindEnds(a) - s.now(), Observed: at}, a.box)
}

// renew renews the binding of a node whose ticket was verified before, or moves it. ok is false where the ticket
// is to be verified first.
func (s *Server) renew(dst []byte, f wire.Bind, b bind) (reply []byte, ok bool) {
	t, err := wire.ParseTicket(f.Ticket)
	if err != nil {
		s.count.refused.Add(1)
		return wire.AppendRefused(dst, f.Nonce, wire.RefusedForged), true
	}
	n := s.nodes.get(nodeName{network: t.Network, id: t.Node})
	if n == nil {
		return nil, false
	}
	a := n.admission.Load()
	if !bytes.Equal(a.raw[:], f.Ticket) || s.now() >= a.ends(s) {
		return nil, false // the one ends with the word for it
	}
	if !f.Proves(a.box) {
		return nil, true // neither is the sender told more than any stranger
	}
	if cur := n.udp.Load(); cur != nil && cur.addr == b.from && cur.local == b.local && cur.socket == b.socket {
		// The binding may be taken away at this moment; then this does not bring it back.
		if old := cur.ends.Load(); int64(s.now()) < old && cur.ends.CompareAndSwap(old, int64(s.bindEnds(a))) {
			return s.bound(dst, f.Nonce, a, b.from), true
		}
	}
	if why := s.stand(a, b); why != wire.RefusedNot {
		s.count.refused.Add(1)
		return wire.AppendRefused(dst, f.Nonce, why), true
	}
	return s.bound(dst, f.Nonce, a, b.from), true
}
