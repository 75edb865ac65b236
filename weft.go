// Package weft holds the nouns of the system: what a node, a candidate, a path and the map of a network are.
// Every room speaks in them; none of them does anything but hold, compare and print itself. What goes over
// the network is package wire's; what a document of the local API or of --json looks like is in status.go.
//
// The package leans on the standard library and on package key alone.
package weft

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft/key"
)

// Version is the version of this build; the linker sets it (-X weft.Version=...).
var Version = "0.1.0-dev"

// Domain is the name under which nodes find each other, NAME.weft.internal, unless the administrator chose another. The
// top-level domain internal is reserved for private use by ICANN (resolution 2024.07.29.06).
const Domain = "weft.internal"

// A NodeID is a node's number in its network: given by the server, from 1 upwards, never given twice. It is
// what relay frames carry instead of a key. Zero is no node.
type NodeID uint32

// A RelayID is a relay's number in its network, given by the server; zero is no relay.
type RelayID uint16

// A LinkID is the number a node gives to one of its own links for as long as it runs; zero is the only link
// of a node that has sockets on no link in particular.
type LinkID uint16

// A Node is a member of a network as the coordinator tells others of it.
type Node struct {
	ID    NodeID         `json:"id"`
	Name  string         `json:"name"` // one DNS label, lower case, unique in the network
	Key   key.NodePublic `json:"key"`
	Addrs []netip.Addr   `json:"addrs"` // overlay addresses: one IPv4, one IPv6
	User  string         `json:"user,omitempty"`
	Tags  []string       `json:"tags,omitempty"`
	// Candidates are where the node said it may be reached. Peers exchange fresher ones between themselves.
	Candidates []Candidate `json:"candidates,omitempty"`
	// HomeRelay is the relay whose stream the node keeps open.
	HomeRelay RelayID   `json:"home_relay,omitempty"`
	NAT       string    `json:"nat,omitempty"` // mapping behaviour in RFC 4787's words, for people
	Online    bool      `json:"online"`
	LastSeen  time.Time `json:"last_seen,omitzero"` // when Online last turned false
	Ephemeral bool      `json:"ephemeral,omitempty"`
	Expires   time.Time `json:"expires,omitzero"` // when its key stops being valid; zero: never
	// Gateway is set of a member that speaks plain WireGuard and nothing else: the node that it has its tunnel to,
	// and that packets to its addresses go to.
	Gateway NodeID `json:"gateway,omitempty"`
	// Routes are the networks behind the node that it speaks for, approved: packets to them go to it, and may come from
	// it. Sorted by address; 0.0.0.0/0 and ::/0 stand for an exit node. Of several nodes with one route the first by number that is
	// reachable is used.
	Routes []netip.Prefix `json:"routes,omitempty"`
}

// Plain reports whether the node speaks plain WireGuard: there are no paths to look for, only its gateway's.
func (n Node) Plain() bool { return n.Gateway != 0 }

// Equal compares every field.
func (n Node) Equal(o Node) bool {
	return n.ID == o.ID && n.Name == o.Name && n.Key == o.Key && n.User == o.User && n.Gateway == o.Gateway &&
		n.HomeRelay == o.HomeRelay && n.NAT == o.NAT && n.Online == o.Online && n.Ephemeral == o.Ephemeral &&
		n.LastSeen.Equal(o.LastSeen) && n.Expires.Equal(o.Expires) &&
		slices.Equal(n.Addrs, o.Addrs) && slices.Equal(n.Tags, o.Tags) && slices.Equal(n.Candidates, o.Candidates) &&
		slices.Equal(n.Routes, o.Routes)
}

// A CandidateKind says where a candidate address comes from, in the words of RFC 8445 section 5.1.1.
type CandidateKind uint8

// The kinds of candidate, best guess first: an address of the node's own, one that a NAT was asked to map,
// one that the user wrote down, one that STUN saw, one that a peer saw.
const (
	Host CandidateKind = iota + 1
	PortMapped
	Static
	ServerReflexive
	PeerReflexive
)

var candidateNames = [...]string{"?", "host", "portmap", "static", "srflx", "prflx"}

// String is RFC 8839's name of the kind, where it has one.
func (k CandidateKind) String() string {
	if int(k) < len(candidateNames) {
		return candidateNames[k]
	}
	return candidateNames[0]
}

// MarshalText writes the name.
func (k CandidateKind) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads the name. One that this version does not know becomes zero, no kind: a single candidate
// of a newer node must not make a whole map unreadable to an older one.
func (k *CandidateKind) UnmarshalText(b []byte) error {
	*k = CandidateKind(max(0, slices.Index(candidateNames[:], string(b))))
	return nil
}

// A Candidate is an address where a node may be reached on the underlay. It is comparable.
type Candidate struct {
	Addr netip.AddrPort `json:"addr"`
	Kind CandidateKind  `json:"kind"`
	Link LinkID         `json:"link,omitempty"`
	// TCP says that the node takes TCP connections of its peers there, too.
	TCP bool `json:"tcp,omitempty"`
}

