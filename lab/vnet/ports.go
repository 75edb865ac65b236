package vnet

import (
	"net/netip"

	"weft"
)

// allocate finds an outside endpoint for a new mapping of src, whose first packet goes to dst and which depends on
// key of it.
func (n *NAT) allocate(src, key, dst netip.AddrPort) (outside netip.AddrPort, public int, ok bool) {
	c := &n.config
	if c.Mapping == weft.NoNAT {
		return src, -1, true
	}
	if c.Pooling == PairedPooling {
		public = int(n.hash(src.Addr(), 0, netip.AddrPort{}) % uint64(len(c.Public)))
		outside, ok = n.allocateAt(public, src, dst)
		return outside, public, ok
	}
	first := int(n.hash(src.Addr(), src.Port(), key) % uint64(len(c.Public)))
	for i := range c.Public {
		public = (first + i) % len(c.Public)
		if outside, ok = n.allocateAt(public, src, dst); ok {
			return outside, public, true
		}
	}
	return outside, -1, false
}

func (n *NAT) allocateAt(public int, src, dst netip.AddrPort) (netip.AddrPort, bool) {
	var port uint16
	ok := false
	switch n.config.Allocation {
	case weft.PreservingAllocation:
		if port = src.Port(); port != 0 && n.isFree(public, port, dst) {
			ok = true
			break
		}
		port, ok = n.randomPort(public, dst)
	case weft.SequentialAllocation:
		port, ok = n.nextPort(public, dst)
	default:
		port, ok = n.randomPort(public, dst)
	}
	return netip.AddrPortFrom(n.config.Public[public], port), ok
}

// otherPort is a free port for a mapping that moves; it has one already, so that one is never found.
func (n *NAT) otherPort(public int, dst netip.AddrPort) (uint16, bool) {
	if n.config.Allocation == weft.SequentialAllocation {
		return n.nextPort(public, dst)
	}
	return n.randomPort(public, dst)
}

func (n *NAT) isFree(public int, port uint16, dst netip.AddrPort) bool {
	outside := netip.AddrPortFrom(n.config.Public[public], port)
	return n.outside[outside] == nil && !n.isSpoiled(outside, dst)
}

// randomTries is how many random ports are tried before the next free one is taken: at nine of ten ports in use,
// that many fail for one mapping in five.
const randomTries = 16

func (n *NAT) randomPort(public int, dst netip.AddrPort) (uint16, bool) {
	if n.used[public] >= portCount {
		return 0, false
	}
	var port uint16
	for range randomTries {
		port = uint16(lowestPort + n.rng.IntN(portCount))
		if n.isFree(public, port, dst) {
			return port, true
		}
	}
	return n.search(public, port, 1, dst)
}

// nextPort is the last one's, and a step; and further steps where that is taken.
func (n *NAT) nextPort(public int, dst netip.AddrPort) (port uint16, ok bool) {
	if n.used[public] >= portCount {
		return 0, false
	}
	step := int(n.config.Step)
	if port, ok = n.search(public, n.next[public], step, dst); !ok {
		port, ok = n.search(public, n.next[public], 1, dst) // the steps come by some ports only
	}
	if ok {
		n.next[public] = stepFrom(port, step)
	}
	return port, ok
}

// search tries ports from one on, by steps, until they come round.
func (n *NAT) search(public int, port uint16, step int, dst netip.AddrPort) (uint16, bool) {
	for range portCount {
		if n.isFree(public, port, dst) {
			return port, true
		}
		port = stepFrom(port, step)
	}
	return 0, false
}

// stepFrom is a step from a port, around the range that is allocated.
func stepFrom(port uint16, step int) uint16 {
	p := (int(port) - lowestPort + step) % portCount
	if p < 0 {
		p += portCount
	}
	return uint16(lowestPort + p)
}

// hash mixes an inside endpoint and a part of a destination with the seed (FNV-1a, then a finalizer, for its low
// bits choose).
func (n *NAT) hash(a netip.Addr, port uint16, key netip.AddrPort) uint64 {
	const prime = 1099511628211
	h := uint64(14695981039346656037) ^ n.config.Seed
	add := func(b byte) { h = (h ^ uint64(b)) * prime }
	for _, e := range [2]netip.AddrPort{netip.AddrPortFrom(a, port), key} {
		if e.Addr().IsValid() {
			for _, b := range e.Addr().As16() {
				add(b)
			}
		}
		add(byte(e.Port() >> 8))
		add(byte(e.Port()))
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	h ^= h >> 33
	return h
}
