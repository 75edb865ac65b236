package path

import (
	"cmp"
	"math/bits"
	"time"

	"weft"
	"weft/wire"
)

// A Class is how far a pair can be relied on. Any pair of a lower class is preferred to any of a higher.
type Class uint8

// The classes, best first.
const (
	Working  Class = iota // answered, and nothing is held against it
	Unproven              // a relay that has not answered yet
	Doubtful              // not in use, and late with an answer just now
	Barred                // answers, but failed not long ago
	Stale                 // direct and unused for so long that NATs may have forgotten it
	Silent                // a relay that does not answer
	Dead                  // a direct path that does not answer, and once did
	Unusable              // never answered
)

// A Score orders pairs: the least is the best. The fields are in the order in which they are compared.
type Score struct {
	Class  Class
	Metric int           // of its links; what leaves as the routes say comes after all that have one
	Method weft.Method   // direct before a connection before relay over UDP before its stream
	Band   int           // of the base round-trip time: bands are 12 to 25 % wide
	Reach  Reach         // where the peer's address is
	V4     bool          // IPv6 before IPv4: fewer NATs, no mappings to lose
	RTT    time.Duration // within the band
	Order  int           // the caller's, of relays; then the older pair
}

// Compare is negative if s is better than o.
func (s Score) Compare(o Score) int {
	return cmp.Or(
		cmp.Compare(s.Class, o.Class),
		cmp.Compare(s.Metric, o.Metric),
		cmp.Compare(o.Method, s.Method),
		cmp.Compare(s.Band, o.Band),
		cmp.Compare(s.Reach, o.Reach),
		cmp.Compare(rank(s.V4), rank(o.V4)),
		cmp.Compare(s.RTT, o.RTT),
		cmp.Compare(s.Order, o.Order),
	)
}

// A Reach says how near an address is, as far as it tells by itself.
type Reach uint8

// The reaches, best first.
const (
	Local     Reach = iota // private or link-local: the same site
	Public                 // the peer's own, or mapped for it by request
	Reflected              // a NAT's
)

// unmeasured is the band of pairs without a sample: after all others.
const unmeasured = 1 << 10

// band sorts round-trip times into bands: below 4 ms by the millisecond, above by the three leading bits.
func band(d time.Duration) int {
	ms := uint(max(d, 0) / time.Millisecond)
	if ms < 4 {
		return int(ms)
	}
	n := bits.Len(ms)
	return n<<2 + int(ms>>(n-3)&3)
}

// score is the pair's place among all.
func (a *Agent) score(now time.Time, p *pair) Score {
	s := Score{Class: a.class(now, p), Metric: a.cost(p), Method: p.via.Method, Band: unmeasured, Order: p.order<<16 | int(p.number)}
	if p.rtt.samples > 0 {
		s.Band, s.RTT = band(p.rtt.base()), p.rtt.base()
	}
	if p.via.Method == weft.Direct {
		s.Reach, s.V4 = reach(p), p.via.Addr.Addr().Is4()
	}
	return s
}

// cost is the metric that a pair is ranked by: there is one where links have been given some.
func (a *Agent) cost(p *pair) int {
	if len(a.bond.metrics)+len(a.bond.uplinks.Metrics) == 0 {
		return 0
	}
	ours, theirs, ok := a.ends(p)
	if !ok && p.via.Method == weft.RelayStream {
		return wire.MaxMetric + 1
	}
	return a.metric(ours, theirs)
}

func reach(p *pair) Reach {
	ip := p.via.Addr.Addr()
	switch {
	case ip.IsPrivate() || ip.IsLinkLocalUnicast() || ip.IsLoopback():
		return Local
	case p.kind == weft.Host || p.kind == weft.PortMapped || p.kind == weft.Static:
		return Public
	}
	return Reflected
}

func (a *Agent) class(now time.Time, p *pair) Class {
	relayed, h := p.via.Method.Relayed(), &p.health
	switch h.state {
	case Untested:
		switch {
		case !relayed:
			return Unusable
		case p != a.choice.pair && a.late(now, p):
			return Doubtful
		}
		return Unproven
	case Valid:
		switch {
		case !p.standing.out.IsZero():
			return Doubtful
		case p.via.Method == weft.Direct && a.stale(now, p):
			return Stale
		case p != a.choice.pair && a.late(now, p):
			return Doubtful
		}
		return Working
	}
	switch {
	case h.answers > 0 && now.Sub(p.probe.pong) < barredFor:
		return Barred
	case relayed:
		return Silent
	}
	return Dead
}

// stale reports whether a direct pair has been left alone for so long that it may be gone. While it is in use
// and wanted, heartbeats and checks see to that.
func (a *Agent) stale(now time.Time, p *pair) bool {
	return (p != a.choice.pair || !a.wanted) && now.Sub(p.heard) >= StaleAfter
}

// late reports whether an answer of the pair's is overdue that others, asked at the same time, have given.
func (a *Agent) late(now time.Time, p *pair) bool {
	c := &p.probe.check
	if !c.running() || c.first.IsZero() || c.first.Before(p.probe.pong) || now.Sub(c.first) <= max(p.rtt.spread(), 20*time.Millisecond) {
		return false
	}
	for _, q := range a.pairs {
		if q.via.Method.Relayed() && q != a.choice.pair && q.probe.pong.After(c.first) {
			return true
		}
	}
	return false
}

func rank(worse bool) int {
	if worse {
		return 1
	}
	return 0
}
