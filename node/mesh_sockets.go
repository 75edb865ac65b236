package node

import (
	"net/netip"
	"time"

	"weft"
	"weft/path"
	"weft/stun"
)

const (
	// askRTO and askTries spread one question from a fresh socket over 1.25 s: the peer waits for the answer, and
	// what is learned from it (the port that a NAT gave last) grows old quickly.
	askRTO   = 250 * time.Millisecond
	askTries = 3
	askRm    = 2
	// filesWanted is how many files and sockets the daemon may have open, if that can be had: the engine's spare
	// sockets, and room for the rest.
	filesWanted = 4096
)

// spares are the sockets that agents asked for. Each is one peer's until its agent gives it up, or the mesh ends.
type spares struct {
	owner map[weft.LinkID]*peer
	ports map[weft.LinkID]uint16
	on    map[weft.LinkID]weft.LinkID // the link that it was opened on
	asks  map[weft.LinkID]*ask        // by the socket that asks
}

func newSpares() spares {
	return spares{
		owner: map[weft.LinkID]*peer{}, ports: map[weft.LinkID]uint16{}, on: map[weft.LinkID]weft.LinkID{}, asks: map[weft.LinkID]*ask{},
	}
}

// An ask is a question to a STUN server from the first of some fresh sockets, of which the agent hears together
// with the answer.
type ask struct {
	peer   *peer
	opened []path.Opened
	tx     *stun.Transaction
}

// openSockets serves an agent's wish.
func (me *mesh) openSockets(now time.Time, p *peer, o path.Opening) {
	links, ports, err := me.engine.OpenSocketsOn(o.Link, o.Count, o.V6)
	if err != nil {
		me.log.Warn("not all sockets that a path may need can be opened", "peer", p.node.Name, "error", err)
	}
	opened := make([]path.Opened, len(links))
	for i := range links {
		opened[i] = path.Opened{Link: links[i], Port: ports[i]}
		me.spares.owner[links[i]], me.spares.ports[links[i]], me.spares.on[links[i]] = p, ports[i], o.Link
	}
	if server := me.stunServer(o.V6); o.Ask && len(links) > 0 && server.IsValid() {
		me.spares.asks[links[0]] = &ask{peer: p, opened: opened, tx: stun.NewTransaction(now, server,
			stun.TransactionConfig{RTO: askRTO, Rc: askTries, Rm: askRm})}
		return
	}
	p.agent.Opened(now, opened)
	p.due = true
}

// stunServer is the STUN server to ask: that of the nearest relay that answers over UDP, else of any.
func (me *mesh) stunServer(v6 bool) netip.AddrPort {
	var best netip.AddrPort
	var bestRTT time.Duration
	for _, x := range me.netmap.Relays { // in their order, so that ties do not depend on a map's
		r := me.relays[x.ID]
		if r == nil {
			continue
		}
		for _, a := range r.addrs {
			if a.Addr().Is6() != v6 {
				continue
			}
			rtt := time.Duration(0)
			if r.binding != nil && r.boundTo.IsValid() {
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

// pollAsks repeats questions that were not answered yet, and gives up those that nobody answers. It returns when
// to be called again.
func (me *mesh) pollAsks(now time.Time) time.Time {
	var next time.Time
	for link, q := range me.spares.asks {
		packet, at, done := q.tx.Poll(now)
		if packet != nil {
			me.engine.WriteTo(link, q.tx.Server(), packet) // lost is lost: it is repeated
		}
		if done {
			me.answered(now, link, netip.AddrPort{})
			continue
		}
		if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// takeAnswer hands a STUN message to the question that was asked from its socket.
func (me *mesh) takeAnswer(now time.Time, link weft.LinkID, from netip.AddrPort, b []byte) {
	q := me.spares.asks[link]
	if q == nil {
		return
	}
	if result, ok := q.tx.Handle(now, b, from); ok {
		me.answered(now, link, result.Mapped) // none where it was refused
	}
}

// answered tells the agent of its sockets.
func (me *mesh) answered(now time.Time, link weft.LinkID, mapped netip.AddrPort) {
	q := me.spares.asks[link]
	delete(me.spares.asks, link)
	q.opened[0].Mapped = mapped
	q.peer.agent.Opened(now, q.opened)
	q.peer.due = true
}

// closeSockets closes what an agent no longer needs.
func (me *mesh) closeSockets(links []weft.LinkID) {
	for _, link := range links {
		me.engine.CloseSocket(link)
		delete(me.spares.owner, link)
		delete(me.spares.ports, link)
		delete(me.spares.on, link)
	}
}

// dropAsks gives up the questions under way, and the sockets they were asked for, of one peer or with nil of all:
// what they would tell is of a network that is no more.
func (me *mesh) dropAsks(now time.Time, p *peer) {
	for link, q := range me.spares.asks {
		if p != nil && q.peer != p {
			continue
		}
		delete(me.spares.asks, link)
		for _, o := range q.opened {
			me.closeSockets([]weft.LinkID{o.Link})
		}
		q.peer.agent.Opened(now, nil)
		q.peer.due = true
	}
}

// leave ends all that is under way for a peer that is no more.
func (me *mesh) leave(now time.Time, p *peer) {
	me.dropAsks(now, p)
	p.agent.Leave(now, &p.actions)
	me.act(now, p)
	for link, owner := range me.spares.owner {
		if owner == p {
			me.closeSockets([]weft.LinkID{link})
		}
	}
}
