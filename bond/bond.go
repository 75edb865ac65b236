// Package bond makes one network of many paths to a peer. It is pure: it has no sockets and no clock.
package bond

import (
	"fmt"
	"time"
)

// DefaultMemory is how many bytes of copies a Sender keeps at most: 600 Mbit/s for 110 ms.
const DefaultMemory = 8 << 20

// A Path is a way to the peer as whoever probes it knows it.
type Path struct {
	ID       PathID
	Metric   int           // one with a higher metric carries data only when none with a lower one is alive
	RTT      time.Duration // by probes; 0: unknown
	Overhead int           // bytes around each message outside: IP, UDP, a relay's prefix
}

// A State says what a path is used for.
type State uint8

// The states.
const (
	Active    State = iota // it carries data
	Standby                // it lives, and one with a lower metric carries the data
	Silent                 // what is sent by it does not arrive; it carries nothing
	Returning              // it is back: what it carries goes by another path as well
)

var stateNames = [...]string{"active", "standby", "silent", "returning"}

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state %d", s)
}

// A PathStatus is how a path does.
type PathStatus struct {
	ID          PathID
	State       State
	Reason      string // for State
	Metric      int
	RTT, MinRTT time.Duration // smoothed, and the least of the last ten seconds; 0: unknown
	Rate        float64       // bytes/s delivered, windowed maximum
	Loss        float64       // share of packets, smoothed
	InFlight    int           // bytes
	Window      int           // bytes that may be in flight

	SentPackets, SentBytes    uint64
	LostPackets, AgainPackets uint64  // lost by this path; sent again by this path
	Share                     float64 // of the bytes that all paths carried lately
}

// An Event is a change of a path's state.
type Event struct {
	At       time.Duration
	Path     PathID
	From, To State
	Reason   string // one sentence for people
}
