package path

import (
	"time"

	"weft"
	"weft/wire"
)

const (
	// ReportInterval is the least time between reports. Ten a second cost 6 kbit/s and are what the time in
	// which a silent path is found rests on.
	ReportInterval = 100 * time.Millisecond
	// reportRepeats is how often the last report is said again when no more data comes: it may be lost.
	reportRepeats = 2
	// maxFlows bounds the vias whose counters are remembered: all pairs, twice.
	maxFlows = 2 * (MaxDirect + MaxReflexive + MaxRelayed)
)

// Traffic is what has gone by one way since the node knows it: WireGuard packets and their bytes.
type Traffic struct {
	Via                                    weft.Via
	TxPackets, TxBytes, RxPackets, RxBytes uint64
}

// inbound is the account of the data received, for the peer's benefit. It is kept by the numbers that the peer
// gives its paths in its pings: the way by which such a path arrives here may change, when a NAT on the peer's
// side forgets, or when a relay delivers by its stream instead.
type inbound struct {
	arrivals []arrival
	flows    []flow
	last     weft.Via // by which data came
	more     bool     // since the last report
	repeats  int
	sent     time.Time // the last report

	lines [wire.MaxReports]wire.PathReport
	boxed [wire.MaxReports + 1]wire.PeerMessage // reports of so many lines: made once, for nothing to be allocated
}

// An arrival is one of the peer's paths as it comes out here.
type arrival struct {
	number         uint16
	via            weft.Via
	packets, bytes uint64
	pinged         time.Time
}

// A flow is a via's counters as last observed, and what came by it that no number is known for yet.
type flow struct {
	last           Traffic
	packets, bytes uint64
	at             time.Time
}

// Observe is told how much has flowed by each way: all counters since the beginning, every 100 ms while they
// move and every second while they do not. A call as soon as they begin to move makes a path be looked for, and a
// dead one be found out, that much sooner.
func (a *Agent) Observe(now time.Time, ts []Traffic) {
	for i := range ts {
		via := canonical(ts[i].Via)
		if via.Method == weft.NoMethod {
			continue
		}
		f := a.inbound.flow(now, via)
		tx, txBytes := grown(&f.last.TxPackets, ts[i].TxPackets), grown(&f.last.TxBytes, ts[i].TxBytes)
		rx, rxBytes := grown(&f.last.RxPackets, ts[i].RxPackets), grown(&f.last.RxBytes, ts[i].RxBytes)
		if tx|rx != 0 {
			a.used, f.at = now, now
		}
		p := a.find(via)
		if rx > 0 {
			a.meet(now)
			a.heard = now
			if p != nil {
				p.heard = now
			}
			a.inbound.add(f, rx, rxBytes)
		}
		if p == nil || p.ledger == nil && tx == 0 {
			continue
		}
		if p.ledger == nil {
			p.ledger = &ledger{}
		}
		p.ledger.add(now, tx, txBytes)
	}
}

// grown returns how much a counter grew and remembers it. A smaller one has begun anew.
func grown(last *uint64, v uint64) uint64 {
	d := v - *last
	if v < *last {
		d = v
	}
	*last = v
	return d
}

// flow finds or makes the record of a via.
func (in *inbound) flow(now time.Time, via weft.Via) *flow {
	oldest := 0
	for i := range in.flows {
		if in.flows[i].last.Via == via {
			return &in.flows[i]
		}
		if in.flows[i].at.Before(in.flows[oldest].at) {
			oldest = i
		}
	}
	f := flow{last: Traffic{Via: via}, at: now}
	if len(in.flows) < maxFlows {
		in.flows = append(in.flows, f)
		return &in.flows[len(in.flows)-1]
	}
	in.flows[oldest] = f
	return &in.flows[oldest]
}

// add enters received packets for all of the peer's paths that come out by the via.
func (in *inbound) add(f *flow, packets, bytes uint64) {
	in.last, in.more, in.repeats = f.last.Via, true, reportRepeats
	known := false
	for i := range in.arrivals {
		if r := &in.arrivals[i]; r.via == f.last.Via {
			r.packets += packets
			r.bytes += bytes
			known = true
		}
	}
	if !known {
		f.packets += packets
		f.bytes += bytes
	}
}