// A Method is how a datagram gets to a peer.
type Method uint8

// The methods, in ascending order of preference when nothing is known of their quality.
const (
	NoMethod Method = iota
	RelayStream
	RelayUDP
	DirectTCP // a TCP connection between the two nodes
	Direct    // UDP
)

var methodNames = [...]string{"none", "relay-stream", "relay-udp", "direct-tcp", "direct"}

// String is the method's name as weft status prints it.
func (m Method) String() string {
	if int(m) < len(methodNames) {
		return methodNames[m]
	}
	return methodNames[0]
}

// MarshalText writes the name.
func (m Method) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the name.
func (m *Method) UnmarshalText(b []byte) error {
	i := slices.Index(methodNames[:], string(b))
	if i < 0 {
		return fmt.Errorf("%q is not a method of reaching a peer", b)
	}
	*m = Method(i)
	return nil
}

// Relayed reports whether a relay carries the datagrams.
func (m Method) Relayed() bool { return m == RelayUDP || m == RelayStream }

// Streamed reports whether the datagrams go by a stream, which repeats what is lost below it.
func (m Method) Streamed() bool { return m == RelayStream || m == DirectTCP }

// A Via is one way to a peer: the 5-tuple of a direct path, or a relay and how it is spoken to. It is
// comparable; the zero Via leads nowhere.
type Via struct {
	Method Method
	Link   LinkID         // the link of ours that it leaves by
	Relay  RelayID        // of a relayed path
	Addr   netip.AddrPort // of a direct path: where the peer is; of a TCP connection its other end
}

// DirectVia is the direct path to an address by a link. An IPv4-mapped IPv6 address is unmapped, so that one
// path has one Via.
func DirectVia(link LinkID, addr netip.AddrPort) Via {
	return Via{Method: Direct, Link: link, Addr: netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())}
}

// TCPVia is a TCP connection by a link, with its other end.
func TCPVia(link LinkID, addr netip.AddrPort) Via {
	v := DirectVia(link, addr)
	v.Method = DirectTCP
	return v
}

// String is what a log and weft status show.
func (v Via) String() string {
	switch {
	case v.Method == Direct || v.Method == DirectTCP:
		return v.Method.String() + " " + v.Addr.String()
	case v.Method.Relayed():
		return fmt.Sprintf("%s #%d", v.Method, v.Relay)
	}
	return "none"
}

// A Relay is a relay of the network. The same host and UDP port answer STUN.
type Relay struct {
	ID   RelayID         `json:"id"`
	Name string          `json:"name"`
	Key  key.RelayPublic `json:"key"`
	// UDP are the addresses of its STUN and relay port. A relay whose address the server does not know is
	// given as a host name in Host instead.
	UDP []netip.AddrPort `json:"udp,omitempty"`
	// URL is where its stream is found ("https://host:443"); the name in it is also looked up for UDP.
	URL     string `json:"url"`
	UDPPort uint16 `json:"udp_port,omitempty"`
	// Fingerprint is the SHA-256 of its self-signed certificate, if it has one.
	Fingerprint []byte `json:"fingerprint,omitempty"`
}

// Equal compares every field.
func (r Relay) Equal(o Relay) bool {
	return r.ID == o.ID && r.Name == o.Name && r.Key == o.Key && r.URL == o.URL && r.UDPPort == o.UDPPort &&
		slices.Equal(r.UDP, o.UDP) && slices.Equal(r.Fingerprint, o.Fingerprint)
}

// A NetworkMap is all that a node needs to know of its network. Peers and Relays are sorted by ID and do not
// contain the node itself.
type NetworkMap struct {
	// Version counts the changes that the coordinator has made; it grows, and not by one.
	Version uint64         `json:"version"`
	Self    Node           `json:"self"`
	Peers   []Node         `json:"peers"`
	Relays  []Relay        `json:"relays"`
	Domain  string         `json:"domain"`
	Ranges  []netip.Prefix `json:"ranges"`  // the overlay's IPv4 and IPv6 ranges
	Service netip.Addr     `json:"service"` // overlay address of each node's own resolver; no node's address
	// Ticket admits the node to every relay of the network (wire.Ticket); the server renews it in time.
	Ticket []byte `json:"ticket,omitempty"`
	// Rules are what the policy has this node let in. Nil: the server knows no policy, and everything is let in; empty: nothing is.
	Rules []Rule `json:"rules,omitzero"`
	DNS   DNS    `json:"dns,omitzero"`
	// NoPolicy says that nobody has set a policy: Rules are of the default.
	NoPolicy bool `json:"no_policy,omitempty"`
}

