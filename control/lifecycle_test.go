package control

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weft"
	"weft/control/store"
	"weft/wire"
)

// refusedWith waits for a machine's word of refusal.
func refusedWith(t *testing.T, m *machine, code weft.Code, says string) {
	t.Helper()
	m.connect()
	settle()
	if c, message := m.lastError(); c != code || !strings.Contains(message, says) || m.id() != 0 {
		t.Errorf("the machine hears %q %q (node %d), want %q and %q", c, message, m.id(), code, says)
	}
}

func TestEachKeyThatIsNoGoodHasASentenceOfItsOwn(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		oneOff := w.invite(KeyRequest{})
		first := w.machine(oneOff, "first")
		first.connect()
		settle()
		if first.id() == 0 {
			t.Fatal("not let in")
		}
		refusedWith(t, w.machine(oneOff, ""), weft.CodeSpentToken, "has been used")

		short, _, err := w.CreateKey(ctx, KeyRequest{Reusable: true, Lifetime: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		ending := w.invite(KeyRequest{Reusable: true, Lifetime: time.Hour})
		time.Sleep(time.Hour)
		refusedWith(t, w.machine(ending, ""), weft.CodeExpiredToken, "ended on")
		if _, err := w.ExpireKey(ctx, short.ID, time.Hour); weft.CodeOf(err) != weft.CodeDenied {
			t.Errorf("an expired key is prolonged: %v", err)
		}

		k, token, err := w.CreateKey(ctx, KeyRequest{Reusable: true})
		if err != nil {
			t.Fatal(err)
		}
		if err := w.RemoveKey(ctx, k.ID); err != nil {
			t.Fatal(err)
		}
		refusedWith(t, w.machine(token.Secret[:], ""), weft.CodeBadToken, "withdrawn")
		refusedWith(t, w.machine([]byte("01234567890123456789"), ""), weft.CodeBadToken, "does not know this token")
		refusedWith(t, w.machine(nil, ""), weft.CodeRemoved, "does not know this machine")
		refusedWith(t, w.machine(w.invite(KeyRequest{Relay: true}), ""), weft.CodeBadToken, "for a relay")
		refusedWith(t, w.relayMachine(w.invite(KeyRequest{}), "r"), weft.CodeBadToken, "for nodes")
	})
}

func TestAKeySaysWhoseANodeIsAndWhatItIs(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		if _, err := w.CreateUser(ctx, "ana@example.org"); err != nil {
			t.Fatal(err)
		}
		m := w.join(KeyRequest{User: "ana@example.org", Tags: []string{"robot", "tag:arm"}, Ephemeral: true}, "arm")
		self := m.current().Self
		if self.User != "ana@example.org" || !slices.Equal(self.Tags, []string{"tag:robot", "tag:arm"}) || !self.Ephemeral {
			t.Errorf("%+v", self)
		}
	})
}

func TestAThousandTriesOnAOneOffKeyMakeOneNode(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		secret := w.invite(KeyRequest{})
		var tries []*machine
		for i := range 1000 {
			tries = append(tries, w.machine(secret, fmt.Sprint("try", i)))
		}
		for _, m := range tries {
			go m.connect()
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		in := 0
		for _, m := range tries {
			code, _ := m.lastError()
			switch {
			case m.id() != 0:
				in++
			case code != weft.CodeSpentToken:
				t.Errorf("a loser hears %q", code)
			}
		}
		if n := w.now.Load().nodes.len(); in != 1 || n != 1 {
			t.Errorf("%d were let in, %d nodes: want one", in, n)
		}
	})
}

func TestMachinesThatJoinAtOnceAreStoredTogetherAndLetInAfterwards(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		secret := w.invite(KeyRequest{Reusable: true})
		hold, commits := make(chan struct{}), 0
		w.store.Fail = func(store.Batch) error { commits++; <-hold; return nil }
		var crowd []*machine
		for range 100 {
			m := w.machine(secret, "m")
			go m.connect()
			crowd = append(crowd, m)
		}
		settle()
		for _, m := range crowd {
			if m.id() != 0 || m.gone() {
				t.Fatal("a machine is told something before anything is stored")
			}
		}
		close(hold)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		for _, m := range crowd {
			if m.id() == 0 {
				t.Fatal("a machine is not let in")
			}
		}
		if commits > 5 {
			t.Errorf("%d commits for %d machines", commits, len(crowd))
		}
	})
}

