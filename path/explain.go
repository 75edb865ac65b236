package path

import (
	"fmt"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// An AttemptStatus is one try to find a direct path.
type AttemptStatus struct {
	Way     string // "plain", "spray" or "predict"
	Role    string // ours: "opener" or "prober" of a spray; else empty
	At      time.Time
	Took    time.Duration // so far, while it runs
	Packets int           // that this node sent
	Running bool
	Found   bool   // it ended with a direct path
	Result  string // in plain words: how it ended, or how far it is
}

// tried lists what was tried: plain punching as a whole first, then the attempts, oldest first.
func (a *Agent) tried(now time.Time) (list []AttemptStatus) {
	if c := &a.campaign; !c.began.IsZero() {
		s := AttemptStatus{Way: "plain", At: c.began, Took: latest(c.last, c.began).Sub(c.began), Packets: c.pings, Running: c.left > 0}
		switch {
		case a.onDirect():
			s.Result, s.Found = "there is a direct path", !slices.ContainsFunc(a.attempts.history, func(x AttemptStatus) bool {
				return x.Found && !x.At.Before(c.began)
			})
		case s.Running:
			s.Result = "no answer yet"
		default:
			s.Result = "no answer"
		}
		list = append(list, s)
	}
	list = append(list, a.attempts.history...)
	if run := a.attempts.run; run != nil {
		s := run.status(now, run.progress())
		s.Running = true
		list = append(list, s)
	}
	return list
}

// blocked is why there is no direct path, as far as it is known.
func (a *Agent) blocked(now time.Time) string {
	p, t := a.plans(), &a.attempts
	switch unable := a.able(); {
	case a.onDirect() || !a.wanted:
		return ""
	case t.run != nil:
		return "an attempt is under way"
	case a.campaign.left > 0 && p.plain && now.Sub(a.campaign.began) < plainFirst:
		return "it is being looked for"
	case a.exchange.known && len(p.steps) == 0 && !p.plain:
		return hopeless(a.nat, a.exchange.nat)
	case unable != "":
		return unable
	case plainChance(a.nat, a.exchange.nat) == 1:
		return "the two NATs allow it, and still nothing gets through: something between the nodes drops UDP"
	case len(t.history) == 0:
		return "plain punching found none, and nothing else has been tried yet"
	}
	s := "plain punching found none"
	if !p.plain {
		s = "the two NATs need more than plain punching"
	}
	n, last := len(t.history), t.history[len(t.history)-1].Result
	if n == 1 {
		s += ", and one attempt failed: " + last
	} else {
		s = fmt.Sprintf("%s, and the last %d attempts failed: in the end, %s", s, n, last)
	}
	if t.pass == maxPasses {
		s += "; no more are made until something changes"
	}
	return s
}

// hopeless says why nothing is tried between two NATs.
func hopeless(own, peer weft.NAT) string {
	s := "both NATs give every peer another port and let in that very port of the peer's alone, so that each side would " +
		"have to know the other's port before there is one"
	random := func(n weft.NAT) bool { return n.Allocation == weft.RandomAllocation }
	switch {
	case random(own) && random(peer):
		return s + "; both choose ports at random"
	case random(own):
		return s + "; ours chooses ports at random"
	case random(peer):
		return s + "; the peer's chooses ports at random"
	}
	return s + "; how they choose ports is not known"
}

// advice is what a person could do for a direct path.
func (a *Agent) advice() (list []string) {
	if a.onDirect() || !a.wanted {
		return nil
	}
	mapped := func(c weft.Candidate) bool { return c.Kind == weft.PortMapped || c.Kind == weft.Static }
	six := func(c weft.Candidate) bool {
		ip := c.Addr.Addr()
		return ip.Is6() && !ip.IsLinkLocalUnicast() && !ip.IsPrivate()
	}
	translated := func(n weft.NAT) bool { return n.Mapping != weft.NoNAT && n.Mapping != weft.MappingUnknown }
	theirs := slices.Concat(a.exchange.theirs, a.told)
	if translated(a.nat) && !slices.ContainsFunc(a.local, mapped) {
		list = append(list, "turn on UPnP IGD, NAT-PMP or PCP in this node's router, or forward a UDP port to this node there")
	}
	if a.exchange.known && translated(a.exchange.nat) && !slices.ContainsFunc(theirs, mapped) {
		list = append(list, "do that in the peer's router: at one of the two is enough")
	}
	switch ours, peers := slices.ContainsFunc(a.local, six), slices.ContainsFunc(theirs, six); {
	case !ours && peers:
		list = append(list, "get IPv6 for this node: the peer has it, and firewalls alone are easier to get through than NATs")
	case ours && !peers && a.exchange.known:
		list = append(list, "get IPv6 for the peer: this node has it, and firewalls alone are easier to get through than NATs")
	}
	if a.exchange.known && len(a.targets()) == 0 {
		list = append(list, "let UDP out of the peer's network: no relay has seen the peer over UDP")
	}
	if a.nat == (weft.NAT{}) {
		list = append(list, "run weft netcheck on this node: what its NAT does is not known")
	}
	return list
}

// status tells of the attempt.
func (run *attempt) status(now time.Time, words string) AttemptStatus {
	way := [...]string{wire.Spray: "spray", wire.Predict: "predict"}[run.id.Way]
	return AttemptStatus{
		Way: way, Role: roleNames[run.role], At: run.began, Took: now.Sub(run.began), Packets: run.packet, Result: words,
	}
}

// lateness is why it ends when its time is over.
func (run *attempt) lateness() string {
	switch {
	case run.phase == opening:
		return "the sockets were not opened in time"
	case run.hits > 0:
		return "something got through, and its answer did not"
	}
	return "nothing got through"
}

// progress says how far it is.
func (run *attempt) progress() string {
	switch {
	case run.phase == opening:
		return "opening sockets"
	case run.phase == asking:
		return "waiting for the peer to agree"
	case run.role == opens:
		return fmt.Sprintf("%d sockets are open", len(run.sockets))
	case run.role == probes:
		return fmt.Sprintf("%d of %d ports tried", run.packet, MaxProbes)
	}
	return "sending to predicted ports"
}
