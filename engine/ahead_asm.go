//go:build amd64 || arm64

package engine

import "unsafe"

// near has the processor fetch the line of memory at p, and does not wait for it. It reads nothing.
//
//go:noescape
func near(p unsafe.Pointer)
