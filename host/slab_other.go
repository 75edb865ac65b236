//go:build !linux

package host

// TakeSlab makes a slab.
func TakeSlab() Slab { return make(Slab, SlabPackets*slabStride) }

// Give does nothing: the collector takes it.
func (s Slab) Give() {}
