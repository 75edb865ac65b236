package wire

import (
	"encoding/binary"

	"weft"
)

// MaxLinks is how many links of its own a node tells of at most.
const MaxLinks = 16

const linkSize = 2 + natSize

// Links tells the peer what the NATs behind the sender's links do, of a sender that has several; it replaces what was
// told before. It goes out with [Candidates], whose NAT is that of the first link, and those that do not know it lose
// nothing.
//
//	| 6 | 0 | count (1) | 0 | session (4) | sequence (4) |
//	count times: | link (2) | mapping (1) | filtering (1) | allocation (1) | hairpin (1) | step (2) |
//
// Session and sequence are those of the Candidates; the link is as in them. A value that this version does not know is
// unknown.
type Links struct {
	Session, Seq uint32
	List         []weft.LinkNAT
}

func (l Links) append(dst []byte) []byte {
	list := l.List[:min(len(l.List), MaxLinks)]
	dst = append(dst, typeLinks, 0, byte(len(list)), 0)
	dst = binary.BigEndian.AppendUint32(dst, l.Session)
	dst = binary.BigEndian.AppendUint32(dst, l.Seq)
	for _, x := range list {
		dst = appendNAT(binary.BigEndian.AppendUint16(dst, uint16(x.Link)), x.NAT)
	}
	return dst
}

func parseLinks(b []byte) (PeerMessage, error) {
	n := int(b[2])
	if n > MaxLinks || len(b) != 12+n*linkSize {
		return nil, ErrFrame
	}
	l := Links{
		Session: binary.BigEndian.Uint32(b[4:]), Seq: binary.BigEndian.Uint32(b[8:]), List: make([]weft.LinkNAT, n),
	}
	for i := range l.List {
		at := b[12+i*linkSize:]
		l.List[i] = weft.LinkNAT{Link: weft.LinkID(binary.BigEndian.Uint16(at)), NAT: parseNAT(at[2:])}
	}
	return l, nil
}
