package control

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"weft"
)

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
