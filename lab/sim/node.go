package sim

import (
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/key"
	"weft/lab/vnet"
	"weft/path"
	"weft/wire"
)

const (
	// nodePort is the UDP port of every node: the daemon's default.
	nodePort = 41641
	// maxFrame is room for the longest frame, in bytes.
	maxFrame = 1500
	// watchFast, watchSlow and watchLinger are the daemon's (package node): how often traffic is compared with
	// what was acknowledged.
	watchFast   = 100 * time.Millisecond
	watchSlow   = time.Second
	watchLinger = 2 * time.Second
	// noticed is how long it takes until a daemon hears of a connection that broke without a word, because it
	// asks when its own network changed: beatPatience in package node.
	noticed = 10 * time.Second
)

// A node is one weft daemon. What is below key is of the time since it was started last.
type node struct {
	w     *world
	m     *machine
	id    weft.NodeID
	key   key.NodePrivate
	boxes map[weft.NodeID]key.Box
	tries map[weft.NodeID]int // datagrams spent on looking for a direct path to a peer

	links    []*link
	session  uint32
	peers    []*peer // by number
	relays   []*relayLink
	local    []weft.Candidate
	spares   spares
	budget   *path.Budget
	server   connection
	watchAt  time.Time
	activeAt time.Time
	timer    vnet.Timer
	timerAt  time.Time // zero: it is not set
	working  bool
	frame    [maxFrame]byte
}

func newNode(w *world, m *machine, id weft.NodeID) *node {
	return &node{
		w: w, m: m, id: id, key: key.NewPrivate[key.Node](), boxes: map[weft.NodeID]key.Box{}, tries: map[weft.NodeID]int{},
	}
}

func (n *node) name() string { return n.m.spec.Name }

func (n *node) log(format string, args ...any) { n.m.log.printf(n.w.elapsed(), format, args...) }

// on reports whether it runs.
func (n *node) on() bool { return n.m.node == n }

// start switches it on.
func (n *node) start(now time.Time) {
	if n.on() {
		return
	}
	if err := n.openLinks(); err != nil {
		n.log("cannot listen: %v", err)
		return
	}
	n.m.node = n
	n.session = uint32(n.w.net.Rand().Uint64()) | 1
	n.peers, n.relays, n.local = nil, nil, nil
	n.budget = path.NewBudget(0)
	n.spares = spares{sockets: map[weft.LinkID]*vnet.Socket{}, owner: map[weft.LinkID]*peer{}, asks: map[weft.LinkID]*ask{}, next: path.FirstSpare}
	n.watchAt, n.activeAt = now, time.Time{}
	n.log("started")
	n.setRelays(now)
	n.gatherLocal(now)
	n.server.open(now, n)
	n.work(now)
}

// stop switches it off.
func (n *node) stop(now time.Time) {
	if !n.on() {
		return
	}
	n.log("stopped")
	n.m.node = nil
	n.timer.Stop()
	n.timerAt = time.Time{}
	for _, l := range n.links {
		l.nat.close()
		l.socket.Close()
	}
	for _, s := range n.spares.sockets {
		s.Close()
	}
	for _, r := range n.relays {
		r.stream.close()
	}
	n.server.close(now, n)
	peers := n.peers
	n.peers = nil
	for _, p := range peers {
		p.bond.stop()
		n.w.noted(n, p.node)
	}
}

// peer is what it has of another node; nil: it does not know it, or is switched off.
func (n *node) peer(id weft.NodeID) *peer {
	for _, p := range n.peers {
		if p.node.id == id && n.on() {
			return p
		}
	}
	return nil
}

// box is what frames between this node and another are sealed with.
func (n *node) box(other *node) key.Box {
	box, ok := n.boxes[other.id]
	if !ok {
		var err error
		if box, err = wire.PeerBox(n.key, other.key.Public()); err != nil {
			panic(fmt.Sprintf("sim: keys that were just made do not agree: %v", err))
		}
		n.boxes[other.id] = box
	}
	return box
}

// work does all that is due and sets the timer for the next thing, as mesh.work of the daemon does.
func (n *node) work(now time.Time) {
	if !n.on() || n.working {
		return
	}
	n.working = true
	var next time.Time
	for again := true; again && n.on(); {
		again = false
		next = time.Time{}
		sooner := func(t time.Time) {
			if !t.IsZero() && (next.IsZero() || t.Before(next)) {
				next = t
			}
		}
		if !now.Before(n.watchAt) {
			n.watch(now)
		}
		sooner(n.watchAt)
		for _, r := range n.relays {
			sooner(n.pollRelay(now, r))
		}
		for _, l := range n.links {
			at, changed := l.reflexive.Poll(now, func(to netip.AddrPort, packet []byte) { n.sendTo(l.id, to, packet, 0, "STUN request") })
			if changed {
				n.gatherLocal(now)
			}
			sooner(at)
			sooner(l.nat.poll(now))
		}
		sooner(n.pollAsks(now))
		for _, p := range n.peers {
			if p.due || !p.next.IsZero() && !now.Before(p.next) {
				n.poll(now, p)
			}
			sooner(p.next)
			again = again || p.due // it was told something while it was polled
			if !p.locate.IsZero() && !now.Before(p.locate) {
				n.locate(now, p)
			}
			sooner(p.locate)
		}
	}
	n.working = false
	if n.on() {
		n.wakeAt(now, next)
	}
}

