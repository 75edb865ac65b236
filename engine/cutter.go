package engine

import (
	"time"

	"weft/engine/fit"
	"weft/engine/segment"
)

// A cutter takes a packet of the device apart into packets that fit the way. It is one goroutine's.
type cutter struct {
	split   segment.Splitter
	cut     fit.Fragmenter
	most    int  // the longest that fits, in bytes
	limited bool // by the way, not by the device
	cutting bool
	answers fit.Limit
	answer  []byte // its room
}

// begin takes a packet, which has a virtio-net header in front and is changed. Mtu is the device's, limit the way's; 0: as
// long as the device's. A reply is what the sender must be told instead, if the packet is too long for the way; it is empty
// where enough was told, and stays until the next packet.
func (c *cutter) begin(packet []byte, mtu, limit int) (reply []byte, err error) {
	h := segment.ParseHeader(packet)
	inner := packet[segment.HeaderSize:]
	c.most, c.limited, c.cutting = mtu, false, false
	if limit != 0 && limit < mtu {
		c.limited, c.most = true, limit
		if !fits(&h, inner, limit) {
			var header [segment.HeaderSize]byte
			if reply = fit.TooBig(append(c.answer[:0], header[:]...), inner, limit); reply != nil {
				if c.answer = reply; !c.answers.Allow(time.Now()) {
					reply = reply[:0]
				}
				return reply, nil
			}
		}
	}
	if err := c.split.Begin(h, inner); err != nil {
		return nil, err
	}
	if c.limited && h.Type == segment.None {
		fit.Clamp(inner, c.most)
	}
	return nil, nil
}

// next is the next packet, nil behind the last. One that is too long for the way and may be fragmented is: that is a router's duty
// (RFC 791 section 3.2). Fragments of what it would become on the underlay are lost where nobody says how narrow it is.
func (c *cutter) next() []byte {
	if c.cutting {
		if piece := c.cut.Next(); piece != nil {
			return piece
		}
		c.cutting = false
	}
	piece := c.split.Next()
	if piece != nil && c.limited && len(piece) > c.most && c.cut.Begin(piece, c.most) {
		c.cutting = true
		return c.cut.Next()
	}
	return piece
}
