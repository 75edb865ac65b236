package wire

import (
	"encoding/binary"
	"net/netip"

	"weft"
	"weft/key"
)

// A peer frame is what two nodes tell each other beside WireGuard, over any path:
//
//	+---------------------------------------------------------------+
//	|                     header, Kind = Peer                       |
//	+---------------------------------------------------------------+
//	|                      sender's NodeID                          |
//	+---------------------------------------------------------------+
//	|   nonce (12)  |  sealed message (n)  |        tag (16)        |
//	+---------------------------------------------------------------+
//
// The key is what only the two can derive from their node keys ([PeerBox]); the first eight bytes are
// authenticated with it. The message inside begins with a byte that says what it is.

// PeerPrefix is the length in bytes of what is in front of the sealed part.
const PeerPrefix = HeaderSize + 4

// peerPurpose separates the box of peer frames from other uses of the same keys.
const peerPurpose = "peer frame v1"

// PeerBox derives the box in which two nodes seal their frames.
func PeerBox(own key.NodePrivate, peer key.NodePublic) (key.Box, error) {
	return key.Agree(own, peer, peerPurpose)
}

// AppendPeer adds a sealed peer frame from sender to dst. The message is appended and sealed by m.
func AppendPeer(dst []byte, box key.Box, sender weft.NodeID, m PeerMessage) []byte {
	at := len(dst)
	dst = binary.BigEndian.AppendUint32(appendHeader(dst, KindPeer), uint32(sender))
	sealed := len(dst)
	dst = m.append(dst) // and sealed where it stands
	return box.Seal(dst[:sealed], dst[sealed:], dst[at:sealed])
}

// PeerSender tells who says that it sent the frame: whose box to open it with.
func PeerSender(b []byte) (weft.NodeID, error) {
	rest, err := body(b, KindPeer)
	if err != nil || len(rest) < 4+key.Overhead+1 {
		return 0, ErrFrame
	}
	return weft.NodeID(binary.BigEndian.Uint32(rest)), nil
}

// OpenPeer opens and parses a peer frame.
func OpenPeer(b []byte, box key.Box) (PeerMessage, error) {
	if _, err := PeerSender(b); err != nil {
		return nil, err
	}
	plain, err := box.Open(nil, b[PeerPrefix:], b[:PeerPrefix])
	if err != nil {
		return nil, err
	}
	return ParsePeerMessage(plain)
}

// A PeerMessage is one of [Ping], [Pong], [Candidates], [Report], [Attempt], [Links], [Uplinks] and [Portal].
type PeerMessage interface{ append(dst []byte) []byte }

const (
	typePing       = 1
	typePong       = 2
	typeCandidates = 3
	typeReport     = 4
	typeAttempt    = 5
	typeLinks      = 6
	typeUplinks    = 7
	typePortal     = 8
)

// A TxID is a transaction of a ping: random, so that only who received the ping can answer it.
type TxID [8]byte

// Ping asks whether a path carries packets.
//
//	| 1 | flags (0) | path (2) | transaction (8) | padding ... |
//
// Path is the sender's number of the path; a [Report] names paths by it. Padding, which is ignored, makes the
// probe as long as the packets whose passage it asks about, up to what a datagram has room for. Who takes no packets of
// that length does not answer.
type Ping struct {
	Path    uint16
	Tx      TxID
	Padding int // bytes
}

func (p Ping) append(dst []byte) []byte {
	dst = binary.BigEndian.AppendUint16(append(dst, typePing, 0), p.Path)
	dst = append(dst, p.Tx[:]...)
	return append(dst, make([]byte, max(0, p.Padding))...)
}

// Pong answers a ping, by the path that the ping came by.
//
//	| 2 | link (1) | path (2) | transaction (8) | observed address (16) | observed port (2) |
//
// Path and transaction are the ping's. Observed is where the ping came from as its receiver saw it, zeros
// through a relay. Link is the receiver's number of the link that it came by, as in [Candidates], if it has several and
// the number is below 256; else 0, as earlier versions send.
type Pong struct {
	Path     uint16
	Tx       TxID
	Observed netip.AddrPort
	Link     weft.LinkID
}

func (p Pong) append(dst []byte) []byte {
	link := byte(0)
	if p.Link <= 255 {
		link = byte(p.Link)
	}
	dst = binary.BigEndian.AppendUint16(append(dst, typePong, link), p.Path)
	dst = append(dst, p.Tx[:]...)
	return appendAddr(dst, p.Observed)
}

// MaxCandidates is how many candidates one node announces at most.
const MaxCandidates = 32

const candidateSize = addrSize + 1 + 1 + 2

// candidateTCP is the flag of a candidate that takes TCP.
const candidateTCP = 1

