package host

const (
	// SlabPackets is how many packets a [Slab] has room for.
	SlabPackets = UDPBatch
	// slabStride sets rooms apart: for the longest packet with what is in front of it and behind, and an odd number of cache
	// lines more, so that the beginnings of all are not in one set of the cache.
	slabStride = 1<<16 + 33*64
)

// A Slab is room for many of the longest packets, 2 MiB, of which memory is taken as far as something was written to it: for
// those who have to be ready for more and longer packets than mostly come.
type Slab []byte

// Room is the place of one packet, from 0: 64 KiB and 2 KiB more.
func (s Slab) Room(i int) []byte { return s[i*slabStride : (i+1)*slabStride : (i+1)*slabStride] }
