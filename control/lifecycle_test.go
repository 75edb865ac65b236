package control

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

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
		m := w.join(KeyRequest{User: "ana@example.org", Tags: []string{"robot", "arm"}, Ephemeral: true}, "arm")
		self := m.current().Self
		if self.User != "ana@example.org" || !slices.Equal(self.Tags, []string{"robot", "arm"}) || !self.Ephemeral {
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
		if code, message := a.lastError(); code != weft.CodeExpiredNode || !strings.Contains(message, "weft admin node expire") || !a.gone() {
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
			a.errors, a.welcome, a.has = nil, nil, false
			a.connect()
			b.connect()
			settle()
			if code, _ := a.lastError(); code != weft.CodeExpiredNode || a.welcome != nil {
				t.Errorf("it hears %q, and is welcome: %v", code, a.welcome)
			}
		}

		if _, err := w.ExpireNode(ctx, "a", ExpireRequest{Never: true}); err != nil {
			t.Fatal(err)
		}
		a.connect()
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
		if code, _ := a.lastError(); code != weft.CodeExpiredNode || !a.gone() {
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

func TestRelaysHearWhoseTicketsAreRevoked(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		ctx := context.Background()
		var told [][]weft.NodeID
		w.OnRevoked(func(ids []weft.NodeID) { told = append(told, ids) })
		relay := w.relayMachine(w.invite(KeyRequest{Relay: true}), "far")
		relay.connect()
		settle()
		if relay.welcome == nil || relay.welcome.Relay != 2 || relay.welcome.Signing != w.Signing() || relay.welcome.Network == "" {
			t.Fatalf("welcome %+v", relay.welcome)
		}
		if relay.revoked == nil || len(relay.revoked) != 0 {
			t.Errorf("at first revoked are %v, want none, told so", relay.revoked)
		}
		a, b, c := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b"), w.join(KeyRequest{}, "c")
		_ = w.RemoveNode(ctx, "a")
		if _, err := w.ExpireNode(ctx, "b", ExpireRequest{}); err != nil {
			t.Fatal(err)
		}
		settle()
		want := []weft.NodeID{a.id(), b.id()}
		if !slices.Equal(relay.revoked, want) || !slices.Equal(told[len(told)-1], want) {
			t.Errorf("revoked are %v and %v, want %v", relay.revoked, told, want)
		}
		if relay.has {
			t.Error("a relay got a map")
		}

		// A restart forgets nobody.
		w.restart()
		relay.revoked = nil
		relay.connect()
		settle()
		if !slices.Equal(relay.revoked, want) {
			t.Errorf("after a restart revoked are %v, want %v", relay.revoked, want)
		}
		// When the last ticket of a removed node has ended by itself, it is forgotten; an expired one is not.
		time.Sleep(TicketLifetime + 2*housekeeping)
		relay.connect()
		settle()
		if !slices.Equal(relay.revoked, want[1:]) {
			t.Errorf("after a day revoked are %v, want %v", relay.revoked, want[1:])
		}
		st, _ := w.store.Load(ctx)
		if len(st.Revoked) != 0 {
			t.Errorf("%v are stored", st.Revoked)
		}
		_ = c
	})
}

func TestRelaysComeAndGoInEverybodysMap(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		names := func() (out []string) {
			settle()
			for _, r := range a.current().Relays {
				out = append(out, fmt.Sprint(r.ID, r.Name, r.URL))
			}
			return out
		}
		expect := func(want ...string) {
			t.Helper()
			if got := names(); !slices.Equal(got, want) {
				t.Errorf("relays %v, want %v", got, want)
			}
			if err := a.checkMap(); err != nil {
				t.Error(err)
			}
		}
		expect("1homehttps://home.example")
		far := w.relayMachine(w.invite(KeyRequest{Relay: true}), "far")
		far.connect()
		expect("1homehttps://home.example", "2farhttps://far.example")
		far.hangUp()
		expect("1homehttps://home.example", "2farhttps://far.example") // known is enough

		twin := w.relayMachine(w.invite(KeyRequest{Relay: true}), "far")
		twin.connect()
		expect("1homehttps://home.example", "2farhttps://far.example", "3far-2https://far.example")

		far.hello.Relay.URL, far.hello.Relay.Name, far.hello.Secret = "https://moved.example", "other", nil
		far.connect()
		expect("1homehttps://home.example", "2farhttps://moved.example", "3far-2https://far.example")

		if err := w.RemoveRelay(context.Background(), "home"); weft.CodeOf(err) != weft.CodeDenied {
			t.Errorf("the server's own relay was removed: %v", err)
		}
		if err := w.RemoveRelay(context.Background(), "far"); err != nil {
			t.Fatal(err)
		}
		expect("1homehttps://home.example", "3far-2https://far.example")
		if code, _ := far.lastError(); code != weft.CodeRemoved || !far.gone() {
			t.Errorf("the removed relay hears %q", code)
		}
		refused := w.relayMachine(nil, "x")
		refused.machine = far.machine
		refusedWith(t, refused, weft.CodeRemoved, "does not know")

		thief := w.relayMachine(w.invite(KeyRequest{Relay: true}), "thief")
		thief.hello.Relay.Key = twin.hello.Relay.Key
		refusedWith(t, thief, weft.CodeDenied, "relay key")
		bad := w.relayMachine(w.invite(KeyRequest{Relay: true}), "bad")
		bad.hello.Relay.URL = "gopher://x"
		refusedWith(t, bad, weft.CodeBadRequest, "URL")

		w.restart()
		a.connect()
		expect("1homehttps://home.example", "3far-2https://far.example")
		fresh := w.relayMachine(w.invite(KeyRequest{Relay: true}), "fresh")
		fresh.connect()
		expect("1homehttps://home.example", "3far-2https://far.example", "4freshhttps://fresh.example")
	}, func(c *Config) { c.Relay = &weft.Relay{Name: "home", URL: "https://home.example"} })
}

func TestTheLastRelayThatGoesLeavesAnEmptyList(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a := w.join(KeyRequest{}, "a")
		r := w.relayMachine(w.invite(KeyRequest{Relay: true}), "r")
		r.connect()
		settle()
		if len(a.current().Relays) != 1 {
			t.Fatal("no relay")
		}
		if err := w.RemoveRelay(context.Background(), "2"); err != nil {
			t.Fatal(err)
		}
		settle()
		if err := a.checkMap(); err != nil {
			t.Error(err)
		}
	})
}

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
		a.hello.NodeKey = rotated
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
