package control

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"

	"weft"
	"weft/control/store"
	"weft/wire"
)

func TestAFullDiskRefusesWithASentenceAndChangesNothing(t *testing.T) {
	var disk failing
	bubble(t, func(t *testing.T, w *world) {
		w.store.Fail = disk.fail
		ctx := context.Background()
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		secret := w.invite(KeyRequest{})
		disk.set(true)
		full := func(what string, err error) {
			t.Helper()
			if weft.CodeOf(err) != weft.CodeUnavailable || !strings.Contains(err.Error(), "disk is full") {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := w.CreateUser(ctx, "u")
		full("a user", err)
		_, _, err = w.CreateKey(ctx, KeyRequest{})
		full("a key", err)
		_, err = w.RenameNode(ctx, "a", "other")
		full("a rename", err)
		full("a removal", w.RemoveNode(ctx, "b"))
		late := w.machine(secret, "late")
		late.connect()
		rotated := w.machine(nil, "").hello.NodeKey
		settle()
		if code, message := late.lastError(); code != weft.CodeUnavailable || !strings.Contains(message, "disk is full") {
			t.Errorf("a machine hears %s %q", code, message)
		}
		if p := w.Status().Problems; len(p) != 1 || !strings.Contains(p[0], "could not be stored") {
			t.Errorf("the status says %q", p)
		}

		// What needs no storing goes on: presence, and the map of a node that reconnects.
		a.update(wire.Update{NAT: "heard"})
		settle()
		if b.peer(t, a).NAT != "heard" || len(b.current().Peers) != 1 {
			t.Errorf("b has %+v", b.current().Peers)
		}
		a.hangUp()
		a.connect()
		settle()
		if a.gone() {
			t.Error("a known node is not let in")
		}
		key := a.hello.NodeKey
		a.hangUp()
		a.hello.NodeKey, a.hello.Rotation = rotated, 1
		a.connect()
		settle()
		if code, _ := a.lastError(); code != weft.CodeUnavailable || b.peer(t, a).Key != key {
			t.Errorf("a rotation that cannot be stored: %q, peers know %v", code, b.peer(t, a).Key)
		}

		disk.set(false)
		a.connect()
		late.connect()
		settle()
		if late.id() != 3 || b.peer(t, a).Key != rotated || len(w.Status().Problems) != 0 {
			t.Errorf("with space again: late is %d, status %+v", late.id(), w.Status())
		}
		if len(w.Users()) != 0 || w.Nodes()[0].Name != "a" {
			t.Error("a refused change happened")
		}
		for _, m := range []*machine{a, b, late} {
			if err := m.checkMap(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestOneChangeThatCannotBeStoredDoesNotTakeTheOthersPresenceAlong(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		w.store.Fail = func(store.Batch) error { return errors.New("the disk is on fire") }
		// Both are in one batch.
		done := make(chan error, 2)
		batch := []op{
			{func(t *tx) error { e, _ := t.nodeNamed("a"); e.nat = "seen"; t.putNode(e, false); return nil }, done},
			{func(t *tx) error { e, _ := t.nodeNamed("a"); e.Name = "lost"; t.putNode(e, true); return nil }, done},
		}
		block := make(chan struct{})
		go w.do(context.Background(), func(*tx) error { <-block; return nil })
		synctest.Wait()
		for _, o := range batch {
			w.ops <- o
		}
		close(block)
		first, second := <-done, <-done
		if first != nil || weft.CodeOf(second) != weft.CodeUnavailable {
			t.Errorf("errors %v and %v", first, second)
		}
		settle()
		if self := a.current().Self; self.NAT != "seen" || self.Name != "a" {
			t.Errorf("a is %+v", self)
		}
		if _, taken := w.index.names.taken["lost"]; taken {
			t.Error("the index kept a name that was refused")
		}
		w.store.Fail = nil
	})
}
