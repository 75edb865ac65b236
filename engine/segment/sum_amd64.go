package segment

import "golang.org/x/sys/cpu"

// wideSum says that sumBlocks may be used.
var wideSum = cpu.X86.HasAVX2

// sumBlocks adds up the 32-bit words of blocks of sumBlock bytes, at least one and at most a packet's.
//
//go:noescape
func sumBlocks(p *byte, blocks int) uint64
