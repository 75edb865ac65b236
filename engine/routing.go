package engine

import (
	"encoding/binary"
	"net/netip"

	"weft/wireguard"
)

// A routing is cryptokey routing as of one setting of the peers. It stays as it is; the next one has the next number.
type routing struct {
	wireguard.Routes
	number uint64
}

// remembered is how many destinations a sender remembers, and how many addresses an opener: where it has many peers their packets take turns, and a search among a
// thousand prefixes goes through memory that a super-packet has pushed out of the core's cache.
const remembered = 256

// A memory is what a sender has looked up: a table in which an address has one place, that of the last that came. The zero value
// remembers nothing; one goroutine at a time may use it.
type memory struct {
	found [remembered]found // first, so that none of them lies in two lines of the cache
	of    *routing
}

type found struct {
	to   netip.Addr
	peer *peer // nil: it is nobody's
}

// lookup finds the peer to whom an address belongs; nil is none.
func (m *memory) lookup(r *routing, to netip.Addr) *peer {
	if m.of != r {
		m.of = r
		clear(m.found[:])
	}
	last := to.As16()
	x := &m.found[spread(binary.BigEndian.Uint64(last[8:]))]
	if x.to != to {
		x.to, x.peer = to, nil
		if wg := r.Lookup(to); wg != nil {
			x.peer, _ = wg.Owner.(*peer)
		}
	}
	return x.peer
}

// spread is one of as many places as are remembered. Numbers in a row have places of their own.
func spread(n uint64) uint8 {
	const golden = 0x9e3779b97f4a7c15
	return uint8(n * golden >> (64 - 8))
}
