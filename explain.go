package weft

import (
	"net/netip"
	"time"
)

// Explanation is the document of weft explain: how a peer is reached and why so, what was tried, and what would help.
type Explanation struct {
	Schema        int       `json:"schema_version"`
	Peer          string    `json:"peer"`
	Online        bool      `json:"online"` // as the coordinator says
	Path          PathKind  `json:"path"`
	Method        Method    `json:"method"`
	Endpoint      string    `json:"endpoint,omitempty"` // address of a direct path, name of the relay of another
	Link          string    `json:"link,omitempty"`     // as in PeerStatus
	Bond          string    `json:"bond,omitempty"`     // as in PeerStatus
	Carriers      []string  `json:"carriers,omitempty"` // likewise
	Since         time.Time `json:"since,omitzero"`     // this path is in use
	Reason        string    `json:"reason,omitempty"`   // it was chosen
	RTTms         float64   `json:"rtt_ms,omitempty"`
	Loss          float64   `json:"loss"`                      // 0..1, of data in the last seconds
	LastSeen      time.Time `json:"last_seen,omitzero"`        // any packet of the peer's
	DirectAfterMS float64   `json:"direct_after_ms,omitempty"` // as in PeerStatus
	// MTU is the longest packet that is sent by the path, in bytes.
	MTU int `json:"mtu,omitempty"`
	// OwnSocket is the port of the UDP socket that the path has to itself; 0: it shares the node's.
	OwnSocket uint16        `json:"own_socket,omitempty"`
	Self      ExplainedSide `json:"self"`
	Other     ExplainedSide `json:"other"`
	Ways      []WayStatus   `json:"ways"`     // that are known, best first
	Attempts  []WayAttempt  `json:"attempts"` // at a direct path, oldest first
	// NextAttempt is when a direct path, or a better one, is looked for again; absent: when something changes.
	NextAttempt time.Time `json:"next_attempt,omitzero"`
	// Blocked says in a sentence why there is no direct path; absent while there is one or none is looked for.
	Blocked string `json:"blocked,omitempty"`
	// Advice are sentences, each of what a person could do for a direct path.
	Advice []string `json:"advice"`
}

// An ExplainedSide is one end of the path.
type ExplainedSide struct {
	Name string `json:"name"`
	NAT  NAT    `json:"nat"` // towards the IPv4 internet, as far as it is known
	// Words say the same for people.
	Words      []string    `json:"words"`
	Candidates []Candidate `json:"candidates"` // where it says to be
	// Links are its NATs per link, of a node that has several; NAT is that of the first.
	Links []ExplainedLink `json:"links,omitempty"`
	// Attested are the addresses at which relays see the peer; empty for this node.
	Attested []netip.Addr `json:"attested,omitempty"`
}

// An ExplainedLink is one link of a side.
type ExplainedLink struct {
	Link      LinkID   `json:"link"`
	Interface string   `json:"interface,omitempty"` // of this node's
	NAT       NAT      `json:"nat"`
	Words     []string `json:"words"`
}

// A WayStatus is one way to a peer.
type WayStatus struct {
	Way      string    `json:"way"` // a method and where it leads
	Kind     string    `json:"kind,omitempty"`
	State    string    `json:"state"` // untested, valid or failed
	InUse    bool      `json:"in_use"`
	RTTms    float64   `json:"rtt_ms,omitempty"`
	Loss     float64   `json:"loss"`
	MTU      int       `json:"mtu,omitempty"` // the longest packet that it carries in bytes, where that is known
	LastSeen time.Time `json:"last_seen,omitzero"`
	Tries    int       `json:"tries,omitempty"` // without an answer
	Why      string    `json:"why,omitempty"`   // it failed
	Until    time.Time `json:"until,omitzero"`  // it is not used before
}

// A WayAttempt is one attempt at a direct path.
type WayAttempt struct {
	Way     string    `json:"way"`            // plain, spray or predict
	Role    string    `json:"role,omitempty"` // of this node in a spray: opener or prober
	At      time.Time `json:"at"`
	TookMS  float64   `json:"took_ms"`
	Packets int       `json:"packets"` // that this node sent
	Running bool      `json:"running"`
	Result  string    `json:"result"`
}

var (
	mappingWords = [...]string{
		MappingUnknown:                 "how its NAT maps ports is not known",
		NoNAT:                          "it has no NAT: others see its own address",
		EndpointIndependentMapping:     "its NAT shows one port to everybody (endpoint-independent mapping)",
		AddressDependentMapping:        "its NAT shows another port to each address (address-dependent mapping)",
		AddressAndPortDependentMapping: "its NAT shows another port to each destination (address and port-dependent mapping)",
	}
	filteringWords = [...]string{
		FilteringUnknown:                 "whom it lets in is not known",
		EndpointIndependentFiltering:     "anybody who knows the port is let in (endpoint-independent filtering)",
		AddressDependentFiltering:        "addresses that were written to are let in (address-dependent filtering)",
		AddressAndPortDependentFiltering: "only the very ports that were written to are let in (address and port-dependent filtering)",
	}
)

// Words say what the NAT does, each in a sentence's part, for people who do not know RFC 4787's terms.
func (n NAT) Words() []string {
	if n == (NAT{}) {
		return []string{"nothing is known of its NAT yet"}
	}
	words := []string{name(mappingWords[:], n.Mapping), name(filteringWords[:], n.Filtering)}
	switch n.Allocation {
	case PreservingAllocation:
		words = append(words, "it keeps a socket's own port where that is free")
	case SequentialAllocation:
		words = append(words, "it gives ports in a row, which can be predicted")
	case RandomAllocation:
		words = append(words, "it gives ports at random")
	}
	if n.Mapping == NoNAT {
		return words
	}
	switch n.Hairpin {
	case Supported:
		words = append(words, "nodes behind it reach each other by its outside address")
	case Unsupported:
		words = append(words, "nodes behind it do not reach each other by its outside address")
	}
	return words
}
