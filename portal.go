package weft

import (
	"net/netip"
	"time"
)

// PortalStatus is the document of weft portal: a remote portal hands public addresses of its own to the client behind a local one.
type PortalStatus struct {
	Schema int `json:"schema_version"`
	// Role is "remote", "local" or "off".
	Role string `json:"role"`
	Peer string `json:"peer,omitempty"` // the other end
	// Open says that addresses are handed over; Problem is why not, if it is known, or what is wrong all the same.
	Open      bool   `json:"open"`
	Problem   string `json:"problem,omitempty"`
	Interface string `json:"interface,omitempty"` // with the addresses, or in front of the client
	// Addrs are handed to the client, with the prefix of the network that it takes itself to be in; Gateways and Resolvers are what
	// else it is to be told.
	Addrs     []netip.Prefix `json:"addrs"`
	Gateways  []netip.Addr   `json:"gateways,omitempty"`
	Resolvers []netip.Addr   `json:"resolvers,omitempty"`
	Keep      []PortRange    `json:"keep,omitempty"` // of the addresses: what stays the remote end's own
	Share     netip.Prefix   `json:"share,omitzero"` // of a local end with many clients
	Leases    []PortalLease  `json:"leases,omitempty"`
	Heard     time.Time      `json:"heard,omitzero"` // when the other end last said something
	Traffic   PortalTraffic  `json:"traffic"`
}

// PortalTraffic is what a portal has carried since it was opened, without what is nobody's.
type PortalTraffic struct {
	ToClient   Traffic `json:"to_client"`
	FromClient Traffic `json:"from_client"`
	Kept       Traffic `json:"kept"`    // came to the addresses, and was the remote end's own
	Refused    Traffic `json:"refused"` // was nobody's, or went where it may not go
}

// Traffic is packets, and their bytes without the link's header.
type Traffic struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"`
}

// A PortalLease is an address that a client has by DHCP.
type PortalLease struct {
	Addr    netip.Addr `json:"addr"`
	Client  string     `json:"client"` // its hardware address
	Name    string     `json:"name,omitempty"`
	Expires time.Time  `json:"expires"`
}
