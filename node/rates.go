package node

import (
	"slices"
	"time"

	"weft"
	"weft/engine"
)

// rateSpan is what rates are taken over, at least: long enough to be steady, short enough to be of now.
const rateSpan = time.Second

// rates tell how fast data goes by each way, from looks at its counters. The zero value has looked at nothing.
type rates struct {
	older, newer look
}

// A look is at all counters of a peer.
type look struct {
	at   time.Time
	list []engine.PathCounters
}

// note takes in counters as they are now; what they were a span ago is kept.
func (r *rates) note(now time.Time, list []engine.PathCounters) {
	if !r.newer.at.IsZero() && now.Sub(r.newer.at) < rateSpan {
		return
	}
	r.older, r.newer = r.newer, r.older
	r.newer.at, r.newer.list = now, append(r.newer.list[:0], list...)
}

// of is how much has gone by a way since the last look but one, or the last if that is old enough, in bits a second.
func (r *rates) of(now time.Time, c engine.PathCounters) (rx, tx float64) {
	base := &r.older
	if over := now.Sub(r.newer.at); base.at.IsZero() || over >= rateSpan {
		base = &r.newer
	}
	over := now.Sub(base.at)
	if base.at.IsZero() || over <= 0 {
		return 0, 0
	}
	old := engine.PathCounters{Via: c.Via} // of a way that is newer, nothing had gone by it
	if i := slices.IndexFunc(base.list, func(o engine.PathCounters) bool { return o.Via == c.Via }); i >= 0 {
		old = base.list[i]
	}
	if c.RxBytes < old.RxBytes || c.TxBytes < old.TxBytes { // the engine forgot it, and knows it anew
		old = engine.PathCounters{}
	}
	rate := func(bytes uint64) float64 { return 8 * float64(bytes) / over.Seconds() }
	return rate(c.RxBytes - old.RxBytes), rate(c.TxBytes - old.TxBytes)
}

// find is what has gone by a way.
func find(list []engine.PathCounters, via weft.Via) engine.PathCounters {
	if i := slices.IndexFunc(list, func(c engine.PathCounters) bool { return c.Via == via }); i >= 0 {
		return list[i]
	}
	return engine.PathCounters{Via: via}
}
