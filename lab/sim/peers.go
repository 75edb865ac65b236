package sim

import (
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/path"
	"weft/relay"
	"weft/wire"
)

// How a daemon asks relays where a peer is: locateAfter, locateEvery and locateRetry of package node.
const (
	locateAfter = 300 * time.Millisecond
	locateEvery = 2 * time.Minute
	locateRetry = 5 * time.Second
)

// A peer is another node as one sees it.
type peer struct {
	node    *node // the other
	agent   *path.Agent
	actions path.Actions
	due     bool
	next    time.Time
	said    update // by the server
	traffic []path.Traffic
	learned map[netip.AddrPort]bool
	bond    *bonded

	locate   time.Time
	seenAt   map[weft.RelayID]netip.Addr
	attested []netip.Addr
}

// meet takes in what the server says of another node.
func (n *node) meet(now time.Time, u update) {
	if !n.on() || u.node == n {
		return
	}
	p := n.peer(u.node.id)
	if p == nil {
		p = &peer{node: u.node, learned: map[netip.AddrPort]bool{}, seenAt: map[weft.RelayID]netip.Addr{}}
		p.agent = path.New(now, path.Config{
			Session: n.session, Rand: n.w.random, Eager: true, Leads: n.id > u.node.id, Budget: n.budget,
		})
		p.agent.SetLocal(now, n.local)
		p.agent.SetNATs(now, n.linkNATs())
		p.agent.SetBonding(now, true)
		p.agent.SetMetrics(now, n.metrics())
		p.agent.SetRelayLinks(now, n.relayLinks())
		p.bond = newBonded(n, p)
		n.peers = append(n.peers, p)
		slices.SortFunc(n.peers, func(a, b *peer) int { return int(a.node.id) - int(b.node.id) })
	}
	was := p.said
	p.said = u
	if was.node == nil || was.home != u.home {
		p.agent.SetRelays(now, n.relayVias(p))
	}
	if !slices.Equal(was.candidates, u.candidates) {
		p.agent.SetRemote(now, u.candidates)
		p.locateSoon(now)
	}
	if was.node == nil || was.online != u.online {
		p.agent.SetOnline(now, u.online)
		p.locateSoon(now)
	}
	p.due = true
	n.work(now)
}

// poll lets a peer's agent act.
func (n *node) poll(now time.Time, p *peer) {
	p.due = false
	p.agent.Poll(now, &p.actions)
	a := &p.actions
	for _, addr := range a.Learn {
		p.learned[addr] = true
	}
	for _, addr := range a.Forget {
		delete(p.learned, addr)
	}
	for _, s := range a.Switches {
		p.locateSoon(now)
		if r := n.relay(s.From.Relay); s.From.Method == weft.RelayUDP && r != nil && r.binding != nil {
			r.binding.Recheck(now)
		}
		n.log("%s: from %v to %v: %s", p.node.name(), s.From, s.To, s.Reason)
		n.w.say("%s reaches %s by %v: %s", n.name(), p.node.name(), s.To, s.Reason)
		n.w.noted(n, p.node)
	}
	for _, t := range a.Send {
		n.send(p, t)
	}
	if a.Open.Count > 0 {
		n.openSockets(now, p, a.Open)
	}
	n.closeSockets(a.Close)
	if a.BondChanged {
		p.bond.setWays(now, a.Bond)
	}
	p.next = a.Next
}

// send seals a message and sends it to the peer by a way.
func (n *node) send(p *peer, t path.Transmit) {
	what := ""
	if n.w.trace != nil {
		what = messageWords(t.Message)
	}
	if t.Via.Method == weft.Direct && p.agent.Selected().Method != weft.Direct {
		n.tries[p.node.id]++
	}
	n.sendBy(p, t.Via, wire.AppendPeer(n.frame[:0], n.box(p.node), n.id, t.Message), t.TTL, what)
}

