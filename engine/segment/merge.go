package segment

import (
	"bytes"
	"encoding/binary"
)

// MaxPacket is the longest packet that fits IPv4's length field, in bytes, and so the longest that is merged.
const MaxPacket = 1<<16 - 1

// A Merger puts packets of one flow together. Make it with [NewMerger]; one goroutine at a time may use it.
//
//	Place -> open to there -> Add, or Undo if it did not open -> ... -> Take
type Merger struct {
	buf     []byte           // a virtio-net header, and the packet
	headers [maxHeaders]byte // of the first
	saved   [maxHeaders]byte // what the next one's headers lie on
	shape   shape
	at      int    // where the next is opened to
	end     int    // of what is there
	n       int    // pieces
	size    int    // of the first one's payload, in bytes
	next    uint32 // TCP sequence number
	closed  bool   // nothing can follow
}

// NewMerger makes a Merger. Spare is how many bytes a packet may be longer than MaxPacket while it is opened: its padding and tag.
func NewMerger(spare int) *Merger {
	return &Merger{buf: make([]byte, HeaderSize+MaxPacket+spare), end: HeaderSize}
}

// Len is how many packets are there.
func (m *Merger) Len() int { return m.n }

// Place is where to append the next packet of at most most bytes; nil if it would not fit or nothing can follow what is
// there: take that first.
func (m *Merger) Place(most int) []byte {
	m.at = HeaderSize
	if m.n > 0 {
		if m.closed || m.end-HeaderSize-m.shape.all+most > MaxPacket {
			return nil
		}
		m.at = m.end - m.shape.all
		copy(m.saved[:m.shape.all], m.buf[m.at:m.end])
	}
	return m.buf[m.at:m.at:len(m.buf)]
}

// Undo takes back the last Place.
func (m *Merger) Undo() {
	if m.n > 0 {
		copy(m.buf[m.at:m.end], m.saved[:m.shape.all])
	}
}

// Add takes the packet of n bytes that was put where Place said. It is false if that does not continue what is there:
// then it has to be moved, by Move.
func (m *Merger) Add(n int) bool {
	p := m.buf[m.at : m.at+n]
	if m.n == 0 {
		m.first(p)
		return true
	}
	if !m.continues(p) {
		return false
	}
	payload := n - m.shape.all
	ip := m.shape.ip
	last := byte(0)
	if m.shape.tcp {
		last = p[ip+atFlags] & (flagFIN | flagPSH)
	}
	copy(p, m.saved[:m.shape.all]) // its headers go, what they lay on comes back
	m.end += payload
	m.n++
	m.next += uint32(payload)
	m.closed = payload < m.size || last != 0
	if last != 0 {
		m.buf[HeaderSize+ip+atFlags] |= last
	}
	return true
}

// Move takes the packet of n bytes that Add refused to an empty Merger, and puts back what it lay on.
func (m *Merger) Move(n int, to *Merger) {
	to.reset()
	to.at = HeaderSize
	copy(to.buf[HeaderSize:], m.buf[m.at:m.at+n])
	to.first(to.buf[HeaderSize : HeaderSize+n])
	m.Undo()
}

// first begins with a packet.
func (m *Merger) first(p []byte) {
	m.n, m.end, m.closed = 1, HeaderSize+len(p), true
	s, ok := shapeOf(p)
	if !ok || !m.whole(s, p) {
		return
	}
	m.shape, m.size = s, len(p)-s.all
	if m.size <= 0 || !s.valid(p) {
		return
	}
	if s.tcp {
		flags := p[s.ip+atFlags]
		if flags&^(flagACK|flagECE) != 0 { // of these, what has PSH or FIN is the last
			return
		}
		m.next = binary.BigEndian.Uint32(p[s.ip+atSeq:]) + uint32(m.size)
	}
	copy(m.headers[:], p[:s.all])
	m.closed = false
}

// whole reports whether a packet is as long as its headers say, and its IPv4 header's checksum right.
func (m *Merger) whole(s shape, p []byte) bool {
	if s.six {
		if int(binary.BigEndian.Uint16(p[atLength6:]))+sizeIPv6 != len(p) {
			return false
		}
	} else if int(binary.BigEndian.Uint16(p[atLength4:])) != len(p) || fold(sum(p[:sizeIPv4], 0)) != 0xffff {
		return false
	}
	return s.tcp || int(binary.BigEndian.Uint16(p[s.ip+atLengthUDP:])) == len(p)-s.ip
}

// continues reports whether a packet is the next of the flow: its headers are the first one's but for what numbers it.
func (m *Merger) continues(p []byte) bool {
	s, ok := shapeOf(p)
	h, ip := m.headers[:], s.ip
	if !ok || s != m.shape || !m.whole(s, p) {
		return false
	}
	if n := len(p) - s.all; n <= 0 || n > m.size {
		return false
	}
	if s.six {
		if !bytes.Equal(p[:atLength6], h[:atLength6]) || !bytes.Equal(p[atProto6:sizeIPv6], h[atProto6:sizeIPv6]) {
			return false
		}
	} else {
		if p[1] != h[1] || !bytes.Equal(p[atFragment:atSum4], h[atFragment:atSum4]) || !bytes.Equal(p[12:sizeIPv4], h[12:sizeIPv4]) {
			return false
		}
		// Pieces are numbered when they are taken apart again, unless they may not be fragments anyway (RFC 6864).
		id, first := binary.BigEndian.Uint16(p[atID:]), binary.BigEndian.Uint16(h[atID:])
		if p[atFragment]&0x40 == 0 && id != first+uint16(m.n) {
			return false
		}
	}
	if !bytes.Equal(p[ip:ip+4], h[ip:ip+4]) { // ports
		return false
	}
	if s.tcp {
		const ends = flagFIN | flagPSH
		switch {
		case binary.BigEndian.Uint32(p[ip+atSeq:]) != m.next,
			!bytes.Equal(p[ip+atAck:ip+atFlags], h[ip+atAck:ip+atFlags]),
			p[ip+atFlags]&^ends != h[ip+atFlags],
			!bytes.Equal(p[ip+atWindow:ip+atSumTCP], h[ip+atWindow:ip+atSumTCP]),
			!bytes.Equal(p[ip+18:s.all], h[ip+18:s.all]): // urgent pointer and options
			return false
		}
	}
	return s.valid(p)
}

// Take is what to write to the TUN device: a virtio-net header and the packet. It is good until the next Place, and
// leaves the Merger empty.
func (m *Merger) Take() []byte {
	out := m.buf[:m.end]
	p := out[HeaderSize:]
	h := Header{}
	if m.n > 1 {
		s := m.shape
		h = Header{
			Flags: NeedsChecksum, HeaderLen: uint16(s.all), Size: uint16(m.size),
			ChecksumStart: uint16(s.ip), ChecksumAt: uint16(s.sumAt() - s.ip), Type: UDP,
		}
		if s.tcp {
			if h.Type = TCPv4; s.six {
				h.Type = TCPv6
			}
		}
		s.setLength(p, len(p))
		binary.BigEndian.PutUint16(p[s.sumAt():], fold(s.pseudo(p, len(p)-s.ip)))
	}
	h.Put(out)
	m.reset()
	return out
}

func (m *Merger) reset() { m.n, m.end, m.closed = 0, HeaderSize, false }
