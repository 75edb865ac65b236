package control

import (
	"context"
	"time"

	"weft"
	"weft/control/store"
)

// A standing is whether a node is a member now, or why not. One that is not is in nobody's map, relays honour none of its
// tickets, and its stream tells it nothing but why. It keeps its number, name and addresses, and its stream, too: when it is a member
// again it hears of that at once, and nobody has to go to the machine.
type standing uint8

// The standings, the one that is told first last.
const (
	member    standing = iota
	expired            // its end has come: an administrator or its user lets it in again
	waiting            // for an administrator's approval
	ownerGone          // its user is disabled, or the user's end has come
	disabled           // by an administrator
)

var standingNames = [...]string{Member, "expired", "waiting", "owner-disabled", "disabled"}

// String is how the admin API writes it.
func (s standing) String() string { return standingNames[s] }

// standingOf judges a node by all that is known of it and its user. Nodes with tags are the network's and not a
// person's: they stay when the user who set them up goes.
func (t *tx) standingOf(e *entry) standing {
	switch {
	case !e.Disabled.IsZero():
		return disabled
	case e.User != "" && len(e.Tags) == 0 && t.userOut(e.User):
		return ownerGone
	case e.Approved.IsZero():
		return waiting
	case ended(e.Expires, t.now):
		return expired
	}
	return member
}

func ended(at, now time.Time) bool { return !at.IsZero() && !now.Before(at) }

// userOut reports whether a user is none at present.
func (t *tx) userOut(name string) bool {
	u, ok := t.users[name]
	return !ok || !u.Disabled.IsZero() || ended(u.Expires, t.now)
}

// settle brings a node's standing up to date, with what hangs on it. before is nil of a new node. An end that has come
// stays come though the clock is set back, until the end itself is moved.
func (t *tx) settle(before, e *entry) {
	was := waiting // of a new node: nothing was let in yet
	if before != nil {
		was = before.standing
	}
	e.standing = t.standingOf(e)
	if e.standing == member && was == expired && before != nil && before.Expires.Equal(e.Expires) {
		e.standing = expired
	}
	if before != nil && was != e.standing {
		t.revision++ // its stream has something to say
	}
	_, revoked := t.revoked.get(uint32(e.ID))
	switch {
	case e.standing != member && (before != nil || e.standing != waiting) && !revoked:
		t.revoke(e.ID, time.Time{})
	case e.standing == member && revoked:
		t.revoked = t.revoked.delete(uint32(e.ID))
		t.revision++
	}
	if ends := e.Expires; e.standing == member && !ends.IsZero() && (was != member || !before.Expires.Equal(ends)) {
		t.after = append(t.after, func() { t.s.expireLater(e.ID, ends) })
	}
}

// expireLater ends a node's membership when its time is over, if by then that is still the time.
func (s *Server) expireLater(id weft.NodeID, at time.Time) {
	s.later(time.Until(at), func(t *tx) error {
		found, ok := t.nodes.get(uint32(id))
		if !ok || found.standing != member || !found.Expires.Equal(at) {
			return nil
		}
		if !ended(at, t.now) {
			t.after = append(t.after, func() { s.expireLater(id, at) }) // the clock was set back
			return nil
		}
		t.putNode(*found, false)
		t.after = append(t.after, func() { s.log.Info("node expired", "node", found.Name, "id", id) })
		return nil
	})
}

// userLater does for a user's end what expireLater does for a node's.
func (s *Server) userLater(name string, at time.Time) {
	s.later(time.Until(at), func(t *tx) error {
		u, ok := t.users[name]
		if !ok || !u.Expires.Equal(at) {
			return nil
		}
		if !ended(at, t.now) {
			t.after = append(t.after, func() { s.userLater(name, at) })
			return nil
		}
		t.settleNodesOf(name)
		t.after = append(t.after, func() { s.log.Info("user expired", "user", name) })
		return nil
	})
}

// settleNodesOf judges a user's nodes anew.
func (t *tx) settleNodesOf(name string) {
	for _, e := range t.nodesOf(name) {
		if e.standing != t.standingOf(e) {
			t.putNode(*e, false)
		}
	}
}

func (t *tx) nodesOf(name string) []*entry {
	var out []*entry
	for _, e := range t.nodes.all() {
		if e.User == name {
			out = append(out, e)
		}
	}
	return out
}

// standingError is what a node that is no member hears.
func standingError(e *entry) *weft.Error {
	switch e.standing {
	case waiting:
		return sentence(weft.CodeWaiting, "this machine waits for approval: its administrator can let it in (weft admin node approve %s)", e.Name)
	case ownerGone:
		return sentence(weft.CodeDisabled, "the user %s, whose machine this is, is disabled or expired: an administrator can change that (weft admin user enable %s)", e.User, e.User)
	case disabled:
		return sentence(weft.CodeDisabled, "this machine was disabled on %s: its administrator can let it in again (weft admin node enable %s)",
			e.Disabled.Format(time.DateTime+" MST"), e.Name)
	}
	return sentence(weft.CodeExpiredNode, "this machine's membership ended on %s: sign in again or join with a new token (weft up), "+
		"or have its administrator prolong it (weft admin node expire %s --in 2160h, or --never)", e.Expires.Format(time.DateTime+" MST"), e.Name)
}

// reauthenticate lets an expired node in again by a join key that was made since its end came: none that it may have had
// before does. What the key would make of a new machine, the node must be already.
func (t *tx) reauthenticate(e *entry, secret []byte) error {
	k, err := t.redeem(secret, false)
	switch {
	case err != nil:
		return err
	case !k.Created.After(e.Expires):
		return sentence(weft.CodeDenied, "this token is older than the end of this machine's membership, and does not let it in again: ask for a new one (weft admin key create)")
	case k.User != e.User || !sameTags(k.Tags, e.Tags):
		return sentence(weft.CodeDenied, "this token is for machines of another user or with other tags than %s: ask for one like it", e.Name)
	}
	e.Expires = time.Time{}
	if k.NodeLifetime > 0 {
		e.Expires = t.stamp().Add(k.NodeLifetime).Truncate(store.Precision)
	}
	t.putKey(k)
	t.after = append(t.after, func() { t.s.log.Info("node authenticated again", "node", e.Name, "id", e.ID, "key", k.ID) })
	return nil
}

// ApproveNode lets a node in that waits.
func (s *Server) ApproveNode(ctx context.Context, what string) (NodeInfo, error) {
	return s.change(ctx, what, func(t *tx, e *entry) error {
		if e.Approved.IsZero() {
			e.Approved = t.stamp()
		}
		return nil
	})
}

// DisableNode puts a node out until it is enabled; EnableNode takes that back.
func (s *Server) DisableNode(ctx context.Context, what string) (NodeInfo, error) {
	return s.change(ctx, what, func(t *tx, e *entry) error {
		if e.Disabled.IsZero() {
			e.Disabled = t.stamp()
		}
		return nil
	})
}

// EnableNode takes DisableNode back.
func (s *Server) EnableNode(ctx context.Context, what string) (NodeInfo, error) {
	return s.change(ctx, what, func(_ *tx, e *entry) error {
		e.Disabled = time.Time{}
		return nil
	})
}
