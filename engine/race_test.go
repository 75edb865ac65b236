//go:build race

package engine

// raceDetector is on: sync.Pool then loses things on purpose, and so allocates.
const raceDetector = true