func TestARemovedNodeIsOutAtOnceAndForGood(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		id := a.id()
		if err := w.RemoveNode(context.Background(), "a"); err != nil {
			t.Fatal(err)
		}
		settle()
		if code, message := a.lastError(); code != weft.CodeRemoved || !strings.Contains(message, "weft up") || !a.gone() {
			t.Errorf("it hears %s %q, ended %v", code, message, a.gone())
		}
		if _, ok := b.current().Peer(id); ok {
			t.Error("its peer still knows it")
		}
		a.welcome, a.has = nil, false
		a.hello.Secret = nil
		refusedWith(t, a, weft.CodeRemoved, "does not know this machine")

		// With a new key it is a new node: another number, other addresses, and the name that is free again.
		a.hello.Secret = w.invite(KeyRequest{})
		a.connect()
		settle()
		self := a.current().Self
		if self.ID == id || self.Name != "a" || self.Addrs[0].String() == "100.64.0.2" || self.Addrs[1] == b.current().Self.Addrs[1] {
			t.Errorf("it is back as %+v", self)
		}
	})
}

func TestANodeThatLogsOutIsRemoved(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		_ = a.say(wire.NodeMessage{Logout: &wire.Logout{}})
		settle()
		if code, _ := a.lastError(); code != weft.CodeRemoved || !a.gone() {
			t.Errorf("it hears %q", code)
		}
		if len(b.current().Peers) != 0 || w.now.Load().nodes.len() != 1 {
			t.Error("it is still there")
		}
	})
}

func TestEphemeralNodesVanishAMinuteAfterTheyLeave(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		stays, leaves := w.join(KeyRequest{}, "stays"), w.join(KeyRequest{Ephemeral: true}, "leaves")
		beat := func(d time.Duration) {
			for ; d > 0; d -= 10 * time.Second {
				_ = stays.say(wire.NodeMessage{Ping: &wire.Beat{}})
				if !leaves.gone() {
					_ = leaves.say(wire.NodeMessage{Ping: &wire.Beat{}})
				}
				time.Sleep(min(d, 10*time.Second))
			}
			synctest.Wait()
		}
		present := func() bool { _, ok := stays.current().Peer(leaves.id()); return ok }
		beat(10 * time.Minute)
		leaves.hangUp()
		beat(EphemeralAfter - 2*time.Second)
		if !present() {
			t.Error("gone too early")
		}
		leaves.connect() // just in time
		beat(2 * EphemeralAfter)
		if !present() {
			t.Error("gone though it came back")
		}
		leaves.hangUp()
		beat(EphemeralAfter + 2*time.Second)
		if present() {
			t.Error("still there")
		}
		st, _ := w.store.Load(context.Background())
		if len(st.Nodes) != 1 {
			t.Errorf("%d nodes are stored, want 1", len(st.Nodes))
		}
	})
}

func TestEphemeralNodesThatDoNotComeBackAfterARestartVanish(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		back, away := w.join(KeyRequest{Ephemeral: true}, "back"), w.join(KeyRequest{Ephemeral: true}, "away")
		w.restart()
		back.connect()
		time.Sleep(SilenceTimeout - time.Second)
		_ = back.say(wire.NodeMessage{Ping: &wire.Beat{}})
		time.Sleep(EphemeralAfter - SilenceTimeout + 2*time.Second)
		synctest.Wait()
		nodes := w.Nodes()
		if len(nodes) != 1 || nodes[0].ID != back.id() {
			t.Errorf("left are %+v, want node %d and not %d", nodes, back.id(), away.id())
		}
	})
}

func TestAnEphemeralNodeVanishesLaterWhenTheDiskIsFull(t *testing.T) {
	var disk failing
	bubble(t, func(t *testing.T, w *world) {
		w.store.Fail = disk.fail
		a := w.join(KeyRequest{Ephemeral: true}, "a")
		a.hangUp()
		disk.set(true)
		time.Sleep(3 * EphemeralAfter)
		if len(w.Nodes()) != 1 {
			t.Error("gone, and not stored")
		}
		disk.set(false)
		time.Sleep(EphemeralAfter + time.Second)
		synctest.Wait()
		if len(w.Nodes()) != 0 {
			t.Error("still there")
		}
	})
}

