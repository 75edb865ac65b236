package lab

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/lab/netns"
)

// rotationSilence is how long a connection may be silent over a change of keys: the server's word to the peers, a handshake, and what TCP
// waits before it sends again, which doubles from 0.2 s (RFC 6298, Linux's least timeout) - a second and a half, and a busy machine.
const rotationSilence = 5 * time.Second

// restorationSilence is the same when the server is turned back to before the rotation: until who rotated is connected again the other knows it
// by its former key, and a handshake that went there is tried again after five seconds (WireGuard's Rekey-Timeout).
const restorationSilence = 15 * time.Second

// TestATCPConnectionSurvivesARotationOfKeys has both ends of a connection take other keys, one after the other.
func TestATCPConnectionSurvivesARotationOfKeys(t *testing.T) {
	w := newWorld(t)
	_, _, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	w.reaches(b, "ann", weft.Direct)
	talk := w.converse(a.Host, b.Host, addrB)
	talk.goesOn(t, 50)
	for _, n := range []*Node{a, b} {
		before := w.up(n).Self
		w.run(n.Host, w.fleet.Binary, "--socket", n.Socket, "rotate")
		silence := talk.goesOn(t, 100)
		t.Logf("%s rotated its key: the longest silence was %v", n.Name, silence)
		if silence > rotationSilence {
			t.Errorf("%s rotated its key: the connection was silent for %v, want %v at most", n.Name, silence, rotationSilence)
		}
		after := w.up(n).Self
		if after.Key == before.Key || after.ID != before.ID || after.Addrs[0] != before.Addrs[0] {
			t.Errorf("%s was %+v and is %+v", n.Name, before, after)
		}
	}
}

// TestMembersCarryOnWithAServerThatKnowsLessThanTheyDo goes back to a backup: what the members' maps have is newer than what the server
// knows, a number is given anew, and a key that was rotated is newer than the server's.
func TestMembersCarryOnWithAServerThatKnowsLessThanTheyDo(t *testing.T) {
	w := newWorld(t)
	_, _, a, b, _, addrB := w.homes()
	w.reaches(a, "bob", weft.Direct)
	backup := filepath.Join(w.net.Dir(), "backup.tar")
	if _, err := w.server.Admin(w.ctx, "backup", backup); err != nil {
		t.Fatal(err)
	}
	// What is done from here on, the server will not know.
	_, hostC := w.home("cid", netns.PortRestrictedCone)
	c := w.node(hostC)
	numberC := w.up(c).Self.ID
	for range 5 { // the map's version grows
		for _, tags := range [][]string{{"web"}, nil} {
			if _, err := w.server.Admin(w.ctx, append([]string{"node", "tag", "cid"}, tags...)...); err != nil {
				t.Fatal(err)
			}
		}
	}
	if _, err := w.server.Admin(w.ctx, "node", "rename", "ann", "anna"); err != nil {
		t.Fatal(err)
	}
	w.run(b.Host, w.fleet.Binary, "--socket", b.Socket, "rotate")
	peers := func(n *Node, want string) {
		t.Helper()
		w.waits(n.Name+" to see "+want, func() error {
			s, err := n.Status(w.ctx)
			if err != nil {
				return err
			}
			names := []string{s.Self.Name}
			for _, p := range s.Peers {
				names = append(names, p.Name)
			}
			if got := strings.Join(names, " "); got != want || !s.Server.Connected {
				return &weft.Error{Code: weft.CodeConflict, Message: "it sees " + got}
			}
			return nil
		})
	}
	peers(b, "bob anna cid")
	talk := w.converse(a.Host, b.Host, addrB)
	talk.goesOn(t, 50)

	if err := w.server.Process.Stop(); err != nil {
		t.Error(err)
	}
	if err := os.Rename(w.server.Dir, w.server.Dir+"-lost"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.server.Admin(w.ctx, "restore", backup); err != nil {
		t.Fatal(err)
	}
	if err := w.server.Start(w.ctx); err != nil {
		t.Fatal(err)
	}
	peers(a, "ann bob") // the former name, and nobody who came since
	peers(b, "bob ann")
	silence := talk.goesOn(t, 100)
	t.Logf("over the restoration the longest silence was %v", silence)
	if silence > restorationSilence {
		t.Errorf("over the restoration the connection was silent for %v", silence)
	}
	w.waits("who joined since to be told", func() error {
		s, err := c.Status(w.ctx)
		if err == nil && (s.State != weft.Refused || len(s.Problems) == 0 || !strings.Contains(s.Problems[0], "join with a new token")) {
			return &weft.Error{Code: weft.CodeConflict, Message: "it is " + string(s.State) + ": " + strings.Join(s.Problems, "; ")}
		}
		return err
	})
	// New maps reach everybody, and a number that was somebody else's is no hindrance.
	if _, err := w.server.Admin(w.ctx, "node", "rename", "ann", "annie"); err != nil {
		t.Fatal(err)
	}
	_, hostD := w.home("dee", netns.PortRestrictedCone)
	d := w.node(hostD)
	self := w.up(d).Self
	if self.ID != numberC {
		t.Errorf("dee is number %d, want cid's former %d: this shows nothing", self.ID, numberC)
	}
	peers(a, "annie bob dee")
	peers(b, "bob annie dee")
	w.eventually("ann to reach dee", a.Host, "ping", "-c", "1", "-W", "2", self.Addrs[0].String())
	w.eventually("dee to reach bob", d.Host, "ping", "-c", "1", "-W", "2", addrB.String())
	w.run(c.Host, w.fleet.Binary, "--socket", c.Socket, "up", w.token)
	w.up(c)
	w.reaches(a, "cid", weft.RelayUDP, weft.RelayStream, weft.Direct)
	if silence := talk.goesOn(t, 50); silence > rotationSilence {
		t.Errorf("while others joined the connection was silent for %v", silence)
	}
}
