package sim

import (
	"cmp"
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
	dataSize   = 100  // bytes, where a flow does not say
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
	x := &flow{w: w, hist: scenario.FlowHistory{Flow: f}, size: min(cmp.Or(f.Size, dataSize)+dataAdds, maxData), id: uint32(len(w.flows))}
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
	i, seq := binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])
	if p == nil || int(i) >= len(n.w.flows) || via.Method.Relayed() && src != p.node.id ||
		via.Method == weft.Direct && !p.learned[via.Addr] {
		return
	}
	f := n.w.flows[i]
	if f.to != n || f.from != p.node || int(seq) >= len(f.hist.Arrived) {
		return
	}
	f.hist.Arrived[seq] = max(n.w.elapsed(), 1)
	n.count(now, p, via, len(b), false)
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
