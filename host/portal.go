package host

import (
	"net/netip"

	"weft"
)

// A PortalRemote is the end of a portal with the public address: a machine that gives addresses of its own, which it keeps on
// its interface, to the client behind the other end. What strangers send there is the client's. The machine's own stay: the
// ports of Keep, the answers to what it began itself, and what the addresses need to be addresses of its interface (neighbour
// discovery, DHCP).
type PortalRemote struct {
	TUN       string       // the overlay's interface, that leads to the other end
	Interface string       // with the addresses
	Addrs     []netip.Addr // one of each family at most
	Keep      []weft.PortRange
	Overlay   []netip.Prefix // the overlay's ranges, which the client neither reaches nor is reached from this way
	StateDir  string         // where the record for ClosePortal is kept
}

// A PortalLocal is the end of a portal in front of the client.
type PortalLocal struct {
	TUN   string
	Lan   string       // the interface that the client, or the clients, are at
	Addrs []netip.Addr // of the other end, one of each family at most
	// Gateway is what the client has as its gateway, and Net the network that it takes itself to be in. This machine answers for
	// both. Of IPv6 the gateway is PortalGateway6.
	Gateway netip.Addr
	Net     netip.Prefix
	// Share is this machine's address in a private network whose machines share the address, in place of one client that has it.
	Share    netip.Prefix
	Uplinks  []string       // interfaces to the outside: each answers for its own addresses only
	Overlay  []netip.Prefix // the overlay's ranges, which clients do not reach this way
	StateDir string
}

// PortalGateway6 is the gateway of clients in IPv6, on their link: the same behind every portal.
var PortalGateway6 = netip.MustParseAddr("fe80::1")

// A PublicAddr is what an interface to the outside has of one family.
type PublicAddr struct {
	Addr    netip.Prefix // not masked
	Gateway netip.Addr   // of the default route; none of a point-to-point link
}

// portalTable is the table of nftables of the portal of an interface.
func portalTable(tun string) string { return nftPrefixPortal + tun }

const nftPrefixPortal = "weft-portal-"
