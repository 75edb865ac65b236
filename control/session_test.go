package control

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weft"
	"weft/wire"
)

func TestTwoMachinesJoinAndKnowEachOther(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "Attic.lan")
		b := w.join(KeyRequest{}, "attic")
		if n := b.peer(t, a); n.Name != "attic" || !n.Online || n.Addrs[0].String() != "100.64.0.2" {
			t.Errorf("b knows a as %+v", n)
		}
		if n := a.peer(t, b); n.Name != "attic-2" || !n.Online || n.Addrs[0].String() != "100.64.0.3" {
			t.Errorf("a knows b as %+v", n)
		}
		for _, m := range []*machine{a, b} {
			if err := m.checkMap(); err != nil {
				t.Error(err)
			}
			if m.maps != 1 {
				t.Errorf("node %d got %d whole maps, want one", m.id(), m.maps)
			}
		}
		if a.current().Service.String() != "100.64.0.1" {
			t.Errorf("the resolver's address is %v", a.current().Service)
		}
		v, r := wire.VerifyTicket(a.current().Ticket, w.Signing(), time.Now())
		if r != wire.RefusedNot || v.Node != a.id() || v.Network != w.Network() || v.Key != a.hello.NodeKey {
			t.Errorf("ticket %+v: %v", v, r)
		}
	})
}

func TestAStrangerGetsNothing(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		member := w.join(KeyRequest{}, "member")
		for what, first := range map[string]string{
			"no secret":       `{"hello":{"version":"1","node_key":"` + w.machine(nil, "").hello.NodeKey.String() + `"}}`,
			"ping":            `{"ping":{"n":1}}`,
			"an update":       `{"update":{"candidates":[]}}`,
			"logout":          `{"logout":{}}`,
			"nothing":         `{}`,
			"no document":     "GET / HTTP/1.1\r\n\r\n",
			"two requests":    `{"ping":{"n":1},"logout":{}}`,
			"too much":        `{"hello":"` + strings.Repeat("x", wire.MaxNodeMessage) + `"}`,
			"a member's keys": `{"hello":{"node_key":"` + member.hello.NodeKey.String() + `"}}`,
			"no node key":     `{"hello":{"version":"1"}}`,
			"low order":       `{"hello":{"node_key":"nodekey:AQAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"}}`,
		} {
			s := w.machine(nil, "")
			s.dial()
			_ = s.conn.WriteMessage([]byte(first))
			time.Sleep(5 * time.Second)
			synctest.Wait()
			if code, message := s.lastError(); !code.Permanent() || message == "" {
				t.Errorf("%s: the stranger hears %q %q, want a permanent refusal", what, code, message)
			}
			if s.welcome != nil || s.has || !s.gone() {
				t.Errorf("%s: welcome %v, map %v, ended %v", what, s.welcome, s.has, s.gone())
			}
		}
		if n := w.now.Load().nodes.len(); n != 1 {
			t.Errorf("%d nodes, want the one member", n)
		}
	})
}

func TestAMachineThatSaysNothingIsSentAway(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		s := w.machine(nil, "")
		s.dial()
		time.Sleep(helloTimeout - time.Second)
		if s.gone() {
			t.Error("sent away too early")
		}
		time.Sleep(2*time.Second + lingerTimeout)
		synctest.Wait()
		if !s.gone() {
			t.Error("still there")
		}
		if n := w.strangers.Load(); n != 0 {
			t.Errorf("%d strangers are counted, want 0", n)
		}
	})
}