// A Change is what turns one version of a node's map into a later one. Absent fields leave things as they are.
type Change struct {
	Version uint64   `json:"version"`
	Self    *Node    `json:"self,omitempty"`
	Upsert  []Node   `json:"upsert,omitempty"` // whole nodes, new or changed
	Remove  []NodeID `json:"remove,omitempty"`
	Relays  []Relay  `json:"relays,omitzero"` // all of them, when any changed; empty: there are none left
	Ticket  []byte   `json:"ticket,omitzero"`
	Rules   []Rule   `json:"rules,omitzero"` // all of them, when any changed; empty: nothing is let in
	DNS     *DNS     `json:"dns,omitempty"`
	Domain  string   `json:"domain,omitempty"` // that nodes are found in from now on
	// NoPolicy is there when a policy was set or unset.
	NoPolicy *bool `json:"no_policy,omitempty"`
}

// Empty reports that the change would change nothing but the version.
func (c Change) Empty() bool {
	return c.Self == nil && len(c.Upsert) == 0 && len(c.Remove) == 0 && c.Relays == nil && c.Ticket == nil &&
		c.Rules == nil && c.DNS == nil && c.Domain == "" && c.NoPolicy == nil
}

// Apply returns the map after the change. The receiver is left as it was; slices that did not change are
// shared with it. A node that is both upserted and removed is removed.
func (m NetworkMap) Apply(c Change) NetworkMap {
	m.Version = c.Version
	if c.Self != nil {
		m.Self = *c.Self
	}
	if c.Relays != nil {
		m.Relays = c.Relays
	}
	if c.Ticket != nil {
		m.Ticket = c.Ticket
	}
	if c.Rules != nil {
		m.Rules = c.Rules
	}
	if c.DNS != nil {
		m.DNS = *c.DNS
	}
	if c.Domain != "" {
		m.Domain = c.Domain
	}
	if c.NoPolicy != nil {
		m.NoPolicy = *c.NoPolicy
	}
	if len(c.Upsert) == 0 && len(c.Remove) == 0 {
		return m
	}
	upsert := make(map[NodeID]Node, len(c.Upsert))
	for _, n := range c.Upsert {
		upsert[n.ID] = n
	}
	gone := make(map[NodeID]bool, len(c.Remove))
	for _, id := range c.Remove {
		gone[id] = true
		delete(upsert, id)
	}
	// Two sorted lists are merged: a network of 10,000 sees many changes of one node.
	fresh := slices.Sorted(maps.Keys(upsert))
	peers := make([]Node, 0, len(m.Peers)+len(fresh))
	for i := range m.Peers {
		id := m.Peers[i].ID
		for len(fresh) > 0 && fresh[0] < id {
			peers, fresh = append(peers, upsert[fresh[0]]), fresh[1:]
		}
		switch {
		case gone[id]:
		case len(fresh) > 0 && fresh[0] == id:
			peers, fresh = append(peers, upsert[id]), fresh[1:]
		default:
			peers = append(peers, m.Peers[i])
		}
	}
	for _, id := range fresh {
		peers = append(peers, upsert[id])
	}
	m.Peers = peers
	return m
}

// Peer finds a peer by its number.
func (m NetworkMap) Peer(id NodeID) (Node, bool) {
	i, ok := slices.BinarySearchFunc(m.Peers, id, func(n Node, id NodeID) int { return cmp.Compare(n.ID, id) })
	if !ok {
		return Node{}, false
	}
	return m.Peers[i], true
}

// Find finds a peer by what a person calls it: its name, with or without the network's domain, or an address.
func (m NetworkMap) Find(what string) (Node, bool) {
	name := ShortName(what, m.Domain)
	addr, _ := netip.ParseAddr(what)
	addr = addr.Unmap()
	for _, p := range m.Peers {
		if name != "" && p.Name == name || addr.IsValid() && slices.Contains(p.Addrs, addr) {
			return p, true
		}
	}
	return Node{}, false
}

// ShortName is what a person calls a node, without the network's domain and the final dot.
func ShortName(what, domain string) string {
	return strings.TrimSuffix(strings.TrimSuffix(strings.ToLower(what), "."), "."+domain)
}

// MaxNameLength is the longest name of a node: one DNS label (RFC 1035 section 2.3.4).
const MaxNameLength = 63

// CleanName makes a DNS label of what a machine calls itself: lower case, letters, digits and single inner
// hyphens, the first label only. It returns "" when nothing is left. Two hyphens in a row would let a machine
// call itself "xn--...", which browsers show in letters that look like another name (RFC 5890 section 2.3.2.1).
func CleanName(s string) string {
	s, _, _ = strings.Cut(s, ".")
	label := make([]byte, 0, MaxNameLength+1)
	for _, r := range strings.ToLower(s) {
		switch {
		case len(label) == MaxNameLength:
			return strings.TrimRight(string(label), "-")
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			label = append(label, byte(r))
		case len(label) > 0 && label[len(label)-1] != '-':
			label = append(label, '-')
		}
	}
	return strings.TrimRight(string(label), "-")
}
