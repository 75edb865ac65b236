package control

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"weft"
)

// TestCredentialsThatEndedNeverWorkAgain drives join keys, users and nodes through random histories, restarts
// included, beside a model of what each credential is still good for. After every step a node that is always in tells who
// else is, by its live stream.
func TestCredentialsThatEndedNeverWorkAgain(t *testing.T) {
	type step struct{ what, which, other int }
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{rapid.IntRange(0, 17).Draw(rt, "what"), rapid.IntRange(0, 5).Draw(rt, "which"), rapid.IntRange(0, 5).Draw(rt, "other")}
	}), 1, 40)
	rapid.Check(t, func(rt *rapid.T) {
		history := steps.Draw(rt, "steps")
		var problem error
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t, func(c *Config) { c.Approve = true })
			h := newHistory(w)
			for i, s := range history {
				if problem == nil {
					if problem = h.step(s.what, s.which, s.other); problem != nil {
						problem = fmt.Errorf("step %d (%+v): %w", i, s, problem)
					}
				}
			}
			if problem == nil {
				problem = h.end()
			}
			w.stop()
		})
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

// credential is a join key in the model.
type credential struct {
	id                 uint32
	secret             []byte
	reusable, approved bool
	used, revoked      bool
	created, ends      time.Time
	user               string
	nodesEnd           time.Duration
}

// modelled is a node in the model.
type modelled struct {
	*machine
	user                        string
	approved, disabled, removed bool
	wasIn                       bool // ever
	ends                        time.Time
	addr                        string
}

// history is a network beside its model.
type history struct {
	w       *world
	watcher *machine
	keys    []*credential
	members []*modelled
	users   map[string]bool // name -> active
}

func newHistory(w *world) *history {
	return &history{w: w, watcher: w.join(KeyRequest{Approved: true}, "watcher"), users: map[string]bool{}}
}

func (k *credential) good(h *history) bool {
	active, has := h.users[k.user]
	return !k.revoked && (k.reusable || !k.used) && !ended(k.ends, time.Now()) && (k.user == "" || has && active)
}

// out says why a node is none, in the order in which it hears it; "": it is one.
func (m *modelled) out(h *history) string {
	switch {
	case m.removed:
		return "removed"
	case m.disabled:
		return "disabled"
	case m.user != "" && !h.users[m.user]:
		return "user"
	case !m.approved:
		return "waiting"
	case ended(m.ends, time.Now()):
		return "expired"
	}
	return ""
}

func (h *history) step(what, which, other int) error {
	w, ctx := h.w, context.Background()
	var k *credential
	if len(h.keys) > 0 {
		k = h.keys[which%len(h.keys)]
	}
	var m *modelled
	if len(h.members) > 0 {
		m = h.members[other%len(h.members)]
	}
	name := func() string { return itoa(uint32(m.id())) }
	// Of what is removed nothing can be changed.
	changed := func(err error) error {
		if (err == nil) == m.removed {
			return fmt.Errorf("node %d, removed %v: %w", m.id(), m.removed, err)
		}
		return nil
	}
	switch {
	case what <= 1 || k == nil:
		r := KeyRequest{Reusable: which%2 == 0, Approved: which != 3}
		if other == 1 {
			r.Lifetime = time.Hour
		}
		if other == 3 {
			r.NodeLifetime = time.Hour
		}
		if _, has := h.users["u"]; other%2 == 0 && has {
			r.User = "u"
		}
		info, token, err := w.CreateKey(ctx, r)
		if err != nil {
			return err
		}
		h.keys = append(h.keys, &credential{id: info.ID, secret: token.Secret[:], reusable: r.Reusable, approved: r.Approved,
			created: info.Created, ends: info.Expires, user: r.User, nodesEnd: r.NodeLifetime})
	case what <= 4:
		good := k.good(h)
		fresh := &modelled{machine: w.machine(k.secret, "m"), user: k.user, approved: k.approved}
		if k.nodesEnd > 0 {
			fresh.ends = time.Now().Add(k.nodesEnd)
		}
		fresh.connect()
		settle()
		if in := fresh.id() != 0; in != good {
			code, message := fresh.lastError()
			return fmt.Errorf("key %+v let a machine in: %v (%s %s)", *k, in, code, message)
		}
		if good {
			k.used, fresh.hello.Secret = true, nil // as nodes forget it
			h.members = append(h.members, fresh)
		}
	case what == 5:
		if err := w.RemoveKey(ctx, k.id); err != nil {
			return err
		}
		k.revoked = true
	case what == 6:
		in := time.Duration(other) * time.Hour
		info, err := w.ExpireKey(ctx, k.id, in)
		if forward := k.ends.IsZero() || !time.Now().Add(in).After(k.ends); forward != (err == nil) {
			return fmt.Errorf("key %+v ends in %v: %v", *k, in, err)
		}
		if err == nil {
			k.ends = info.Expires
		}
	case what == 7:
		time.Sleep(40 * time.Minute)
	case what == 10:
		w.restart()
	case what == 9 || what == 16:
		return h.stepUser(what, other)
	case m == nil:
	case what == 8:
		if err := changed(w.RemoveNode(ctx, name())); err != nil {
			return err
		}
		m.removed = true
	case what == 11:
		_, err := w.DisableNode(ctx, name())
		m.disabled = true
		return changed(err)
	case what == 12:
		_, err := w.EnableNode(ctx, name())
		m.disabled = false
		return changed(err)
	case what == 13:
		_, err := w.ApproveNode(ctx, name())
		m.approved = true
		return changed(err)
	case what == 14:
		info, err := w.ExpireNode(ctx, name(), []ExpireRequest{{}, {In: 10 * time.Minute}, {Never: true}}[which%3])
		m.ends = info.Expires
		return changed(err)
	case what == 15: // it comes again with a key, whichever: that helps an expired one alone, and not every key does
		why := m.out(h)
		helps := why == "expired" && k.good(h) && k.created.After(m.ends) && k.user == m.user
		joins := why == "removed" && k.good(h)
		m.hangUp()
		m.hello.Secret = k.secret
		if m.removed {
			return h.rejoin(m, k, joins)
		}
		m.connect()
		settle()
		m.hello.Secret = nil
		if helps {
			k.used, m.ends = true, time.Time{}
			if k.nodesEnd > 0 {
				m.ends = time.Now().Add(k.nodesEnd)
			}
		}
	case m.removed:
	default:
		m.hangUp()
		m.rotate()
		m.connect()
	}
	return h.check()
}

