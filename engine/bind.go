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
)

// A bind is the conn.Bind under the device: upstream's sockets, with routes on the way out and a sieve on the
// way in.
type bind struct {
	e      *Engine
	inner  conn.Bind
	port   uint16
	recv   []conn.ReceiveFunc
	inbox  inbox
	spares *spares

	mu   sync.Mutex
	open bool // handed to the device
	once sync.Once
	done chan struct{} // closed by shut
}

func newBind(e *Engine, sockets conn.Bind) *bind {
	b := &bind{
		e:     e,
		inner: sockets,
		inbox: make(inbox, inboxSize),
		done:  make(chan struct{}),
	}
	b.spares = newSpares(b)
	return b
}

// anyPortTries bounds the search for a port that is free for both address families.
const anyPortTries = 100

// listen opens the sockets. Where the kernel has no IPv6, upstream opens the IPv4 socket alone and forgets its
// port: it has to be known beforehand.
func (b *bind) listen(want uint16) error {
	port := want
	for range anyPortTries {
		recv, actual, err := b.inner.Open(port)
		switch {
		case err == nil && actual == 0 && port == 0:
			b.inner.Close()
			if port, err = freePort(); err != nil {
				return err
			}
		case err == nil:
			b.recv, b.port = recv, max(port, actual)
			return nil
		case want != 0 || !errors.Is(err, syscall.EADDRINUSE):
			return err
		default:
			port = 0 // somebody was faster
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
	fns := []conn.ReceiveFunc{b.queued()}
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
		b.spares.close()
		if err := b.inner.Close(); err != nil {
			b.e.log.Warn("closing the UDP sockets", "error", err)
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

// write sends one datagram by a link.
func (b *bind) write(link weft.LinkID, addr netip.AddrPort, p []byte) error {
	if !addr.IsValid() {
		return ErrNoWay
	}
	one := onePool.Get().(*one)
	defer one.put()
	one.ep.AddrPort = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port())
	one.bufs[0] = p
	return b.byLink(link, one.bufs[:], &one.ep)
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

// byLink sends a batch from the socket of a link, as it is.
func (b *bind) byLink(link weft.LinkID, bufs [][]byte, ep *conn.StdNetEndpoint) error {
	if link != 0 {
		return b.spares.send(link, bufs, ep)
	}
	return b.socket(bufs, ep)
}

// socket sends a batch from the shared sockets.
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
	switch {
	case errors.As(err, &gso):
		b.e.quiet.say(slog.LevelInfo, "gso", "UDP segmentation offload does not work here: sending without", "error", err)
		return gso.RetryErr
	case len(bufs) > 1 && (errors.Is(err, syscall.EMSGSIZE) || errors.Is(err, syscall.EINVAL)):
		return b.singly(bufs, ep)
	}
	return err
}

// singly sends a batch one by one. Linux fragments a datagram that is longer than what the path takes, but
// refuses a batch of such to its segmentation offload (EMSGSIZE, and EINVAL before Linux 6). Packets of the
// batch that went out before the refusal go out twice; WireGuard takes data packets once.
func (b *bind) singly(bufs [][]byte, ep *conn.StdNetEndpoint) error {
	var firstErr error
	for i := range bufs {
		if err := b.inner.Send(bufs[i:i+1], ep); err != nil && firstErr == nil {
			firstErr = err
		}
	}
	return firstErr
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
	case *stranger: // likewise
		if err := b.spares.send(ep.link, bufs, ep.StdNetEndpoint); err != nil {
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
		p.initiated.Store(int64(time.Since(b.e.began)))
	case first[0] == device.MessageResponseType && len(first) == device.MessageResponseSize:
		c, ok := b.e.callers.take(binary.LittleEndian.Uint32(first[8:]))
		if ok && c.addr.IsValid() {
			if err := b.write(c.link, c.addr, first); err != nil {
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
		return b.byLink(w.via.Link, bufs, &w.ep)
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
	b.e.quiet.say(slog.LevelDebug, "send", "packets could not be sent", "packets", n, "error", err)
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