func TestOnlyWhoHasNothingToSayForLongIsTakenForDead(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		quiet, beating := w.join(KeyRequest{}, "quiet"), w.join(KeyRequest{}, "beating")
		for i := range 10 {
			time.Sleep(20 * time.Second)
			_ = beating.say(wire.NodeMessage{Ping: &wire.Beat{N: uint64(i)}})
		}
		synctest.Wait()
		if !quiet.gone() || beating.gone() {
			t.Errorf("quiet ended: %v, beating ended: %v", quiet.gone(), beating.gone())
		}
		if len(beating.pongs) != 10 || beating.pongs[9] != 9 {
			t.Errorf("pongs %v, want 0 to 9", beating.pongs)
		}
		if n := beating.peer(t, quiet); n.Online || n.LastSeen.IsZero() {
			t.Errorf("the quiet one is told of as %+v", n)
		}
	})
}

func TestAKnownMachineNeedsNoSecretAndKeepsWhatItHas(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		before := a.current().Self
		for _, again := range []func(){a.hangUp, func() { a.hangUp(); w.restart() }} {
			again()
			a.hello.Secret, a.hello.Name = []byte("nonsense"), "other"
			a.connect()
			settle()
			if self := a.current().Self; self.ID != before.ID || self.Name != before.Name || self.Addrs[0] != before.Addrs[0] || self.Addrs[1] != before.Addrs[1] {
				t.Errorf("came back as %+v, was %+v", self, before)
			}
		}
	})
}

func TestANewNodeKeyOfAKnownMachineIsARotation(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		before := a.current().Self
		a.hangUp()
		old := a.hello.NodeKey
		a.rotate()
		a.connect()
		settle()
		n := b.peer(t, a)
		if n.Key != a.hello.NodeKey || n.ID != before.ID || n.Addrs[0] != before.Addrs[0] {
			t.Errorf("b knows a as %+v", n)
		}
		if ticket, _ := wire.ParseTicket(a.current().Ticket); ticket.Key != a.hello.NodeKey {
			t.Error("the ticket is for the old key")
		}
		w.restart()
		if got := w.Nodes()[0]; got.Key != a.hello.NodeKey || got.Rotated.IsZero() {
			t.Errorf("stored is %+v", got)
		}

		// What was given up stays so, whatever number it comes with: not above the last.
		a.connect()
		settle()
		b.connect()
		for _, rotation := range []uint32{0, 1} {
			stale := w.machine(nil, "a")
			stale.machine = a.machine
			stale.hello.NodeKey, stale.hello.Rotation = old, rotation
			stale.connect()
			settle()
			if code, message := stale.lastError(); code != weft.CodeDenied || !strings.Contains(message, "given up") || stale.id() != 0 {
				t.Errorf("with an old key it hears %s %q", code, message)
			}
		}
		if b.peer(t, a).Key != a.hello.NodeKey {
			t.Error("peers have the old key again")
		}
	})
}

func TestAnotherMachinesNodeKeyIsRefused(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		fresh := w.machine(w.invite(KeyRequest{}), "thief")
		fresh.hello.NodeKey = a.hello.NodeKey
		fresh.connect()
		b.hangUp()
		b.hello.NodeKey = a.hello.NodeKey
		b.connect()
		settle()
		for _, m := range []*machine{fresh, b} {
			if code, message := m.lastError(); code != weft.CodeDenied || !strings.Contains(message, "another machine's") {
				t.Errorf("%s hears %s %q", m.hello.Name, code, message)
			}
		}
		// The refused one has not spent its key.
		fresh.hello.NodeKey = w.machine(nil, "").hello.NodeKey
		fresh.connect()
		settle()
		if fresh.id() == 0 {
			t.Error("the key was spent by a refused try")
		}
	})
}

func TestALaterConnectionOfAMachineReplacesTheEarlier(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		changes := b.changes
		first := a.ended
		a.connect()
		settle()
		time.Sleep(lingerTimeout)
		select {
		case <-first:
		default:
			t.Error("the earlier connection goes on")
		}
		time.Sleep(2 * OfflineAfter)
		if a.gone() || !b.peer(t, a).Online {
			t.Error("the later connection does not count")
		}
		if b.changes != changes {
			t.Errorf("the peer heard of it: %d changes", b.changes-changes)
		}
	})
}