// wakeAt sets the timer, unless it comes early enough already.
func (n *node) wakeAt(now, next time.Time) {
	if next.IsZero() || !n.timerAt.IsZero() && !n.timerAt.After(next) && n.timerAt.After(now) {
		return
	}
	n.timer.Stop()
	n.timerAt = next
	n.timer = n.w.net.At(next, func(now time.Time) {
		n.timerAt = time.Time{}
		n.work(now)
	})
}

// watch compares traffic with what the peers acknowledged.
func (n *node) watch(now time.Time) {
	for _, p := range n.peers {
		n.observe(now, p)
	}
	if n.watchAt = now.Add(watchSlow); now.Sub(n.activeAt) < watchLinger {
		n.watchAt = now.Add(watchFast)
	}
}

// receive takes a datagram that came to a socket of the daemon's.
func (n *node) receive(now time.Time, link weft.LinkID, from netip.AddrPort, b []byte) {
	if !n.on() {
		return
	}
	switch wire.Classify(b) {
	case wire.ClassWireGuard:
		n.takeData(now, weft.DirectVia(link, from), 0, b)
		return
	case wire.ClassSTUN:
		if link >= path.FirstSpare {
			n.takeAnswer(now, link, from, b)
		} else if _, changed := n.link(link).reflexive.Handle(now, b, from); changed {
			n.gatherLocal(now)
		}
	case wire.ClassWeft:
		switch kind, _ := wire.KindOf(b); {
		case kind == wire.KindPeer:
			n.takePeerFrame(now, weft.DirectVia(link, from), 0, b)
		case link < path.FirstSpare:
			n.takeRelayFrame(now, link, from, b)
		}
	}
	n.work(now)
}

// relayed takes what came through a relay.
func (n *node) relayed(now time.Time, via weft.Via, src weft.NodeID, b []byte) {
	if !n.on() {
		return
	}
	if wire.Classify(b) == wire.ClassWireGuard {
		n.takeData(now, via, src, b)
		return
	}
	n.takePeerFrame(now, via, src, b)
	n.work(now)
}

// sendTo sends a datagram from one of the daemon's sockets. Lost is lost, as when the daemon's own network is down.
func (n *node) sendTo(link weft.LinkID, to netip.AddrPort, b []byte, ttl uint8, what string) {
	if link < path.FirstSpare {
		n.w.transmit(n.link(link).socket, to, b, ttl, what)
	} else if s := n.spares.sockets[link]; s != nil {
		n.w.transmit(s, to, b, ttl, what)
	}
}

// transmit sends a datagram, and tells the trace what it is.
func (w *world) transmit(s *vnet.Socket, to netip.AddrPort, b []byte, ttl uint8, what string) {
	if w.trace != nil {
		w.trace.what = what
	}
	_ = s.Send(to, b, ttl) // that this machine cannot send is like a loss: everything is repeated
}

// networkChanged looks at everything anew: an interface came, went, or has another address.
func (n *node) networkChanged(now time.Time) {
	if !n.gatherLocal(now) {
		return
	}
	n.log("this machine's network changed")
	n.server.broke(now, n)
	for _, r := range n.relays {
		if !n.link(r.link).up() {
			n.bindRelay(now, r, n.nextLink(r.link))
		} else if r.binding != nil {
			r.binding.Recheck(now)
		}
		r.stream.broke(now)
	}
	for _, l := range n.links {
		l.reflexive.Recheck(now)
		l.nat.moved(now)
	}
	n.dropAsks(now, nil)
	for _, p := range n.peers {
		p.agent.NetworkChanged(now)
		p.locateSoon(now)
		p.due = true
	}
	n.work(now)
}

// gatherLocal collects where this node may be reached, and tells everybody if that changed.
func (n *node) gatherLocal(now time.Time) (changed bool) {
	local := n.candidates()
	if slices.Equal(local, n.local) {
		return false
	}
	n.local = local
	n.log("reachable at %v", describe(local))
	for _, p := range n.peers {
		p.agent.SetLocal(now, local)
		p.due = true
	}
	n.server.say(now, n)
	return true
}

// describe writes candidates for people.
func describe(list []weft.Candidate) (words []string) {
	for _, c := range list {
		words = append(words, fmt.Sprintf("%v (%v)", c.Addr, c.Kind))
	}
	return words
}
