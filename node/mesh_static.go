package node

import (
	"net/netip"
	"slices"
	"syscall"
	"time"

	"weft"
	"weft/engine"
	"weft/engine/uapi"
	"weft/key"
)

// maxStatic bounds the peers that are set by hand.
const maxStatic = 1024

// Get tells of the interface and all its peers.
func (t tools) Get() (i uapi.Interface, err error) {
	return i, t.ask(func(time.Time) {
		me := t.me
		i = uapi.Interface{Private: me.cfg.Key, Port: me.engine.Port()}
		for _, s := range me.engine.States() {
			i.Peers = append(i.Peers, uapi.Peer{
				Key: s.Key, PSK: s.PSK, Endpoint: s.Endpoint, HandshakeAt: s.HandshakeAt, RxBytes: s.RxBytes, TxBytes: s.TxBytes,
				Keepalive: s.Keepalive, Allowed: s.Allowed,
			})
		}
	})
}

// Set changes the peers that are set by hand, and those alone: what the server says is not for the machine to change. As
// with any WireGuard interface they are there until it goes.
func (t tools) Set(c uapi.Change) error {
	var failed error
	err := t.ask(func(now time.Time) {
		me := t.me
		var next map[key.NodePublic]engine.Peer
		var given weft.NodeID
		if next, given, failed = me.changeStatic(c, me.engine.Port()); failed != nil {
			return
		}
		before := me.plain.static
		for _, s := range me.engine.States() { // another shared key is another peer to the engine: it begins where that one was
			p, old := next[s.Key], before[s.Key]
			if p.ID == s.ID && p.PSK != old.PSK && p.Endpoint == old.Endpoint && s.Endpoint.IsValid() {
				p.Endpoint = s.Endpoint
				next[s.Key] = p
			}
		}
		me.plain.static, me.plain.given = next, given
		me.setPeers(now)
		for k, p := range next { // the engine goes by where it hears a peer; who sets an endpoint wants it used
			if old, had := before[k]; had && old.Endpoint != p.Endpoint && p.Endpoint.IsValid() {
				me.engine.SetRoute(p.ID, weft.DirectVia(0, p.Endpoint))
			}
		}
	})
	if err != nil {
		return err
	}
	return failed
}

func notYours(why string) error { return &uapi.Error{Errno: syscall.EPERM, Why: why} }

// changeStatic works out what the peers by hand would be, and refuses what is not to be changed that way.
func (me *mesh) changeStatic(c uapi.Change, port uint16) (map[key.NodePublic]engine.Peer, weft.NodeID, error) {
	switch {
	case c.Private != nil && c.Private.Public() != me.cfg.Key.Public():
		return nil, 0, notYours("the private key is the node's")
	case c.Port != nil && *c.Port != port:
		return nil, 0, notYours("the port is set by weft set port=N")
	case c.FwMark != nil && *c.FwMark != 0:
		return nil, 0, notYours("packets have no mark")
	case c.ReplacePeers:
		return nil, 0, notYours("most peers are not the tool's to replace")
	}
	ours := map[key.NodePublic]bool{me.cfg.Key.Public(): true}
	taken := make(map[netip.Prefix]bool)
	for _, n := range append([]weft.Node{me.netmap.Self}, me.netmap.Peers...) {
		ours[n.Key] = true
		for _, p := range hostPrefixes(n.Addrs) {
			taken[p] = true
		}
	}
	next, given := make(map[key.NodePublic]engine.Peer, len(me.plain.static)), me.plain.given
	for k, p := range me.plain.static {
		next[k] = p
	}
	for _, x := range c.Peers {
		if ours[x.Key] {
			return nil, 0, notYours("the peer is the network's")
		}
		p, had := next[x.Key]
		switch {
		case x.Remove:
			delete(next, x.Key)
			continue
		case !had && x.UpdateOnly:
			continue
		case !had && len(next) == maxStatic:
			return nil, 0, &uapi.Error{Errno: syscall.ENOSPC, Why: "there are as many peers as there can be"}
		case !had:
			given-- // from above zero down
			p = engine.Peer{ID: given, Key: x.Key, Plain: true}
		}
		if x.PSK != nil {
			p.PSK = *x.PSK
		}
		if x.Endpoint != nil {
			p.Endpoint = *x.Endpoint
		}
		if x.Keepalive != nil {
			p.Keepalive = *x.Keepalive
		}
		p.Allowed = x.Apply(p.Allowed)
		if i := slices.IndexFunc(p.Allowed, func(a netip.Prefix) bool { return taken[a] }); i >= 0 {
			return nil, 0, &uapi.Error{Errno: syscall.EADDRINUSE, Why: "an allowed IP is a node's"}
		}
		for k, other := range next { // a prefix moves to who is given it last
			if k != x.Key {
				other.Allowed = slices.DeleteFunc(slices.Clone(other.Allowed), func(a netip.Prefix) bool { return slices.Contains(p.Allowed, a) })
				next[k] = other
			}
		}
		next[x.Key] = p
	}
	return next, given, nil
}
