package fit

import "encoding/binary"

// maxHeader is the longest IPv4 header in bytes.
const maxHeader = 60

const (
	moreFragments = 0x2000
	// optionCopied marks the IPv4 options that belong in all fragments (RFC 791 section 3.1).
	optionCopied = 0x80
)

// A Fragmenter takes an IPv4 packet apart that is too long and may be fragmented, as a router does (RFC 791 section 3.2).
// Fragments are made where the packet lies: the header of each is written over the end of the one before, which is of no
// use any more by then. The zero Fragmenter is ready; one goroutine at a time may use it.
type Fragmenter struct {
	packet []byte
	header [maxHeader]byte
	length int    // of the header
	at     int    // where the next one's payload begins
	most   int    // payload of each, in bytes
	first  int    // where the packet's payload begins
	offset int    // of the packet itself, in a longer one
	flags  uint16 // of the packet's last fragment
}

// Begin takes a packet, which is changed from then on. It is false, and nothing is changed, if the packet is none that may
// be fragmented into packets of mtu bytes.
func (f *Fragmenter) Begin(packet []byte, mtu int) bool {
	p, ok := parse(packet)
	if !ok || p.six || p.df || p.end <= mtu {
		return false
	}
	most := (mtu - p.payload) &^ 7
	if most < 8 || fold(sum(packet[:p.payload], 0)) != 0xffff {
		return false // a header whose checksum is wrong shall not get a right one
	}
	word := binary.BigEndian.Uint16(packet[atFragment:])
	offset := int(word&fragmentOffset) * 8
	if offset+p.end-p.payload > 1<<16-1 {
		return false
	}
	f.packet, f.length, f.at, f.first, f.most = packet[:p.end], p.payload, p.payload, p.payload, most
	f.offset, f.flags = offset, word&^fragmentOffset
	copy(f.header[:], packet[:p.payload])
	return true
}

// Next is the next fragment, until it is nil. It is of use until the next call.
func (f *Fragmenter) Next() []byte {
	if f.at >= len(f.packet) {
		f.packet = nil
		return nil
	}
	n := min(f.most, len(f.packet)-f.at)
	word := f.flags | uint16((f.offset+f.at-f.first)/8)
	if f.at+n < len(f.packet) {
		word |= moreFragments
	}
	if f.at == f.first+f.most {
		f.uncopied()
	}
	piece := f.packet[f.at-f.length : f.at+n]
	h := f.header[:f.length]
	binary.BigEndian.PutUint16(h[atLength4:], uint16(len(piece)))
	binary.BigEndian.PutUint16(h[atFragment:], word)
	h[atSum4], h[atSum4+1] = 0, 0
	binary.BigEndian.PutUint16(h[atSum4:], ^fold(sum(h, 0)))
	copy(piece, h)
	f.at += n
	return piece
}

// uncopied takes out of the header what belongs in the first fragment alone.
func (f *Fragmenter) uncopied() {
	for at := sizeIPv4; at < f.length; {
		kind := f.header[at]
		if kind == optionEnd {
			return
		}
		n := 1
		if kind != optionNop {
			if at+sizeOption > f.length {
				return
			}
			n = int(f.header[at+1])
		}
		if n < 1 || at+n > f.length {
			return
		}
		if kind&optionCopied == 0 {
			for i := range n {
				f.header[at+i] = optionNop
			}
		}
		at += n
	}
}
