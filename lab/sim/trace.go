package sim

import (
	"fmt"
	"net/netip"

	"weft/lab/scenario"
	"weft/lab/vnet"
	"weft/wire"
)

// A trace keeps what happened to packets, for people.
type trace struct {
	w       *world
	what    string            // is being sent
	last    string            // arrived last: what a relay forwards
	names   map[uint64]string // what is under way
	packets []scenario.Packet
}

func newTrace(w *world) *trace {
	t := &trace{w: w, names: map[uint64]string{}}
	w.net.Tap(t.event)
	return t
}

func (t *trace) add(p scenario.Packet) {
	if t.w.o.MaxTrace == 0 || len(t.packets) < t.w.o.MaxTrace {
		p.At = t.w.elapsed()
		t.packets = append(t.packets, p)
	}
}

// event notes a step of a datagram.
func (t *trace) event(e vnet.Event) {
	switch e.Kind {
	case vnet.Sent:
		t.names[e.Packet] = t.what
	case vnet.Arrived:
		t.last = t.names[e.Packet]
	}
	p := scenario.Packet{From: e.Src.String(), To: e.Dst.String(), Where: e.Where, What: t.names[e.Packet]}
	if e.Kind == vnet.Sent && e.TTL != vnet.DefaultTTL {
		p.Why = fmt.Sprintf("time to live %d", e.TTL)
	}
	if e.Kind == vnet.Dropped || e.Verdict == vnet.HairpinBack {
		p.Dropped, p.Why = e.Kind == vnet.Dropped, e.Verdict.String()
	}
	if t.add(p); e.Kind == vnet.Dropped || e.Kind == vnet.Arrived {
		delete(t.names, e.Packet)
	}
}

// stream and streamed note a frame's beginning and end of a way by a stream.
func (t *trace) stream(from, to *machine, what string)   { t.onStream(from, to, from, what) }
func (t *trace) streamed(from, to *machine, what string) { t.onStream(from, to, to, what) }

func (t *trace) onStream(from, to, where *machine, what string) {
	at := func(m *machine) string { return netip.AddrPortFrom(m.host.Addr(), streamPort).String() }
	t.add(scenario.Packet{From: at(from), To: at(to), Where: where.spec.Name, What: what + " (stream)"})
}

// streamPort is where streams go.
const streamPort = 443

// messageWords names a message between nodes.
func messageWords(m wire.PeerMessage) string {
	switch m := m.(type) {
	case wire.Ping:
		return "ping"
	case wire.Pong:
		return "pong"
	case wire.Candidates:
		return "candidates"
	case wire.Report:
		return "report"
	case wire.Attempt:
		kind := map[wire.AttemptKind]string{wire.Propose: "proposes", wire.Agree: "agrees to", wire.Begin: "begins", wire.End: "ends"}[m.Kind]
		way := map[wire.AttemptWay]string{wire.Spray: "a spray", wire.Predict: "a prediction"}[m.Way]
		return kind + " " + way
	}
	return "message"
}

var kindWords = map[wire.Kind]string{
	wire.KindBind: "bind to relay", wire.KindChallenge: "relay's challenge", wire.KindBound: "bound to relay",
	wire.KindRefused: "refused by relay", wire.KindLocate: "asks relay where", wire.KindLocated: "relay says where",
	wire.KindProbe: "asks relay for a probe", wire.KindProbed: "relay has probed",
}

// relayWords names a frame between node and relay.
func relayWords(b []byte) string {
	kind, _ := wire.KindOf(b)
	return kindWords[kind]
}
