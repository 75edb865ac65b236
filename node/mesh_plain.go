package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/engine"
	"weft/engine/uapi"
	"weft/host"
	"weft/key"
	"weft/wire"
	"weft/wireguard"
)

// Peers that speak plain WireGuard. A guest has its tunnel to this node: the map says so, or somebody at this machine (wg set).
// Packets between it and other nodes come out of the overlay's interface here and go in again: the kernel forwards them, or
// the network stack of userspace mode. To reach a plain node elsewhere, packets go to its gateway.

// plain is what the mesh keeps of all that. Its zero value is ready.
type plain struct {
	guests []engine.Peer                  // as the engine was told, by number
	static map[key.NodePublic]engine.Peer // those that the map does not have
	given  weft.NodeID                    // the number of the last one of these: from the top down, where the server has none
	heard  []weft.NodeID                  // guests of the map that have a session, as the server was told
	within []netip.Prefix                 // what is forwarded for them; nil: nothing
	tools  *uapi.Server                   // nil: WireGuard's tools get no answer
}

// behind are the prefixes that each peer has besides its own: those of the plain nodes whose gateway it is.
func (me *mesh) behind() map[weft.NodeID][]netip.Prefix {
	out := make(map[weft.NodeID][]netip.Prefix)
	for _, n := range me.netmap.Peers {
		if n.Plain() {
			out[n.Gateway] = append(out[n.Gateway], hostPrefixes(n.Addrs)...)
		}
	}
	return out
}

// setGuests makes this node the gateway of its guests, of which it returns the list, and tells whether it is another one.
func (me *mesh) setGuests() (list []engine.Peer, changed bool) {
	for _, n := range me.netmap.Peers {
		if n.Plain() && n.Gateway == me.netmap.Self.ID {
			list = append(list, engine.Peer{ID: n.ID, Key: n.Key, Allowed: hostPrefixes(n.Addrs), Plain: true})
		}
	}
	for _, p := range me.plain.static {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b engine.Peer) int { return cmp.Compare(a.ID, b.ID) })
	var within []netip.Prefix
	if len(list) > 0 {
		within = me.netmap.Ranges
	}
	if !slices.Equal(within, me.plain.within) {
		me.forward(within)
	}
	if slices.EqualFunc(list, me.plain.guests, sameGuest) {
		return list, false
	}
	me.plain.guests = list
	var from []netip.Prefix
	for _, p := range list {
		from = append(from, p.Allowed...)
	}
	me.names.serve(from)
	return list, true
}

func sameGuest(a, b engine.Peer) bool {
	return a.ID == b.ID && a.Key == b.Key && a.PSK == b.PSK && a.Keepalive == b.Keepalive && a.Endpoint == b.Endpoint && slices.Equal(a.Allowed, b.Allowed)
}

// forward has packets within these ranges passed on between guests and other nodes; nil: no longer.
func (me *mesh) forward(within []netip.Prefix) {
	me.plain.within = slices.Clone(within)
	var err error
	switch d := me.cfg.Device; {
	case d.stack != nil:
		err = d.stack.SetForwarding(within != nil)
	case within != nil:
		err = host.ForwardWithin(d.Name, within, len(me.netmap.Self.Routes) > 0)
	default:
		err = host.StopForwarding(d.Name)
	}
	sentence := ""
	switch {
	case errors.Is(err, host.ErrForwardIPv6):
		sentence = "plain WireGuard nodes reach others by IPv4 only: " + err.Error()
	case err != nil:
		sentence = "plain WireGuard nodes reach this node alone: " + err.Error()
	}
	me.problem("forward", sentence)
}

// closePlain takes down what setGuests and serveTools have set up.
func (me *mesh) closePlain() {
	if me.plain.tools != nil {
		me.plain.tools.Close()
	}
	if me.plain.within != nil {
		me.forward(nil)
	}
}

