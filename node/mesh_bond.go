package node

import (
	"slices"
	"time"

	"weft"
	"weft/engine"
	"weft/host"
	"weft/wire"
)

// Bonding, as far as it is the mesh's: agents choose the ways (path, members.go), the engine sends by them (engine, bond.go). Here
// the one hears of the other: which ways there are, and by which of them data does not arrive.

// silencesQueued is how many words of the engine's on silent ways wait for the mesh at most; the engine says it again.
const silencesQueued = 256

// A silence is a way by which a peer does not get what is sent.
type silence struct {
	peer   weft.NodeID
	via    weft.Via
	reason string
}

// Silent hears from the engine that data by one of a bond's ways does not arrive. It does not wait.
func (me *mesh) Silent(id weft.NodeID, via weft.Via, reason string) {
	select {
	case me.silences <- silence{id, via, reason}:
	default:
	}
}

// takeSilence tells the agent, and the engine by which ways to go on.
func (me *mesh) takeSilence(now time.Time, s silence) {
	if p := me.peers[s.peer]; p != nil {
		p.agent.Silent(now, s.via, s.reason)
		me.poll(now, p)
	}
}

// A bondState is what the engine was told last of a peer's bond.
type bondState struct {
	told engine.Bond
	ways []engine.BondWay // as the agent says
}

// bondMode is what the settings say of a peer.
func (me *mesh) bondMode(p *peer) engine.BondMode {
	switch me.cfg.Settings.BondFor(p.node.Name) {
	case engine.BondAggregate.String():
		return engine.BondAggregate
	case engine.BondRedundant.String():
		return engine.BondRedundant
	}
	return engine.BondOff
}

// bond takes in what the agent says of the ways to bond, and tells the engine if that, or what the settings say, is another
// than before.
func (me *mesh) bond(p *peer) {
	a := &p.actions
	if a.BondChanged {
		p.bonded.ways = nil
		for _, m := range a.Bond {
			p.bonded.ways = append(p.bonded.ways, engine.BondWay{Via: m.Via, Metric: m.Metric, RTT: m.RTT})
		}
	}
	b, s := engine.Bond{}, &me.cfg.Settings
	if mode := me.bondMode(p); len(p.bonded.ways) > 0 && mode != engine.BondOff {
		b = engine.Bond{Mode: mode, Control: s.CongestionOr(), Ways: p.bonded.ways, Rules: s.Redundant}
	}
	old := &p.bonded.told
	if b.Mode == old.Mode && b.Control == old.Control && slices.Equal(b.Rules, old.Rules) && (!a.BondChanged || len(b.Ways)+len(old.Ways) == 0) {
		return
	}
	p.bonded.told = b
	me.engine.SetBond(p.node.ID, b)
	for _, c := range a.MemberChanges {
		what := "a way left the bond"
		if c.In {
			what = "a way joined the bond"
		}
		me.log.Info(what, "peer", p.node.Name, "way", me.viaName(c.Via), "ways", len(b.Ways), "reason", c.Reason)
	}
}

// linkMetrics are the metrics of this node's links.
func (me *mesh) linkMetrics() map[weft.LinkID]int {
	out := make(map[weft.LinkID]int, len(me.links.list))
	for _, l := range me.links.list {
		if m := me.cfg.Metrics[l.Device]; m != 0 && l.ID != 0 {
			out[l.ID] = m
		}
	}
	return out
}

// relayLinks tells by which link each relay is spoken to over UDP.
func (me *mesh) relayLinks() []wire.RelayLink {
	if !me.links.apart {
		return nil
	}
	var out []wire.RelayLink
	for id, r := range me.relays {
		if r.boundTo.IsValid() {
			out = append(out, wire.RelayLink{Relay: id, Link: r.link})
		}
	}
	return out
}

// takeCarrier hears from the kernel that an interface can carry packets, or no longer can. What goes by one that cannot goes
// by others from here on; all else that there is to do (networkChanged) can wait until everything was looked at anew.
func (me *mesh) takeCarrier(now time.Time, c host.Carrier) {
	for _, l := range me.links.resting {
		if l.Index == c.Index && !c.Up {
			l.upAt = time.Time{}
		}
	}
	i := slices.IndexFunc(me.links.list, func(l *meshLink) bool { return l.ID != 0 && l.Index == c.Index })
	if i < 0 || c.Up {
		return
	}
	l := me.links.list[i]
	me.log.Info("an interface went down", "link", l.Device)
	me.links.list = slices.Delete(slices.Clone(me.links.list), i, i+1)
	me.links.rest(now, l)
	me.links.fell = true
	me.rebindRelays(now)
	local := slices.DeleteFunc(slices.Clone(me.local), func(c weft.Candidate) bool { return c.Link == l.ID })
	if len(local) == 0 {
		return // there is no other
	}
	me.local = local
	for _, p := range me.peers {
		p.agent.SetLocal(now, local)
		p.due = true
		if len(p.bonded.ways) > 0 {
			me.poll(now, p)
		}
	}
}