// Candidates tells the peer where the sender may be reached; it replaces what was told before.
//
//	| 3 | flags | count (1) | 0 | session (4) | sequence (4) |
//	count times: | address (16) | port (2) | kind (1) | flags (1) | link (2) |
//	| heard session (4) | heard sequence (4) |
//	| mapping (1) | filtering (1) | allocation (1) | hairpin (1) | step (2) | known (2) |
//
// Session is drawn anew when the sender starts; within it, a lower sequence is stale. The first flag asks the
// receiver to answer with its own. The first flag of a candidate says that the sender takes TCP connections there, too
// ([Hello]); earlier versions send zero and do not look at it. Candidates that nothing can be sent to, or of a kind that this version does
// not know, are passed over, by the sender and by the receiver. Heard are session and sequence of the last
// Candidates that the sender has from the receiver, zeros if none: the receiver knows by it that the sender is
// sending to its addresses too. So it does by known, the [Digest] of those addresses at the receiver's NAT that the
// sender has from anywhere, be it from the coordinator, zero if none. The rest of the last line is the sender's NAT for IPv4; a value that this version does not
// know is unknown. Earlier versions end with the list, and have heard nothing and know of no NAT.
type Candidates struct {
	Session, Seq           uint32
	WantReply              bool
	List                   []weft.Candidate
	HeardSession, HeardSeq uint32
	NAT                    weft.NAT
	Known                  uint16
}

// Digest is a number that is the same for the same addresses at a NAT (server reflexive, IPv4) in the same order, and
// rarely for others: FNV-1a of 32 bits over 4 bytes of address and 2 of port each, the two halves combined by
// exclusive or, and 1 in place of 0. Without any such address it is 0.
func Digest(list []weft.Candidate) uint16 {
	const offset, prime = 2166136261, 16777619
	h, some := uint32(offset), false
	for _, c := range list {
		ip := c.Addr.Addr().Unmap()
		if c.Kind != weft.ServerReflexive || !ip.Is4() {
			continue
		}
		b := ip.As4()
		for _, x := range [...]byte{b[0], b[1], b[2], b[3], byte(c.Addr.Port() >> 8), byte(c.Addr.Port())} {
			h = (h ^ uint32(x)) * prime
		}
		some = true
	}
	if !some {
		return 0
	}
	return max(uint16(h>>16)^uint16(h), 1)
}

func (c Candidates) append(dst []byte) []byte {
	at := len(dst)
	var flags, n byte
	if c.WantReply {
		flags = 1
	}
	dst = append(dst, typeCandidates, flags, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, c.Session)
	dst = binary.BigEndian.AppendUint32(dst, c.Seq)
	for _, x := range c.List {
		x, ok := cleanCandidate(x)
		if !ok || n == MaxCandidates {
			continue
		}
		dst = append(appendAddr(dst, x.Addr), byte(x.Kind), tcpFlag(x.TCP))
		dst = binary.BigEndian.AppendUint16(dst, uint16(x.Link))
		n++
	}
	dst[at+2] = n
	dst = binary.BigEndian.AppendUint32(dst, c.HeardSession)
	dst = binary.BigEndian.AppendUint32(dst, c.HeardSeq)
	return binary.BigEndian.AppendUint16(appendNAT(dst, c.NAT), c.Known)
}

func tcpFlag(b bool) byte {
	if b {
		return candidateTCP
	}
	return 0
}

// candidatesTail is the length of what follows the list.
const candidatesTail = 4 + 4 + natSize + 2

const natSize = 4 + 2

func appendNAT(dst []byte, n weft.NAT) []byte {
	dst = append(dst, byte(n.Mapping), byte(n.Filtering), byte(n.Allocation), byte(n.Hairpin))
	return binary.BigEndian.AppendUint16(dst, uint16(n.Step))
}

// parseNAT reads a NAT; what this version has no word for is unknown.
func parseNAT(b []byte) weft.NAT {
	n := weft.NAT{Step: int16(binary.BigEndian.Uint16(b[4:]))}
	if m := weft.Mapping(b[0]); m <= weft.AddressAndPortDependentMapping {
		n.Mapping = m
	}
	if f := weft.Filtering(b[1]); f <= weft.AddressAndPortDependentFiltering {
		n.Filtering = f
	}
	if a := weft.Allocation(b[2]); a <= weft.RandomAllocation {
		n.Allocation = a
	}
	if h := weft.Support(b[3]); h <= weft.Unsupported {
		n.Hairpin = h
	}
	if n.Allocation != weft.SequentialAllocation {
		n.Step = 0
	}
	return n
}