// hearGuests tells the server which guests are there, when that changed: those with a session that still counts.
func (me *mesh) hearGuests(now time.Time) {
	var heard []weft.NodeID
	for _, g := range me.plain.guests {
		if _, static := me.plain.static[g.Key]; !static && len(heard) < wire.MaxHeard && me.hasSession(now, g.ID) {
			heard = append(heard, g.ID)
		}
	}
	if !slices.Equal(heard, me.plain.heard) {
		me.plain.heard = heard
		me.sayUpdate()
	}
}

func (me *mesh) hasSession(now time.Time, id weft.NodeID) bool {
	at := me.engine.Handshake(id)
	return !at.IsZero() && now.Sub(at) < wireguard.RejectAfterTime
}

// plainStatus is a plain node for weft status: its own tunnel if it ends here, else the way to its gateway.
func (me *mesh) plainStatus(now time.Time, n weft.Node, states []engine.PeerState) weft.PeerStatus {
	st := weft.PeerStatus{ID: n.ID, Name: n.Name, Addrs: n.Addrs, User: n.User, Tags: n.Tags, Online: n.Online, Path: weft.PathNone, Gateway: me.netmap.Self.Name}
	if n.Gateway != me.netmap.Self.ID {
		p := me.peers[n.Gateway]
		if p == nil {
			st.Gateway, st.Reason = "", "its gateway is not in the network"
			return st
		}
		by := me.peerStatus(now, p)
		st.Gateway, st.Path, st.Method, st.Endpoint, st.RTTms, st.Loss = by.Name, by.Path, by.Method, by.Endpoint, by.RTTms, by.Loss
		return st
	}
	i, ok := slices.BinarySearchFunc(states, n.ID, func(s engine.PeerState, id weft.NodeID) int { return cmp.Compare(s.ID, id) })
	if !ok {
		return st
	}
	s := states[i]
	st.RxBytes, st.TxBytes, st.LastHandshake, st.LastSeen = s.RxBytes, s.TxBytes, s.HandshakeAt, s.HandshakeAt
	if me.hasSession(now, n.ID) {
		st.Path, st.Method, st.Endpoint = weft.PathDirect, weft.Direct, s.Endpoint.String()
	}
	return st
}

// notOurs is what somebody hears who asks of a plain node what only weft could say.
func (me *mesh) notOurs(n weft.Node) error {
	by := "its tunnel ends here, and `wg show` tells of it"
	if n.Gateway != me.netmap.Self.ID {
		by = "nobody is its gateway"
		if g, ok := me.netmap.Peer(n.Gateway); ok {
			by = fmt.Sprintf("the way there is the way to its gateway, %s", g.Name)
		}
	}
	return &weft.Error{Code: weft.CodeBadRequest, Message: fmt.Sprintf("%s speaks plain WireGuard and answers no weft: %s; try `ping %s`", n.Name, by, n.Addrs[0])}
}

// serveTools answers WireGuard's tools on their socket until ctx ends. Without it all goes on as well.
func (me *mesh) serveTools(ctx context.Context) {
	if me.cfg.Device.Name == "" {
		return
	}
	var err error
	if me.plain.tools, err = uapi.Serve(uapi.Dir, me.cfg.Device.Name, tools{me, ctx}, me.log); err != nil {
		me.log.Info("WireGuard's tools (wg show) are not answered", "error", err)
	}
}

// tools is the mesh as WireGuard's tools see and change it.
type tools struct {
	me  *mesh
	ctx context.Context
}

// toolPatience bounds the wait for the mesh, which is busy for milliseconds.
const toolPatience = 5 * time.Second

// ask runs f on the mesh's goroutine.
func (t tools) ask(f func(now time.Time)) error {
	ctx, cancel := context.WithTimeout(t.ctx, toolPatience)
	defer cancel()
	if !t.me.ask(ctx, f) {
		return errors.New("the network went down here")
	}
	return nil
}
