package engine

import (
	"log/slog"
	"net"
	"net/netip"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"weft"
	"weft/wire"
)

// receiver wraps the receiver of one socket. It does not return before it has something, or the sockets are
// closed: upstream ends a receiver for good that fails too often.
func (b *bind) receiver(inner conn.ReceiveFunc) conn.ReceiveFunc {
	return func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		for {
			n, err := inner(bufs, sizes, eps)
			if err == nil {
				b.sieve(0, bufs[:n], sizes, eps)
				return n, nil
			}
			if closed(err) {
				return 0, err
			}
			b.e.quiet.say(slog.LevelWarn, "receive", "receiving from the UDP socket failed", "error", err)
			if !b.pause() {
				return 0, net.ErrClosed
			}
		}
	}
}

// receiveRetry is the pause after a failing receive: long enough to leave the processor alone, short enough
// not to be felt as an outage.
const receiveRetry = 50 * time.Millisecond

// pause waits that long, and reports whether the sockets are still open.
func (b *bind) pause() bool {
	select {
	case <-b.done:
		return false
	case <-time.After(receiveRetry):
		return true
	}
}

// sieve leaves WireGuard packets that came to a link's socket to the device, each with the endpoint of its peer
// where that is known, and takes out all else.
func (b *bind) sieve(link weft.LinkID, bufs [][]byte, sizes []int, eps []conn.Endpoint) {
	var r run
	for i, buf := range bufs {
		if sizes[i] == 0 {
			continue
		}
		ep, ok := eps[i].(*conn.StdNetEndpoint)
		if !ok {
			sizes[i] = 0
			continue
		}
		packet := buf[:sizes[i]]
		switch wire.Classify(packet) {
		case wire.ClassWireGuard:
			if r.from != ep.AddrPort {
				r.flush(b.e)
				r = run{from: ep.AddrPort, source: b.e.source(link, ep.AddrPort)}
			}
			if !b.e.called(packet, link, ep.AddrPort, r.source) {
				break
			}
			switch {
			case r.peer != nil:
				eps[i] = r.peer
				r.add(packet)
			case link != 0:
				eps[i] = &stranger{&conn.StdNetEndpoint{AddrPort: ep.AddrPort}, link}
			}
			continue
		case wire.ClassSTUN:
			b.e.handler.HandleDatagram(link, unmap(ep.AddrPort), wire.ClassSTUN, packet)
		case wire.ClassWeft:
			kind, ok := wire.KindOf(packet)
			switch {
			case !ok:
				b.e.drops.strange.Add(1)
			case kind != wire.KindData:
				b.e.handler.HandleDatagram(link, unmap(ep.AddrPort), wire.ClassWeft, packet)
			default:
				if src, payload, ok := b.relayed(unmap(ep.AddrPort), packet); ok {
					if r.way != src.way {
						r.flush(b.e)
						r = run{source: src}
					}
					if !b.e.called(payload, link, netip.AddrPort{}, src) {
						break
					}
					sizes[i] = copy(buf, payload)
					eps[i] = src.peer
					r.add(buf[:sizes[i]])
					continue
				}
			}
		default:
			b.e.drops.strange.Add(1)
		}
		sizes[i] = 0
	}
	r.flush(b.e)
}

// relayed takes a data frame apart. It returns a WireGuard packet for the device; a peer frame goes to the
// handler.
func (b *bind) relayed(from netip.AddrPort, frame []byte) (source, []byte, bool) {
	id, payload, err := wire.ParseData(frame)
	if err != nil {
		b.e.drops.strange.Add(1)
		return source{}, nil, false
	}
	r := b.e.relays.Load().byUDP[from]
	if r == nil {
		b.e.drops.notRelay.Add(1)
		return source{}, nil, false
	}
	via := weft.Via{Method: weft.RelayUDP, Relay: r.id}
	src, ok := b.e.relaySource(id, via)
	return src, payload, ok && b.fromRelay(src, via, payload)
}

// fromRelay reports whether a datagram that came through a relay is for the device, and deals with it
// otherwise.
func (b *bind) fromRelay(src source, via weft.Via, payload []byte) bool {
	switch wire.Classify(payload) {
	case wire.ClassWireGuard:
		return true
	case wire.ClassWeft:
		if kind, ok := wire.KindOf(payload); ok && kind == wire.KindPeer {
			b.e.handler.HandleRelayed(via, src.peer.id, payload)
			return false
		}
	}
	b.e.drops.strange.Add(1)
	return false
}

// A run is a stretch of packets of one batch that came the same way: counted together.
type run struct {
	from netip.AddrPort // of a direct run
	source
	packets, bytes uint64
	data           bool
}

func (r *run) add(packet []byte) {
	r.packets++
	r.bytes += uint64(len(packet))
	r.data = r.data || packet[0] == device.MessageTransportType && len(packet) > device.MessageKeepaliveSize
}

func (r *run) flush(e *Engine) {
	if r.packets == 0 {
		return
	}
	r.way.rxPackets.Add(r.packets)
	r.way.rxBytes.Add(r.bytes)
	if r.data {
		e.touch(r.peer)
	}
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