// number learns from a ping that one of the peer's paths comes out by the via. Behind a relay, two may.
func (in *inbound) number(now time.Time, via weft.Via, n uint16) {
	r := in.arrival(n)
	r.via, r.pinged = via, now
	for i := range in.flows {
		if f := &in.flows[i]; f.last.Via == via && f.packets > 0 {
			r.packets += f.packets
			r.bytes += f.bytes
			f.packets, f.bytes = 0, 0
			in.more, in.repeats = true, reportRepeats
		}
	}
}

// arrival finds the record of a number, or makes room for it: of those that no data came by, the one that was
// pinged longest ago; else of all.
func (in *inbound) arrival(n uint16) *arrival {
	oldest := 0
	for i := range in.arrivals {
		r, o := &in.arrivals[i], &in.arrivals[oldest]
		if r.number == n {
			return r
		}
		if unused, was := r.packets == 0, o.packets == 0; unused && !was || unused == was && r.pinged.Before(o.pinged) {
			oldest = i
		}
	}
	if len(in.arrivals) < wire.MaxReports {
		in.arrivals = append(in.arrivals, arrival{number: n})
		return &in.arrivals[len(in.arrivals)-1]
	}
	in.arrivals[oldest] = arrival{number: n}
	return &in.arrivals[oldest]
}

// report sends what has arrived, if there is more than was reported, or the last report may have been lost. It
// goes by the way in use, and if the data came by another by that too: one of the two directions may be dead.
func (a *Agent) report(now time.Time, out *Actions) {
	in := &a.inbound
	if !in.more && in.repeats == 0 {
		return
	}
	wait := ReportInterval
	if !in.more && in.repeats == 1 {
		wait = 2 * ReportInterval
	}
	if !in.sent.IsZero() && !a.due(now, in.sent.Add(wait)) {
		return
	}
	n := 0
	for i := range in.arrivals {
		if r := &in.arrivals[i]; r.packets > 0 {
			in.lines[n] = wire.PathReport{Path: r.number, Packets: r.packets, Bytes: r.bytes}
			n++
		}
	}
	if n == 0 {
		in.more, in.repeats = false, 0
		return // no ping has said yet what the peer calls its paths
	}
	if !in.more {
		in.repeats--
	}
	in.more, in.sent = false, now
	if in.boxed[n] == nil {
		in.boxed[n] = wire.Report{Paths: in.lines[:n]}
	}
	if a.choice.via.Method != weft.NoMethod {
		out.Send = append(out.Send, Transmit{Via: a.choice.via, Message: in.boxed[n]})
	}
	if in.last != a.choice.via {
		out.Send = append(out.Send, Transmit{Via: in.last, Message: in.boxed[n]})
	}
	if in.repeats > 0 {
		a.wake(now.Add(ReportInterval))
	}
}

// reported takes the peer's account of what arrived there.
func (a *Agent) reported(now time.Time, m wire.Report) {
	more, used := false, uint64(0) // what the peer counts more by the way in use
	for _, line := range m.Paths {
		for _, p := range a.pairs {
			if p.number == line.Path {
				p.grew, p.counted = grownBy(p.counted, line.Packets), line.Packets
			}
			if p.number == line.Path && p == a.choice.pair {
				used = p.grew
			}
		}
	}
	for _, line := range m.Paths {
		for _, p := range a.pairs {
			if p.number != line.Path || p.ledger == nil {
				continue
			}
			spread := p.rtt.spread()
			if p.rtt.samples == 0 {
				spread = firstTimeout
			}
			if p.ledger.acknowledge(now, line.Packets, spread) {
				more = true
				// What arrived before a path died says nothing for it. Behind one relay the peer may count two of our paths as
				// one: then both counts grow by the same.
				past, c := !p.ledger.progress.Equal(now), a.choice.pair
				if !past && (c == nil || c == p || !answers(c.via, p.via) || p.grew != used) {
					a.acquit(now, p)
				}
			}
		}
	}
	if more {
		a.reports.before, a.reports.last = a.reports.last, now
	}
}

// grownBy is how much a count of the peer's grew; an old one, or one that has begun anew, did not.
func grownBy(was, is uint64) uint64 {
	if is < was {
		return 0
	}
	return is - was
}

// pace is when the peer's last two reports came that told of more data.
type pace struct{ before, last time.Time }

// brisk reports whether reports were coming in quick succession until shortly before a time.
func (r pace) brisk(at time.Time) bool {
	return at.Sub(r.last) < time.Second && r.last.Sub(r.before) <= 3*ReportInterval
}