func TestAnExpiredNodeIsOutUntilItIsProlonged(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		spent := w.invite(KeyRequest{Reusable: true})
		a := w.machine(spent, "a")
		a.connect()
		b := w.join(KeyRequest{}, "b")
		keep := func(d time.Duration) {
			for ; d > 0; d -= 20 * time.Second {
				time.Sleep(min(d, 20*time.Second))
				_ = b.say(wire.NodeMessage{Ping: &wire.Beat{}})
				if !a.gone() {
					_ = a.say(wire.NodeMessage{Ping: &wire.Beat{}})
				}
			}
			settle()
		}
		before := a.current().Self
		if _, err := w.ExpireNode(ctx, "a", ExpireRequest{In: time.Hour}); err != nil {
			t.Fatal(err)
		}
		settle()
		if ticket, _ := wire.ParseTicket(a.current().Ticket); ticket.NotAfter.After(time.Now().Add(time.Hour)) {
			t.Errorf("the relay ticket goes on until %v", ticket.NotAfter)
		}
		keep(time.Hour - 10*time.Second)
		if a.gone() || !b.peer(t, a).Online {
			t.Fatal("out too early")
		}
		keep(10 * time.Second)
		if code, message := a.lastError(); code != weft.CodeExpiredNode || !strings.Contains(message, "weft admin node expire") || a.gone() {
			t.Errorf("it hears %s %q, ended %v", code, message, a.gone())
		}
		if _, ok := b.current().Peer(a.id()); ok {
			t.Error("its peer still knows it")
		}
		if !slices.Contains(w.now.Load().revokedNodes(), a.id()) {
			t.Error("its ticket is not revoked")
		}

		// Neither another try nor the key that let it in nor a restart makes it a member again.
		for _, again := range []func(){func() {}, w.restart} {
			again()
			if !slices.Contains(w.now.Load().revokedNodes(), before.ID) {
				t.Error("its ticket is not revoked any more")
			}
			a.hangUp()
			settle()
			a.errors, a.welcome, a.has = nil, nil, false
			a.connect()
			b.connect()
			settle()
			if code, _ := a.lastError(); code != weft.CodeExpiredNode || a.has {
				t.Errorf("it hears %q, and has a map: %v", code, a.has)
			}
		}

		if _, err := w.ExpireNode(ctx, "a", ExpireRequest{Never: true}); err != nil {
			t.Fatal(err)
		}
		settle()
		if !a.has || !b.peer(t, a).Online {
			t.Error("it is not back at once, by the stream that it kept")
		}
		keep(TicketLifetime)
		if n := b.peer(t, a); n.ID != before.ID || n.Addrs[0] != before.Addrs[0] || !n.Online || !n.Expires.IsZero() {
			t.Errorf("it is back as %+v", n)
		}
		if slices.Contains(w.now.Load().revokedNodes(), a.id()) {
			t.Error("its ticket is still revoked")
		}
		if _, err := w.ExpireNode(ctx, "a", ExpireRequest{}); err != nil {
			t.Fatal(err)
		}
		settle()
		if code, _ := a.lastError(); code != weft.CodeExpiredNode || a.gone() {
			t.Errorf("expired now, it hears %q", code)
		}
		if err := b.checkMap(); err != nil {
			t.Error(err)
		}
	})
}

func TestTicketsAreRenewedAtHalfTheirLife(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		first := a.current().Ticket
		for range int(TicketLifetime/2/(20*time.Second)) - 10 {
			_ = a.say(wire.NodeMessage{Ping: &wire.Beat{}})
			time.Sleep(20 * time.Second)
		}
		if string(a.current().Ticket) != string(first) {
			t.Error("renewed too early")
		}
		for range 20 {
			_ = a.say(wire.NodeMessage{Ping: &wire.Beat{}})
			time.Sleep(20 * time.Second)
		}
		ticket, refusal := wire.VerifyTicket(a.current().Ticket, w.Signing(), time.Now())
		if left := time.Until(ticket.NotAfter); refusal != wire.RefusedNot || left < TicketLifetime-5*time.Minute {
			t.Errorf("%v left of it (%v)", left, refusal)
		}
		if a.maps != 1 {
			t.Errorf("%d whole maps", a.maps)
		}
	})
}
