package engine

import (
	"weft"
	"weft/wire"
)

// SendWhole is Send for a frame that nobody may make fragments of, as far as it goes over UDP from here: a probe of how
// long packets may be. It returns host.ErrTooLong where this machine's interface is too narrow.
func (e *Engine) SendWhole(id weft.NodeID, via weft.Via, frame []byte) error {
	switch {
	case via.Method == weft.Direct && via.Addr.IsValid():
		return e.sockets.WriteWhole(via.Link, unmap(via.Addr), frame)
	case via.Method == weft.RelayUDP:
		r := e.relays.Load().byID[via.Relay]
		if r == nil || r.udp == nil {
			return ErrNoWay
		}
		to := r.udp.via
		return e.sockets.WriteWhole(to.Link, to.Addr, append(wire.AppendData(make([]byte, 0, wire.DataPrefix+len(frame)), id), frame...))
	}
	return e.Send(id, via, frame)
}