func TestAnUnknownRequestIsAnsweredAndNothingElseBreaks(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		_ = a.conn.WriteMessage([]byte(`{"teleport":{"to":"mars"}}`))
		settle()
		if code, _ := a.lastError(); code != weft.CodeNotFound || code.Permanent() {
			t.Errorf("code %q", code)
		}
		_ = a.say(wire.NodeMessage{Ping: &wire.Beat{N: 7}})
		settle()
		if a.gone() || len(a.pongs) != 1 {
			t.Error("the stream is broken")
		}
	})
}

func TestGarbageOnAStreamEndsItWithASentence(t *testing.T) {
	for _, garbage := range []string{"\x00\xff", `{"update":5}`, `{"ping":{"n":1},"logout":{}}`, `{"hello":{}}`} {
		bubble(t, func(t *testing.T, w *world) {
			a := w.join(KeyRequest{}, "a")
			_ = a.conn.WriteMessage([]byte(garbage))
			time.Sleep(lingerTimeout)
			synctest.Wait()
			if code, message := a.lastError(); code != weft.CodeBadRequest || message == "" || !a.gone() {
				t.Errorf("%q: %s %q, ended %v", garbage, code, message, a.gone())
			}
			if w.now.Load().nodes.len() != 1 {
				t.Error("the node is gone")
			}
		})
	}
}

func TestAReturningNodeGetsOnlyWhatChanged(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		key := w.invite(KeyRequest{Reusable: true})
		var others []*machine
		for i := range 20 {
			m := w.machine(key, fmt.Sprint("other", i))
			m.connect()
			others = append(others, m)
		}
		settle()
		a.hangUp()
		settle()
		if err := w.RemoveNode(context.Background(), "other3"); err != nil {
			t.Fatal(err)
		}
		if _, err := w.RenameNode(context.Background(), "other4", "renamed"); err != nil {
			t.Fatal(err)
		}
		late := w.join(KeyRequest{}, "late")
		maps, bytes := a.maps, a.bytes
		a.connect()
		settle()
		if a.maps != maps {
			t.Error("it got a whole map")
		}
		if n := a.bytes - bytes; n > 2500 {
			t.Errorf("it got %d bytes for three changes", n)
		}
		if err := a.checkMap(); err != nil {
			t.Error(err)
		}
		_, _ = others, late

		// In another epoch versions mean nothing.
		w.restart()
		a.connect()
		settle()
		if a.maps != maps+1 {
			t.Error("it got no whole map of a server that was restarted")
		}
		if err := a.checkMap(); err != nil {
			t.Error(err)
		}
	})
}

func TestANodeThatClaimsAVersionThatCannotBeGetsAWholeMap(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		for _, version := range []uint64{0, 1, 1 << 60, ^uint64(0)} {
			a.hangUp()
			settle()
			a.mu.Lock()
			a.netmap = weft.NetworkMap{Version: version}
			maps := a.maps
			a.mu.Unlock()
			a.connect()
			settle()
			if a.maps != maps+1 {
				t.Errorf("version %d: no whole map", version)
			}
			if err := a.checkMap(); err != nil {
				t.Error(err)
			}
		}
	})
}

func TestAMachineThatDoesNotReadHoldsUpNobody(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		key := w.invite(KeyRequest{Reusable: true})
		for i := range 30 {
			m := w.machine(key, "deaf")
			m.dial()
			m.conn.Close() // the reader of the machine is gone; what follows is said by hand
			<-m.ended
			mine, theirs := pipe()
			m.conn = mine
			w.strangers.Add(1)
			go w.serve(theirs, m.machine)
			if err := m.say(wire.NodeMessage{Hello: &m.hello}); err != nil {
				t.Fatal(i, err)
			}
			defer mine.Close()
		}
		began := time.Now()
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		a.update(wire.Update{NAT: "heard"})
		settle()
		if took := time.Since(began); took > 10*time.Second || b.peer(t, a).NAT != "heard" {
			t.Errorf("after %v: %+v", took, b.peer(t, a))
		}
		time.Sleep(writeTimeout + time.Minute)
		synctest.Wait()
		w.mu.Lock()
		defer w.mu.Unlock()
		if n := len(w.sessions); n > 2 {
			t.Errorf("%d sessions are left, want the two that read at most", n)
		}
	})
}