// rejoin has a machine that was removed come again, which makes another node of it, or nothing.
func (h *history) rejoin(m *modelled, k *credential, good bool) error {
	again := &modelled{machine: h.w.machine(k.secret, "m"), user: k.user, approved: k.approved}
	again.machine.machine, again.hello.NodeKey = m.machine.machine, m.hello.NodeKey
	if slices.ContainsFunc(h.members, func(o *modelled) bool { return !o.removed && o.machine.machine == m.machine.machine }) {
		return nil // it is back already
	}
	if k.nodesEnd > 0 {
		again.ends = time.Now().Add(k.nodesEnd)
	}
	again.connect()
	settle()
	if in := again.id() != 0; in != good {
		return fmt.Errorf("a removed machine is let in again: %v, by %+v", in, *k)
	}
	if good {
		k.used, again.hello.Secret = true, nil
		h.members = append(h.members, again)
	}
	return h.check()
}

func (h *history) stepUser(what, other int) error {
	w, ctx := h.w, context.Background()
	_, has := h.users["u"]
	switch {
	case !has:
		if _, err := w.CreateUser(ctx, "u"); err != nil {
			return err
		}
		h.users["u"] = true
	case what == 16 && other%2 == 0:
		if _, err := w.DisableUser(ctx, "u"); err != nil {
			return err
		}
		h.users["u"] = false
	case what == 16:
		if _, err := w.EnableUser(ctx, "u"); err != nil {
			return err
		}
		h.users["u"] = true
	default:
		owns := slices.ContainsFunc(h.members, func(m *modelled) bool { return m.user == "u" && !m.removed })
		err := w.RemoveUser(ctx, "u")
		if (err == nil) == owns {
			return fmt.Errorf("removal of the user, who has nodes: %v: %v", owns, err)
		}
		if err == nil {
			delete(h.users, "u")
			for _, k := range h.keys {
				k.revoked = k.revoked || k.user == "u"
			}
		}
	}
	return h.check()
}

// check compares who is in with the model, as the watcher's live stream tells it.
func (h *history) check() error {
	if h.watcher.gone() {
		h.watcher.connect()
	}
	settle()
	if h.watcher.gone() {
		h.watcher.connect() // silent for too long, or the server was restarted meanwhile
		settle()
	}
	peers := h.watcher.current()
	revoked := h.w.now.Load().revokedNodes()
	for _, m := range h.members {
		why := m.out(h)
		if m.addr == "" && m.has {
			m.addr = m.current().Self.Addrs[0].String()
		}
		m.wasIn = m.wasIn || why == ""
		if _, in := peers.Peer(m.id()); in != (why == "") {
			return fmt.Errorf("node %d is in the watcher's map: %v, but it is %q", m.id(), in, why)
		}
		if slices.Contains(revoked, m.id()) != (why != "") && why != "removed" && m.wasIn {
			return fmt.Errorf("the tickets of node %d, which is %q, are revoked: %v", m.id(), why, why == "")
		}
	}
	return nil
}

// end has all come once more without a secret: those who are in are so with what they had, and the removed are not.
func (h *history) end() error {
	ids, addrs := make(map[weft.NodeID]bool), make(map[string]bool)
	for _, m := range h.members {
		if ids[m.id()] || m.addr != "" && addrs[m.addr] {
			return fmt.Errorf("node %d, %s was given twice", m.id(), m.addr)
		}
		ids[m.id()], addrs[m.addr] = true, true
	}
	for _, m := range h.members {
		if m.removed {
			continue // its machine may be another node by now
		}
		id, why := m.id(), m.out(h)
		m.hangUp()
		m.welcome, m.hello.Secret, m.has = nil, nil, false
		m.connect()
		settle()
		if m.id() != id || m.has != (why == "") {
			code, message := m.lastError()
			return fmt.Errorf("node %d, which is %q, is back as %d with a map: %v (%s %s)", id, why, m.id(), m.has, code, message)
		}
	}
	return nil
}
