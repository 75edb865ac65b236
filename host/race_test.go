//go:build race

package host

// raceDetector is on: what is handed to system calls then escapes, and so allocates.
const raceDetector = true
