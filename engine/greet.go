package engine

import (
	"time"

	"golang.zx2c4.com/wireguard/device"

	"weft"
)

// Greet begins a handshake with a peer, unless one was begun within WireGuard's REKEY_TIMEOUT of 5 s. It is for
// the moment when the peer is first known to receive: an initiation that data caused before that was lost, the
// next would come 5 s later, and until then the data waits. Not both ends should do it at once: of initiations that
// cross, neither is answered by who made the other.
func (e *Engine) Greet(id weft.NodeID) {
	p := e.peer(id)
	if p == nil {
		return
	}
	now := int64(time.Since(e.began))
	p.greeted.Store(now)
	if last := p.initiated.Load(); last == 0 || now-last >= int64(device.RekeyTimeout) {
		p.initiated.Store(now) // now, for one that comes while ours is being made has crossed it, too
	}
	if d := e.dev.LookupPeer(device.NoisePublicKey(p.key.Bytes())); d != nil {
		if err := d.SendHandshakeInitiation(false); err != nil {
			e.log.Debug("no greeting", "peer", id, "error", err) // data will begin another
		}
	}
}
