package sim

import (
	"encoding/binary"
	"time"

	"weft"
	"weft/lab/scenario"
)

// Data packets look like WireGuard's: a type, and then, instead of what is sealed, who sent it and which one of
// which flow it is.
const (
	dataType   = 4
	dataHeader = 16   // bytes
	dataAdds   = 32   // bytes that WireGuard adds to a packet (section 5.4.6 of its paper)
	maxData    = 1450 // bytes
)

// A flow is data from one node to another in even steps.
type flow struct {
	w    *world
	hist scenario.FlowHistory
	from *node
	to   *node
	size int
	id   uint32
}

func newFlow(w *world, f scenario.Flow) *flow {
	x := &flow{w: w, hist: scenario.FlowHistory{Flow: f}, size: min(f.Bytes()+dataAdds, maxData), id: uint32(len(w.flows))}
	for _, n := range w.nodes {
		switch n.name() {
		case f.From:
			x.from = n
		case f.To:
			x.to = n
		}
	}
	w.net.After(f.Start, x.step)
	return x
}

// step sends one packet and goes on.
func (f *flow) step(now time.Time) {
	n := f.hist.Sent
	if f.hist.Flow.For > 0 && time.Duration(n)*f.hist.Flow.Every >= f.hist.Flow.For {
		return
	}
	f.hist.Sent++
	f.hist.Arrived = append(f.hist.Arrived, 0)
	f.w.net.After(f.hist.Flow.Every, f.step)
	if p := f.from.peer(f.to.id); p != nil {
		var b [maxData]byte
		b[0] = dataType
		binary.BigEndian.PutUint32(b[4:], uint32(f.from.id))
		binary.BigEndian.PutUint32(b[8:], f.id)
		binary.BigEndian.PutUint32(b[12:], uint32(n))
		if p.bond.submit(now, b[:f.size], f.id) {
			return
		}
		via := p.agent.Selected()
		if via.Method == weft.NoMethod {
			return // it waits for a path, and no longer than until the next one
		}
		f.from.count(now, p, via, f.size, true)
		f.from.sendBy(p, via, b[:f.size], 0, "data")
	}
}

// takeData takes a data packet. Of what comes directly, only what comes from where the peer is known to be is let
// in, as in the engine.
func (n *node) takeData(now time.Time, via weft.Via, src weft.NodeID, b []byte) {
	if len(b) < dataHeader || b[0] != dataType {
		return
	}
	p := n.peer(weft.NodeID(binary.BigEndian.Uint32(b[4:])))
	if p == nil || via.Method.Relayed() && src != p.node.id || via.Method == weft.Direct && !p.learned[via.Addr] {
		return
	}
	n.count(now, p, via, len(b), false)
	if len(b) >= bondHeader && binary.BigEndian.Uint64(b[dataHeader:]) != 0 {
		p.bond.take(now, via, b)
		return
	}
	n.deliver(b)
}

// deliver notes a packet of a flow that has come to its end.
func (n *node) deliver(b []byte) {
	i, seq := binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	if int(i) >= len(n.w.flows) {
		return
	}
	f := n.w.flows[i]
	if f.to != n || f.from.id != weft.NodeID(binary.BigEndian.Uint32(b[4:])) || int(seq) >= len(f.hist.Arrived) || f.hist.Arrived[seq] != 0 {
		return
	}
	f.hist.Arrived[seq] = max(n.w.elapsed(), 1)
}

// noteFlows has the history look at what arrived so far.
func (w *world) noteFlows() {
	if len(w.flows) == 0 {
		return
	}
	list := make([]scenario.FlowHistory, len(w.flows))
	for i, f := range w.flows {
		list[i] = f.hist
	}
	w.history.SetFlows(list)
}

// noteLinks tells the history what the links have carried so far of which somebody expects something.
func (w *world) noteLinks(now time.Duration) {
	for _, e := range w.s.Expect {
		if e.Idle {
			w.history.Carried(now, e.A, w.carried(e.A))
		}
	}
}
