package node

import (
	"bytes"
	"errors"
	"time"

	"weft/host"
	"weft/path"
	"weft/wire"
	"weft/wireguard"
)

// maxLong is how many frames longer than maxFrame wait for the mesh at most: probes of jumbo frames.
const maxLong = 32

// fitWays tells the engine how long packets may be by a peer's ways.
func (me *mesh) fitWays(p *peer, list []path.MTU) {
	for _, m := range list {
		me.engine.SetMTU(p.node.ID, m.Via, m.Size)
		if m.Size != me.cfg.Device.mtu {
			me.log.Debug("packets are shortened", "peer", p.node.Name, "by", m.Via.String(), "bytes", m.Size)
		}
	}
}

// probeLength sends a ping that nobody may make fragments of.
func (me *mesh) probeLength(now time.Time, p *peer, t path.Transmit) {
	err := me.engine.SendWhole(p.node.ID, t.Via, wire.AppendPeer(nil, p.box, me.netmap.Self.ID, t.Message))
	if ping, ok := t.Message.(wire.Ping); ok && errors.Is(err, host.ErrTooLong) {
		p.agent.TooLong(now, t.Via, ping)
		p.due = true
	}
}

// handLong hands the mesh a frame that is longer than maxFrame, but no longer than the packets for which it asks.
func (me *mesh) handLong(f frame, b []byte) {
	mtu := me.cfg.Device.mtu
	if len(b) > wireguard.Padded(mtu, mtu+wireguard.PaddingMultiple)+wireguard.Overhead {
		return
	}
	if me.long.Add(1) > maxLong {
		me.long.Add(-1)
		return
	}
	f.long = bytes.Clone(b)
	select {
	case me.frames <- f:
	default:
		me.long.Add(-1)
	}
}

// takeLong handles one of these.
func (me *mesh) takeLong(now time.Time, f frame) {
	me.long.Add(-1)
	if kind, _ := wire.KindOf(f.long); kind == wire.KindPeer {
		me.takePeerFrame(now, f, f.long)
	}
}
