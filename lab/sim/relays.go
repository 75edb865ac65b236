package sim

import (
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/relay"
	"weft/stun"
	"weft/wire"
)

// A relayLink is a node's end of one relay.
type relayLink struct {
	server   *relayServer
	addrs    []netip.AddrPort // of its UDP port
	binding  *relay.UDPBinding
	link     weft.LinkID    // that it is bound by
	boundTo  netip.AddrPort // not valid: it is not bound
	observed netip.AddrPort
	stream   *stream
	probes   map[[12]byte]func(now time.Time, sent bool)
}

// setRelays makes links to all relays, and has them asked by STUN.
func (n *node) setRelays(now time.Time) {
	var servers []netip.AddrPort
	for _, s := range n.w.servers {
		r := &relayLink{server: s, addrs: s.addrs(), probes: map[[12]byte]func(time.Time, bool){}}
		r.stream = &stream{n: n, relay: s}
		n.bindRelay(now, r, n.nextLink(0))
		n.relays = append(n.relays, r)
		servers = append(servers, r.addrs...)
		r.stream.dial(now)
	}
	for _, l := range n.links {
		l.reflexive.SetServers(now, servers)
		l.nat.recheck(now)
	}
}

// bindRelay begins to bind a relay by a link.
func (n *node) bindRelay(now time.Time, r *relayLink, by weft.LinkID) {
	r.link = by
	b, err := relay.NewUDPBinding(relay.UDPBindingConfig{
		NodeKey: n.key, Relay: r.server.relay(), Ticket: n.w.ticket(n.id, n.key.Public()), Rand: n.w.random,
	})
	if err != nil {
		n.log("%s cannot be used over UDP: %v", r.server.m.spec.Name, err)
		return
	}
	r.binding = b
}

func (n *node) relay(id weft.RelayID) *relayLink {
	for _, r := range n.relays {
		if r.server.id == id {
			return r
		}
	}
	return nil
}

// pollRelay sends what the binding wants sent and returns when to ask again.
func (n *node) pollRelay(now time.Time, r *relayLink) (next time.Time) {
	if r.binding == nil {
		return next
	}
	for range 4 { // a binding has one frame to send at a time; this bounds a mistake, not a need
		var b []byte
		if b, next = r.binding.Poll(now); b == nil {
			break
		}
		n.sendTo(r.link, r.addrs[0], b, 0, relayWords(b))
	}
	if r.binding.Lost() && len(n.links) > 1 { // by another link it may answer
		n.relayState(now, r)
		n.bindRelay(now, r, n.nextLink(r.link))
		next = now.Add(rebindPause)
	}
	n.relayState(now, r)
	return next
}

// rebindPause is between two attempts to bind a relay.
const rebindPause = 100 * time.Millisecond

// takeRelayFrame hands a relay's answer to the binding that waits for it.
func (n *node) takeRelayFrame(now time.Time, link weft.LinkID, from netip.AddrPort, b []byte) {
	if src, payload, err := wire.ParseData(b); err == nil {
		for _, r := range n.relays {
			if r.boundTo == from {
				n.relayed(now, weft.Via{Method: weft.RelayUDP, Relay: r.server.id}, src, payload)
				return
			}
		}
		return
	}
	for _, r := range n.relays {
		if r.binding != nil && r.link == link && r.addrs[0] == from && r.binding.Handle(now, b) {
			n.relayState(now, r)
			return
		}
	}
}

// relayState takes in what became of a binding and of what it was asked.
func (n *node) relayState(now time.Time, r *relayLink) {
	for _, a := range r.binding.Answers() {
		if a.Node != 0 {
			n.located(now, r.server.id, a)
		} else if f := r.probes[a.Tx]; f != nil {
			delete(r.probes, a.Tx)
			f(now, a.Outcome == relay.Answered)
		}
	}
	var bound, observed netip.AddrPort
	if r.binding.Bound() {
		bound, observed = r.addrs[0], r.binding.Observed()
	}
	if bound != r.boundTo {
		if r.boundTo = bound; bound.IsValid() {
			n.log("bound to the relay %s over UDP", r.server.m.spec.Name)
			n.link(r.link).nat.recheck(now) // there is one more to ask
		} else {
			n.log("the relay %s is out of reach over UDP", r.server.m.spec.Name)
		}
		n.relaysChanged(now)
	}
	if observed != r.observed {
		r.observed = observed
		n.gatherLocal(now)
	}
}

// relaysChanged tells every agent which relayed ways there are.
func (n *node) relaysChanged(now time.Time) {
	for _, p := range n.peers {
		p.agent.SetRelays(now, n.relayVias(p))
		p.agent.SetRelayLinks(now, n.relayLinks())
		p.due = true
	}
	n.tellNATs(now) // attempts are made by the link that relays see
	n.server.say(now, n)
}

// relayVias are the relayed ways to a peer, best first: over UDP before streams, its home relay before others.
func (n *node) relayVias(p *peer) (out []weft.Via) {
	links := slices.Clone(n.relays)
	slices.SortStableFunc(links, func(a, b *relayLink) int {
		switch home := p.said.home; {
		case (a.server.id == home) == (b.server.id == home):
			return 0
		case a.server.id == home:
			return -1
		}
		return 1
	})
	for _, r := range links {
		if r.boundTo.IsValid() {
			out = append(out, weft.Via{Method: weft.RelayUDP, Relay: r.server.id})
		}
	}
	for _, r := range links {
		if r.stream.up {
			out = append(out, weft.Via{Method: weft.RelayStream, Relay: r.server.id})
		}
	}
	return out
}

// homeRelay is the relay that others should use for this node: the nearest by UDP, else the first with a stream.
func (n *node) homeRelay() (best weft.RelayID) {
	var bestRTT time.Duration
	for _, r := range n.relays {
		switch {
		case r.boundTo.IsValid() && (bestRTT == 0 || r.binding.RTT() < bestRTT*8/10):
			best, bestRTT = r.server.id, max(r.binding.RTT(), 1)
		case best == 0 && r.stream.up:
			best = r.server.id
		}
	}
	return best
}

// stunServer is the STUN server to ask: that of the nearest relay that answers over UDP, else of any.
func (n *node) stunServer(v6 bool) (best netip.AddrPort) {
	var bestRTT time.Duration
	for _, r := range n.relays {
		for _, a := range r.addrs {
			if a.Addr().Is6() != v6 {
				continue
			}
			rtt := time.Duration(0)
			if r.boundTo.IsValid() {
				rtt = max(r.binding.RTT(), 1)
			}
			if !best.IsValid() || rtt > 0 && (bestRTT == 0 || rtt < bestRTT) {
				best, bestRTT = a, rtt
			}
			break
		}
	}
	return best
}

// probe asks the relay with that STUN address for a packet from outside.
func (n *node) probe(now time.Time, server netip.AddrPort, p stun.Probe, answer func(now time.Time, sent bool)) {
	for _, r := range n.relays {
		if r.boundTo == server && r.binding.Probe(now, p.ID, p.Port, false) {
			r.probes[p.ID] = answer
			return
		}
	}
	answer(now, false)
}
