package node

import (
	"crypto/rand"
	"encoding/binary"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/direct"
	"weft/engine"
	"weft/key"
	"weft/path"
	"weft/wire"
)

var frameBuffers = sync.Pool{New: func() any { return new([maxFrame]byte) }}

// A peer is what the mesh keeps of one.
type peer struct {
	node     weft.Node
	allowed  []netip.Prefix // its own, those of the plain nodes behind it, and the networks that it carries
	also     []netip.Prefix // networks that it speaks for and another one carries
	framed   time.Time      // when a frame of its own last came
	box      key.Box
	session  uint32    // of its daemon, by its candidates; another one is a restart
	answered time.Time // when its session was first known to receive; a handshake was begun then
	greet    time.Time // when to begin one at this end, too, if there was none
	agent    *path.Agent
	due      bool      // the agent was told something and wants to be polled
	next     time.Time // or then
	actions  path.Actions
	bonded   bondState
	counters []engine.PathCounters
	traffic  []path.Traffic
	rates    rates
	tcp      []*direct.Conn
	active   time.Time // when data last flowed
	locate   time.Time // when relays are asked where it is; zero: not, until something changes
	seenAt   map[weft.RelayID]netip.Addr
	attested []netip.Addr // the same, sorted, each once: what the agent was told
}

func randomSession() uint32 {
	var b [4]byte
	rand.Read(b[:])
	return binary.BigEndian.Uint32(b[:])
}

// setPeers makes peers and engine agree with the map.
func (me *mesh) setPeers(now time.Time) {
	me.enforce() // before packets of a new peer come
	eager := me.eager()
	keep := make(map[weft.NodeID]bool, len(me.netmap.Peers))
	list := make([]engine.Peer, 0, len(me.netmap.Peers))
	changed := false
	behind := me.behind()
	carried, also := me.carry()
	for _, n := range me.netmap.Peers {
		if n.Plain() {
			continue
		}
		p := me.peers[n.ID]
		if p == nil || p.node.Key != n.Key {
			box, err := wire.PeerBox(me.cfg.Key, n.Key)
			if err != nil {
				me.log.Warn("a peer's key is no key; it is left out", "peer", n.Name, "error", err)
				continue
			}
			if p != nil {
				me.leave(now, p)
			}
			p = &peer{box: box, seenAt: map[weft.RelayID]netip.Addr{}, agent: path.New(now, path.Config{
				Session: me.session, Rand: func(b []byte) { rand.Read(b) }, Eager: eager,
				Leads: me.netmap.Self.ID > n.ID, Budget: me.budget, MTU: me.cfg.Device.mtu,
			})}
			p.agent.SetTCP(now, me.tcpUse())
			p.agent.SetLocal(now, me.local)
			p.agent.SetNATs(now, me.linkNATs())
			p.agent.SetMetrics(now, me.linkMetrics())
			p.agent.SetRelayLinks(now, me.relayLinks())
			p.agent.SetRelays(now, me.relayVias(n))
			me.peers[n.ID] = p
			changed = true
		}
		if !slices.Equal(p.node.Candidates, n.Candidates) {
			p.agent.SetRemote(now, n.Candidates)
			p.locateSoon(now)
		}
		if p.node.Online != n.Online || p.node.ID == 0 {
			p.agent.SetOnline(now, n.Online)
			p.locateSoon(now)
		}
		if p.node.HomeRelay != n.HomeRelay {
			p.agent.SetRelays(now, me.relayVias(n))
		}
		allowed := slices.Concat(hostPrefixes(n.Addrs), behind[n.ID], carried[n.ID], me.portalAllowed(n.ID))
		changed = changed || !slices.Equal(p.allowed, allowed) || !slices.Equal(p.also, also[n.ID])
		p.node, p.allowed, p.also, p.due = n, allowed, also[n.ID], true
		keep[n.ID] = true
		list = append(list, engine.Peer{ID: n.ID, Key: n.Key, Allowed: allowed, Also: p.also})
	}
	for id, p := range me.peers {
		if !keep[id] {
			me.leave(now, p)
			delete(me.peers, id)
			changed = true
		}
	}
	guests, others := me.setGuests()
	if !changed && !others {
		return
	}
	list = append(list, guests...)
	if err := me.engine.SetPeers(list); err != nil {
		me.problem("peers", "some peers cannot be reached: "+err.Error())
	} else {
		me.problem("peers", "")
	}
	me.tcpPeers()
	for id, p := range me.peers { // a peer that is new to the engine has no route there yet
		me.engine.SetRoute(id, p.agent.Selected())
		me.engine.SetBond(id, p.bonded.told)
	}
}

