package engine

import (
	"net/netip"
	"unsafe"

	"weft/engine/queue"
	"weft/host"
	"weft/wireguard"
)

// What the engine keeps of a peer, its session and its way lies in some fifteen lines of memory. Where many peers take turns with super-packets,
// each peer's are out of the core's own cache when its turn comes, and the code that needs them would wait for one after the other. So all that
// is worked on next is gone through first, and their lines are asked for together, pointers before what they point to.

// line64 is the length of a line of the cache in bytes, or of half of one.
const line64 = 64

// nearKeys are those of a session: what is kept of it for the protocol, and of the cipher in one direction.
func nearKeys(s *session, cipher unsafe.Pointer) {
	near(unsafe.Pointer(s.Session))
	near(unsafe.Add(unsafe.Pointer(s.Session), line64))
	near(cipher)
}

// ahead asks for what messages that were received will need.
func (o *opener) ahead(reads []host.UDPRead) {
	var found [host.UDPBatch]*session
	n, last := 0, uint32(0)
	for i := range reads {
		m := &reads[i]
		index, _, ok := wireguard.Transport(m.Data)
		if !ok || n == len(found) || n > 0 && index == last {
			continue
		}
		o.sources.ahead(m.From)
		if s := o.e.sessions.find(index); s != nil && s != o.session { // its index is in its first line
			near(unsafe.Pointer(&s.window))
			near(unsafe.Pointer(&s.next))
			found[n] = s
			n, last = n+1, index
		}
	}
	for _, s := range found[:n] {
		p := s.peer
		nearKeys(s, s.receives)
		near(unsafe.Pointer(p))
		near(unsafe.Pointer(&p.lastData))
	}
	for _, s := range found[:n] {
		if w := s.peer.route.Load(); w != nil {
			near(unsafe.Pointer(w))
			near(unsafe.Pointer(&w.rxBytes))
		}
	}
}

// ahead asks for what is remembered of an address.
func (m *sourceMemory) ahead(from netip.AddrPort) { near(unsafe.Pointer(m.place(from))) }

// ahead asks for what packets will need whose turn it is.
func (o *sender) ahead(next []queue.Item[*parcel]) {
	var others [host.UDPBatch]*peer
	n := 0
	for i := range next {
		p := next[i].Value.peer
		if n == len(others) || i > 0 && p == next[i-1].Value.peer {
			continue
		}
		near(unsafe.Pointer(p))
		near(unsafe.Pointer(&p.lastData))
		others[n] = p
		n++
	}
	if n < 2 {
		return // its packets need it at once
	}
	for _, p := range others[:n] {
		if s := p.current.Load(); s != nil {
			near(unsafe.Pointer(s))
			near(unsafe.Pointer(&s.next))
		}
		if w := p.route.Load(); w != nil {
			near(unsafe.Pointer(w))
			near(unsafe.Pointer(&w.txBytes))
		}
	}
	for _, p := range others[:n] {
		if s := p.current.Load(); s != nil {
			nearKeys(s, s.sends)
		}
		if w := p.route.Load(); w != nil {
			if d := w.dest.Load(); d != nil {
				near(unsafe.Pointer(d))
				near(unsafe.Pointer(d.to))
				near(unsafe.Add(unsafe.Pointer(d.to), line64))
			}
		}
	}
}
