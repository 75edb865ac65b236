package host

import "net/netip"

// A Gateway is the router that packets for the rest of the world are handed to.
type Gateway struct {
	Addr      netip.Addr // of the router, IPv4
	Local     netip.Addr // address of this machine that the router sees
	Interface string
	Index     int // of the interface
}
