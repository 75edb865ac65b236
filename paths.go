package weft

import (
	"net/netip"
	"time"
)

// Paths is the document of weft paths: the ways to a peer that work or did, how each does, and what became of them.
type Paths struct {
	Schema int          `json:"schema_version"`
	Peer   string       `json:"peer"`
	Online bool         `json:"online"` // as the coordinator says
	Bond   BondStatus   `json:"bond"`
	Paths  []PathStatus `json:"paths"` // lowest metric first
	// Untested is how many more ways have been tried and have not answered: weft explain lists them.
	Untested int         `json:"untested"`
	Events   []PathEvent `json:"events"` // changes of the paths' states, oldest first; as far back as is remembered
}

// BondStatus is what is done with several paths at once.
type BondStatus struct {
	On         bool     `json:"on"`
	Why        string   `json:"why,omitempty"` // it is not on
	Mode       string   `json:"mode"`          // that is set: aggregate, redundant or off
	Congestion string   `json:"congestion"`    // control on each path
	Redundant  []string `json:"redundant"`     // rules of what goes by two paths where the mode is aggregate, too
	// QueuePackets and QueueBytes wait in front of all paths.
	QueuePackets int          `json:"queue_packets"`
	QueueBytes   int          `json:"queue_bytes"`
	Received     BondReceived `json:"received"`
}

// BondReceived is how what comes from the peer, by several paths, was put in order.
type BondReceived struct {
	Delivered  uint64 `json:"delivered"` // packets
	Held       uint64 `json:"held"`      // of them, that waited for an earlier one
	HeldBytes  int    `json:"held_bytes"`
	Reordered  uint64 `json:"reordered"` // delivered after a later one
	Late       uint64 `json:"late"`      // came when they were no longer waited for
	Duplicates uint64 `json:"duplicates"`
	// GapsPassed and GapsTimedOut count what was no longer waited for: since all paths had passed it, or for the time it took.
	GapsPassed   uint64 `json:"gaps_passed"`
	GapsTimedOut uint64 `json:"gaps_timed_out"`
}

// A PathStatus is one way to a peer, in use or not.
type PathStatus struct {
	Link   string         `json:"link,omitempty"`   // interface that it leaves by, where there are several links
	Local  netip.AddrPort `json:"local,omitzero"`   // of this machine
	Remote string         `json:"remote"`           // address that it leads to, or the relay's name
	Method Method         `json:"method"`           // direct, direct-tcp, relay-udp or relay-stream
	Kind   string         `json:"kind,omitempty"`   // of the address: host, portmap, static, srflx or prflx
	State  PathState      `json:"state"`            //
	Reason string         `json:"reason,omitempty"` // of the state
	Metric int            `json:"metric"`           // one with a higher metric carries data only when none with a lower one lives
	Load   PathLoad       `json:"load"`
	Bonded BondedPath     `json:"bonded,omitzero"` // absent: it has no part in a bond
	RTTms  float64        `json:"rtt_ms,omitempty"`
	Loss   float64        `json:"loss"`          // 0..1, of data lately
	MTU    int            `json:"mtu,omitempty"` // the longest packet that it carries in bytes, where that is known
	// LastSeen is the last packet that came by it of those that paths are judged by.
	LastSeen time.Time `json:"last_seen,omitzero"`
}

// PathLoad is what goes by a path.
type PathLoad struct {
	Share     float64 `json:"share"`              // 0..1, of what is sent to the peer
	TxRate    float64 `json:"tx_bits_per_second"` // as of the last second or two
	RxRate    float64 `json:"rx_bits_per_second"`
	TxBytes   uint64  `json:"tx_bytes"`
	RxBytes   uint64  `json:"rx_bytes"`
	TxPackets uint64  `json:"tx_packets"`
	RxPackets uint64  `json:"rx_packets"`
}

// BondedPath is what a bond knows of one of its paths.
type BondedPath struct {
	Rate     float64 `json:"delivered_bits_per_second"` // the most that it was seen to deliver lately
	MinRTTms float64 `json:"min_rtt_ms,omitempty"`
	InFlight int     `json:"in_flight_bytes"`
	Window   int     `json:"window_bytes"`  // that may be in flight
	Lost     uint64  `json:"lost_packets"`  // by it
	Again    uint64  `json:"again_packets"` // sent by it since others had lost them
}

// A PathState says what a path is good for.
type PathState string

// The states of a path.
const (
	PathInUse     PathState = "in use"    // it carries the data, alone
	PathReady     PathState = "ready"     // it works, and waits for its turn
	PathUntested  PathState = "untested"  // it has not answered yet
	PathFailed    PathState = "failed"    // it fell silent, or lost data; it has to prove itself anew
	PathActive    PathState = "active"    // it carries its share of the data
	PathStandby   PathState = "standby"   // it works, and one with a lower metric carries the data
	PathSilent    PathState = "silent"    // what is sent by it does not arrive; it carries nothing
	PathReturning PathState = "returning" // it is back, and what it carries goes by another as well
	PathGone      PathState = "gone"      // of an event: it is no way any more
	PathBonded    PathState = "bonded"    // of an event: it is one of those that data may go by at once
)

// A PathEvent is one change of a path's state.
type PathEvent struct {
	At     time.Time `json:"at"`
	Path   string    `json:"path"` // a method, where it leads, and by which interface
	From   PathState `json:"from"`
	To     PathState `json:"to"`
	Reason string    `json:"reason"`
}
