package engine

import (
	"errors"
	"log/slog"
	"net"

	"weft"
	"weft/host"
	"weft/wire"
	"weft/wireguard"
)

// A burst seals packets one behind the other and sends them together. It is one goroutine's.
type burst struct {
	e      *Engine
	cutter cutter
	place  []byte
	writer *host.UDPWriter
	// What is for a relay's stream goes out before anything else does: one stream and peer at a time.
	stream    StreamSender
	streamTo  weft.NodeID
	datagrams [][]byte

	also *burst // messages of this one that go by a second way; nil: none did
}

const (
	// burstSize is how much is sealed before it is sent at the latest, in bytes: twice what one UDP_SEGMENT send takes.
	burstSize = 128 << 10
	// burstLeast is how much a burst has room for at first, in bytes. It gets twice as much whenever that was too little: those that
	// send handshakes and feedback, one for each peer that bonds among them, never need more.
	burstLeast = 4 << 10
)

func newBurst(e *Engine) *burst {
	return &burst{e: e, writer: host.NewUDPWriter()}
}

// A lane is how a way is gone at the moment.
type lane struct {
	to     *host.UDPDest
	stream StreamSender
	prefix bool // a relay's: the peer's number goes in front
}

// lane finds the lane of a way.
func (e *Engine) lane(w *way) (l lane, err error) {
	generation := e.sockets.Generation()
	if w.via.Method == weft.Direct {
		l.to, err = w.to(e, generation)
		return l, err
	}
	if w.via.Method == weft.DirectTCP {
		l.stream, err = w.stream()
		return l, err
	}
	r := e.relays.Load().byID[w.via.Relay]
	switch {
	case r == nil:
	case w.via.Method == weft.RelayUDP && r.udp != nil:
		l.prefix = true
		l.to, err = r.udp.to(e, generation)
		return l, err
	case w.via.Method == weft.RelayStream && r.stream != nil:
		l.stream = r.stream
		return l, nil
	}
	return l, ErrNoWay
}

// add seals a packet, which has a virtio-net header in front and room for padding behind, and is changed. It tells what
// the sender must be told instead, if the packet is too long for the way.
func (b *burst) add(s *session, w *way, now int64, packet []byte) (reply []byte) {
	l, err := b.e.lane(w)
	if err != nil {
		b.e.drops.noRoute.Add(1)
		return nil
	}
	reply, err = b.cutter.begin(packet, b.e.mtu, int(w.mtu.Load()))
	switch {
	case reply != nil:
		b.e.drops.tooLong.Add(1)
		return reply
	case err != nil:
		b.e.drops.strange.Add(1)
		return nil
	}
	packets, bytes := 0, 0
	for piece := b.cutter.next(); piece != nil; piece = b.cutter.next() {
		message, _ := b.seal(s, l, piece, b.cutter.most)
		if message == nil {
			break
		}
		packets, bytes = packets+1, bytes+len(message)
	}
	w.txPackets.Add(uint64(packets))
	w.txBytes.Add(uint64(bytes))
	p := s.peer
	p.sent.Store(now)
	p.dataSent.Store(now)
	b.e.touch(p, now)
	b.e.watch(p)
	return nil
}

// seal seals one packet, and returns its message, which stays until the next flush, and its counter; nil: the session is used up,
// or there is no room for a packet of that length.
func (b *burst) seal(s *session, l lane, piece []byte, most int) (message []byte, counter uint64) {
	counter, ok := s.take()
	if !ok {
		b.e.drops.noSession.Add(1)
		return nil, 0
	}
	if !b.begin(l, s.peer.id, wireguard.Padded(len(piece), most)+wireguard.Overhead) {
		return nil, 0
	}
	at := len(b.place)
	b.place = s.sealPadded(b.place, counter, piece, most)
	message = b.place[at:]
	b.end(l, s.peer.id, at)
	return message, counter
}

// carry sends a message that is sealed already, or again. It is false if there is no room for one of that length.
func (b *burst) carry(l lane, to weft.NodeID, message []byte) bool {
	if !b.begin(l, to, len(message)) {
		return false
	}
	at := len(b.place)
	b.place = append(b.place, message...)
	b.end(l, to, at)
	return true
}

// copy sends a message that was sealed since the last flush by another way, too.
func (b *burst) copy(l lane, to weft.NodeID, message []byte) bool {
	if b.also == nil {
		b.also = newBurst(b.e) // the message would be written over if this one had to be flushed
	}
	return b.also.carry(l, to, message)
}

// begin makes room for a message of size bytes, and puts the relay's prefix in front, if there is one.
func (b *burst) begin(l lane, to weft.NodeID, size int) bool {
	need := wire.DataPrefix + size
	if full := cap(b.place)-len(b.place) < need; full || l.stream != b.stream || b.stream != nil && b.streamTo != to {
		b.flush()
		if full && cap(b.place) < burstSize {
			b.place = make([]byte, 0, min(max(2*cap(b.place), burstLeast, need), burstSize))
		}
		if cap(b.place) < need {
			b.e.drops.strange.Add(1)
			return false
		}
	}
	if l.prefix {
		b.place = wire.AppendData(b.place, to)
	}
	return true
}

// end notes that the message from a place on is to be sent.
func (b *burst) end(l lane, to weft.NodeID, at int) {
	if l.stream != nil {
		b.stream, b.streamTo = l.stream, to
		b.datagrams = append(b.datagrams, b.place[at:])
		return
	}
	if l.prefix {
		at -= wire.DataPrefix
	}
	datagram := b.place[at:]
	b.writer.Add(l.to, datagram, len(datagram))
}

// flush sends what was sealed.
func (b *burst) flush() {
	if b.stream != nil {
		if err := b.stream.SendTo(b.streamTo, b.datagrams); err != nil {
			b.e.failed(len(b.datagrams), err)
		}
		clear(b.datagrams)
		b.datagrams, b.stream = b.datagrams[:0], nil
	} else if len(b.place) > 0 {
		if c := b.writer.Flush(); c.Failed+c.Full > 0 {
			b.e.failed(c.Failed+c.Full, errNotTaken)
		}
	}
	b.place = b.place[:0]
	if b.also != nil {
		b.also.flush()
	}
}

// errNotTaken is what packets met that the kernel refused: a firewall, a network that is gone.
var errNotTaken = errors.New("the kernel did not take a packet")

// failed counts packets that were not taken.
func (e *Engine) failed(n int, err error) {
	if errors.Is(err, net.ErrClosed) {
		return
	}
	e.drops.sendErrors.Add(uint64(n))
	e.quiet.say(slog.LevelDebug, "send", "packets could not be sent", "packets", n, "error", err)
}
