package node

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"time"

	"weft"
	"weft/wire"
)

// Status returns the status document.
func (d *Daemon) Status(ctx context.Context) (weft.Status, error) {
	var s weft.Status
	err := d.do(ctx, func() error { s = d.status(ctx); return nil })
	return s, err
}

// status is Status on the daemon's goroutine.
func (d *Daemon) status(ctx context.Context) weft.Status {
	s := weft.Status{
		Schema: weft.SchemaVersion, Version: weft.Version, State: weft.Running,
		Peers: []weft.PeerStatus{}, Problems: []string{},
		Self: weft.SelfStatus{
			Key: d.state.Identity().Node.Public().String(), Userspace: d.cfg.Userspace,
			Candidates: []weft.Candidate{}, Relays: []weft.RelayStatus{}, Addrs: []netip.Addr{},
		},
	}
	if d.session != nil {
		s.Server = d.session.serverStatus()
	} else {
		s.Server.URL = d.state.Identity().URL
	}
	switch {
	case !d.state.Identity().Joined():
		s.State = weft.NeedsJoin
	case d.state.Settings().Down:
		s.State = weft.Stopped
	case d.refusal != nil:
		s.State = weft.Refused
		s.Problems = append(s.Problems, d.refusal.Message)
	case !d.up():
		s.State = weft.Starting
	}
	if at := d.signIn; at != nil {
		s.State, s.SignIn = weft.NeedsSignIn, weft.SignInStatus{URL: at.URL, Code: at.Code, Until: at.Until}
		s.Problems = append(s.Problems, "somebody has to sign in for this machine, at "+at.URL)
	}
	if d.meshError != nil && d.mesh == nil {
		s.Problems = append(s.Problems, d.meshError.Error())
	}
	if s.State != weft.NeedsJoin && s.State != weft.Stopped && s.Server.Error != "" && d.refusal == nil {
		s.Problems = append(s.Problems, "no connection to the server: "+s.Server.Error)
	}
	if d.mesh != nil {
		d.mesh.ask(ctx, func(now time.Time) { d.mesh.status(now, &s) })
	}
	return s
}

// status fills in what the mesh knows.
func (me *mesh) status(now time.Time, s *weft.Status) {
	m := me.netmap
	s.Self.ID, s.Self.Name, s.Self.FQDN = m.Self.ID, m.Self.Name, m.Self.Name+"."+m.Domain
	s.Self.Addrs, s.Self.Expires = m.Self.Addrs, m.Self.Expires
	s.Self.Candidates = append(s.Self.Candidates, me.local...)
	s.Self.Interface, s.Self.MTU, s.Self.Proxy = me.cfg.Device.Name, me.cfg.Device.mtu, me.cfg.Device.proxyAddr()
	s.Self.Port, s.Self.Links = me.engine.Port(), me.linkStatus()
	s.Self.Offload = me.offload()
	var namesProblem string
	if s.Self.DNS, namesProblem = me.names.how(); namesProblem != "" {
		s.Problems = append(s.Problems, namesProblem)
	}
	for _, x := range m.Relays {
		r := me.relays[x.ID]
		if r == nil {
			continue
		}
		st := weft.RelayStatus{ID: x.ID, Name: x.Name, UDP: r.boundTo.IsValid(), Stream: r.stream != nil, Addr: r.boundTo, Error: r.streamErr}
		if r.binding != nil {
			st.RTTms = ms(r.binding.RTT())
			if why := r.binding.Refused(); why != wire.RefusedNot {
				st.Error = why.String()
			}
		}
		s.Self.Relays = append(s.Self.Relays, st)
	}
	states := me.engine.States()
	for _, n := range m.Peers {
		if n.Plain() {
			s.Peers = append(s.Peers, me.plainStatus(now, n, states))
		} else if p := me.peers[n.ID]; p != nil {
			s.Peers = append(s.Peers, me.peerStatus(now, p))
		}
	}
	me.refusals(now, s)
	s.Self.Refused = me.engine.Refused()
	me.routeStatus(s)
	about := make([]string, 0, len(me.problems))
	for k := range me.problems {
		about = append(about, k)
	}
	slices.Sort(about)
	for _, k := range about {
		s.Problems = append(s.Problems, me.problems[k])
	}
	s.Problems = append(s.Problems, me.bondProblems()...)
}

// offload sums up what the device and all sockets do in super-packets.
func (me *mesh) offload() weft.OffloadStatus {
	device := me.cfg.Device.TUN.Offloads()
	o := weft.OffloadStatus{InterfaceTCP: device.TCP, InterfaceUDP: device.UDP, Send: true, Receive: true}
	for _, x := range me.engine.SocketStatus() {
		o.Send, o.Receive = o.Send && x.SendOffload, o.Receive && x.RecvOffload
	}
	return o
}

func (me *mesh) peerStatus(now time.Time, p *peer) weft.PeerStatus {
	n, snap := p.node, p.agent.Snapshot(now)
	st := weft.PeerStatus{
		ID: n.ID, Name: n.Name, Addrs: n.Addrs, User: n.User, Tags: n.Tags, Online: n.Online,
		Path: snap.Selected.Method.Kind(), Method: snap.Selected.Method, Endpoint: me.endpoint(snap.Selected),
		RTTms: ms(snap.RTT), Loss: snap.Loss, LastHandshake: me.engine.Handshake(n.ID), LastSeen: snap.LastSeen,
		DirectAfterMS: ms(snap.DirectAfter), MTU: snap.MTU, Link: me.linkName(snap.Selected),
	}
	st.Bond, st.Carriers = me.bonding(p)
	for _, c := range me.engine.Counters(nil, n.ID) {
		st.RxBytes += c.RxBytes
		st.TxBytes += c.TxBytes
	}
	for _, s := range snap.Switches {
		st.Reason = s.Reason
		st.Switches = append(st.Switches, weft.PathSwitch{At: s.At, From: me.viaName(s.From), To: me.viaName(s.To), Reason: s.Reason})
	}
	return st
}

// endpoint is where a way leads, for a person.
func (me *mesh) endpoint(v weft.Via) string {
	switch {
	case v.Method == weft.Direct || v.Method == weft.DirectTCP:
		return v.Addr.String()
	case v.Method.Relayed():
		return me.relayName(v.Relay)
	}
	return ""
}

func (me *mesh) viaName(v weft.Via) string {
	name := strings.TrimSpace(v.Method.String() + " " + me.endpoint(v))
	if device := me.linkName(v); device != "" {
		name += " by " + device
	}
	return name
}

// linkName is the interface that a direct way leaves by, where there are several links.
func (me *mesh) linkName(v weft.Via) string {
	if v.Method != weft.Direct && v.Method != weft.DirectTCP {
		return ""
	}
	return me.device(v.Link)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
