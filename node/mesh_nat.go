package node

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/gather"
	"weft/relay"
	"weft/stun"
)

const (
	// locateAfter is how long a peer is without a direct path before relays are asked where it is: plain punching
	// needs no answer, and is mostly done by then.
	locateAfter = 300 * time.Millisecond
	// locateEvery is how often they are asked again, as long as there is none.
	locateEvery = 2 * time.Minute
	// locateRetry is the wait where no relay could take the question.
	locateRetry = 5 * time.Second
	// suspectEvery is how often ways that are left have this node asked at most where it is seen.
	suspectEvery = time.Second
)

// surroundings are whom to ask by a link.
func (me *mesh) surroundings(link weft.LinkID) gather.Surroundings {
	var s gather.Surroundings
	for _, x := range me.netmap.Relays {
		r := me.relays[x.ID]
		if r == nil {
			continue
		}
		s.Servers = append(s.Servers, r.addrs...)
		if r.boundTo.IsValid() && r.observed.IsValid() && r.link == link {
			s.Probers = append(s.Probers, stun.Prober{Server: r.boundTo, Seen: r.observed.Addr()})
		}
	}
	for _, c := range me.local {
		if c.Kind == weft.Host && c.Link == link {
			s.Local = append(s.Local, c.Addr.Addr())
		}
	}
	return s
}

// probe asks the relay with that STUN address for a packet from outside, and reports whether it sent one. It is
// called by the watch's goroutines.
func (me *mesh) probe(ctx context.Context, server netip.AddrPort, p stun.Probe) bool {
	answer := make(chan bool, 1)
	if !me.ask(ctx, func(now time.Time) {
		for _, r := range me.relays {
			if r.boundTo != server || r.binding == nil || !r.binding.Probe(now, p.ID, p.Port, false) {
				continue
			}
			if r.probes == nil {
				r.probes = map[[12]byte]chan<- bool{}
			}
			r.probes[p.ID] = answer
			return
		}
		answer <- false
	}) {
		return false
	}
	select {
	case sent := <-answer:
		return sent
	case <-me.done:
	case <-ctx.Done():
	}
	return false
}

// fetchAnswers passes on what a relay answered.
func (me *mesh) fetchAnswers(now time.Time, r *relayLink) {
	for _, a := range r.binding.Answers() {
		if a.Node != 0 {
			me.located(now, r.relay.ID, a)
			continue
		}
		if answer := r.probes[a.Tx]; answer != nil {
			delete(r.probes, a.Tx)
			answer <- a.Outcome == relay.Answered
		}
	}
}

// forgetProbes answers those who wait for a relay's answer that will not come: there is a new binding.
func (r *relayLink) forgetProbes() {
	for tx, answer := range r.probes {
		delete(r.probes, tx)
		answer <- false
	}
}

// suspect has servers and relays asked where they see this node: a way that is left may have died of a NAT that
// gave the mapping to somebody else, and whoever looks for another way has to know the new one. A relay that was
// restarted, too, has forgotten us, and drops without a word.
func (me *mesh) suspect(now time.Time) {
	if now.Sub(me.suspected) < suspectEvery {
		return
	}
	me.suspected = now
	for _, l := range me.links.list {
		l.reflexive.Recheck(now)
	}
	for _, r := range me.relays {
		if r.binding != nil {
			r.binding.Recheck(now)
		}
	}
}

// locate asks the relays where they see a peer that has no direct path: only there may its agent look for it by
// guessing. It is called when p.locate has come.
func (me *mesh) locate(now time.Time, p *peer) {
	p.locate = time.Time{}
	if p.agent.Selected().Method == weft.Direct || !p.node.Online || !me.eager() && now.Sub(p.active) > locateEvery {
		return // whatever changes that sets p.locate again
	}
	p.locate = now.Add(locateRetry)
	for _, r := range me.relays {
		if r.boundTo.IsValid() && r.binding.Locate(now, p.node.ID) {
			p.locate = now.Add(locateEvery)
		}
	}
}

// locateSoon has a peer looked for again.
func (p *peer) locateSoon(now time.Time) {
	if at := now.Add(locateAfter); p.locate.IsZero() || p.locate.After(at) {
		p.locate = at
	}
}

// located takes in where a relay sees a peer.
func (me *mesh) located(now time.Time, id weft.RelayID, a relay.Answer) {
	p := me.peers[a.Node]
	if p == nil || a.Outcome != relay.Answered {
		return
	}
	if a.Addr.IsValid() {
		p.seenAt[id] = a.Addr.Addr().Unmap()
	} else {
		delete(p.seenAt, id)
	}
	attested := make([]netip.Addr, 0, len(p.seenAt))
	for _, addr := range p.seenAt {
		attested = append(attested, addr)
	}
	slices.SortFunc(attested, netip.Addr.Compare)
	attested = slices.Compact(attested)
	if slices.Equal(attested, p.attested) {
		return
	}
	p.attested = attested
	p.agent.SetAttested(now, attested)
	p.due = true
}

// eager reports whether paths to all peers are kept, with traffic or without.
func (me *mesh) eager() bool { return len(me.netmap.Peers) <= eagerPeers }
