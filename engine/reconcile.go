package engine

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/key"
	"weft/wireguard"
)

// A Peer is a node that packets are exchanged with.
type Peer struct {
	ID      weft.NodeID
	Key     key.NodePublic
	Allowed []netip.Prefix // source addresses that it may use, and destinations that are sent to it
	// Also are networks that it may send from, while what is sent there goes to another peer, who has them in Allowed: the two
	// are routers of one network. What somebody else has a more specific prefix of is not meant.
	Also []netip.Prefix

	// Plain says that it speaks WireGuard and nothing else: no paths are looked for, its packets go where it was last heard from,
	// and at first to Endpoint, which may be zero.
	Plain     bool
	Endpoint  netip.AddrPort
	PSK       [32]byte      // zero: none
	Keepalive time.Duration // persistent; zero: none
}

// same reports whether nothing changes but prefixes and keepalives.
func (p *Peer) same(o *Peer) bool {
	return p.Key == o.Key && p.Plain == o.Plain && p.PSK == o.PSK
}

// SetPeers makes these the peers, and no others. Peers that do not change are not touched; one whose key
// changes starts anew, without route and counters. What can be done is done: an error names the peers, or the
// prefixes, that are left out. Of two peers that claim one prefix, the one with the lower ID has it.
func (e *Engine) SetPeers(list []Peer) error {
	e.setting.Lock()
	defer e.setting.Unlock()
	want, err := e.check(list)
	errs := []error{err}

	var gone []*peer
	for _, p := range e.known() { // removals first: a key that moves to another ID is free then
		if w, ok := want[p.id]; !ok || !p.config.same(&w) {
			gone = append(gone, p)
		}
	}
	e.forget(gone)
	routes := &routing{number: e.routes.Load().number + 1}
	alive := e.control.do(func(now time.Time) {
		for _, p := range gone {
			e.control.remove(now, p)
		}
		for _, id := range sortedIDs(want) {
			w := want[id]
			p, err := e.control.configure(e.peer(id), w)
			if err != nil {
				errs = append(errs, fmt.Errorf("peer %d: %w", id, err))
				continue
			}
			for _, prefix := range w.Allowed {
				routes.Insert(prefix, p.wg)
			}
		}
	})
	if alive {
		e.routes.Store(routes)
		for id, w := range want {
			if p := e.peer(id); w.Plain && w.Endpoint.IsValid() && p != nil && p.route.Load() == nil && e.roam(p, weft.DirectVia(0, w.Endpoint)) {
				e.control.post(post{peer: p, what: routed})
			}
		}
	}
	return errors.Join(errs...)
}

// check sorts out what cannot be, and puts prefixes in one form and order.
func (e *Engine) check(list []Peer) (map[weft.NodeID]Peer, error) {
	var errs []error
	list = slices.Clone(list)
	slices.SortStableFunc(list, func(a, b Peer) int { return cmp.Compare(a.ID, b.ID) })
	want := make(map[weft.NodeID]Peer, len(list))
	keys := make(map[key.NodePublic]weft.NodeID, len(list))
	prefixes := make(map[netip.Prefix]weft.NodeID, 2*len(list))
	for _, p := range list {
		_, twice := want[p.ID]
		other, taken := keys[p.Key]
		switch {
		case p.ID == 0 || p.ID == e.self || p.Key == e.key || p.Key.IsZero():
			errs = append(errs, fmt.Errorf("peer %d: it has no number or key of its own", p.ID))
			continue
		case twice:
			errs = append(errs, fmt.Errorf("peer %d is there twice", p.ID))
			continue
		case taken:
			errs = append(errs, fmt.Errorf("peers %d and %d have one key", other, p.ID))
			continue
		}
		var allowed []netip.Prefix
		for _, prefix := range p.Allowed {
			if !prefix.IsValid() || prefix.Addr().Is4In6() {
				errs = append(errs, fmt.Errorf("peer %d: %s is not a prefix of addresses", p.ID, prefix))
				continue
			}
			prefix = prefix.Masked()
			if owner, ok := prefixes[prefix]; ok {
				if owner != p.ID {
					errs = append(errs, fmt.Errorf("peers %d and %d both claim %s", owner, p.ID, prefix))
				}
				continue
			}
			prefixes[prefix] = p.ID
			allowed = append(allowed, prefix)
		}
		p.Allowed = allowed
		want[p.ID] = p
		keys[p.Key] = p.ID
	}
	return want, errors.Join(errs...)
}

