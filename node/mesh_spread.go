package node

import (
	"slices"
	"time"

	"weft"
)

// A relay is spoken to over UDP by one link: it knows a node by one address. Where links are bonded that makes it a way by that link
// alone, so several relays are spread over the links, and a relay goes to a link by which a peer has no direct way, if nobody
// needs it where it is.

const (
	// spreadEvery is how often it is looked whether a relay would be of more use by another link, and spreadAgain how long
	// after one was moved the next may be: its binding takes a round trip or two, and ways by it are asked after that.
	spreadEvery = 2 * time.Second
	spreadAgain = 30 * time.Second
	// spreadSpoilt is how long a link by which a relay was not reached is not tried again for that.
	spreadSpoilt = 10 * time.Minute
)

// spread is what is remembered of it. The zero value has moved nothing.
type spread struct {
	next   time.Time // when to look
	spoilt map[weft.LinkID]time.Time
}

// home is the link by which a relay is bound at first: those with the lowest metric take turns, in the order of the relays.
func (me *mesh) home(id weft.RelayID) weft.LinkID {
	if me.cfg.Settings.Bond == "off" {
		return me.links.first()
	}
	var cheap []weft.LinkID
	metrics, least := me.linkMetrics(), 0
	for i, l := range me.links.list {
		if m := metrics[l.ID]; i == 0 || m < least {
			cheap, least = []weft.LinkID{l.ID}, m
		} else if m == least {
			cheap = append(cheap, l.ID)
		}
	}
	if len(cheap) == 0 {
		return 0
	}
	n := slices.IndexFunc(me.netmap.Relays, func(r weft.Relay) bool { return r.ID == id })
	return cheap[max(n, 0)%len(cheap)]
}

// spreadRelays moves a relay to a link that a peer in use has no way by.
func (me *mesh) spreadRelays(now time.Time) {
	s := &me.spread
	if !me.links.apart || len(me.links.list) < 2 || now.Before(s.next) {
		return
	}
	s.next = now.Add(spreadEvery)
	var lacking []weft.LinkID
	relayed := map[weft.RelayID]bool{} // somebody's way in use, or a member
	for _, p := range me.peers {
		relayed[p.agent.Selected().Relay] = true
		for _, w := range p.bonded.ways {
			relayed[w.Via.Relay] = true
		}
		lacking = append(lacking, p.agent.Lacking(now)...)
	}
	metrics := me.linkMetrics()
	for _, to := range lacking {
		if me.links.find(to) == nil || now.Before(s.spoilt[to]) {
			continue
		}
		for _, x := range slices.Backward(me.netmap.Relays) {
			r := me.relays[x.ID]
			if r == nil || !r.boundTo.IsValid() || relayed[x.ID] || r.link == to || metrics[to] > metrics[r.link] {
				continue
			}
			me.log.Info("a relay is reached by another link, which has no direct way to a peer", "relay", r.relay.Name, "from", me.device(r.link), "link", me.device(to))
			s.next = now.Add(spreadAgain)
			r.wanted = to
			me.bind(now, r, to)
			me.relayState(now, r)
			return
		}
	}
}

// spoils takes note that a relay was not reached by the link that it was moved to.
func (s *spread) spoils(now time.Time, r *relayLink) {
	if r.wanted == 0 || r.wanted != r.link {
		return
	}
	if s.spoilt == nil {
		s.spoilt = map[weft.LinkID]time.Time{}
	}
	s.spoilt[r.wanted], r.wanted = now.Add(spreadSpoilt), 0
}
