package sim

import (
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/lab/vnet"
	"weft/path"
	"weft/stun"
)

// How a fresh socket asks STUN: askRTO, askTries and askRm of package node.
const (
	askRTO   = 250 * time.Millisecond
	askTries = 3
	askRm    = 2
)

// spares are the sockets that agents asked for.
type spares struct {
	sockets map[weft.LinkID]*vnet.Socket
	owner   map[weft.LinkID]*peer
	asks    map[weft.LinkID]*ask // by the socket that asks
	next    weft.LinkID
}

// An ask is a question to a STUN server from the first of some fresh sockets.
type ask struct {
	peer   *peer
	opened []path.Opened
	tx     *stun.Transaction
}

// openSockets serves an agent's wish.
func (n *node) openSockets(now time.Time, p *peer, o path.Opening) {
	var opened []path.Opened
	for range o.Count {
		s, err := n.link(n.attemptLink()).listen(0)
		if err != nil {
			n.log("not all sockets that a path may need can be opened: %v", err)
			break
		}
		link := n.spares.next
		for n.spares.sockets[link] != nil {
			link = max(link+1, path.FirstSpare)
		}
		n.spares.next = max(link+1, path.FirstSpare)
		n.spares.sockets[link], n.spares.owner[link] = s, p
		s.Handle(func(now time.Time, from netip.AddrPort, b []byte) { n.receive(now, link, from, b) })
		opened = append(opened, path.Opened{Link: link, Port: s.Port()})
	}
	if server := n.stunServer(o.V6); o.Ask && len(opened) > 0 && server.IsValid() {
		n.spares.asks[opened[0].Link] = &ask{peer: p, opened: opened, tx: stun.NewTransaction(now, server,
			stun.TransactionConfig{RTO: askRTO, Rc: askTries, Rm: askRm})}
		return
	}
	p.agent.Opened(now, opened)
	p.due = true
}

// pollAsks repeats questions that were not answered yet, and gives up those that nobody answers.
func (n *node) pollAsks(now time.Time) (next time.Time) {
	for _, link := range n.asking() {
		q := n.spares.asks[link]
		packet, at, done := q.tx.Poll(now)
		if packet != nil {
			n.sendTo(link, q.tx.Server(), packet, 0, "STUN request")
		}
		if done {
			n.answered(now, link, netip.AddrPort{})
		} else if next.IsZero() || at.Before(next) {
			next = at
		}
	}
	return next
}

// asking are the sockets with a question under way, in an order that does not change from run to run.
func (n *node) asking() (links []weft.LinkID) {
	for link := range n.spares.asks {
		links = append(links, link)
	}
	slices.Sort(links)
	return links
}

// takeAnswer hands a STUN message to the question that was asked from its socket.
func (n *node) takeAnswer(now time.Time, link weft.LinkID, from netip.AddrPort, b []byte) {
	if q := n.spares.asks[link]; q != nil {
		if result, ok := q.tx.Handle(now, b, from); ok {
			n.answered(now, link, result.Mapped) // none where it was refused
		}
	}
}

// answered tells the agent of its sockets.
func (n *node) answered(now time.Time, link weft.LinkID, mapped netip.AddrPort) {
	q := n.spares.asks[link]
	delete(n.spares.asks, link)
	q.opened[0].Mapped = mapped
	q.peer.agent.Opened(now, q.opened)
	q.peer.due = true
}

// closeSockets closes what an agent no longer needs.
func (n *node) closeSockets(links []weft.LinkID) {
	for _, link := range links {
		if s := n.spares.sockets[link]; s != nil {
			s.Close()
		}
		delete(n.spares.sockets, link)
		delete(n.spares.owner, link)
	}
}

// dropAsks gives up the questions under way, and the sockets they were asked for, of one peer or with nil of all.
func (n *node) dropAsks(now time.Time, p *peer) {
	for _, link := range n.asking() {
		q := n.spares.asks[link]
		if p != nil && q.peer != p {
			continue
		}
		delete(n.spares.asks, link)
		for _, o := range q.opened {
			n.closeSockets([]weft.LinkID{o.Link})
		}
		q.peer.agent.Opened(now, nil)
		q.peer.due = true
	}
}
