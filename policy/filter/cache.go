package filter

import (
	"encoding/binary"
	"math/bits"
	"time"

	"weft"
)

// cacheSlots is how many flows a cache tells apart, by a hash: more than are busy at a time on most machines.
const cacheSlots = 64

// A Cache knows the flows of the last packets that were allowed, so that the next of theirs costs a compare. It belongs to one
// goroutine and one policy: Reset it for another. The zero value is empty.
//
// What may change a flow (TCP's SYN, FIN and RST), fragments, options and extension headers are none of its; and each
// second a flow has to be judged anew, which also keeps it remembered.
type Cache struct {
	slots [cacheSlots]slot
	now   slot // of the packet that was asked for last
	able  bool
	at    uint
}

// A slot is a flow as a packet's bytes tell it.
type slot struct {
	addrs [4]uint64
	ports uint64 // protocol and version above them
	peer  weft.NodeID
	until time.Duration
}

// Reset forgets all.
func (c *Cache) Reset() { *c = Cache{} }

// Hit reports whether a packet from or to a peer is of a flow that was allowed.
func (c *Cache) Hit(b []byte, peer weft.NodeID, now time.Duration) bool {
	if c.able = c.read(b); !c.able {
		return false
	}
	s := &c.now
	hi, lo := bits.Mul64(s.addrs[0]^s.addrs[1]^s.ports^0x9e3779b97f4a7c15, s.addrs[2]^bits.RotateLeft64(s.addrs[3], 32)^0xbf58476d1ce4e5b9)
	c.at = uint(hi^lo) % cacheSlots
	x := &c.slots[c.at]
	return x.ports == s.ports && x.addrs == s.addrs && x.peer == peer && now < x.until
}

// Keep says that the packet that was asked for last is allowed.
func (c *Cache) Keep(peer weft.NodeID, now time.Duration) {
	if c.able {
		c.now.peer, c.now.until = peer, now+fresh
		c.slots[c.at] = c.now
	}
}

// read reads what tells the flow; false: the packet is not for the cache.
func (c *Cache) read(b []byte) bool {
	s := &c.now
	if len(b) < size4+8 {
		return false
	}
	at := size4
	switch proto := uint64(b[9]); {
	case b[0] == 0x45:
		if binary.BigEndian.Uint16(b[6:])&0x3fff != 0 {
			return false
		}
		s.addrs = [4]uint64{binary.LittleEndian.Uint64(b[12:])}
		s.ports = 4<<40 | proto<<32
	case b[0]>>4 == 6 && len(b) >= size6+8:
		at = size6
		s.addrs = [4]uint64{binary.LittleEndian.Uint64(b[8:]), binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:]), binary.LittleEndian.Uint64(b[32:])}
		s.ports = 6<<40 | uint64(b[6])<<32
	default:
		return false
	}
	s.ports |= uint64(binary.LittleEndian.Uint32(b[at:]))
	switch uint8(s.ports >> 32) {
	case weft.ProtoTCP:
		return len(b) >= at+20 && b[at+13]&(flagSYN|flagFIN|flagRST) == 0
	case weft.ProtoUDP:
		return true
	}
	return false
}
