package engine

import (
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"

	"weft"
	"weft/wire"
)

// A bind is the conn.Bind under the device: upstream's sockets, with routes on the way out and a sieve on the
// way in.
type bind struct {
	e     *Engine
	inner conn.Bind
	port  uint16
	recv  []conn.ReceiveFunc
	inbox inbox

	mu   sync.Mutex
	open bool // handed to the device
	once sync.Once
	done chan struct{} // closed by shut
}

func newBind(e *Engine, sockets conn.Bind) *bind {
	return &bind{
		e:     e,
		inner: sockets,
		inbox: make(inbox, inboxSize),
		done:  make(chan struct{}),
	}
}

// anyPortTries bounds the search for a port that is free for both address families.
const anyPortTries = 100

// listen opens the sockets.
func (b *bind) listen(port uint16) error {
	for range anyPortTries {
		recv, actual, err := b.inner.Open(port)
		if err == nil && actual != 0 {
			b.recv, b.port = recv, actual
			return nil
		}
		if err == nil {
			// Upstream forgets the port of the IPv4 socket where the kernel has no IPv6: take one that is
			// known beforehand.
			b.inner.Close()
			port, err = freePort()
			if err == nil {
				continue
			}
		}
		if port != 0 || !errors.Is(err, syscall.EADDRINUSE) {
			return err
		}
	}
	return syscall.EADDRINUSE
}

func freePort() (uint16, error) {
	c, err := net.ListenUDP("udp4", nil)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).AddrPort().Port(), nil
}

