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
// included, beside a model of what each credential is still good for.
func TestCredentialsThatEndedNeverWorkAgain(t *testing.T) {
	type step struct{ what, which, other int }
	steps := rapid.SliceOfN(rapid.Custom(func(rt *rapid.T) step {
		return step{rapid.IntRange(0, 10).Draw(rt, "what"), rapid.IntRange(0, 5).Draw(rt, "which"), rapid.IntRange(0, 5).Draw(rt, "other")}
	}), 1, 40)
	rapid.Check(t, func(rt *rapid.T) {
		history := steps.Draw(rt, "steps")
		var problem error
		synctest.Test(t, func(t *testing.T) {
			w := newWorld(t)
			defer func() { w.stop() }()
			problem = credentialHistory(w, len(history), func(i int) (int, int, int) {
				return history[i].what, history[i].which, history[i].other
			})
		})
		if problem != nil {
			rt.Fatal(problem)
		}
	})
}

func credentialHistory(w *world, n int, at func(int) (what, which, other int)) error {
	ctx := context.Background()
	type credential struct {
		id       uint32
		secret   []byte
		reusable bool
		used     bool
		revoked  bool
		ends     time.Time
		user     string
	}
	var keys []*credential
	var members []*machine
	removed := make(map[*machine]bool)
	users := map[string]bool{}
	owner := make(map[*machine]string)
	for i := range n {
		what, which, other := at(i)
		var k *credential
		if len(keys) > 0 {
			k = keys[which%len(keys)]
		}
		switch {
		case what <= 1 || k == nil:
			r := KeyRequest{Reusable: which%2 == 0}
			if other == 1 {
				r.Lifetime = time.Hour
			}
			if other == 2 && users["u"] {
				r.User = "u"
			}
			info, token, err := w.CreateKey(ctx, r)
			if err != nil {
				return err
			}
			keys = append(keys, &credential{id: info.ID, secret: token.Secret[:], reusable: r.Reusable, ends: info.Expires, user: r.User})
		case what <= 4:
			m := w.machine(k.secret, "m")
			m.connect()
			settle()
			good := !k.revoked && (k.reusable || !k.used) && (k.ends.IsZero() || time.Now().Add(-time.Second).Before(k.ends))
			if in := m.id() != 0; in != good {
				code, message := m.lastError()
				return fmt.Errorf("step %d: key %+v let a machine in: %v (%s %s)", i, *k, in, code, message)
			}
			if good {
				k.used = true
				members = append(members, m)
				owner[m] = k.user
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
				return fmt.Errorf("step %d: key %+v ends in %v: %v", i, *k, in, err)
			}
			if err == nil {
				k.ends = info.Expires
			}
		case what == 7:
			time.Sleep(40 * time.Minute)
		case what == 8 && len(members) > 0:
			m := members[which%len(members)]
			err := w.RemoveNode(ctx, itoa(uint32(m.id())))
			if (err == nil) == removed[m] {
				return fmt.Errorf("step %d: removal of node %d: %v", i, m.id(), err)
			}
			removed[m] = true
			settle()
		case what == 9 && !users["u"]:
			if _, err := w.CreateUser(ctx, "u"); err != nil {
				return err
			}
			users["u"] = true
		case what == 9:
			has := slices.ContainsFunc(members, func(m *machine) bool { return owner[m] == "u" && !removed[m] })
			err := w.RemoveUser(ctx, "u")
			if (err == nil) == has {
				return fmt.Errorf("step %d: removal of the user, who has nodes: %v: %v", i, has, err)
			}
			if err == nil {
				delete(users, "u")
				for _, k := range keys {
					k.revoked = k.revoked || k.user == "u"
				}
			}
		case what == 10:
			w.restart()
		}
	}
	// In the end the removed are out, whatever they try, and all others are in with what they had.
	ids := make(map[weft.NodeID]bool)
	addrs := make(map[string]bool)
	for _, m := range members {
		id := m.id()
		if addr := m.current().Self.Addrs[0].String(); ids[id] || addrs[addr] {
			return fmt.Errorf("node %d, %s was given twice", id, addr)
		} else {
			ids[id], addrs[addr] = true, true
		}
		m.hangUp()
		m.welcome, m.hello.Secret = nil, nil
		m.has = false
		m.connect()
		settle()
		if in := m.id() == id; in == removed[m] {
			return fmt.Errorf("node %d, removed %v, is let in: %v", id, removed[m], in)
		}
	}
	return nil
}
