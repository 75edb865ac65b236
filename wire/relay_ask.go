package wire

import (
	"encoding/binary"
	"net/netip"

	"weft"
	"weft/key"
)

// A node that is bound may ask its relay two things, which only a relay can know or do.
//
//	node -> relay   Locate      | header | nonce (8) | sealed: | NodeID (4) | 0 (20) | |
//	relay -> node   Located     | header | nonce (8) | sealed: | NodeID (4) | address (18) | 0 (2) | |
//
//	node -> relay   Probe       | header | nonce (8) | sealed: | transaction (12) | port (2) | flags (1) | 0 (61) | |
//	relay -> node   Probed      | header | nonce (8) | sealed: | address (18) | outcome (1) | 0 (1) | |
//	relay ~> node   a STUN success response with that transaction, to that port of the binding's IP address
//
// All are under the box of node key and relay key, with what stands in front authenticated, as Bind's proof is. A
// request counts only from the address that its sender is bound to; answers go there. The zeros make a request as
// long as all that it is answered with: nothing here amplifies, not even for who repeats a recorded one.

// Lengths in bytes.
const (
	askSealedAt = HeaderSize + 8
	locatePlain = 4 + addrSize + 2
	probePlain  = 76
	probedPlain = addrSize + 2

	LocateSize  = askSealedAt + key.Overhead + locatePlain // of Located too
	ProbeSize   = askSealedAt + key.Overhead + probePlain
	ProbedSize  = askSealedAt + key.Overhead + probedPlain
	ProbePacket = ProbeSize - ProbedSize // the longest STUN message that a Probe may bring about
)

// AskScratch is the memory in bytes that opening one of these frames needs.
const AskScratch = probePlain

// Locate asks where the relay sees a node of the sender's network.
type Locate struct {
	Nonce [8]byte
	Node  weft.NodeID
}

// Located answers a Locate. The address is the one that the node has proved, over UDP, to receive at; it is not
// valid where the node is not bound to this relay over UDP.
type Located struct {
	Nonce [8]byte
	Node  weft.NodeID
	Addr  netip.AddrPort
}

// Probe asks the relay to send one STUN message to a port of the IP address that the sender is bound at.
type Probe struct {
	Nonce     [8]byte
	Tx        [12]byte // of the STUN message
	Port      uint16   // not zero
	Alternate bool     // to be sent from the relay's alternate STUN port, not the main one
}

// A ProbeOutcome is what a relay did about a Probe.
type ProbeOutcome uint8

// The outcomes.
const (
	ProbeSent   ProbeOutcome = 1
	ProbeNoPort ProbeOutcome = 2 // the relay has no STUN port that it could be sent from as was asked
)

// Probed answers a Probe: silence at the port means something only if the message was sent.
type Probed struct {
	Nonce   [8]byte
	Addr    netip.AddrPort // where it was sent
	Outcome ProbeOutcome
}

// sealAsk seals in place what was appended to dst from askSealedAt behind at on.
func sealAsk(dst []byte, at int, box key.Box) []byte {
	return box.Seal(dst[:at+askSealedAt], dst[at+askSealedAt:], dst[at:at+askSealedAt])
}

// openAsk opens a frame of one kind and length; the plaintext lies in scratch.
func openAsk(scratch, b []byte, k Kind, plain int, box key.Box) (nonce [8]byte, text []byte, err error) {
	rest, err := body(b, k)
	if err != nil || len(rest) != 8+key.Overhead+plain {
		return nonce, nil, ErrFrame
	}
	text, err = box.Open(scratch[:0], rest[8:], b[:askSealedAt])
	return [8]byte(rest), text, err
}

var askZeros [probePlain]byte

// AppendLocate adds a Locate frame.
func AppendLocate(dst []byte, l Locate, box key.Box) []byte {
	at := len(dst)
	dst = append(appendHeader(dst, KindLocate), l.Nonce[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(l.Node))
	return sealAsk(append(dst, askZeros[:locatePlain-4]...), at, box)
}

// ParseLocate opens a Locate frame. Scratch has AskScratch bytes, or is nil to allocate them.
func ParseLocate(scratch, b []byte, box key.Box) (Locate, error) {
	nonce, text, err := openAsk(scratch, b, KindLocate, locatePlain, box)
	if err != nil {
		return Locate{}, err
	}
	l := Locate{Nonce: nonce, Node: weft.NodeID(binary.BigEndian.Uint32(text))}
	if l.Node == 0 {
		return Locate{}, ErrFrame
	}
	return l, nil
}

// AppendLocated adds a Located frame.
func AppendLocated(dst []byte, l Located, box key.Box) []byte {
	at := len(dst)
	dst = append(appendHeader(dst, KindLocated), l.Nonce[:]...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(l.Node))
	return sealAsk(append(appendAddr(dst, l.Addr), 0, 0), at, box)
}

// ParseLocated opens a Located frame.
func ParseLocated(b []byte, box key.Box) (Located, error) {
	nonce, text, err := openAsk(nil, b, KindLocated, locatePlain, box)
	if err != nil {
		return Located{}, err
	}
	l := Located{Nonce: nonce, Node: weft.NodeID(binary.BigEndian.Uint32(text)), Addr: parseAddr(text[4:])}
	if l.Node == 0 {
		return Located{}, ErrFrame
	}
	return l, nil
}

// probeAlternate is the flag of a Probe that asks for the alternate port. Other bits are reserved.
const probeAlternate = 1

// AppendProbe adds a Probe frame.
func AppendProbe(dst []byte, p Probe, box key.Box) []byte {
	at := len(dst)
	dst = append(appendHeader(dst, KindProbe), p.Nonce[:]...)
	dst = binary.BigEndian.AppendUint16(append(dst, p.Tx[:]...), p.Port)
	var flags byte
	if p.Alternate {
		flags = probeAlternate
	}
	dst = append(dst, flags)
	return sealAsk(append(dst, askZeros[:probePlain-12-2-1]...), at, box)
}

// ParseProbe opens a Probe frame. Scratch has AskScratch bytes, or is nil to allocate them.
func ParseProbe(scratch, b []byte, box key.Box) (Probe, error) {
	nonce, text, err := openAsk(scratch, b, KindProbe, probePlain, box)
	if err != nil {
		return Probe{}, err
	}
	p := Probe{
		Nonce: nonce, Tx: [12]byte(text), Port: binary.BigEndian.Uint16(text[12:]), Alternate: text[14]&probeAlternate != 0,
	}
	if p.Port == 0 {
		return Probe{}, ErrFrame
	}
	return p, nil
}

// AppendProbed adds a Probed frame.
func AppendProbed(dst []byte, p Probed, box key.Box) []byte {
	at := len(dst)
	dst = append(appendHeader(dst, KindProbed), p.Nonce[:]...)
	return sealAsk(append(appendAddr(dst, p.Addr), byte(p.Outcome), 0), at, box)
}

// ParseProbed opens a Probed frame.
func ParseProbed(b []byte, box key.Box) (Probed, error) {
	nonce, text, err := openAsk(nil, b, KindProbed, probedPlain, box)
	if err != nil {
		return Probed{}, err
	}
	p := Probed{Nonce: nonce, Addr: parseAddr(text), Outcome: ProbeOutcome(text[addrSize])}
	if p.Outcome == 0 {
		return Probed{}, ErrFrame
	}
	return p, nil
}
