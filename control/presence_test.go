package control

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"weft"
	"weft/wire"
)

func TestWhatANodeTellsOfItselfReachesItsPeersWithinASecond(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		a.update(wire.Update{NAT: "endpoint-independent", HomeRelay: 1, Candidates: []weft.Candidate{
			{Addr: netip.MustParseAddrPort("192.168.1.2:4000"), Kind: weft.Host},
			{Addr: netip.MustParseAddrPort("[::ffff:203.0.113.5]:4001"), Kind: weft.ServerReflexive},
			{Addr: netip.MustParseAddrPort("203.0.113.5:4001"), Kind: weft.ServerReflexive}, // the same
			{Addr: netip.MustParseAddrPort("100.64.0.9:4000"), Kind: weft.Host},             // in the overlay
			{Addr: netip.MustParseAddrPort("0.0.0.0:4000"), Kind: weft.Host},
			{Addr: netip.MustParseAddrPort("203.0.113.5:0"), Kind: weft.Host},
			{Addr: netip.MustParseAddrPort("[fe80::1%eth0]:4000"), Kind: weft.Host},
			{Addr: netip.MustParseAddrPort("[ff02::1]:4000"), Kind: weft.Host},
			{Addr: netip.MustParseAddrPort("203.0.113.6:4001")}, // of no kind
		}})
		settle()
		n := b.peer(t, a)
		if len(n.Candidates) != 2 || n.Candidates[0].Addr.String() != "192.168.1.2:4000" || n.Candidates[1].Addr.String() != "203.0.113.5:4001" {
			t.Errorf("candidates %v", n.Candidates)
		}
		if n.NAT != "endpoint-independent" || n.HomeRelay != 1 {
			t.Errorf("NAT %q, home relay %d", n.NAT, n.HomeRelay)
		}
		if err := b.checkMap(); err != nil {
			t.Error(err)
		}
		a.update(wire.Update{NAT: "evil\u202ewords" + strings.Repeat("x", 100), HomeRelay: 77})
		settle()
		if n := b.peer(t, a); len(n.Candidates) != 0 || n.HomeRelay != 0 || strings.ContainsRune(n.NAT, '\u202e') || len(n.NAT) != maxWords {
			t.Errorf("b knows a as %+v", n)
		}
	}, func(c *Config) { c.Relay = &weft.Relay{Name: "home"} })
}

func TestANodeThatTellsOfItselfAllTheTimeIsToldOfNowAndThen(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		before, version := b.changes, w.now.Load().version
		for i := range 1000 { // for ten seconds
			a.update(wire.Update{NAT: fmt.Sprint("change ", i)})
			time.Sleep(10 * time.Millisecond)
		}
		settle()
		most := updateBurst + int(11*time.Second/updateEvery)
		if n := w.now.Load().version - version; n > uint64(most) {
			t.Errorf("%d versions, want %d at most", n, most)
		}
		if n := b.changes - before; n < 10 || n > most {
			t.Errorf("%d changes told, want between 10 and %d", n, most)
		}
		if n := b.peer(t, a).NAT; n != "change 999" {
			t.Errorf("the last word told is %q", n)
		}
	})
}

func TestAHiccupIsNotToldToPeersAndAnAbsenceIs(t *testing.T) {
	bubble(t, func(t *testing.T, w *world) {
		a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
		a.hangUp()
		left := time.Now()
		time.Sleep(OfflineAfter + time.Second)
		n := b.peer(t, a)
		if n.Online || n.LastSeen.Sub(left).Abs() > time.Second {
			t.Errorf("an absent node is told of as %+v, it left at %v", n, left)
		}
		a.connect()
		settle()
		before := b.changes
		for range 5 {
			a.hangUp()
			time.Sleep(OfflineAfter - time.Second)
			a.connect()
			settle()
		}
		if b.changes != before {
			t.Errorf("%d changes for hiccups", b.changes-before)
		}
		a.hangUp()
		time.Sleep(time.Hour)
		a.connect()
		b.connect()
		settle()
		if n := b.peer(t, a); !n.Online {
			t.Errorf("a node that is back is told of as %+v", n)
		}
	})
}

func TestWhenANodeWasLastSeenSurvivesARestart(t *testing.T) {
	for what, restart := range map[string]func(w *world){
		"a stop": (*world).restart,
		// Nothing is flushed: the old server is stopped after the new one has loaded.
		"a crash": func(w *world) { old := w.Server; w.start(); old.Close() },
	} {
		bubble(t, func(t *testing.T, w *world) {
			a, b := w.join(KeyRequest{}, "a"), w.join(KeyRequest{}, "b")
			a.hangUp()
			left := time.Now()
			time.Sleep(OfflineAfter + 2*housekeeping)
			b.hangUp() // while it was online
			synctest.Wait()
			restart(w)
			b.connect()
			settle()
			if n := b.peer(t, a); n.Online || n.LastSeen.Sub(left).Abs() > time.Second {
				t.Errorf("after %s: a is told of as %+v, it left at %v", what, n, left)
			}
		})
	}
}
