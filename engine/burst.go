package engine

import (
	"errors"
	"log/slog"
	"net"

	"weft"
	"weft/engine/fit"
	"weft/engine/segment"
	"weft/host"
	"weft/wire"
	"weft/wireguard"
)

// A burst seals packets one behind the other and sends them together. It is one goroutine's.
type burst struct {
	e      *Engine
	split  segment.Splitter
	place  []byte
	writer *host.UDPWriter
	cut    fit.Fragmenter
	// What is for a relay's stream goes out before anything else does: one stream and peer at a time.
	stream    StreamSender
	streamTo  weft.NodeID
	datagrams [][]byte
}

// burstSize is how much is sealed before it is sent at the latest, in bytes: twice what one UDP_SEGMENT send takes.
const burstSize = 128 << 10

func newBurst(e *Engine) *burst {
	b := &burst{e: e, place: make([]byte, 0, burstSize), writer: host.NewUDPWriter()}
	b.writer.Patient = true
	return b
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
	h := segment.ParseHeader(packet)
	inner := packet[segment.HeaderSize:]
	most := b.e.mtu
	limited := false
	if limit := int(w.mtu.Load()); limit != 0 && limit < most {
		limited, most = true, limit
		if !fits(&h, inner, most) {
			if reply = fit.TooBig(make([]byte, segment.HeaderSize), inner, most); reply != nil {
				b.e.drops.tooLong.Add(1)
				return reply // made by allocating: hosts remember what they were told
			}
		}
	}
	if err := b.split.Begin(h, inner); err != nil {
		b.e.drops.strange.Add(1)
		return nil
	}
	if limited && h.Type == segment.None {
		fit.Clamp(inner, most)
	}
	packets, bytes := 0, 0
	for piece := b.split.Next(); piece != nil; piece = b.split.Next() {
		if limited && len(piece) > most && b.cut.Begin(piece, most) {
			n, size := b.fragments(s, l, most)
			packets, bytes = packets+n, bytes+size
			continue
		}
		n := b.seal(s, l, piece, most)
		if n == 0 {
			break
		}
		packets, bytes = packets+1, bytes+n
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

// seal seals one packet, and tells how long its message is; zero: the session is used up.
func (b *burst) seal(s *session, l lane, piece []byte, most int) int {
	counter, ok := s.take()
	if !ok {
		b.e.drops.noSession.Add(1)
		return 0
	}
	n := len(piece)
	padded := wireguard.Padded(n, most)
	if cap(b.place)-len(b.place) < wire.DataPrefix+padded+wireguard.Overhead || l.stream != b.stream || b.stream != nil && b.streamTo != s.peer.id {
		b.flush()
		if cap(b.place) < wire.DataPrefix+padded+wireguard.Overhead {
			b.e.drops.strange.Add(1)
			return 0
		}
	}
	at := len(b.place)
	if l.prefix {
		b.place = wire.AppendData(b.place, s.peer.id)
	}
	if padded == n {
		b.place = s.Seal(b.place, counter, piece)
	} else {
		// The padding is zeros, and lies where the next piece's payload may be.
		var behind [wireguard.PaddingMultiple]byte
		piece = piece[:padded]
		copy(behind[:], piece[n:])
		clear(piece[n:])
		b.place = s.Seal(b.place, counter, piece)
		copy(piece[n:], behind[:])
	}
	message := b.place[at:]
	if l.stream != nil {
		b.stream, b.streamTo = l.stream, s.peer.id
		b.datagrams = append(b.datagrams, message)
	} else {
		b.writer.Add(l.to, message, len(message))
	}
	if l.prefix {
		return len(message) - wire.DataPrefix
	}
	return len(message)
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