// sendBy sends a datagram to the peer by a way.
func (n *node) sendBy(p *peer, via weft.Via, b []byte, ttl uint8, what string) {
	switch via.Method {
	case weft.Direct:
		n.sendTo(via.Link, via.Addr, b, ttl, what)
	case weft.RelayUDP:
		if r := n.relay(via.Relay); r != nil && r.boundTo.IsValid() {
			var buf [maxFrame + wire.DataPrefix]byte
			n.sendTo(r.link, r.boundTo, append(wire.AppendData(buf[:0], p.node.id), b...), 0, what)
		}
	case weft.RelayStream:
		if r := n.relay(via.Relay); r != nil {
			r.stream.send(p.node.id, b, what)
		}
	}
}

// takePeerFrame opens a peer's frame and hands it to the agent. Src is who sent it, of a relayed one.
func (n *node) takePeerFrame(now time.Time, via weft.Via, src weft.NodeID, b []byte) {
	id, err := wire.PeerSender(b)
	if err != nil || via.Method.Relayed() && src != id {
		return
	}
	p := n.peer(id)
	if p == nil {
		return
	}
	m, err := wire.OpenPeer(b, n.box(p.node))
	if err != nil {
		return
	}
	p.agent.Handle(now, via, m)
	p.due = true
}

// locate asks the relays where they see a peer that has no direct path: only there may its agent look for it by
// guessing.
func (n *node) locate(now time.Time, p *peer) {
	p.locate = time.Time{}
	if p.agent.Selected().Method == weft.Direct || !p.said.online {
		return // whatever changes that sets p.locate again
	}
	p.locate = now.Add(locateRetry)
	for _, r := range n.relays {
		if r.boundTo.IsValid() && r.binding.Locate(now, p.node.id) {
			p.locate = now.Add(locateEvery)
		}
	}
}

func (p *peer) locateSoon(now time.Time) {
	if at := now.Add(locateAfter); p.locate.IsZero() || p.locate.After(at) {
		p.locate = at
	}
}

// located takes in where a relay sees a peer.
func (n *node) located(now time.Time, id weft.RelayID, a relay.Answer) {
	p := n.peer(a.Node)
	if p == nil || a.Outcome != relay.Answered {
		return
	}
	if delete(p.seenAt, id); a.Addr.IsValid() {
		p.seenAt[id] = a.Addr.Addr().Unmap()
	}
	attested := make([]netip.Addr, 0, len(p.seenAt))
	for _, addr := range p.seenAt {
		attested = append(attested, addr)
	}
	slices.SortFunc(attested, netip.Addr.Compare)
	if attested = slices.Compact(attested); slices.Equal(attested, p.attested) {
		return
	}
	p.attested = attested
	p.agent.SetAttested(now, attested)
	p.due = true
}

// observe tells a peer's agent what flowed.
func (n *node) observe(now time.Time, p *peer) {
	if len(p.traffic) == 0 {
		return
	}
	p.agent.Observe(now, p.traffic)
	p.due = true
}

// count notes a data packet to or from a peer.
func (n *node) count(now time.Time, p *peer, via weft.Via, size int, sent bool) {
	i := slices.IndexFunc(p.traffic, func(t path.Traffic) bool { return t.Via == via })
	if i < 0 {
		i = len(p.traffic)
		p.traffic = append(p.traffic, path.Traffic{Via: via})
	}
	t := &p.traffic[i]
	if sent {
		t.TxPackets++
		t.TxBytes += uint64(size)
	} else {
		t.RxPackets++
		t.RxBytes += uint64(size)
	}
	idle := now.Sub(n.activeAt) >= watchLinger
	if n.activeAt = now; idle { // it is looked at as soon as data begins to flow
		n.watchAt = now
		n.w.net.At(now, n.work)
	} else if n.watchAt.After(now.Add(watchFast)) {
		n.watchAt = now.Add(watchFast)
		n.wakeAt(now, n.watchAt)
	}
}

// wayOf is how a direct path was found, as both ends tell it. A spray may find one between the shared sockets of both:
// its probes leave mappings behind that plain pings then come through.
func wayOf(a, b path.Snapshot) string {
	ways := map[string]string{"spray": "sprayed", "predict": "predicted"}
	for _, s := range []path.Snapshot{a, b} {
		for _, x := range slices.Backward(s.Attempts) {
			if way := ways[x.Way]; way != "" && x.Found {
				return way
			}
		}
	}
	if a.Selected.Link < path.FirstSpare && b.Selected.Link < path.FirstSpare {
		return "plain"
	}
	return "sprayed"
}
