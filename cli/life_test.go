package cli

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"weft"
)

// refusedFor waits until a node says that it is refused, with these words.
func (n *testNode) refusedFor(words string) {
	n.t.Helper()
	wait(n.t, "the node to say "+words, func() error {
		s := n.status()
		if said := strings.Join(s.Problems, "; "); s.State != weft.Refused || !strings.Contains(said, words) {
			return fmt.Errorf("it is %s: %s", s.State, said)
		}
		return nil
	})
}

// TestTheLifeOfANode takes one through approval, a new key, being disabled, and an end with a new beginning. Nobody
// touches the machine but to rotate and to sign in again, and its address is the same throughout.
func TestTheLifeOfANode(t *testing.T) {
	srv := newServer(t, "--approve")
	do := func(args ...string) string {
		t.Helper()
		r := srv.admin(args...)
		if r.code != ExitOK {
			t.Fatalf("weft admin %s: %s", strings.Join(args, " "), r.err)
		}
		return strings.TrimSpace(r.out)
	}
	peer, n := newNode(t), newNode(t)
	peer.start(srv.token("--approved"), "--name", "peer")
	peer.connected()
	n.start(srv.token("--node-expires", "2160h"), "--name", "life")
	n.refusedFor("waits for approval")
	if r := n.run("up"); r.code != 1 || !strings.Contains(r.err, "weft admin node approve life") {
		t.Errorf("weft up while it waits: %+v", r)
	}
	if out := do("node", "list"); !strings.Contains(out, "waiting") {
		t.Errorf("the list is\n%s", out)
	}
	if out := do("node", "approve", "life"); out != "member" {
		t.Errorf("approved, it is %q", out)
	}
	n.connected()
	n.reaches("peer")
	first := n.status().Self
	if first.Expires.IsZero() {
		t.Error("it has no end")
	}

	if r := n.run("rotate"); r.code != ExitOK {
		t.Fatalf("weft rotate: %+v", r)
	}
	n.connected()
	if self := n.status().Self; self.Key == first.Key || self.ID != first.ID || self.Addrs[0] != first.Addrs[0] || self.Name != "life" {
		t.Errorf("with another key it is %+v, and was %+v", self, first)
	}
	n.reaches("peer")

	do("node", "disable", "life")
	n.refusedFor("was disabled")
	wait(t, "its peer to forget it", func() error {
		if len(peer.status().Peers) > 0 {
			return errors.New("it has not")
		}
		return nil
	})
	do("node", "enable", "life")
	n.connected()
	n.reaches("peer")

	old := srv.token("--reusable")
	do("node", "expire", "life")
	n.refusedFor("membership ended")
	if r := n.run("up", old); r.code != 1 || !strings.Contains(r.err, "older than the end") {
		t.Errorf("with a token of before it is let in: %+v", r)
	}
	if r := n.run("up", srv.token()); r.code != ExitOK {
		t.Fatalf("with a new token it is not let in: %+v", r)
	}
	n.connected()
	n.reaches("peer")
	if self := n.status().Self; self.ID != first.ID || self.Addrs[0] != first.Addrs[0] {
		t.Errorf("it is back as %+v", self)
	}

	do("user", "create", "ana")
	do("node", "move", "life", "ana")
	do("user", "disable", "ana")
	n.refusedFor("ana")
	do("user", "rename", "ana", "anna")
	do("user", "enable", "anna")
	n.connected()
	if out := do("node", "tag", "life", "db", "tag:web"); out != "tag:db tag:web" {
		t.Errorf("its tags are %q", out)
	}
	n.stop()
	peer.stop()
}
