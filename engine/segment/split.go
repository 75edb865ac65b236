package segment

import "encoding/binary"

// A Splitter goes through one packet as a TUN device gives it. The zero value has none; one goroutine at a time may use
// it.
type Splitter struct {
	shape   shape
	packet  []byte
	headers [maxHeaders]byte // of the super-packet
	size    int              // of a piece's payload
	at      int              // where the next piece's payload begins
	n       int              // pieces so far
	whole   bool             // not a super-packet
}

// Begin takes a packet and the header that was in front of it. The packet is changed by what follows.
func (s *Splitter) Begin(h Header, packet []byte) error {
	s.packet, s.n, s.whole = packet, 0, false
	if h.Type == None {
		s.whole = true
		if h.Flags&NeedsChecksum != 0 {
			return s.complete(h)
		}
		return nil
	}
	var ok bool
	if s.shape, ok = shapeOf(packet); !ok || h.Size == 0 {
		return ErrKind
	}
	switch h.Type &^ ECN {
	case TCPv4:
		ok = s.shape.tcp && !s.shape.six
	case TCPv6:
		ok = s.shape.tcp && s.shape.six
	case UDP:
		ok = !s.shape.tcp
	default:
		ok = false
	}
	if !ok {
		return ErrKind
	}
	s.size, s.at = int(h.Size), s.shape.all
	copy(s.headers[:], packet[:s.shape.all])
	return nil
}

// complete makes the checksum that the kernel left to be made. Its field has the pseudo-header's sum.
func (s *Splitter) complete(h Header) error {
	start, at := int(h.ChecksumStart), int(h.ChecksumStart)+int(h.ChecksumAt)
	if at+2 > len(s.packet) {
		return ErrShort
	}
	v := ^fold(sum(s.packet[start:], 0))
	if v == 0 && h.ChecksumAt == atSumUDP {
		v = 0xffff
	}
	binary.BigEndian.PutUint16(s.packet[at:], v)
	return nil
}

// Next returns the next piece, or nil behind the last. It lies in the packet, and is good until the next call; by then
// it must be sealed or sent. Behind its end may lie the next one's payload.
func (s *Splitter) Next() []byte {
	if s.whole {
		piece := s.packet
		s.packet, s.whole = nil, false
		return piece
	}
	if s.packet == nil || s.at >= len(s.packet) && s.n > 0 {
		s.packet = nil
		return nil
	}
	h := s.shape.all
	end := min(s.at+s.size, len(s.packet))
	piece := s.packet[s.at-h : end]
	if s.n > 0 {
		copy(piece, s.headers[:h])
	}
	s.number(piece, end == len(s.packet))
	s.shape.setLength(piece, len(piece))
	s.shape.finish(piece)
	s.at = end
	s.n++
	return piece
}

// number gives a piece what differs between pieces: the IPv4 identification, TCP's sequence number, and the flags that
// are the first's or the last's alone.
func (s *Splitter) number(piece []byte, last bool) {
	if !s.shape.six {
		id := binary.BigEndian.Uint16(s.headers[atID:])
		binary.BigEndian.PutUint16(piece[atID:], id+uint16(s.n))
	}
	if !s.shape.tcp {
		return
	}
	ip := s.shape.ip
	seq := binary.BigEndian.Uint32(s.headers[ip+atSeq:])
	binary.BigEndian.PutUint32(piece[ip+atSeq:], seq+uint32(s.n*s.size))
	flags := s.headers[ip+atFlags]
	if !last {
		flags &^= flagFIN | flagPSH
	}
	if s.n > 0 {
		flags &^= flagCWR
	}
	piece[ip+atFlags] = flags
}
