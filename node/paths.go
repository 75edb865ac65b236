package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/bond"
	"weft/engine"
	"weft/host"
	"weft/path"
)

// Paths tells of the ways to a peer: how each does, and what became of them.
func (d *Daemon) Paths(ctx context.Context, who string) (doc weft.Paths, err error) {
	err = d.about(ctx, who, func(now time.Time, me *mesh, p *peer) { doc = me.paths(now, p, true) })
	return doc, err
}

// about has f look at a peer, by what a person calls it, on the mesh's goroutine. Who asks wants a path to it.
func (d *Daemon) about(ctx context.Context, who string, f func(now time.Time, me *mesh, p *peer)) error {
	me, err := d.running(ctx)
	if err != nil {
		return err
	}
	var failed error
	if !me.ask(ctx, func(now time.Time) {
		n, ok := me.netmap.Find(who)
		p := me.peers[n.ID]
		if !ok || p == nil {
			failed = me.notFound(who)
			return
		}
		p.agent.Want(now)
		p.due = true
		f(now, me, p)
	}) {
		return errWentDown
	}
	return failed
}

// paths is the document of one peer, with local addresses or, which is quicker, without.
func (me *mesh) paths(now time.Time, p *peer, local bool) weft.Paths {
	s, b := p.agent.Snapshot(now), me.engine.BondStatus(p.node.ID)
	doc := weft.Paths{
		Schema: weft.SchemaVersion, Peer: p.node.Name, Online: p.node.Online, Bond: me.bondStatus(p, b),
		Paths: []weft.PathStatus{}, Events: me.pathEvents(s, b),
	}
	counters := me.engine.Counters(nil, p.node.ID)
	for _, w := range s.Pairs {
		i := slices.IndexFunc(b.Ways, func(x engine.BondWayStatus) bool { return x.Via == w.Via })
		if w.State == path.Untested && w.Via != s.Selected && i < 0 {
			doc.Untested++
			continue
		}
		st := me.pathStatus(now, w, w.Via == s.Selected)
		if w.Via == s.Selected {
			st.Reason = s.Reason
		}
		if local && w.Via.Method == weft.Direct {
			st.Local = me.localAddr(w.Via)
		}
		c := find(counters, w.Via)
		st.Load = weft.PathLoad{TxBytes: c.TxBytes, RxBytes: c.RxBytes, TxPackets: c.TxPackets, RxPackets: c.RxPackets}
		st.Load.RxRate, st.Load.TxRate = p.rates.of(now, c)
		switch {
		case i >= 0 && b.On:
			bonded(&st, b.Ways[i], w.State)
		case w.Out != "" && st.State == weft.PathReady:
			st.Reason = "not in the bond: " + w.Out
		}
		doc.Paths = append(doc.Paths, st)
	}
	if !b.On {
		share(doc.Paths)
	}
	slices.SortStableFunc(doc.Paths, func(a, b weft.PathStatus) int {
		return cmp.Or(cmp.Compare(a.Metric, b.Metric), cmp.Compare(a.Link, b.Link), cmp.Compare(b.Method, a.Method), cmp.Compare(a.Remote, b.Remote))
	})
	return doc
}

// pathStatus is what the agent knows of a way.
func (me *mesh) pathStatus(now time.Time, w path.PairStatus, inUse bool) weft.PathStatus {
	st := weft.PathStatus{
		Link: me.pathLink(w.Via), Remote: me.endpoint(w.Via), Method: w.Via.Method, State: pathStates[w.State],
		RTTms: ms(w.RTT), Loss: w.Loss, MTU: w.MTU, LastSeen: w.LastSeen, Metric: w.Metric,
	}
	if !w.Via.Method.Relayed() {
		st.Kind = w.Kind.String()
	}
	switch {
	case inUse:
		st.State = weft.PathInUse
	case w.State == path.Failed:
		st.Reason = w.Why
	}
	return st
}

var pathStates = map[path.State]weft.PathState{path.Untested: weft.PathUntested, path.Valid: weft.PathReady, path.Failed: weft.PathFailed}

// bonded adds what the bond knows of one of its ways, which is fresher than what probes tell. Of one that the agent has
// given up, only what has gone by it.
func bonded(st *weft.PathStatus, w engine.BondWayStatus, agent path.State) {
	st.Metric, st.Load.Share = w.Metric, w.Share
	st.Bonded = weft.BondedPath{Rate: 8 * w.Rate, MinRTTms: ms(w.MinRTT), InFlight: w.InFlight, Window: w.Window, Lost: w.LostPackets, Again: w.AgainPackets}
	if agent == path.Failed {
		return
	}
	st.State, st.Reason, st.Loss = weft.PathState(w.State.String()), w.Reason, w.Loss
	if w.RTT > 0 {
		st.RTTms = ms(w.RTT)
	}
}

