//go:build !amd64

package segment

const wideSum = false

func sumBlocks(*byte, int) uint64 { panic("segment: there is no wide sum on this machine") }
