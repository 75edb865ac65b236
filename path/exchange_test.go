package path

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

func TestCandidatesGoByEveryRelayUntilThePeerIsHeard(t *testing.T) {
	r := newRig(t)
	count := func(sent []Transmit) (n int) {
		for _, x := range sent {
			if m, ok := x.Message.(wire.Candidates); ok {
				if m.Session != 7 || !m.WantReply || len(m.List) != 1 {
					t.Fatalf("announced %+v", m)
				}
				n++
			}
		}
		return n
	}
	if n := count(r.poll()); n != 2 {
		t.Fatalf("announced %d times, want by UDP and by stream", n)
	}
	if n := count(r.pass(10 * time.Second)); n < 6 || n > 12 {
		t.Fatalf("repeated %d times in 10 s", n)
	}
	r.handle(relayTCP, wire.Candidates{Session: 1, Seq: 1})
	if n := count(r.pass(3 * time.Second)); n != 0 {
		t.Fatalf("repeated %d times after the peer was heard", n)
	}
}

func TestOnlyTheNewestCandidatesOfTheLatestSessionCount(t *testing.T) {
	list := func(port int) []weft.Candidate { return candidates(weft.Host, fmt.Sprintf("203.0.113.9:%d", port)) }
	for _, c := range []struct {
		name string
		then []wire.Candidates
		want int // port that is probed
	}{
		{"a higher sequence replaces", []wire.Candidates{{Session: 1, Seq: 1, List: list(1001)}, {Session: 1, Seq: 2, List: list(1002)}}, 1002},
		{"a lower sequence is stale", []wire.Candidates{{Session: 1, Seq: 2, List: list(1001)}, {Session: 1, Seq: 1, List: list(1002)}}, 1001},
		{"the same sequence is the same", []wire.Candidates{{Session: 1, Seq: 2, List: list(1001)}, {Session: 1, Seq: 2, List: list(1002)}}, 1001},
		{"a new session replaces", []wire.Candidates{{Session: 1, Seq: 9, List: list(1001)}, {Session: 2, Seq: 1, List: list(1002)}}, 1002},
		{"a session that ended does not come back", []wire.Candidates{{Session: 1, Seq: 1, List: list(1001)}, {Session: 2, Seq: 1, List: list(1002)}, {Session: 1, Seq: 9, List: list(1001)}}, 1002},
	} {
		r := newRig(t)
		for _, m := range c.then {
			r.handle(relayUDP, m)
		}
		r.pass(time.Second)
		var ports []int
		for _, p := range r.Snapshot(r.now).Pairs {
			if p.Via.Method == weft.Direct {
				ports = append(ports, int(p.Via.Addr.Port()))
			}
		}
		if !slices.Equal(ports, []int{c.want}) {
			t.Errorf("%s: probes ports %v, want %d", c.name, ports, c.want)
		}
	}
}

func TestWhoAsksForCandidatesGetsThemByTheSameWayIfThePeerIsKnownToBeThere(t *testing.T) {
	by := direct("203.0.113.1:5")
	for _, c := range []struct{ asked, want weft.Via }{
		{relayTCP, relayTCP},
		{weft.Via{Method: weft.RelayUDP, Relay: 9}, weft.Via{Method: weft.RelayUDP, Relay: 9}},
		{by, by},
		{direct("198.51.100.66:6"), by}, // who knows who that is
	} {
		r, _, _ := onDirectPath(t)
		var got []weft.Via
		for _, x := range r.handle(c.asked, wire.Candidates{Session: 1, Seq: 1, WantReply: true}) {
			if m, ok := x.Message.(wire.Candidates); ok && !m.WantReply {
				got = append(got, x.Via)
			}
		}
		if !slices.Equal(got, []weft.Via{c.want}) {
			t.Errorf("asked by %v, replied by %v, want %v", c.asked, got, c.want)
		}
	}
}

func TestEveryAttemptIsCalledOutToThePeer(t *testing.T) {
	r := newRig(t)
	r.handle(relayUDP, wire.Candidates{Session: 1, Seq: 1, List: candidates(weft.Host, "203.0.113.1:5")})
	rtts := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond, relayTCP: 45 * time.Millisecond}
	r.play(4*time.Second, rtts)
	seq := uint32(1)
	r.handle(relayUDP, wire.Candidates{Session: 1, Seq: seq, List: candidates(weft.Host, "203.0.113.1:5")})
	last, attempts, probed := uint32(0), 0, 0
	for range 60 {
		r.play(time.Second, rtts)
		for _, x := range r.sent {
			if m, ok := x.Message.(wire.Candidates); ok && m.Seq > last {
				if !m.WantReply {
					t.Fatal("a call that asks for nothing")
				}
				last = m.Seq
				attempts++
				probed -= len(pings(r.sent, direct("203.0.113.1:5")))
				r.handle(relayUDP, wire.Candidates{Session: 1, Seq: seq, List: candidates(weft.Host, "203.0.113.1:5")})
			}
		}
		probed += len(pings(r.sent, direct("203.0.113.1:5")))
	}
	if attempts < 4 || attempts > 8 {
		t.Errorf("%d calls in a minute", attempts)
	}
	if probed > attempts*RetryRounds {
		t.Errorf("%d probes away from the calls", probed)
	}
}

func TestAnAnswerThatCameTooSoonIsToAnEarlierAnnouncement(t *testing.T) {
	for _, c := range []struct {
		after time.Duration
		ends  bool
	}{{10 * time.Millisecond, false}, {45 * time.Millisecond, true}} {
		r := newRig(t)
		rtts := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond}
		r.play(time.Second, rtts)
		r.handle(relayUDP, wire.Candidates{Session: 1, Seq: 1})
		r.play(time.Second, rtts)
		r.SetLocal(r.now, candidates(weft.Host, "192.168.1.2:41641", "10.9.9.9:41641"))
		r.play(c.after, rtts)
		r.handle(relayUDP, wire.Candidates{Session: 1, Seq: 1})
		r.play(2*time.Second, rtts)
		again := slices.ContainsFunc(r.sent, func(x Transmit) bool { m, ok := x.Message.(wire.Candidates); return ok && m.WantReply })
		if again == c.ends {
			t.Errorf("an answer after %v: announced again is %v", c.after, again)
		}
	}
}

func TestARelayThatCanBeUsedAgainHurriesTheNextAttempt(t *testing.T) {
	r := newRig(t)
	r.SetRemote(r.now, candidates(weft.Host, "203.0.113.1:5"))
	r.SetRelays(r.now, []weft.Via{relayTCP})
	rtts := map[weft.Via]time.Duration{relayTCP: 40 * time.Millisecond, relayUDP: 35 * time.Millisecond}
	r.play(30*time.Second, rtts) // attempts are some 15 s apart by now
	for len(pings(r.sent, direct("203.0.113.1:5"))) > 0 {
		r.play(time.Second, rtts)
	}
	r.SetRelays(r.now, []weft.Via{relayUDP, relayTCP})
	r.play(time.Second, rtts)
	if len(pings(r.sent, direct("203.0.113.1:5"))) == 0 {
		t.Error("UDP may work again, and nothing is tried")
	}
}