// pathLink is the interface that a way leaves by, where there are several links: of what goes by a relay, too.
func (me *mesh) pathLink(v weft.Via) string {
	if r := me.relays[v.Relay]; v.Method == weft.RelayUDP && v.Link == 0 && r != nil {
		return me.device(r.link)
	}
	return me.device(v.Link)
}

// share is how much of what is sent goes by each path.
func share(list []weft.PathStatus) {
	var sum float64
	for _, p := range list {
		sum += p.Load.TxRate
	}
	for i := range list {
		if sum > 0 {
			list[i].Load.Share = list[i].Load.TxRate / sum
		}
	}
}

// localAddr is where the packets of a direct way come from, before any NAT.
func (me *mesh) localAddr(v weft.Via) netip.AddrPort {
	from, err := host.SourceAddr(me.device(v.Link), v.Addr)
	if err != nil {
		return netip.AddrPort{} // its interface is gone
	}
	port := me.spares.ports[v.Link]
	if port == 0 {
		port = me.engine.LinkPort(v.Link)
	}
	if port == 0 {
		port = me.engine.Port()
	}
	return netip.AddrPortFrom(from, port)
}

// bondStatus is what is done with several paths to a peer.
func (me *mesh) bondStatus(p *peer, b engine.BondStatus) weft.BondStatus {
	s := me.cfg.Settings
	st := weft.BondStatus{
		On: b.On, Why: b.Why, Mode: s.BondFor(p.node.Name), Congestion: s.CongestionOr(), Redundant: []string{},
		QueuePackets: b.QueuePackets, QueueBytes: b.QueueBytes,
	}
	switch {
	case b.On:
		st.Why = ""
	case st.Mode == engine.BondOff.String():
		st.Why = "bond is off for it"
	case len(p.bonded.ways) < 2:
		st.Why = "no second link leads there"
	}
	for _, r := range s.Redundant {
		st.Redundant = append(st.Redundant, r.String())
	}
	r := b.Receiver
	st.Received = weft.BondReceived{
		Delivered: r.Delivered, Held: r.Held, HeldBytes: r.HeldBytes, Reordered: r.Reordered, Late: r.Late, Duplicates: r.Duplicates,
		GapsPassed: r.ByPaths, GapsTimedOut: r.ByTime + r.ByMemory,
	}
	return st
}

// pathEvents puts what the agent, and the bond, remember in one order.
func (me *mesh) pathEvents(s path.Snapshot, b engine.BondStatus) []weft.PathEvent {
	list := []weft.PathEvent{}
	for _, c := range s.Changes {
		to := pathStates[c.To]
		if c.Gone {
			to = weft.PathGone
		}
		list = append(list, weft.PathEvent{At: c.At, Path: me.viaName(c.Via), From: pathStates[c.From], To: to, Reason: c.Reason})
	}
	for _, c := range s.Switches {
		if c.To != (weft.Via{}) {
			list = append(list, weft.PathEvent{At: c.At, Path: me.viaName(c.To), From: weft.PathReady, To: weft.PathInUse, Reason: c.Reason})
		}
	}
	for _, c := range s.MemberChanges {
		e := weft.PathEvent{At: c.At, Path: me.viaName(c.Via), From: weft.PathReady, To: weft.PathBonded, Reason: c.Reason}
		if !c.In {
			e.From, e.To = e.To, e.From
		}
		list = append(list, e)
	}
	for _, c := range b.Events {
		list = append(list, weft.PathEvent{
			At: c.At, Path: me.viaName(c.Via), From: weft.PathState(c.From.String()), To: weft.PathState(c.To.String()), Reason: c.Reason,
		})
	}
	slices.SortStableFunc(list, func(a, b weft.PathEvent) int { return a.At.Compare(b.At) })
	return list
}

// bonding is how several paths to a peer are used at once, and what these leave by: interfaces, or relays. Of one path it
// is nothing.
func (me *mesh) bonding(p *peer) (mode string, carriers []string) {
	b := me.engine.BondStatus(p.node.ID)
	if !b.On {
		return "", nil
	}
	for _, w := range b.Ways {
		if w.State != bond.Active {
			continue
		}
		name := me.pathLink(w.Via)
		if w.Via.Method.Relayed() {
			name = strings.TrimSpace(name + " by " + me.endpoint(w.Via))
		}
		carriers = append(carriers, cmp.Or(name, me.endpoint(w.Via)))
	}
	return me.cfg.Settings.BondFor(p.node.Name), carriers
}

// bondProblems are settings that mean nobody.
func (me *mesh) bondProblems() (list []string) {
	for _, name := range slices.Sorted(maps.Keys(me.cfg.Settings.BondPeers)) {
		if n, ok := me.netmap.Find(name); !ok || n.Name != name {
			list = append(list, fmt.Sprintf("bond.%s is set, and no peer has that name: `weft set bond.%s=` forgets it", name, name))
		}
	}
	return list
}
