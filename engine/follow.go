package engine

import (
	"log/slog"
	"net/netip"

	"weft"
)

// A returner is a Device that knows which packets come back to it: a TUN, into which the kernel's routes lead.
type returner interface {
	// Returns tells whether what is sent to an address of the underlay comes out of the device again.
	Returns(to netip.Addr) bool
}

// follow has a plain peer's packets go where it was heard from, unless they would come back by the device and go to the
// same peer again. Kernels do send from the address that they have within, where the interface to the outside has
// just lost its own: who follows has the tunnel within itself, and both ends forget each other's place. It reports what roam does.
func (e *Engine) follow(p *peer, via weft.Via) bool {
	if w := p.route.Load(); w != nil && w.via == via {
		return false
	}
	if r, ok := e.device.(returner); ok && via.Link == 0 {
		if wg := e.routes.Load().Lookup(via.Addr.Addr()); wg != nil && wg.Owner == p && r.Returns(via.Addr.Addr()) {
			e.quiet.say(slog.LevelDebug, "loop", "a peer was heard from an address within its own tunnel", "peer", p.id, "address", via.Addr)
			return false
		}
	}
	return e.roam(p, via)
}