func sortedIDs(m map[weft.NodeID]Peer) []weft.NodeID {
	ids := make([]weft.NodeID, 0, len(m))
	for id := range m {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

func (e *Engine) known() []*peer {
	e.mu.RLock()
	defer e.mu.RUnlock()
	list := make([]*peer, 0, len(e.peers))
	for _, p := range e.peers {
		list = append(list, p)
	}
	return list
}

// forget takes peers out of what is looked up.
func (e *Engine) forget(gone []*peer) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range gone {
		p.route.Store(nil)
		delete(e.peers, p.id)
		for _, w := range p.ways {
			if e.sources[w.via.Addr].peer == p {
				delete(e.sources, w.via.Addr)
			}
		}
	}
	e.sourced.Add(1)
}

// remove ends all that there is with a peer.
func (c *control) remove(now time.Time, p *peer) {
	c.dev.RemovePeer(p.wg, &c.out)
	c.act(now, nil)
	c.giveUp(p)
	p.wg, p.held = nil, held{}
	if b := p.bond.Load(); b != nil {
		b.end()
	}
	if r := p.order.Load(); r != nil {
		r.stop()
	}
}

// configure adds a peer (p is nil) or changes one.
func (c *control) configure(p *peer, w Peer) (*peer, error) {
	if p == nil {
		wg, err := c.dev.AddPeer(wireguard.PeerConfig{Public: wireguard.Key(w.Key.Bytes()), PSK: w.PSK, Keepalive: w.Keepalive})
		if err != nil {
			return nil, err
		}
		p = &peer{id: w.ID, key: w.Key, wg: wg, plain: w.Plain}
		wg.Owner = p
		p.lastData.Store(-int64(idleAfter))
		c.e.mu.Lock()
		c.e.peers[p.id] = p
		c.e.mu.Unlock()
	} else if w.Keepalive != p.config.Keepalive {
		p.wg.SetKeepalive(w.Keepalive)
	}
	p.config = w
	p.also.Store(nil)
	if len(w.Also) > 0 {
		p.also.Store(&w.Also)
	}
	return p, nil
}

// A PeerState is a peer as WireGuard's tools show it.
type PeerState struct {
	Peer
	HandshakeAt      time.Time      // zero: never
	Endpoint         netip.AddrPort // where its packets go now; zero: nowhere, or through a relay's stream
	RxBytes, TxBytes uint64
}

// States tells of all peers, in the order of their numbers.
func (e *Engine) States() []PeerState {
	e.setting.Lock()
	defer e.setting.Unlock()
	list := e.known()
	slices.SortFunc(list, func(a, b *peer) int { return cmp.Compare(a.id, b.id) })
	states := make([]PeerState, 0, len(list))
	var counters []PathCounters
	for _, p := range list {
		s := PeerState{Peer: p.config, HandshakeAt: e.at(p.handshake.Load())}
		if w := p.route.Load(); w != nil {
			s.Endpoint = w.via.Addr
			if r := e.relays.Load().byID[w.via.Relay]; w.via.Method == weft.RelayUDP && r != nil && r.udp != nil {
				s.Endpoint = r.udp.via.Addr
			}
		}
		counters = e.Counters(counters[:0], p.id)
		for _, c := range counters {
			s.RxBytes, s.TxBytes = s.RxBytes+c.RxBytes, s.TxBytes+c.TxBytes
		}
		states = append(states, s)
	}
	return states
}
