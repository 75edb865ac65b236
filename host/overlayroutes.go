package host

import "net/netip"

// OverlayRoutes are what leads from this machine into the overlay besides the overlay's own ranges.
type OverlayRoutes struct {
	Interface string         // of the overlay
	Networks  []netip.Prefix // behind routers; 0.0.0.0/0 and ::/0 are everything that has no other way
	// Exit says that all that this machine sends goes into the overlay, or nowhere: whatever the other routes say, and also
	// while the overlay is not there.
	Exit bool
	// LAN leaves with Exit the private networks that the machine is attached to as they are.
	LAN bool
	// Resolvers may be asked for names in the networks that LAN leaves as they are. Others there may not be: with Exit
	// questions for names go into the overlay, or nowhere.
	Resolvers []netip.AddrPort
}

// A Router is what a machine passes on between the overlay and the networks behind it.
type Router struct {
	Interface string         // of the overlay
	Networks  []netip.Prefix // behind it; 0.0.0.0/0 and ::/0 are the public internet, without what is private (RFC 1918, RFC 4193)
	Overlay   []netip.Prefix // the overlay's ranges
	// Masquerade has what comes from the overlay appear to come from this machine.
	Masquerade bool
	// Enter lets machines in Networks begin connections into the overlay; else they only answer.
	Enter bool
	// Within passes on what comes from the overlay for the overlay, too: see ForwardWithin.
	Within bool
}
