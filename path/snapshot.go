package path

import (
	"cmp"
	"slices"
	"time"

	"weft"
)

// A Snapshot is what a person may want to know of the ways to a peer. It shares nothing with the Agent.
type Snapshot struct {
	Selected weft.Via
	Since    time.Time
	Reason   string        // of the last change of the way in use
	RTT      time.Duration // smoothed; zero: not measured
	Loss     float64       // 0..1 of the data sent by it lately
	MTU      int           // the longest packet in bytes that is sent by it; 0: none is in use
	LastSeen time.Time     // any packet of the peer's
	// DirectAfter is how long after both were up the first direct path was in use; zero: not yet.
	DirectAfter time.Duration
	NextAttempt time.Time    // at a direct path, or a better one; zero: none is planned until something changes
	Pairs       []PairStatus // best first
	Switches    []Switch     // the last 16, oldest first
	Changes     []Change     // of the states of all ways, the last 64, oldest first
	// MemberChanges are of the ways that a bond may send by, the last 32, oldest first.
	MemberChanges []MemberChange

	OwnNAT, PeerNAT weft.NAT // for IPv4, as far as each node knows its own
	// OwnNATs and PeerNATs are the same per link, of a node that has several: the first is as above.
	OwnNATs, PeerNATs []weft.LinkNAT
	// Attempts are plain punching, taken as one, and the last 8 beside it, oldest first.
	Attempts []AttemptStatus
	// Blocked says in plain words why there is no direct path; empty while there is one, or none is looked for.
	Blocked string
	// Advice are sentences, each of what a person could do for a direct path; none while there is one.
	Advice []string
}

// A PairStatus is one way to the peer.
type PairStatus struct {
	Via      weft.Via
	Kind     weft.CandidateKind // of the peer's address; zero of a relay
	State    State
	RTT      time.Duration
	Loss     float64
	LastSeen time.Time
	Tries    int       // pings since the last answer, or since something changed
	Why      string    // it failed
	MTU      int       // the longest packet in bytes that it carries; 0: not known
	Until    time.Time // it sits out
	Member   bool      // a bond may send by it
	Out      string    // why a bond may not at the moment, of a way that it did send by; empty else
	Metric   int       // the higher one of its two links'; what goes by a relay's stream has none
}

// Snapshot tells what there is to tell.
func (a *Agent) Snapshot(now time.Time) Snapshot {
	s := Snapshot{
		Selected: a.choice.via, Since: a.choice.at, Reason: a.choice.reason, LastSeen: a.heard,
		DirectAfter: a.choice.direct, NextAttempt: a.campaign.again, Switches: slices.Clone(a.choice.switches),
		Changes: slices.Clone(a.choice.history.changes), MemberChanges: slices.Clone(a.bond.changes),
		OwnNAT: a.nat, PeerNAT: a.exchange.nat, Attempts: a.tried(now), Blocked: a.blocked(now), Advice: a.advice(),
	}
	if len(a.nats) > 1 {
		s.OwnNATs = slices.Clone(a.nats)
	}
	s.PeerNATs = a.exchange.peerNATs()
	if at := a.attempts.next; a.cfg.Leads && a.attempts.pass < maxPasses && at.After(now) && !a.onDirect() && len(a.plans().steps) > 0 &&
		(s.NextAttempt.IsZero() || at.Before(s.NextAttempt)) {
		s.NextAttempt = at
	}
	if p := a.choice.pair; p != nil {
		s.RTT, s.Loss, s.MTU = p.rtt.smoothed, p.loss(now), a.effective(p)
	}
	pairs := slices.Clone(a.pairs)
	slices.SortStableFunc(pairs, func(p, q *pair) int {
		return cmp.Or(cmp.Compare(rank(p != a.choice.pair), rank(q != a.choice.pair)), a.score(now, p).Compare(a.score(now, q)))
	})
	for _, p := range pairs {
		st := PairStatus{
			Via: p.via, Kind: p.kind, State: p.health.state, RTT: p.rtt.smoothed, Loss: p.loss(now), LastSeen: p.heard,
			Tries: p.probe.tries,
		}
		if p.mtu != nil {
			st.MTU = p.mtu.use
		}
		if ours, theirs, ok := a.ends(p); ok {
			st.Metric = a.metric(ours, theirs)
		}
		if p.health.state == Failed {
			st.Why, st.Until = p.health.why, p.health.heldUntil
		}
		if st.Member = p.standing.in; !p.standing.out.IsZero() {
			st.Out = p.standing.why
		}
		s.Pairs = append(s.Pairs, st)
	}
	return s
}

// loss is the last measurement of a pair's loss, if there is a recent one.
func (p *pair) loss(now time.Time) float64 {
	if p.ledger == nil {
		return 0
	}
	rate, _ := p.ledger.loss.fresh(now)
	return rate
}
