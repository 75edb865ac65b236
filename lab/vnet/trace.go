package vnet

import (
	"fmt"
	"net/netip"
	"time"
)

// EventKind is what happened to a packet.
type EventKind uint8

// The kinds.
const (
	Sent EventKind = iota
	Forwarded
	Dropped
	Arrived
)

var kindNames = [...]string{Sent: "sent", Forwarded: "forwarded", Dropped: "dropped", Arrived: "arrived"}

// String is the kind in a word.
func (k EventKind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return fmt.Sprintf("event %d", uint8(k))
}

// An Event is something that happened to a packet, for traces and sequence diagrams.
type Event struct {
	At       time.Duration // since Epoch
	Kind     EventKind
	Packet   uint64         // its number: the same from Sent to Arrived
	Where    string         // the host or router, or the one whose link lost it
	Src, Dst netip.AddrPort // now; a router may just have translated them
	// WasSrc and WasDst are what they were before the router that forwarded it.
	WasSrc, WasDst netip.AddrPort
	TTL            int
	Verdict        Verdict // of a router, or why it was dropped
	Data           []byte  // valid during the call only
}

// String is the event as a line of a trace.
func (e Event) String() string {
	s := fmt.Sprintf("%12v #%d %v at %s: %v to %v, ttl %d, %d bytes",
		e.At, e.Packet, e.Kind, e.Where, e.Src, e.Dst, e.TTL, len(e.Data))
	if e.Kind == Forwarded && (e.WasSrc != e.Src || e.WasDst != e.Dst) {
		s += fmt.Sprintf(" (was %v to %v)", e.WasSrc, e.WasDst)
	}
	if e.Verdict != Forward {
		s += ", " + e.Verdict.String()
	}
	return s
}

// Tap has f called for everything that happens to packets from now on.
func (n *Network) Tap(f func(Event)) { n.taps = append(n.taps, f) }

func (n *Network) tell(p *packet, kind EventKind, where string, v Verdict, wasSrc, wasDst netip.AddrPort) {
	if len(n.taps) == 0 {
		return
	}
	e := Event{At: n.now, Kind: kind, Packet: p.id, Where: where, Src: p.src, Dst: p.dst, WasSrc: wasSrc,
		WasDst: wasDst, TTL: p.ttl, Verdict: v, Data: p.data}
	for _, f := range n.taps {
		f(e)
	}
}

func (n *Network) drop(p *packet, where string, v Verdict) {
	n.tell(p, Dropped, where, v, p.src, p.dst)
	n.release(p)
}

func (n *Network) packet() *packet {
	p := n.packets
	if p == nil {
		return new(packet)
	}
	n.packets, p.next = p.next, nil
	return p
}

func (n *Network) release(p *packet) {
	p.data = p.data[:0]
	p.next = n.packets
	n.packets = p
}
