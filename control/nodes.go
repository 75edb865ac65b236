package control

import (
	"context"
	"strconv"
	"time"

	"weft"
	"weft/control/store"
)

// The nodes, as the administrator sees and changes them.

func (e *entry) info() NodeInfo {
	machine := ""
	if !e.Machine.IsZero() {
		machine = e.Machine.String()
	}
	return NodeInfo{
		Node: e.node(), Machine: machine, Created: e.Created, JoinKey: e.JoinKey, Standing: e.standing.String(),
		Approved: e.Approved, Disabled: e.Disabled, Rotated: e.Rotated, Advertised: e.Advertised,
		Version: e.version, OS: e.system, Remote: e.remote,
	}
}

// Nodes lists the nodes by number.
func (s *Server) Nodes() []NodeInfo {
	out := []NodeInfo{}
	for _, e := range s.now.Load().nodes.all() {
		out = append(out, e.info())
	}
	return out
}

// nodeNamed finds a node by its name or number. No name is a number (cleanWish).
func (t *tx) nodeNamed(what string) (entry, error) {
	id, ok := t.s.index.names.taken[what]
	if n, err := strconv.ParseUint(what, 10, 32); !ok && err == nil {
		id, ok = weft.NodeID(n), true
	}
	if e, found := t.nodes.get(uint32(id)); ok && found {
		return *e, nil
	}
	return entry{}, sentence(weft.CodeNotFound, "there is no node %q: `weft admin node list` shows those there are", what)
}

// change puts a node that a person named into another state.
func (s *Server) change(ctx context.Context, what string, f func(*tx, *entry) error) (NodeInfo, error) {
	var e entry
	err := s.do(ctx, func(t *tx) (err error) {
		if e, err = t.nodeNamed(what); err != nil {
			return err
		}
		if err := f(t, &e); err != nil {
			return err
		}
		t.putNode(e, true)
		now, _ := t.nodes.get(uint32(e.ID))
		e = *now
		return nil
	})
	if err != nil {
		return NodeInfo{}, err
	}
	return e.info(), nil
}

// ExpireNode moves the end of a node's membership: to some time from now, or to never. A node whose end has come is
// out of the network; it is back when its end is moved again.
func (s *Server) ExpireNode(ctx context.Context, what string, r ExpireRequest) (NodeInfo, error) {
	return s.change(ctx, what, func(t *tx, e *entry) (err error) {
		e.Expires, err = t.end("node", r)
		return err
	})
}

// end is when something ends that is to end so: zero for never.
func (t *tx) end(what string, r ExpireRequest) (time.Time, error) {
	switch {
	case r.In < 0 || r.In > maxLifetime || r.Never && r.In != 0:
		return time.Time{}, sentence(weft.CodeBadRequest, "a %s cannot end %v from now", what, r.In)
	case r.Never:
		return time.Time{}, nil
	}
	return t.stamp().Add(r.In).Truncate(store.Precision), nil
}

// RenameNode gives a node another name.
func (s *Server) RenameNode(ctx context.Context, what, name string) (NodeInfo, error) {
	return s.change(ctx, what, func(t *tx, e *entry) error {
		if name == "" || cleanWish(name) != name {
			return sentence(weft.CodeBadRequest, "%q cannot be a node's name: it may have up to 63 lower-case letters, digits and single hyphens in between, "+
				"must not be a number, and %q, %q and the like are reserved", name, "localhost", "wpad")
		}
		if id, ok := t.s.index.names.taken[name]; ok && id != e.ID {
			return sentence(weft.CodeNameTaken, "there is a node %s already: choose another name, or rename that one first", name)
		}
		e.Name = name
		return nil
	})
}

// MoveNode gives a node to another user, or to nobody.
func (s *Server) MoveNode(ctx context.Context, what, user string) (NodeInfo, error) {
	return s.change(ctx, what, func(t *tx, e *entry) error {
		if _, ok := t.users[user]; user != "" && !ok {
			return errNoUser(user)
		}
		e.User = user
		return nil
	})
}

// TagNode gives a node other tags, all of them.
func (s *Server) TagNode(ctx context.Context, what string, said []string) (NodeInfo, error) {
	return s.change(ctx, what, func(_ *tx, e *entry) (err error) {
		e.Tags, err = cleanTags(said)
		return err
	})
}

// RemoveNode removes a node, at once and for good: its stream ends, everybody forgets it, no relay serves it. Its
// number and addresses are not given again.
func (s *Server) RemoveNode(ctx context.Context, what string) error {
	return s.do(ctx, func(t *tx) error {
		e, err := t.nodeNamed(what)
		if err != nil {
			return err
		}
		if behind := t.behind(e.ID); len(behind) > 0 {
			first, _ := t.nodes.get(uint32(behind[0]))
			return sentence(weft.CodeDenied, "%s is the gateway of %d plain WireGuard nodes (%s, for one), which have no other way in: remove them first", e.Name, len(behind), first.Name)
		}
		t.dropNode(&e)
		t.after = append(t.after, func() { s.log.Info("node removed", "node", e.Name, "id", e.ID) })
		return nil
	})
}
