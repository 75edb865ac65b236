package engine

import (
	"maps"
	"net/netip"

	"weft"
	"weft/wire"
)

// A StreamSender is the stream to a relay: it sends datagrams to a node, in order. It does not keep them
// after it has returned. relay.Stream is one.
type StreamSender interface {
	SendTo(id weft.NodeID, datagrams [][]byte) error
}

// relays is a snapshot: it is replaced, never changed.
type relays struct {
	byID  map[weft.RelayID]*relay
	byUDP map[netip.AddrPort]*relay
}

type relay struct {
	id     weft.RelayID
	udp    *way         // nil: cannot be spoken to over UDP
	stream StreamSender // nil: has no stream
}

// SetRelay says how a relay is spoken to: a zero address and a nil stream mean not in that manner. Data frames
// are accepted from this address from now on.
func (e *Engine) SetRelay(id weft.RelayID, udp netip.AddrPort, stream StreamSender) {
	e.SetRelayOn(id, 0, udp, stream)
}

// SetRelayOn is SetRelay with the link by whose sockets the relay is spoken to over UDP: the one that it has bound.
func (e *Engine) SetRelayOn(id weft.RelayID, link weft.LinkID, udp netip.AddrPort, stream StreamSender) {
	r := &relay{id: id, stream: stream}
	if udp.IsValid() {
		r.udp = &way{via: weft.DirectVia(link, udp)}
	}
	e.replaceRelay(id, r)
}

// RemoveRelay says that a relay is no more.
func (e *Engine) RemoveRelay(id weft.RelayID) { e.replaceRelay(id, nil) }

func (e *Engine) replaceRelay(id weft.RelayID, r *relay) {
	e.relaying.Lock()
	defer e.relaying.Unlock()
	next := &relays{byID: maps.Clone(e.relays.Load().byID), byUDP: make(map[netip.AddrPort]*relay)}
	if next.byID == nil {
		next.byID = make(map[weft.RelayID]*relay)
	}
	delete(next.byID, id)
	if r != nil {
		next.byID[id] = r
	}
	for _, r := range next.byID {
		if r.udp != nil {
			next.byUDP[r.udp.via.Addr] = r
		}
	}
	e.relays.Store(next)
	if r == nil {
		return
	}
	if r.udp != nil {
		e.sockets.Carry(r.udp.via.Link)
	}
	for _, p := range e.known() {
		if w := p.route.Load(); w != nil && w.via.Relay == id {
			e.control.post(post{peer: p, what: routed})
		}
	}
}

// relayOne sends one datagram through a relay, or by a TCP connection.
func (e *Engine) relayOne(id weft.NodeID, via weft.Via, b []byte) error {
	if via.Method == weft.DirectTCP {
		to, err := e.connection(id, via)
		if err != nil {
			return err
		}
		return to.SendAhead(id, b)
	}
	r := e.relays.Load().byID[via.Relay]
	switch {
	case r == nil:
	case via.Method == weft.RelayUDP && r.udp != nil:
		frame := append(wire.AppendData(make([]byte, 0, wire.DataPrefix+len(b)), id), b...)
		return e.write(r.udp.via.Link, r.udp.via.Addr, frame, 0)
	case via.Method == weft.RelayStream && r.stream != nil:
		return r.stream.SendTo(id, [][]byte{b})
	}
	return ErrNoWay
}
