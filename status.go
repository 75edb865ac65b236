package weft

import (
	"net/netip"
	"time"
)

// SchemaVersion is the version of every document that --json prints and the local API answers with. It grows
// when a field changes its meaning or goes; fields are added without. With 2 a node of `weft admin node list` has no more
// "expired" but a "standing", of which that is one.
const SchemaVersion = 2

// A DaemonState is where the daemon stands.
type DaemonState string

// The states of the daemon.
const (
	NeedsJoin   DaemonState = "needs-join"    // it has no network: weft up TOKEN
	NeedsSignIn DaemonState = "needs-sign-in" // somebody has to sign in: Status.SignIn says where
	Stopped     DaemonState = "stopped"       // it has one, and weft down was said
	Starting    DaemonState = "starting"      // no map yet
	Running     DaemonState = "running"
	Refused     DaemonState = "refused" // the server refuses this node for good; Status.Problems says why
)

// Status is the document of weft status.
type Status struct {
	Schema  int          `json:"schema_version"`
	Version string       `json:"version"`
	State   DaemonState  `json:"state"`
	Self    SelfStatus   `json:"self"`
	Server  ServerStatus `json:"server"`
	Peers   []PeerStatus `json:"peers"`
	// Routes are the networks behind other nodes that this one reaches, and through whom.
	Routes []RouteStatus `json:"routes,omitempty"`
	// Problems are sentences for the person in charge, worst first; empty when all is well.
	Problems []string `json:"problems"`
	// Notes are sentences about what is as it should be, and may surprise.
	Notes []string `json:"notes,omitempty"`
	// SignIn is set while somebody has to sign in for this machine.
	SignIn SignInStatus `json:"sign_in,omitzero"`
}

// SignInStatus is where somebody signs in for a machine, until when, and the code that the page has to show.
type SignInStatus struct {
	URL   string    `json:"url"`
	Code  string    `json:"code"`
	Until time.Time `json:"until"`
}

// RouteStatus is a network behind other nodes.
type RouteStatus struct {
	Route  netip.Prefix `json:"route"`            // 0.0.0.0/0 and ::/0: everything, through the exit node
	By     string       `json:"by"`               // the node that packets to it go to
	Beside []string     `json:"beside,omitempty"` // others that speak for it, and would take over
	Note   string       `json:"note,omitempty"`   // a sentence, where something is not as it seems
}

// SelfStatus is this node.
type SelfStatus struct {
	ID         NodeID        `json:"id"`
	Name       string        `json:"name"`
	FQDN       string        `json:"fqdn"`
	Key        string        `json:"key"`
	Addrs      []netip.Addr  `json:"addrs"`
	Candidates []Candidate   `json:"candidates"`
	Interface  string        `json:"interface,omitempty"` // the TUN's name; empty in userspace mode
	Userspace  bool          `json:"userspace"`
	Proxy      string        `json:"proxy,omitempty"` // host:port of the SOCKS5 and HTTP proxy in userspace mode
	Port       uint16        `json:"port"`            // of the UDP sockets
	Links      []LinkStatus  `json:"links,omitempty"` // where there are several; else everything leaves as the routes say
	Relays     []RelayStatus `json:"relays"`
	DNS        string        `json:"dns"` // how names are wired in: resolved, resolvconf, resolv.conf, off
	MTU        int           `json:"mtu"`
	Offload    OffloadStatus `json:"offload"`
	// Refused counts the packets that the policy stopped, by reason.
	Refused map[string]uint64 `json:"refused,omitempty"`
	Expires time.Time         `json:"expires,omitzero"`
	// Advertised are the networks that this node offers to speak for, Routes those that it does: they are approved, too.
	Advertised []netip.Prefix `json:"advertised,omitempty"`
	Routes     []netip.Prefix `json:"routes,omitempty"`
	ExitNode   string         `json:"exit_node,omitempty"` // through which this machine leaves
}

// OffloadStatus is what the system does in super-packets of many segments. What is missing is done one by one, and slower.
type OffloadStatus struct {
	InterfaceTCP bool `json:"interface_tcp"` // at the overlay's interface
	InterfaceUDP bool `json:"interface_udp"` // Linux 6.2
	Send         bool `json:"send"`          // at the UDP sockets: not by kernels that damage it, nor once a network card refused it
	Receive      bool `json:"receive"`
}

// LinkStatus is one of the node's links.
type LinkStatus struct {
	ID        LinkID `json:"link"`
	Interface string `json:"interface"`
	Port      uint16 `json:"port"` // of its UDP sockets
	NAT       NAT    `json:"nat"`  // between it and the IPv4 internet, as far as it is known
}

// ServerStatus is the node's connection to the coordinator.
type ServerStatus struct {
	URL       string    `json:"url"`
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"` // of Connected's last change
	Transport string    `json:"transport,omitempty"`
	Error     string    `json:"error,omitempty"` // why it is not connected
	MapAge    float64   `json:"map_age_seconds"` // since the map was last heard of
}

// RelayStatus is one of the network's relays as this node sees it.
type RelayStatus struct {
	ID     RelayID        `json:"id"`
	Name   string         `json:"name"`
	UDP    bool           `json:"udp"`    // bound over UDP
	Stream bool           `json:"stream"` // stream is up
	Addr   netip.AddrPort `json:"addr,omitzero"`
	RTTms  float64        `json:"rtt_ms,omitempty"`
	Error  string         `json:"error,omitempty"`
}

