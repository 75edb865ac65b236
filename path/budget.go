package path

import (
	"slices"
	"time"
)

// DefaultRate is how many openers and probes a node sends in a second, for all its peers together: 500 of 86
// bytes on the wire are 344 kbit/s, which a telephone's uplink carries beside other things.
const DefaultRate = 500

const (
	// budgetBurst is what may go out at once after a pause, in time of the rate: the callers' timers are that late.
	budgetBurst = 20 * time.Millisecond
	// leaseFor ends the turn of a peer whose agent is not heard of any more: longer than any attempt.
	leaseFor = 30 * time.Second
	// waitFor is how long a place in the queue is kept without being asked for again.
	waitFor = 3 * time.Second
)

// A Budget is what a node spends on attempts, all its peers together: packets per second, and one peer at a
// time, in the order in which they asked. Agents share one by Config.Budget; it is for the one goroutine that
// owns them all. It has no useful zero value.
type Budget struct {
	every  time.Duration // one packet
	ready  time.Time     // when the next packet may go out; in the past by the burst at most
	holder *Agent
	until  time.Time
	queue  []claim
}

// A claim is of an agent that wants the lease.
type claim struct {
	agent *Agent
	asked time.Time // last
}

// NewBudget makes a budget of so many packets per second; 0 is DefaultRate.
func NewBudget(perSecond int) *Budget {
	if perSecond <= 0 {
		perSecond = DefaultRate
	}
	return &Budget{every: time.Second / time.Duration(perSecond)}
}

// lease gives the agent its turn, or a place in the queue.
func (b *Budget) lease(now time.Time, a *Agent) bool {
	if b.holder == a || b.holder != nil && now.Before(b.until) {
		if b.holder != a {
			b.enqueue(now, a)
		}
		return b.holder == a
	}
	b.queue = slices.DeleteFunc(b.queue, func(w claim) bool { return now.Sub(w.asked) > waitFor })
	if len(b.queue) > 0 && b.queue[0].agent != a {
		b.enqueue(now, a)
		return false
	}
	if len(b.queue) > 0 {
		b.queue = slices.Delete(b.queue, 0, 1)
	}
	b.holder, b.until = a, now.Add(leaseFor)
	return true
}

func (b *Budget) enqueue(now time.Time, a *Agent) {
	for i := range b.queue {
		if b.queue[i].agent == a {
			b.queue[i].asked = now
			return
		}
	}
	b.queue = append(b.queue, claim{a, now})
}

// leave ends the agent's turn, or its waiting.
func (b *Budget) leave(a *Agent) {
	if b.holder == a {
		b.holder = nil
	}
	b.queue = slices.DeleteFunc(b.queue, func(w claim) bool { return w.agent == a })
}

// take spends one packet if there is one left, and says otherwise when there will be.
func (b *Budget) take(now time.Time) (ok bool, next time.Time) {
	if b.ready.Before(now.Add(-budgetBurst)) {
		b.ready = now.Add(-budgetBurst)
	}
	if b.ready.After(now) {
		return false, b.ready
	}
	b.ready = b.ready.Add(b.every)
	return true, time.Time{}
}
