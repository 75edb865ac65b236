package engine

import (
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"golang.zx2c4.com/wireguard/conn"

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
	udp    *conn.StdNetEndpoint // nil: cannot be spoken to over UDP
	stream StreamSender         // nil: has no stream
}

// SetRelay says how a relay is spoken to: a zero address and a nil stream mean not in that manner. Data frames
// are accepted from this address from now on.
func (e *Engine) SetRelay(id weft.RelayID, udp netip.AddrPort, stream StreamSender) {
	r := &relay{id: id, stream: stream}
	if udp.IsValid() {
		r.udp = &conn.StdNetEndpoint{AddrPort: unmap(udp)}
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
			next.byUDP[r.udp.AddrPort] = r
		}
	}
	e.relays.Store(next)
	if r == nil {
		return
	}
	for _, p := range e.known() {
		if w := p.route.Load(); w != nil && w.via.Relay == id {
			e.bind.sendHeld(p)
		}
	}
}

// frames is a buffer in which packets get their prefix, one frame behind the other. So upstream, which joins
// equal packets for segmentation offload by appending to the first, finds each already in its place.
type frames struct {
	data [frameSpace]byte
	bufs [conn.IdealBatchSize][]byte
}

// frameSpace holds a whole batch (128) of frames of the overlay's MTU, 182 KiB, and the longest datagram.
const frameSpace = 192 << 10

// maxDatagram is the longest payload of a UDP datagram over IPv4: 65535 less 20 of IP and 8 of UDP.
const maxDatagram = 65535 - 20 - 8

var framesPool = sync.Pool{New: func() any { return new(frames) }}

// sendPrefixed sends packets to a relay for a node.
func (b *bind) sendPrefixed(id weft.NodeID, to *conn.StdNetEndpoint, bufs [][]byte) error {
	f := framesPool.Get().(*frames)
	defer framesPool.Put(f)
	var firstErr error
	n, at := 0, 0
	send := func() {
		if n == 0 {
			return
		}
		if err := b.socket(f.bufs[:n], to); err != nil && firstErr == nil {
			firstErr = err
		}
		n, at = 0, 0
	}
	for _, buf := range bufs {
		size := wire.DataPrefix + len(buf)
		if size > maxDatagram {
			b.e.drops.sendErrors.Add(1)
			continue
		}
		if n == len(f.bufs) || at+size > len(f.data) {
			send()
		}
		frame := append(wire.AppendData(f.data[at:at], id), buf...)
		f.bufs[n] = frame
		n, at = n+1, at+size
	}
	send()
	return firstErr
}

// An inbox holds what came by the streams of relays, or to spare sockets that carry no data, until the device
// takes it.
type inbox chan parcel

type parcel struct {
	ep   conn.Endpoint
	size int
	buf  *[parcelSize]byte
}

const (
	// inboxSize is in packets: as many as the device's own queue per peer (device.QueueInboundSize).
	inboxSize = 1024
	// inboxPatience is how long a full inbox holds up the reader of a stream, which TCP passes on to the
	// sender, before packets are dropped.
	inboxPatience = 10 * time.Millisecond
	// parcelSize is the longest packet in bytes that is taken from a stream: one of the overlay's MTU, with
	// WireGuard's 32 bytes, fits. It bounds the inbox to 2 MiB.
	parcelSize = 2048
)

var parcelPool = sync.Pool{New: func() any { return new([parcelSize]byte) }}

// DeliverStream takes datagrams that came by a relay's stream from a node; they are valid during the call
// only. It waits a little where the device does not keep up, and then drops.
func (e *Engine) DeliverStream(id weft.RelayID, src weft.NodeID, datagrams [][]byte) {
	via := weft.Via{Method: weft.RelayStream, Relay: id}
	from, ok := e.relaySource(src, via)
	if !ok {
		return
	}
	r := run{source: from}
	for _, d := range datagrams {
		if !e.bind.fromRelay(from, via, d) {
			continue
		}
		if len(d) > parcelSize {
			e.drops.strange.Add(1)
			continue
		}
		if e.called(d, 0, netip.AddrPort{}, from) && e.bind.post(from.peer, d) {
			r.add(d)
		}
	}
	r.flush(e)
}

// post puts a copy of a packet into the inbox.
func (b *bind) post(ep conn.Endpoint, packet []byte) bool {
	buf := parcelPool.Get().(*[parcelSize]byte)
	p := parcel{ep, copy(buf[:], packet), buf}
	select {
	case b.inbox <- p:
		return true
	case <-b.done:
		return false
	default:
	}
	t := time.NewTimer(inboxPatience)
	defer t.Stop()
	select {
	case b.inbox <- p:
		return true
	case <-t.C:
		b.e.drops.streamFull.Add(1)
		parcelPool.Put(buf)
	}
	return false
}

// queued makes the device's receiver of what others have received: by streams and on spare sockets. It waits for
// one packet, or one batch, and takes what else is there.
func (b *bind) queued() conn.ReceiveFunc {
	var from arrival // of which the reads are not all taken
	return func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		for {
			if len(from.reads) > 0 {
				var n int
				n, from.reads = unpack(from.reads, bufs, sizes, eps)
				b.sieve(from.link, bufs[:n], sizes, eps)
				if len(from.reads) == 0 {
					from.taken <- struct{}{} // there is room for one
				}
				return n, nil
			}
			select {
			case p := <-b.inbox:
				return b.inbox.take(p, bufs, sizes, eps), nil
			case from = <-b.spares.ready:
			case <-b.done:
				return 0, net.ErrClosed
			}
		}
	}
}

// take hands over a parcel and those behind it.
func (x inbox) take(p parcel, bufs [][]byte, sizes []int, eps []conn.Endpoint) int {
	for n := 0; ; {
		sizes[n] = copy(bufs[n], p.buf[:p.size])
		eps[n] = p.ep
		parcelPool.Put(p.buf)
		if n++; n == len(bufs) {
			return n
		}
		select {
		case p = <-x:
		default:
			return n
		}
	}
}