// cleanCandidate returns the candidate as every part of weft compares it, IPv4 unmapped and without a zone,
// which means nothing on another machine; and whether a packet can be sent to it at all.
func cleanCandidate(c weft.Candidate) (weft.Candidate, bool) {
	ip := c.Addr.Addr().Unmap().WithZone("")
	c.Addr = netip.AddrPortFrom(ip, c.Addr.Port())
	return c, ip.IsValid() && !ip.IsUnspecified() && !ip.IsMulticast() && ip != broadcast &&
		c.Addr.Port() != 0 && c.Kind >= weft.Host && c.Kind <= weft.PeerReflexive
}

var broadcast = netip.AddrFrom4([4]byte{255, 255, 255, 255})

// MaxReports is how many paths one report covers at most.
const MaxReports = 16

const reportSize = 2 + 2 + 8 + 8

// Report acknowledges data: per path, all that has arrived by it since the receiver knows it. The sender of
// the data compares it with what it sent; a path that answers pings and loses data is found out so.
//
//	| 4 | 0 | count (1) | 0 |
//	count times: | path (2) | 0 (2) | packets (8) | bytes (8) |
//
// Path is the number that the data's sender gave it in its pings. Who has more paths than MaxReports sends
// several reports: of one, the rest is cut off.
type Report struct{ Paths []PathReport }

// PathReport is one path's line of a [Report].
type PathReport struct {
	Path    uint16
	Packets uint64 // WireGuard packets, cumulative
	Bytes   uint64 // their lengths, cumulative
}

func (r Report) append(dst []byte) []byte {
	list := r.Paths[:min(len(r.Paths), MaxReports)]
	dst = append(dst, typeReport, 0, byte(len(list)), 0)
	for _, x := range list {
		dst = binary.BigEndian.AppendUint16(dst, x.Path)
		dst = binary.BigEndian.AppendUint16(dst, 0)
		dst = binary.BigEndian.AppendUint64(dst, x.Packets)
		dst = binary.BigEndian.AppendUint64(dst, x.Bytes)
	}
	return dst
}

// ParsePeerMessage parses the plaintext of a peer frame.
func ParsePeerMessage(b []byte) (PeerMessage, error) {
	if len(b) < 4 {
		return nil, ErrFrame
	}
	switch b[0] {
	case typePing:
		if len(b) < 12 {
			return nil, ErrFrame
		}
		return Ping{Path: binary.BigEndian.Uint16(b[2:]), Tx: TxID(b[4:12]), Padding: len(b) - 12}, nil
	case typePong:
		if len(b) != 12+addrSize {
			return nil, ErrFrame
		}
		return Pong{Path: binary.BigEndian.Uint16(b[2:]), Tx: TxID(b[4:12]), Observed: parseAddr(b[12:]), Link: weft.LinkID(b[1])}, nil
	case typeCandidates:
		return parseCandidates(b)
	case typeReport:
		n := int(b[2])
		if n > MaxReports || len(b) != 4+n*reportSize {
			return nil, ErrFrame
		}
		r := Report{Paths: make([]PathReport, n)}
		for i := range r.Paths {
			at := b[4+i*reportSize:]
			r.Paths[i] = PathReport{
				Path:    binary.BigEndian.Uint16(at),
				Packets: binary.BigEndian.Uint64(at[4:]),
				Bytes:   binary.BigEndian.Uint64(at[12:]),
			}
		}
		return r, nil
	case typeAttempt:
		return parseAttempt(b)
	case typeLinks:
		return parseLinks(b)
	case typeUplinks:
		return parseUplinks(b)
	case typePortal:
		return parsePortal(b)
	}
	return nil, ErrFrame
}

func parseCandidates(b []byte) (PeerMessage, error) {
	n := int(b[2])
	end := 12 + n*candidateSize
	if n > MaxCandidates || len(b) != end && len(b) != end+candidatesTail {
		return nil, ErrFrame
	}
	c := Candidates{
		WantReply: b[1]&1 != 0,
		Session:   binary.BigEndian.Uint32(b[4:]),
		Seq:       binary.BigEndian.Uint32(b[8:]),
		List:      make([]weft.Candidate, 0, n),
	}
	for i := range n {
		at := b[12+i*candidateSize:]
		x, ok := cleanCandidate(weft.Candidate{
			Addr: parseAddr(at),
			Kind: weft.CandidateKind(at[addrSize]),
			Link: weft.LinkID(binary.BigEndian.Uint16(at[addrSize+2:])),
			TCP:  at[addrSize+1]&candidateTCP != 0,
		})
		if ok {
			c.List = append(c.List, x)
		}
	}
	if tail := b[end:]; len(tail) == candidatesTail {
		c.HeardSession, c.HeardSeq = binary.BigEndian.Uint32(tail), binary.BigEndian.Uint32(tail[4:])
		c.NAT, c.Known = parseNAT(tail[8:]), binary.BigEndian.Uint16(tail[8+natSize:])
	}
	return c, nil
}
