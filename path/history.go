package path

import (
	"fmt"
	"time"

	"weft"
)

// keptChanges is how many changes of ways' states are remembered for people: some minutes of a link that flaps.
const keptChanges = 64

// A Change is one of a way's state.
type Change struct {
	At       time.Time
	Via      weft.Via
	From, To State
	Gone     bool   // it is no way any more; To is From
	Reason   string // in plain words
}

// A history is what became of the ways. The zero value is of an Agent that had none.
type history struct {
	known   []known  // the pairs as of the last look, in their order
	changes []Change // oldest first
}

// known is a pair and what was noted of it last.
type known struct {
	pair  *pair
	state State
}

// note takes down what became of the pairs since the last time. Pairs are only appended and taken out, so the two lists
// are walked together.
func (a *Agent) note(now time.Time) {
	h := &a.choice.history
	kept := h.known[:0]
	next := 0 // of a.pairs
	for _, k := range h.known {
		p := k.pair
		if next == len(a.pairs) || a.pairs[next] != p {
			if k.state != Untested {
				h.add(Change{At: now, Via: p.via, From: k.state, To: k.state, Gone: true, Reason: a.whyGone(p)})
			}
			continue
		}
		next++
		if p.health.state != k.state {
			h.add(changeOf(now, p, k.state))
		}
		kept = append(kept, known{p, p.health.state})
	}
	clear(h.known[len(kept):])
	for _, p := range a.pairs[next:] {
		if p.health.state != Untested {
			h.add(changeOf(now, p, Untested))
		}
		kept = append(kept, known{p, p.health.state})
	}
	h.known = kept
}

// changeOf is the change of a pair that was in another state.
func changeOf(now time.Time, p *pair, from State) Change {
	c := Change{At: now, Via: p.via, From: from, To: p.health.state}
	switch {
	case c.To == Failed:
		c.Reason = p.health.why
	case from == Failed:
		c.Reason = fmt.Sprintf("it works again, after %s", inWords(now.Sub(p.health.failedAt)))
	default:
		c.Reason = "it answers"
	}
	return c
}

// whyGone says why a pair that was a way is none any more.
func (a *Agent) whyGone(p *pair) string {
	switch {
	case p.via.Method.Relayed():
		return "the relay can no longer be used"
	case p.via.Link >= FirstSpare:
		return "its socket was closed"
	case !a.hasLink(p.via.Link):
		return "it went with its link"
	}
	return "the peer is no longer there"
}

// add takes a change down, and forgets the oldest.
func (h *history) add(c Change) {
	if len(h.changes) == keptChanges {
		h.changes = append(h.changes[:0], h.changes[1:]...)
	}
	h.changes = append(h.changes, c)
}
