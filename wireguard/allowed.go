package wireguard

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
)

// Routes is cryptokey routing (section 2): which peer a destination belongs to, and a source must belong to. The most
// specific prefix that holds an address wins. The zero value routes nothing. Reading may be done by any number of
// threads while nobody changes it; who must change it under their eyes makes a new one.
type Routes struct{ four, six *route }

// A route is a node of a binary trie whose paths are compressed: below it are only prefixes that begin with its own.
type route struct {
	bits  [2]uint64 // the prefix, left-aligned; of IPv4 the first 32 bits
	n     uint8     // its length in bits
	peer  *Peer     // nil: a fork only
	child [2]*route
}

// Insert routes a prefix to a peer; one that had it before loses it. Host bits are ignored.
func (r *Routes) Insert(p netip.Prefix, peer *Peer) {
	if !p.IsValid() || peer == nil {
		return
	}
	at := &r.six
	if p.Addr().Unmap().Is4() {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-(p.Addr().BitLen()-32))
		if !p.IsValid() {
			return
		}
		at = &r.four
	}
	x := &route{bits: bitsOf(p.Masked().Addr()), n: uint8(p.Bits()), peer: peer}
	for {
		y := *at
		if y == nil {
			*at = x
			return
		}
		same := min(commonBits(x.bits, y.bits), x.n, y.n)
		switch {
		case same == y.n && same == x.n:
			y.peer = peer
			return
		case same == y.n: // below it
			at = &y.child[bit(x.bits, y.n)]
		case same == x.n: // above it
			x.child[bit(y.bits, x.n)] = y
			*at = x
			return
		default: // beside it
			fork := &route{bits: prefixOf(x.bits, same), n: same}
			fork.child[bit(x.bits, same)], fork.child[bit(y.bits, same)] = x, y
			*at = fork
			return
		}
	}
}

// Lookup finds the peer to whom an address belongs; nil is none. An IPv4 address in IPv6's form is nobody's: there are none
// on a network (RFC 4038, section 4.2), and packets with one are not IPv4's.
func (r *Routes) Lookup(a netip.Addr) (peer *Peer) {
	x := r.six
	if a.Is4() {
		x = r.four
	}
	if x == nil {
		return nil
	}
	want, length := bitsOf(a), uint8(a.BitLen())
	for x != nil && commonBits(want, x.bits) >= x.n {
		if x.peer != nil {
			peer = x.peer
		}
		if x.n == length {
			break
		}
		x = x.child[bit(want, x.n)]
	}
	return peer
}

// Bits is the length of the prefix by which Lookup finds an address's peer; -1 where it finds none.
func (r *Routes) Bits(a netip.Addr) int {
	x, found := r.six, -1
	if a.Is4() {
		x = r.four
	}
	want := bitsOf(a)
	for x != nil && commonBits(want, x.bits) >= x.n {
		if x.peer != nil {
			found = int(x.n)
		}
		if int(x.n) == a.BitLen() {
			break
		}
		x = x.child[bit(want, x.n)]
	}
	return found
}

func bitsOf(a netip.Addr) (b [2]uint64) {
	if a.Is4() {
		four := a.As4()
		b[0] = uint64(binary.BigEndian.Uint32(four[:])) << 32
		return b
	}
	six := a.As16()
	b[0], b[1] = binary.BigEndian.Uint64(six[:]), binary.BigEndian.Uint64(six[8:])
	return b
}

// commonBits is how many leading bits are the same.
func commonBits(a, b [2]uint64) uint8 {
	if x := a[0] ^ b[0]; x != 0 {
		return uint8(bits.LeadingZeros64(x))
	}
	return 64 + uint8(bits.LeadingZeros64(a[1]^b[1]))
}

// bit is the n-th bit, from 0.
func bit(b [2]uint64, n uint8) int { return int(b[n/64]>>(63-n%64)) & 1 }

func prefixOf(b [2]uint64, n uint8) [2]uint64 {
	if n < 64 {
		return [2]uint64{b[0] &^ (1<<(64-n) - 1), 0}
	}
	return [2]uint64{b[0], b[1] &^ (1<<(128-uint(n)) - 1)}
}