// Open hands the receivers to the device: the sockets are open since New.
func (b *bind) Open(uint16) ([]conn.ReceiveFunc, uint16, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	select {
	case <-b.done:
		return nil, 0, net.ErrClosed
	default:
	}
	if b.open {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	b.open = true
	fns := []conn.ReceiveFunc{b.receiveStream}
	for _, inner := range b.recv {
		fns = append(fns, b.receiver(inner))
	}
	return fns, b.port, nil
}

// Close is called by the device before Open, too; then there is nothing to close.
func (b *bind) Close() error {
	b.mu.Lock()
	open := b.open
	b.mu.Unlock()
	if open {
		b.shut()
	}
	return nil
}

func (b *bind) shut() {
	b.once.Do(func() {
		close(b.done)
		if err := b.inner.Close(); err != nil {
			b.e.log.Warn("closing the UDP sockets", "err", err)
		}
	})
}

// SetMark is part of conn.Bind and not used.
func (b *bind) SetMark(mark uint32) error { return b.inner.SetMark(mark) }

// BatchSize is upstream's.
func (b *bind) BatchSize() int { return b.inner.BatchSize() }

// endpointPrefix begins the name of a peer's endpoint in the device's configuration.
const endpointPrefix = "peer:"

// ParseEndpoint finds the endpoint of a peer that was added to the engine before.
func (b *bind) ParseEndpoint(s string) (conn.Endpoint, error) {
	digits, ok := strings.CutPrefix(s, endpointPrefix)
	id, err := strconv.ParseUint(digits, 10, 32)
	if !ok || err != nil {
		return nil, fmt.Errorf("%q is not the endpoint of a peer", s)
	}
	if p := b.e.peer(weft.NodeID(id)); p != nil {
		return p, nil
	}
	return nil, fmt.Errorf("peer %d is not known", id)
}

// write sends one datagram.
func (b *bind) write(addr netip.AddrPort, p []byte) error {
	if !addr.IsValid() {
		return ErrNoWay
	}
	one := onePool.Get().(*one)
	defer one.put()
	one.ep.AddrPort = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	one.bufs[0] = p
	return b.socket(one.bufs[:], &one.ep)
}

// one is what a single datagram needs to become a batch.
type one struct {
	ep   conn.StdNetEndpoint
	bufs [1][]byte
}

var onePool = sync.Pool{New: func() any { return new(one) }}

func (o *one) put() {
	o.bufs[0] = nil
	onePool.Put(o)
}

// socket sends a batch as it is.
func (b *bind) socket(bufs [][]byte, ep *conn.StdNetEndpoint) error {
	err := b.inner.Send(bufs, ep)
	if err == nil {
		return nil
	}
	select {
	case <-b.done:
		return net.ErrClosed
	default:
	}
	var gso conn.ErrUDPGSODisabled
	if errors.As(err, &gso) {
		b.e.quiet.say(slog.LevelInfo, "gso", "UDP segmentation offload does not work here: sending without", "err", err)
		return gso.RetryErr
	}
	return err
}

// Send is called by the device. It reports no failure: see the package comment.
func (b *bind) Send(bufs [][]byte, ep conn.Endpoint) error {
	switch ep := ep.(type) {
	case *peer:
		b.sendPeer(ep, bufs)
		return nil
	case *conn.StdNetEndpoint: // a cookie reply to a stranger
		if err := b.socket(bufs, ep); err != nil {
			b.failed(len(bufs), err)
		}
		return nil
	}
	return conn.ErrWrongEndpointType
}

func (b *bind) sendPeer(p *peer, bufs [][]byte) {
	w := p.route.Load()
	switch first := bufs[0]; {
	case len(first) < 4:
	case first[0] == device.MessageTransportType:
		if carriesData(bufs) {
			b.e.touch(p)
		}
	case first[0] == device.MessageInitiationType:
		b.e.touch(p)
	case first[0] == device.MessageResponseType && len(first) == device.MessageResponseSize:
		c, ok := b.e.callers.take(binary.LittleEndian.Uint32(first[8:]))
		if ok && c.addr.IsValid() {
			if err := b.write(c.addr, first); err != nil {
				b.failed(1, err)
			}
			return
		}
		if ok && w == nil {
			w = c.way
		}
	}
	if w == nil || !b.sendWay(p, w, bufs) {
		b.sendNowhere(p, bufs)
	}
}

// sendWay sends by a way and counts. It reports false, and has counted nothing, where the way does not exist
// at the moment.
func (b *bind) sendWay(p *peer, w *way, bufs [][]byte) bool {
	if err := b.transmit(p.id, w, bufs); err != nil {
		if errors.Is(err, ErrNoWay) {
			return false
		}
		b.failed(len(bufs), err)
		return true
	}
	n := 0
	for _, buf := range bufs {
		n += len(buf)
	}
	w.txPackets.Add(uint64(len(bufs)))
	w.txBytes.Add(uint64(n))
	return true
}

func (b *bind) transmit(id weft.NodeID, w *way, bufs [][]byte) error {
	if w.via.Method == weft.Direct {
		return b.socket(bufs, &w.ep)
	}
	r := b.e.relays.Load().byID[w.via.Relay]
	switch {
	case r == nil:
		return ErrNoWay
	case w.via.Method == weft.RelayUDP && r.udp != nil:
		return b.sendPrefixed(id, r.udp, bufs)
	case w.via.Method == weft.RelayStream && r.stream != nil:
		return r.stream.SendTo(id, bufs)
	}
	return ErrNoWay
}

// sendNowhere drops what has no route, but for the latest handshake message.
func (b *bind) sendNowhere(p *peer, bufs [][]byte) {
	if kind := bufs[0][0]; kind != device.MessageInitiationType && kind != device.MessageResponseType {
		b.e.drops.noRoute.Add(uint64(len(bufs)))
		return
	}
	if p.held.Swap(&held{at: time.Now(), packet: append([]byte(nil), bufs[0]...)}) != nil {
		b.e.drops.noRoute.Add(1)
	}
	b.sendHeld(p) // the route may have come meanwhile
}

// sendHeld sends the handshake message that waits for a route, if there is a route, unless WireGuard has
// given the message up.
func (b *bind) sendHeld(p *peer) {
	for {
		h := p.held.Swap(nil)
		if h == nil {
			return
		}
		if time.Since(h.at) >= device.RekeyTimeout {
			b.e.drops.noRoute.Add(1)
			return
		}
		relays, w := b.e.relays.Load(), p.route.Load()
		if w != nil && b.sendWay(p, w, [][]byte{h.packet}) {
			return
		}
		if !p.held.CompareAndSwap(nil, h) { // there is a later one
			b.e.drops.noRoute.Add(1)
		}
		if relays == b.e.relays.Load() && w == p.route.Load() {
			return
		}
		// Whoever changed them may have looked while the message was in hand here.
	}
}

// failed counts packets that were not taken.
func (b *bind) failed(n int, err error) {
	if closed(err) {
		return
	}
	b.e.drops.sendErrors.Add(uint64(n))
	b.e.quiet.say(slog.LevelDebug, "send", "packets could not be sent", "packets", n, "err", err)
}

// carriesData tells a batch with data from keepalives, which are transport packets of nothing.
func carriesData(bufs [][]byte) bool {
	for _, buf := range bufs {
		if len(buf) > device.MessageKeepaliveSize {
			return true
		}
	}
	return false
}

// receiver wraps the receiver of one socket. It does not return before it has something, or the sockets are
// closed: upstream ends a receiver for good that fails too often.
func (b *bind) receiver(inner conn.ReceiveFunc) conn.ReceiveFunc {
	return func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		for {
			n, err := inner(bufs, sizes, eps)
			if err == nil {
				b.sieve(bufs[:n], sizes, eps)
				return n, nil
			}
			if closed(err) {
				return 0, err
			}
			b.e.quiet.say(slog.LevelWarn, "receive", "receiving from the UDP socket failed", "err", err)
			select {
			case <-b.done:
				return 0, net.ErrClosed
			case <-time.After(receiveRetry):
			}
		}
	}
}

// receiveRetry is the pause after a failing receive: long enough to leave the processor alone, short enough
// not to be felt as an outage.
const receiveRetry = 50 * time.Millisecond

// sieve leaves WireGuard packets to the device, each with the endpoint of its peer where that is known, and
// takes out all else.
func (b *bind) sieve(bufs [][]byte, sizes []int, eps []conn.Endpoint) {
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
				r = run{from: ep.AddrPort, source: b.e.source(ep.AddrPort)}
			}
			if r.peer != nil {
				eps[i] = r.peer
				r.add(packet)
			}
			b.e.called(packet, ep.AddrPort, r.source)
			continue
		case wire.ClassSTUN:
			b.e.handler.HandleDatagram(0, unmap(ep.AddrPort), wire.ClassSTUN, packet)
		case wire.ClassWeft:
			kind, ok := wire.KindOf(packet)
			switch {
			case !ok:
				b.e.drops.strange.Add(1)
			case kind != wire.KindData:
				b.e.handler.HandleDatagram(0, unmap(ep.AddrPort), wire.ClassWeft, packet)
			default:
				if src, payload, ok := b.relayed(unmap(ep.AddrPort), packet); ok {
					if r.way != src.way {
						r.flush(b.e)
						r = run{source: src}
					}
					sizes[i] = copy(buf, payload)
					eps[i] = src.peer
					r.add(buf[:sizes[i]])
					b.e.called(buf[:sizes[i]], netip.AddrPort{}, src)
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
