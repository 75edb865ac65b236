package engine

import (
	"fmt"
	"time"

	"weft"
	"weft/bond"
)

// A BondMode says what becomes of a peer's packets where there are several ways.
type BondMode uint8

// The modes.
const (
	BondOff       BondMode = iota // they go by the peer's route
	BondAggregate                 // each goes by one way, and all ways are used
	BondRedundant                 // each goes by two
)

var bondModes = [...]string{"off", "aggregate", "redundant"}

// String is the mode's name as settings have it.
func (m BondMode) String() string {
	if int(m) < len(bondModes) {
		return bondModes[m]
	}
	return fmt.Sprintf("mode %d", m)
}

// A Bond says how the packets of a peer go by several ways. The zero Bond is none.
type Bond struct {
	Mode    BondMode
	Control string     // of congestion, on each way: "" or "bbr", "cubic", "reno"
	Ways    []BondWay  // that live now; fewer than two: the peer's route alone
	Rules   []BondRule // packets that match one go by two ways, whatever Mode says
}

// A BondWay is one of a bond's ways.
type BondWay struct {
	Via    weft.Via
	Metric int           // one with a higher metric carries data only when none with a lower one lives
	RTT    time.Duration // by probes; 0: unknown
}

// A BondStatus tells how a bond does.
type BondStatus struct {
	On      bool
	Why     string // it is not on
	Mode    string
	Control string
	Ways    []BondWayStatus
	Events  []BondEvent // the last 64, oldest first
	// Receiver is of what comes from the peer, whether this end bonds or not.
	Receiver bond.ReceiverStats
	// What waits in front of all ways.
	QueuePackets, QueueBytes int
}

// A BondWayStatus is how one way does, and what has gone by it since it is known.
type BondWayStatus struct {
	Via weft.Via
	bond.PathStatus
}

// A BondEvent is a change of a way's state.
type BondEvent struct {
	At       time.Time
	Via      weft.Via
	From, To bond.State
	Reason   string
}

// keptEvents is how many changes are remembered for people.
const keptEvents = 64

// controls are the kinds of congestion control.
var controls = map[string]func() bond.Control{
	"bbr": bond.NewBBR, "cubic": bond.NewCubic, "reno": bond.NewReno,
}

// SetBond says by which ways a peer's packets go. A peer that is not known has none.
func (e *Engine) SetBond(id weft.NodeID, b Bond) {
	if p := e.peer(id); p != nil {
		e.bond(p, b)
	}
}

// BondStatus tells how the bond with a peer does.
func (e *Engine) BondStatus(id weft.NodeID) BondStatus {
	if p := e.peer(id); p != nil {
		return e.bondStatus(p)
	}
	return BondStatus{Why: "there is no such peer"}
}
