package control

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"weft"
	"weft/wire"
)

// disconnect takes note that a session has ended.
func (t *tx) disconnect(c *session) error {
	if c.relay != 0 && t.s.index.stations[c.relay] == c {
		t.setStation(c.relay, nil)
		alone := slices.Clone(t.relays.alone)
		if i := slices.IndexFunc(alone, func(r relayEntry) bool { return r.ID == c.relay }); i >= 0 {
			alone[i].connected = false
			t.putRelays(alone, false)
		}
	}
	if c.node == 0 || t.s.index.live[c.node] != c {
		return nil
	}
	t.setLive(c.node, nil)
	found, ok := t.nodes.get(uint32(c.node))
	if !ok {
		return nil
	}
	e := *found
	e.left, e.remote = t.now, ""
	t.putNode(e, false)
	t.after = append(t.after, func() { t.s.later(OfflineAfter, func(t *tx) error { return t.offline(e.ID) }) })
	if e.Ephemeral {
		t.after = append(t.after, func() { t.s.vanishLater(e.ID, EphemeralAfter) })
	}
	return nil
}

// absent returns a node that has had no stream for a while. Timers are not stopped: they come and find otherwise.
func (t *tx) absent(id weft.NodeID, atLeast time.Duration) (entry, bool) {
	e, ok := t.nodes.get(uint32(id))
	if !ok || e.left.IsZero() || t.now.Sub(e.left) < atLeast {
		return entry{}, false
	}
	return *e, true
}

// offline tells everybody of a node that has not come back.
func (t *tx) offline(id weft.NodeID) error {
	e, ok := t.absent(id, OfflineAfter)
	if !ok || !e.online {
		return nil
	}
	e.online = false
	e.Seen = t.stamp().Add(-t.now.Sub(e.left)).Truncate(time.Millisecond)
	t.putNode(e, false)
	t.hear(id, nil)
	t.after = append(t.after, func() { t.s.index.seen[id] = e.Seen })
	return nil
}

// vanishLater removes an ephemeral node that has not come back by then.
func (s *Server) vanishLater(id weft.NodeID, d time.Duration) {
	time.AfterFunc(d, func() {
		err := s.do(context.Background(), func(t *tx) error {
			e, ok := t.absent(id, EphemeralAfter)
			if !ok {
				return nil
			}
			t.dropNode(&e)
			t.after = append(t.after, func() { s.log.Info("ephemeral node removed", "node", e.Name, "id", e.ID) })
			return nil
		})
		if err != nil && err != errClosing {
			s.vanishLater(id, EphemeralAfter) // the disk is full: later, perhaps
		}
	})
}

// update takes over what a node says of itself.
func (t *tx) update(c *session, u *wire.Update) error {
	if t.s.index.live[c.node] != c {
		return nil // replaced or removed meanwhile; its stream hears of that
	}
	found, ok := t.nodes.get(uint32(c.node))
	if !ok {
		return nil
	}
	e := *found
	e.candidates = t.worthTelling(u.Candidates)
	e.nat = words(u.NAT)
	e.home = 0
	if t.relays.known(u.HomeRelay) {
		e.home = u.HomeRelay
	}
	t.putNode(e, t.advertise(&e, u.Routes))
	t.hear(e.ID, u.Heard)
	return nil
}

// worthTelling leaves out candidates that no peer could use: addresses that are none, or in the overlay, which would
// lead tunnels into themselves.
func (t *tx) worthTelling(said []weft.Candidate) []weft.Candidate {
	var out []weft.Candidate
	for _, c := range said {
		c.Addr = netip.AddrPortFrom(c.Addr.Addr().Unmap(), c.Addr.Port())
		a := c.Addr.Addr()
		if usable(c.Addr) && !t.net.IPv4.Contains(a) && !t.net.IPv6.Contains(a) && !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// logout removes the node of a session, as it asked.
func (t *tx) logout(c *session) error {
	if t.s.index.live[c.node] != c {
		return nil
	}
	if e, ok := t.nodes.get(uint32(c.node)); ok {
		if e.standing == disabled || e.standing == ownerGone {
			return standingError(e) // it would be a new machine, with a clean slate
		}
		for _, id := range t.behind(e.ID) {
			if p, ok := t.nodes.get(uint32(id)); ok {
				t.dropNode(p)
				t.after = append(t.after, func() {
					t.s.log.Info("plain node removed, since its gateway left", "node", p.Name, "id", p.ID, "gateway", e.Name)
				})
			}
		}
		t.dropNode(e)
		t.after = append(t.after, func() { t.s.log.Info("node left", "node", e.Name, "id", e.ID) })
	}
	return nil
}
