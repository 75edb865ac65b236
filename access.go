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
	// DecidedBy is who decides it, where that is another node than the one that was asked: then nothing is known of rules.
	DecidedBy string `json:"decided_by,omitempty"`
	// Carrier is who passes packets on to ToAddr, where that is no member's own.
	Carrier Carrier `json:"carrier,omitzero"`
	// Refused is what From sent to this node and was not let in.
	Refused Refusal `json:"refused,omitzero"`
}

// A Carrier is a router or exit node, as far as an address is concerned that it speaks for.
type Carrier struct {
	Route    netip.Prefix `json:"route"` // the narrowest that the address is in
	By       string       `json:"by"`    // the node
	Approved bool         `json:"approved"`
	InUse    bool         `json:"in_use"`           // packets to the address go there now
	Beside   []string     `json:"beside,omitempty"` // others that speak for Route, and would take over
	Note     string       `json:"note,omitempty"`   // a sentence, where something is not as it seems
}

// Refusal is what a node did not let in from a peer.
type Refusal struct {
	Packets uint64 `json:"packets"`
	// Last is where the last one went that no rule allowed, as a PortRange says it, and At when.
	Last string    `json:"last,omitempty"`
	At   time.Time `json:"at,omitzero"`
}
