package engine

import "weft/engine/segment"

// fits reports whether a packet, or what a super-packet is taken apart into, is no longer than most bytes. A super-packet
// of TCP is made to fit: it may be taken apart into shorter pieces as well.
func fits(h *segment.Header, b []byte, most int) bool {
	if h.Type == segment.None {
		return len(b) <= most
	}
	headers := sizeIPv6
	if len(b) > 0 && b[0]>>4 == 4 {
		headers = int(b[0]&15) * 4
	}
	if h.Type == segment.UDP {
		return headers+sizeUDP+int(h.Size) <= most
	}
	if at := headers + offsetTCP; at < len(b) {
		headers += int(b[at]>>4) * 4
	}
	if room := most - headers; int(h.Size) > room && room > 0 {
		h.Size = uint16(room)
	}
	return true
}

const (
	sizeUDP = 8
	// offsetTCP is where a TCP header says how long it is, in words (RFC 9293).
	offsetTCP = 12
)