func TestAReplacedStreamHasNoSayAnyMore(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		old := &session{s: w.Server, node: a.id()}
		for _, f := range []func(*tx) error{
			func(t *tx) error { return t.update(old, &wire.Update{NAT: "stale"}) },
			func(t *tx) error { return t.logout(old) },
			func(t *tx) error { return t.disconnect(old) },
		} {
			if err := w.do(context.Background(), f); err != nil {
				t.Error(err)
			}
		}
		time.Sleep(OfflineAfter + time.Second)
		if n := w.Nodes(); len(n) != 1 || n[0].NAT != "" || !n[0].Online {
			t.Errorf("%+v", n)
		}
	})
}

func TestWholeMapsAreMadeWhileThereIsRoomForThem(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		w.bulk = newGate(bulkLeast) // one map at a time
		w.serial = 1 << 20          // away from the keys of the crowd
		if err := w.crowd(1000); err != nil {
			t.Fatal(err)
		}
		key := w.invite(KeyRequest{Reusable: true})
		if size := w.now.Load().mapSize(); size < bulkLeast {
			t.Fatalf("a map has %d bytes only", size)
		}
		// One that does not read keeps the room until it is given up on.
		deaf := w.machine(key, "deaf")
		mine, theirs := pipe()
		defer mine.Close()
		w.strangers.Add(1)
		go w.serve(theirs, deaf.machine)
		deaf.conn = mine
		_ = deaf.say(wire.NodeMessage{Hello: &deaf.hello})
		if _, err := mine.ReadMessage(wire.MaxServerMessage); err != nil {
			t.Fatal(err) // the welcome
		}
		settle()
		late := w.machine(key, "late")
		late.connect()
		settle()
		if late.welcome == nil || late.has {
			t.Errorf("welcome %v, map %v: want the former only", late.welcome, late.has)
		}
		for range 4 {
			_ = late.say(wire.NodeMessage{Ping: &wire.Beat{}})
			time.Sleep(20 * time.Second)
		}
		synctest.Wait()
		if late.has {
			if err := late.checkMap(); err != nil {
				t.Error(err)
			}
		} else {
			t.Error("no map")
		}
	})
}

func TestAStoppingServerSaysSo(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		idle := w.machine(nil, "")
		idle.dial()
		synctest.Wait()
		began := time.Now()
		w.stop()
		if took := time.Since(began); took > lingerTimeout+time.Second {
			t.Errorf("it took %v", took)
		}
		if code, _ := a.lastError(); code != weft.CodeUnavailable || code.Permanent() {
			t.Errorf("code %q", code)
		}
		if err := w.RemoveNode(context.Background(), "a"); weft.CodeOf(err) != weft.CodeUnavailable {
			t.Errorf("a stopped server: %v", err)
		}
		late := w.machine(nil, "")
		late.dial()
		<-late.ended
	})
}

func TestANodeAndARelayCannotShareAMachineKey(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		node := w.join(KeyRequest{}, "a")
		relay := w.relayMachine(w.invite(KeyRequest{Relay: true}), "r")
		relay.connect()
		settle()
		asRelay, asNode := w.relayMachine(w.invite(KeyRequest{Relay: true}), "x"), w.machine(w.invite(KeyRequest{}), "y")
		asRelay.machine, asNode.machine = node.machine, relay.machine
		asRelay.connect()
		asNode.connect()
		settle()
		for _, m := range []*machine{asRelay, asNode} {
			if code, _ := m.lastError(); code != weft.CodeDenied {
				t.Errorf("code %q", code)
			}
		}
	})
}
