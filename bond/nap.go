package bond

import "time"

const (
	// napMost bounds the naps that are made up for. Longer ones are paid for by rate, and not by everybody's round trips.
	napMost = 25 * time.Millisecond
	// napLike is how long a nap is feared: what is made up for shrinks evenly in that time. So of naps that differ hardly more is lost than their
	// length in each napLike, and a rare one costs nobody a queue for long.
	napLike = 4 * time.Second
	// grain is how late timers come on a machine at rest: what is sent at once, and the shortest queue, are as long.
	grain = 2 * time.Millisecond
)

// A nap is by how much the sender's thread comes late when it is its turn: on a busy machine it waits for a processor. Nothing is sent meanwhile, and
// a path whose queue is shorter than that runs dry, which cannot be caught up with. So queues are kept that are long enough (as byte queue limits do for a
// network card), and pacing may catch up with as much.
type nap struct {
	turn time.Duration // when it is; Never: nothing waits
	most time.Duration // of lately, beyond grain
	at   time.Duration // of most
}

// comes is told that the sender has come.
func (n *nap) comes(now time.Duration) {
	n.late(now, now-n.turn)
	n.turn = Never
}

// late takes in how late it was, or was to hear of something.
func (n *nap) late(now, by time.Duration) {
	if d := now - n.at; d > 0 {
		n.most -= time.Duration(float64(n.most) * min(d.Seconds()/napLike.Seconds(), 1))
		n.at = now
	}
	n.most = max(n.most, min(by-grain, napMost))
}

// credit is how far pacing may lag behind and catch up.
func (n *nap) credit() time.Duration { return max(credit, grain+n.most) }
