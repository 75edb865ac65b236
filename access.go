package weft

import (
	"net/netip"
	"time"
)

// Access is the document of weft explain A B: whether one may begin something towards the other, as the node that decides it
// says.
type Access struct {
	Schema   int        `json:"schema_version"`
	From     string     `json:"from"`
	FromAddr netip.Addr `json:"from_addr"`
	To       string     `json:"to"`
	ToAddr   netip.Addr `json:"to_addr"`
	What     string     `json:"what,omitempty"` // as a PortRange says it; absent: whatever it is
	Allowed  bool       `json:"allowed"`        // without What: something is
	// Rules are those that allow it.
	Rules  []Rule `json:"rules"`
	Reason string `json:"reason"`
	// Refused is what From sent to this node and was not let in.
	Refused Refusal `json:"refused,omitzero"`
}

// Refusal is what a node did not let in from a peer.
type Refusal struct {
	Packets uint64 `json:"packets"`
	// Last is where the last one went that no rule allowed, as a PortRange says it, and At when.
	Last string    `json:"last,omitempty"`
	At   time.Time `json:"at,omitzero"`
}