// hostPrefixes are the single addresses as prefixes.
func hostPrefixes(addrs []netip.Addr) []netip.Prefix {
	out := make([]netip.Prefix, 0, len(addrs))
	for _, a := range addrs {
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// poll lets a peer's agent act.
func (me *mesh) poll(now time.Time, p *peer) {
	p.due = false
	p.agent.SetBonding(now, me.bondMode(p) != engine.BondOff)
	p.agent.Poll(now, &p.actions)
	me.act(now, p)
}

// act does what the agent wants done.
func (me *mesh) act(now time.Time, p *peer) {
	a := &p.actions
	for _, addr := range a.Learn {
		me.engine.Learn(p.node.ID, addr)
	}
	for _, addr := range a.Forget {
		me.engine.Forget(addr)
	}
	me.fitWays(p, a.MTUs) // before anything goes by them
	me.bond(p)
	for _, s := range a.Switches {
		p.locateSoon(now)
		me.engine.SetRoute(p.node.ID, s.To)
		if s.From.Method == weft.Direct && (s.To.Method != weft.Direct || me.under(s.To.Link) != me.under(s.From.Link)) || s.From.Method == weft.RelayUDP {
			me.suspect(now)
		}
		me.log.Info("path changed", "peer", p.node.Name, "from", me.viaName(s.From), "to", me.viaName(s.To), "reason", s.Reason)
	}
	var buf [maxFrame]byte
	for _, t := range a.Send {
		if t.Whole {
			me.probeLength(now, p, t)
			continue
		}
		me.send(p, t, buf[:0])
	}
	me.connect(p, a.Dial, a.Hang)
	me.closeSockets(a.Close)
	if a.Open.Count > 0 {
		me.openSockets(now, p, a.Open)
	}
	p.next = a.Next
}

// send seals a message and sends it to the peer.
func (me *mesh) send(p *peer, t path.Transmit, buf []byte) error {
	return me.engine.SendTTL(p.node.ID, t.Via, wire.AppendPeer(buf, p.box, me.netmap.Self.ID, t.Message), t.TTL)
}

// takePeerFrame opens a peer's frame and hands it to the agent.
func (me *mesh) takePeerFrame(now time.Time, f frame, b []byte) {
	id, err := wire.PeerSender(b)
	if err != nil {
		return
	}
	p := me.peers[id]
	if p == nil || f.via.Method != weft.NoMethod && f.src != id {
		return
	}
	m, err := wire.OpenPeer(b, p.box)
	if err != nil {
		me.log.Debug("a frame that claims to be a peer's does not open", "peer", p.node.Name, "from", f.from)
		return
	}
	via := f.via
	if via.Method == weft.NoMethod {
		via = weft.DirectVia(f.link, f.from)
	}
	if pong, ok := m.(wire.Pong); ok {
		if waiting, ok := me.pings[pong.Tx]; ok {
			delete(me.pings, pong.Tx)
			waiting <- pingAnswer{via: via, at: now}
			return
		}
	}
	p.framed = now
	p.agent.Handle(now, via, m)
	p.due = true
	switch m := m.(type) {
	case wire.Portal:
		me.takePortal(now, p, m)
	case wire.Candidates:
		if m.Session != p.session {
			p.session, p.answered = m.Session, time.Time{}
			p.locateSoon(now)
		}
	case wire.Pong:
		if !p.answered.IsZero() {
			return
		}
		p.answered = now
		me.poll(now, p) // the answer may be the first way there is
		// One of the two begins, or their initiations cross: each then answers as the responder, takes no answer
		// as the initiator, and data waits out the 5 s all the same.
		if me.netmap.Self.ID < id {
			me.engine.Greet(id)
		} else {
			p.greet = now.Add(greetPatience)
		}
	}
}

// greet begins a handshake with a peer that should have begun one: what it sent was lost, or its clock has gone
// back and its initiations, which carry the time, are taken for old ones.
func (me *mesh) greet(now time.Time, p *peer) {
	p.greet = time.Time{}
	if !me.engine.Handshake(p.node.ID).Before(p.answered) {
		return
	}
	me.engine.Greet(p.node.ID)
	if now.Sub(p.answered) < greetFor {
		p.greet = now.Add(greetAgain)
	}
}

// observe tells a peer's agent what flowed.
func (me *mesh) observe(now time.Time, p *peer) {
	p.counters = me.engine.Counters(p.counters[:0], p.node.ID)
	if len(p.counters) == 0 {
		return
	}
	p.rates.note(now, p.counters)
	changed := len(p.counters) != len(p.traffic)
	for i, c := range p.counters {
		t := path.Traffic(c)
		if i >= len(p.traffic) {
			p.traffic = append(p.traffic, t)
			continue
		}
		if p.traffic[i] != t {
			changed = true
			p.traffic[i] = t
		}
	}
	p.traffic = p.traffic[:len(p.counters)]
	if changed {
		if now.Sub(p.active) > locateEvery {
			p.locateSoon(now)
		}
		me.activeAt, p.active = now, now
	}
	p.agent.Observe(now, p.traffic)
	p.due = true
}
