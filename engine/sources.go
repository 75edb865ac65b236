package engine

import (
	"encoding/binary"
	"net/netip"

	"weft"
)

// A source is whose the packets from somewhere are, and by which way they come. The zero source is nobody's.
type source struct {
	peer *peer
	way  *way
}

// source tells whose an underlay address is, and by which way it comes to a link.
func (e *Engine) source(link weft.LinkID, from netip.AddrPort) source {
	e.mu.RLock()
	src := e.sources[from]
	if link == 0 || src.peer == nil {
		e.mu.RUnlock()
		return src
	}
	via := weft.DirectVia(link, from)
	w := src.peer.find(via)
	e.mu.RUnlock()
	if w == nil {
		e.mu.Lock()
		w = e.way(src.peer, via)
		e.mu.Unlock()
	}
	return source{src.peer, w}
}

// A sourceMemory is what an opener has found out about where packets come from. With many peers packets take turns, and each would
// cost a lock that the others' openers have, too, and a search in a map of all peers. It is a table in which an address has one place,
// that of the last that came. The zero value remembers nothing; one goroutine at a time may use it.
type sourceMemory [remembered]foundSource

// A foundSource is as long as a line of the cache.
type foundSource struct {
	from   netip.AddrPort
	by     uint64 // Engine.sourced of when it was found, and one more: zero is never
	source source
	link   weft.LinkID
}

// source is Engine.source.
func (m *sourceMemory) source(e *Engine, link weft.LinkID, from netip.AddrPort) source {
	by := e.sourced.Load() + 1 // before it is looked up: what changes meanwhile makes it old
	x := m.place(from)
	if x.by != by || x.link != link || x.from != from {
		*x = foundSource{from: from, by: by, source: e.source(link, from), link: link}
	}
	return x.source
}

// place is an address's.
func (m *sourceMemory) place(from netip.AddrPort) *foundSource {
	last := from.Addr().As16()
	return &m[spread(binary.BigEndian.Uint64(last[8:])^uint64(from.Port())<<32)]
}
