package path

import (
	"net/netip"
	"time"

	"weft"
	"weft/wire"
)

const (
	// predictPorts is how many ports are sent to in a row. As each side's k-th packet is to leave by its k-th
	// port and to go to the other's k-th, one foreign connection ends the row of those that meet, and all before
	// have met.
	predictPorts = 16
	// predictSockets is how many sockets take part where a NAT gives a socket its own port, which it does for one
	// destination alone.
	predictSockets = 8
	// predictLaps is how often the row is sent: with a low time to live, and then so that it arrives.
	predictLaps = 4
	// lapGap is between them: about a round-trip time.
	lapGap = RoundInterval
)

// predictors is how many sockets this side needs.
func (a *Agent) predictors() int {
	if a.nat.Allocation == weft.PreservingAllocation {
		return predictSockets
	}
	return 1
}

// predicting goes on once the sockets are there.
func (a *Agent) predicting(now time.Time) {
	run := a.attempts.run
	ports, next, step := a.hints()
	if next == 0 && len(ports) == 0 {
		a.finish(now, wire.Exhausted, "no STUN server said which port the NAT gave last")
		return
	}
	if !a.cfg.Leads {
		run.phase = asking
		a.tell(now, wire.Agree, ports, next, step)
		return
	}
	// What we open has to be open before the other hears of it: its packets are not to come too early.
	run.phase = running
	run.say = run.id
	run.say.Kind, run.say.Ports, run.say.Next, run.say.Step = wire.Begin, ports, next, step
}

// row is how many ports there are that both sides can tell.
func (run *attempt) row() int {
	n := predictPorts
	if len(run.sockets) > 1 {
		n = len(run.sockets)
	}
	if len(run.theirs.Ports) > 0 {
		n = min(n, len(run.theirs.Ports))
	}
	return n
}

// expected is the outside port of the peer's k-th packet.
func expected(m wire.Attempt, k int) uint16 {
	if len(m.Ports) > 0 {
		return max(m.Ports[k%len(m.Ports)], 1)
	}
	return inOrder(m.Next, int(m.Step), k)
}

// bestRelay is the relayed way by which messages of attempts go first; nil if there is none.
func (a *Agent) bestRelay() *pair {
	for _, p := range a.pairs {
		if p.via.Method.Relayed() && p.health.state == Valid {
			return p
		}
	}
	return nil
}

// predict sends to the peer's ports in turn, each lap the same.
func (a *Agent) predict(now time.Time, out *Actions) {
	run := a.attempts.run
	if !run.pause.IsZero() && !a.due(now, run.pause) {
		return
	}
	for run.lap < predictLaps {
		for ; run.turn < run.row(); run.turn++ {
			if !a.spend(now) {
				return
			}
			ttl := uint8(0)
			if run.lap == 0 {
				ttl = OpenerTTL
			}
			s := run.sockets[run.turn%len(run.sockets)]
			a.shoot(out, s.Link, netip.AddrPortFrom(run.targets[0], expected(run.theirs, run.turn)), ttl)
		}
		run.turn = 0
		if run.lap++; run.lap > 1 || a.cfg.Leads {
			run.pause = now.Add(lapGap)
		}
		if run.lap == 1 && a.cfg.Leads {
			run.again, run.said = now, 0 // Begin
			a.repeat(now, out)
			if p := a.bestRelay(); p != nil {
				run.pause = now.Add(max(lapGap, p.rtt.base()))
			}
		}
		if !run.pause.IsZero() {
			a.wake(run.pause)
			return
		}
	}
	run.phase = waiting
	run.until = now.Add(lapGap)
	a.wake(run.until)
}