// PathKind is what a person wants to know of a path first.
type PathKind string

// The kinds of path.
const (
	PathDirect PathKind = "direct"
	PathRelay  PathKind = "relay"
	PathNone   PathKind = "none"
)

// Kind sums a method up.
func (m Method) Kind() PathKind {
	switch {
	case m == Direct || m == DirectTCP:
		return PathDirect
	case m.Relayed():
		return PathRelay
	}
	return PathNone
}

// PeerStatus is one peer as this node sees it.
type PeerStatus struct {
	ID       NodeID       `json:"id"`
	Name     string       `json:"name"`
	Addrs    []netip.Addr `json:"addrs"`
	User     string       `json:"user,omitempty"`
	Tags     []string     `json:"tags,omitempty"`
	Online   bool         `json:"online"` // as the coordinator says
	Path     PathKind     `json:"path"`
	Method   Method       `json:"method"`
	Endpoint string       `json:"endpoint,omitempty"` // address of a direct path, name of the relay of another
	Link     string       `json:"link,omitempty"`     // interface that a direct path leaves by, where there are several links
	// Bond is, while several paths are used at once, how: aggregate or redundant; Carriers are what they leave by. Path and
	// what else is said of it are then of the one that is best for small and urgent things.
	Bond     string   `json:"bond,omitempty"`
	Carriers []string `json:"carriers,omitempty"`
	RTTms    float64  `json:"rtt_ms,omitempty"`
	Loss     float64  `json:"loss"` // 0..1, of data in the last seconds
	// MTU is the longest packet that is sent by the path, in bytes.
	MTU int `json:"mtu,omitempty"`
	// Gateway is, of a peer that speaks plain WireGuard, the name of the node that its tunnel leads to. Elsewhere than there,
	// the way is the way to that node.
	Gateway string `json:"gateway,omitempty"`
	RxBytes uint64 `json:"rx_bytes"`
	TxBytes uint64 `json:"tx_bytes"`
	// Refused is what came from it and was not let in; absent: nothing.
	Refused Refusal `json:"refused,omitzero"`
	// LastHandshake is WireGuard's; LastSeen is the last packet of any kind.
	LastHandshake time.Time `json:"last_handshake,omitzero"`
	LastSeen      time.Time `json:"last_seen,omitzero"`
	// DirectAfterMS is how long after both were up the first direct path was in use; 0: not yet.
	DirectAfterMS float64      `json:"direct_after_ms,omitempty"`
	Reason        string       `json:"reason,omitempty"` // of the last change of path
	Switches      []PathSwitch `json:"switches,omitempty"`
}

// A PathSwitch is one change of the path in use.
type PathSwitch struct {
	At     time.Time `json:"at"`
	From   string    `json:"from"`
	To     string    `json:"to"`
	Reason string    `json:"reason"`
}

// PingReply is one line of weft ping: either a reply or why there was none.
type PingReply struct {
	Schema   int      `json:"schema_version"`
	Peer     string   `json:"peer"`
	Seq      int      `json:"seq"`
	Path     PathKind `json:"path"`
	Method   Method   `json:"method"`
	Endpoint string   `json:"endpoint,omitempty"`
	RTTms    float64  `json:"rtt_ms,omitempty"`
	Error    string   `json:"error,omitempty"`
}

// Netcheck is the document of weft netcheck.
type Netcheck struct {
	Schema    int             `json:"schema_version"`
	UDP       bool            `json:"udp"` // any STUN answer at all
	IPv4      NetcheckFamily  `json:"ipv4"`
	IPv6      NetcheckFamily  `json:"ipv6"`
	Relays    []NetcheckRelay `json:"relays"`
	Interface []string        `json:"interfaces"`
	Problems  []string        `json:"problems"`
	// Links are the same per link, where there are several: IPv4 and IPv6 above are those of the first.
	Links []NetcheckLink `json:"links,omitempty"`
}

// NetcheckLink is what STUN says by one link.
type NetcheckLink struct {
	Link      LinkID         `json:"link"`
	Interface string         `json:"interface"`
	IPv4      NetcheckFamily `json:"ipv4"`
	IPv6      NetcheckFamily `json:"ipv6"`
}

// NetcheckFamily is what STUN says of one address family.
type NetcheckFamily struct {
	Works     bool           `json:"works"`
	Mapped    netip.AddrPort `json:"mapped,omitzero"`
	Mapping   string         `json:"mapping"`   // RFC 4787's words, or "unknown"
	Filtering string         `json:"filtering"` // likewise
	// NAT has both again, in the words that nodes tell each other, and what else is known.
	NAT NAT `json:"nat"`
	// Outside are the addresses that servers see of this machine: several at a time, if the NAT pools them
	// arbitrarily.
	Outside []netip.Addr `json:"outside"`
	// Prospects are sentences on what all that means for direct connections, and on what is not known, and why.
	Prospects []string `json:"prospects"`
}

// NetcheckRelay is one relay's answers.
type NetcheckRelay struct {
	Name     string  `json:"name"`
	UDPms    float64 `json:"udp_ms,omitempty"`
	StreamMS float64 `json:"stream_ms,omitempty"`
	Stream   string  `json:"stream,omitempty"` // upgrade or websocket
	Error    string  `json:"error,omitempty"`
}
