package path

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"weft"
	"weft/wire"
)

func TestARelayIsUsedBeforeAnythingIsAnswered(t *testing.T) {
	r := newRig(t)
	if r.Selected() != (weft.Via{}) {
		t.Fatal("a way is selected before the first Poll")
	}
	r.poll()
	if r.Selected() != relayUDP {
		t.Fatalf("selected %v", r.Selected())
	}
	r.SetRelays(r.now, []weft.Via{relayTCP})
	r.poll()
	if r.Selected() != relayTCP || len(r.out.Switches) != 1 {
		t.Fatalf("selected %v after the relay's UDP went, by %v", r.Selected(), r.out.Switches)
	}
	r.SetRelays(r.now, nil)
	r.poll()
	if r.Selected() != (weft.Via{}) {
		t.Fatalf("selected %v where there is nothing", r.Selected())
	}
	got := r.out.Switches[0].Reason
	if want := "relay-stream #1 can no longer be used, and there is no other way"; got != want {
		t.Errorf("the reason is %q, want %q", got, want)
	}
}

func TestAPingIsAnsweredByTheWayItCameAndAskedBack(t *testing.T) {
	r := newRig(t)
	r.poll()
	via := direct("203.0.113.9:5000")
	sent := r.handle(via, wire.Ping{Path: 12, Tx: wire.TxID{1}})
	want := Transmit{Via: via, Message: wire.Pong{Path: 12, Tx: wire.TxID{1}, Observed: addr("203.0.113.9:5000")}}
	if diff := cmp.Diff([]Transmit{want}, sent[:1], cmp.Comparer(func(a, b netip.AddrPort) bool { return a == b })); diff != "" {
		t.Errorf("answered otherwise (-want +got):\n%s", diff)
	}
	if len(pings(sent, via)) != 1 {
		t.Error("the unknown address was not asked back")
	}
	if !slices.Equal(r.out.Learn, []netip.AddrPort{via.Addr}) {
		t.Errorf("learned %v", r.out.Learn)
	}
	if sent = r.handle(relayTCP, wire.Ping{Path: 13, Tx: wire.TxID{2}}); sent[0].Message != (wire.Pong{Path: 13, Tx: wire.TxID{2}}) {
		t.Errorf("through a relay, answered %+v", sent[0].Message)
	}
}

func TestAnAnswerCountsForTheExactPairAndTransactionAlone(t *testing.T) {
	asked := direct("203.0.113.9:5000")
	for _, c := range []struct {
		name string
		from weft.Via
		bend func(*wire.Pong)
		want bool
	}{
		{"the very pair", asked, func(*wire.Pong) {}, true},
		{"another port", direct("203.0.113.9:5001"), func(*wire.Pong) {}, false},
		{"another link", weft.DirectVia(3, asked.Addr), func(*wire.Pong) {}, false},
		{"a relay", relayUDP, func(*wire.Pong) {}, false},
		{"another transaction", asked, func(p *wire.Pong) { p.Tx[0]++ }, false},
		{"another path number", asked, func(p *wire.Pong) { p.Path++ }, false},
		{"the mapped form of the address", weft.Via{Method: weft.Direct, Addr: addr("[::ffff:203.0.113.9]:5000")}, func(*wire.Pong) {}, true},
	} {
		r := newRig(t)
		r.SetRemote(r.now, candidates(weft.Host, "203.0.113.9:5000"))
		ping := pings(r.pass(0), asked)[0]
		r.now = r.now.Add(20 * time.Millisecond)
		pong := wire.Pong{Path: ping.Path, Tx: ping.Tx}
		c.bend(&pong)
		r.handle(c.from, pong)
		if got := r.Selected() == asked; got != c.want {
			t.Errorf("%s: validated is %v, want %v", c.name, got, c.want)
		}
		if c.want {
			if got := r.Snapshot(r.now); got.RTT != 20*time.Millisecond || got.DirectAfter != 20*time.Millisecond {
				t.Errorf("%s: RTT %v, direct after %v", c.name, got.RTT, got.DirectAfter)
			}
		}
	}
}

func TestBehindARelayAnAnswerMayComeInTheOtherManner(t *testing.T) {
	r := newRig(t)
	ping := pings(r.pass(0), relayUDP)[0]
	r.now = r.now.Add(30 * time.Millisecond)
	r.handle(weft.Via{Method: weft.RelayStream, Relay: 2}, wire.Pong{Path: ping.Path, Tx: ping.Tx})
	if s := r.Snapshot(r.now).Pairs[0]; s.State != Untested {
		t.Fatalf("an answer through another relay counted: %+v", s)
	}
	r.handle(relayTCP, wire.Pong{Path: ping.Path, Tx: ping.Tx})
	if s := r.Snapshot(r.now).Pairs[0]; s.Via != relayUDP || s.State != Valid || s.RTT != 30*time.Millisecond {
		t.Errorf("an answer by the stream did not count: %+v", s)
	}
}

func TestALateOrRepeatedAnswerIsNoSample(t *testing.T) {
	r := newRig(t)
	ping := pings(r.pass(0), relayUDP)[0]
	r.now = r.now.Add(maxRTT + time.Millisecond)
	r.handle(relayUDP, wire.Pong{Path: ping.Path, Tx: ping.Tx})
	if s := r.Snapshot(r.now).Pairs[0]; s.State != Untested {
		t.Errorf("an answer after %v counted", maxRTT)
	}
	sent := r.pass(10 * time.Second)
	r.answer(sent, relayUDP, 0)
	before := r.find(relayUDP).rtt.samples
	last := pings(sent, relayUDP)
	r.handle(relayUDP, wire.Pong{Path: last[len(last)-1].Path, Tx: last[len(last)-1].Tx})
	if n := r.find(relayUDP).rtt.samples; n != before || before != 1 {
		t.Errorf("%d samples, and %d after the same answer again", before, n)
	}
}

func TestOnlyWhatALinkCanReachIsProbed(t *testing.T) {
	for _, c := range []struct {
		local, remote []weft.Candidate
		want          []weft.Via
	}{
		{candidates(weft.Host, "192.168.1.2:1"), candidates(weft.Host, "[2001:db8::1]:2"), nil},
		{candidates(weft.Host, "[fe80::1]:1"), candidates(weft.Host, "[2001:db8::1]:2"), nil},
		{candidates(weft.Host, "[2001:db8::9]:1"), candidates(weft.Host, "[2001:db8::1]:2", "10.0.0.1:2"), []weft.Via{direct("[2001:db8::1]:2")}},
		{candidates(weft.Host, "192.168.1.2:1"), candidates(weft.Host, "192.168.1.2:1", "192.168.1.2:2"), []weft.Via{direct("192.168.1.2:2")}},
		{candidates(weft.Host, "192.168.1.2:1"), candidates(weft.Host, "127.0.0.1:2", "169.254.3.4:5", "[fe80::1]:2", "0.0.0.0:9", "224.0.0.1:9", "10.0.0.1:0"), nil},
		{candidates(weft.Host, "127.0.0.1:1"), candidates(weft.Host, "127.0.0.1:2"), []weft.Via{direct("127.0.0.1:2")}},
		{
			[]weft.Candidate{{Addr: addr("192.168.1.2:1"), Kind: weft.Host, Link: 1}, {Addr: addr("[fe80::1]:1"), Kind: weft.Host, Link: 2}},
			candidates(weft.Host, "10.0.0.1:5", "[fe80::2]:5"),
			[]weft.Via{weft.DirectVia(1, addr("10.0.0.1:5")), weft.DirectVia(2, addr("[fe80::2]:5"))},
		},
		{ // an address once, however often it is named
			candidates(weft.Host, "192.168.1.2:1"),
			append(candidates(weft.ServerReflexive, "203.0.113.1:5", "[::ffff:203.0.113.1]:5"), candidates(weft.Host, "203.0.113.1:5")...),
			[]weft.Via{direct("203.0.113.1:5")},
		},
	} {
		r := newRig(t)
		r.SetLocal(r.now, c.local)
		r.SetRemote(r.now, c.remote)
		var got []weft.Via
		for _, p := range r.pairs {
			if p.via.Method == weft.Direct {
				got = append(got, p.via)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%v x %v: pairs %v, want %v", c.local, c.remote, got, c.want)
		}
	}
}

func TestALinkThatGoesTakesItsPairsAlong(t *testing.T) {
	r := newRig(t)
	wifi := weft.Candidate{Addr: addr("192.168.1.2:1"), Kind: weft.Host, Link: 1}
	mobile := weft.Candidate{Addr: addr("10.5.5.5:1"), Kind: weft.Host, Link: 2}
	r.SetLocal(r.now, []weft.Candidate{wifi, mobile})
	r.SetRemote(r.now, candidates(weft.Host, "203.0.113.1:5"))
	by := weft.DirectVia(1, addr("203.0.113.1:5"))
	r.answer(r.pass(0), by, time.Millisecond)
	if r.Selected() != by {
		t.Fatalf("selected %v", r.Selected())
	}
	r.SetLocal(r.now, []weft.Candidate{mobile})
	r.poll()
	if r.Selected() != relayUDP || r.out.Switches[0].Reason != "direct 203.0.113.1:5 went with its link" {
		t.Errorf("selected %v because %v", r.Selected(), r.out.Switches)
	}
}

func TestRoundsAreBoundedAndTakeTurns(t *testing.T) {
	r := newRig(t)
	var list []weft.Candidate
	for i := range wire.MaxCandidates {
		list = append(list, weft.Candidate{Addr: netip.AddrPortFrom(netip.AddrFrom4([4]byte{203, 0, 113, byte(i)}), 5), Kind: weft.Host})
	}
	r.SetRemote(r.now, list)
	r.poll()
	seen := map[weft.Via]bool{}
	for range 3 {
		n := 0
		for _, x := range r.out.Send {
			if _, ok := x.Message.(wire.Ping); ok && x.Via.Method == weft.Direct {
				seen[x.Via] = true
				n++
			}
		}
		if n > ProbesPerRound {
			t.Fatalf("%d probes in one round", n)
		}
		r.now = r.now.Add(RoundInterval)
		r.poll()
	}
	if len(seen) != wire.MaxCandidates {
		t.Errorf("%d of %d addresses probed in three rounds", len(seen), wire.MaxCandidates)
	}
}

func TestStrangersCannotFillTheAgent(t *testing.T) {
	r := newRig(t)
	r.SetRemote(r.now, candidates(weft.Host, "203.0.113.1:5"))
	learned := map[netip.AddrPort]bool{}
	for i := range 2000 {
		from := netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 7)
		r.Handle(r.now, weft.DirectVia(weft.LinkID(i%3), from), wire.Ping{Path: uint16(i), Tx: wire.TxID{byte(i)}})
		if i%7 == 0 {
			r.now = r.now.Add(time.Millisecond)
			r.poll()
			for _, a := range r.out.Learn {
				learned[a] = true
			}
			for _, a := range r.out.Forget {
				delete(learned, a)
			}
		}
	}
	if n := len(r.pairs); n > 2+1+MaxReflexive {
		t.Errorf("%d pairs are kept", n)
	}
	if n := len(learned); n > MaxReflexive {
		t.Errorf("%d addresses are told to be the peer's", n)
	}
	if n := len(r.inbound.arrivals); n > wire.MaxReports {
		t.Errorf("%d path numbers are kept", n)
	}
	if r.find(direct("203.0.113.1:5")) == nil {
		t.Error("the announced pair was pushed out")
	}
}

func TestReceivedDataIsReportedByThePeersNumbers(t *testing.T) {
	r := newRig(t)
	r.poll()
	by := direct("203.0.113.9:5000")
	r.handle(by, wire.Ping{Path: 3, Tx: wire.TxID{1}})
	r.handle(relayUDP, wire.Ping{Path: 1, Tx: wire.TxID{2}})
	reports := func() (got []string) {
		for _, x := range r.out.Send {
			if m, ok := x.Message.(wire.Report); ok {
				got = append(got, fmt.Sprintf("%v: %v", x.Via, m.Paths))
			}
		}
		return got
	}
	expect := func(what string, want ...string) {
		t.Helper()
		if got := reports(); !slices.Equal(got, want) {
			t.Fatalf("%s: reports %v, want %v", what, got, want)
		}
	}
	observe := func(ts ...Traffic) {
		r.Observe(r.now, ts)
		r.poll()
	}
	observe(Traffic{Via: by, RxPackets: 5, RxBytes: 500})
	expect("first data", "relay-udp #1: [{3 5 500}]", "direct 203.0.113.9:5000: [{3 5 500}]")
	r.now = r.now.Add(50 * time.Millisecond)
	observe(Traffic{Via: by, RxPackets: 9, RxBytes: 900})
	expect("sooner than 100 ms")
	r.now = r.now.Add(50 * time.Millisecond)
	r.poll()
	expect("after 100 ms", "relay-udp #1: [{3 9 900}]", "direct 203.0.113.9:5000: [{3 9 900}]")
	r.now = r.now.Add(100 * time.Millisecond)
	observe(Traffic{Via: relayUDP, RxPackets: 1, RxBytes: 60}, Traffic{Via: by, RxPackets: 9, RxBytes: 900})
	expect("data by the way in use", "relay-udp #1: [{3 9 900} {1 1 60}]")

	repeats := 0
	for _, x := range r.pass(3 * time.Second) {
		if _, ok := x.Message.(wire.Report); ok {
			repeats++
		}
	}
	if repeats != 2 {
		t.Errorf("the last report was said again %d times, want 2: it may be lost", repeats)
	}

	// The peer's address changes: its path keeps its number and its count.
	moved := direct("203.0.113.9:6000")
	r.handle(moved, wire.Ping{Path: 3, Tx: wire.TxID{3}})
	observe(Traffic{Via: moved, RxPackets: 2, RxBytes: 200})
	expect("after the peer's address changed", "relay-udp #1: [{3 11 1100} {1 1 60}]", "direct 203.0.113.9:6000: [{3 11 1100} {1 1 60}]")

	// Data before any ping is reported once its number is known; after a restart nothing is left of the old.
	r.handle(relayUDP, wire.Candidates{Session: 1, Seq: 1})
	r.handle(relayUDP, wire.Candidates{Session: 2, Seq: 1})
	r.now = r.now.Add(time.Second)
	observe(Traffic{Via: relayTCP, RxPackets: 4, RxBytes: 40})
	expect("a number that is not known")
	r.handle(relayTCP, wire.Ping{Path: 2, Tx: wire.TxID{4}})
	expect("now it is", "relay-udp #1: [{2 4 40}]", "relay-stream #1: [{2 4 40}]")
}

func TestAPingByHandIsAnsweredAndLeavesNoTrace(t *testing.T) {
	r := newRig(t)
	r.poll()
	r.Observe(r.now, []Traffic{{Via: relayUDP, RxPackets: 1, RxBytes: 1}})
	sent := r.handle(relayUDP, wire.Ping{Path: 0, Tx: wire.TxID{9}})
	if sent[0].Message != (wire.Pong{Tx: wire.TxID{9}}) {
		t.Errorf("answered %+v", sent[0].Message)
	}
	if len(r.inbound.arrivals) != 0 {
		t.Error("path 0 is taken for one of the peer's")
	}
}

func TestARelayThatMayBeAboutToAnswerIsNotLeftForItsStream(t *testing.T) {
	for _, udp := range []time.Duration{60 * time.Millisecond, 0} {
		r := newRig(t)
		r.play(3*time.Second, map[weft.Via]time.Duration{relayUDP: udp, relayTCP: 40 * time.Millisecond})
		s := r.Snapshot(r.now)
		if udp > 0 && (s.Selected != relayUDP || len(s.Switches) != 1) {
			t.Errorf("left for the stream, which answered sooner: %v", s.Switches)
		}
		if udp == 0 && s.Selected != relayTCP {
			t.Errorf("by %v, which never answered", s.Selected)
		}
	}
}

func TestWantLooksForAPathWithoutData(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	r := &rig{Agent: New(now, Config{Rand: seededRand(1)}), t: t, now: now}
	r.SetLocal(now, candidates(weft.Host, "192.168.1.2:41641"))
	r.SetRemote(now, candidates(weft.Host, "203.0.113.1:5"))
	r.SetRelays(now, []weft.Via{relayUDP})
	r.SetOnline(now, true)
	if sent := r.pass(time.Hour); len(sent) != 0 {
		t.Fatalf("sends %d messages to a peer that nobody talks to", len(sent))
	}
	r.Want(r.now)
	if sent := r.pass(0); len(pings(sent, direct("203.0.113.1:5"))) != 1 || len(pings(sent, relayUDP)) != 1 {
		t.Errorf("sent %v", sent)
	}
	r.pass(UnusedAfter)
	if sent := r.pass(time.Hour); len(sent) != 0 {
		t.Errorf("still sends %d messages after %v", len(sent), UnusedAfter)
	}
}

func TestAPeerThatIsNotThereIsNotProbedForWarmth(t *testing.T) {
	r := newRig(t)
	r.SetRemote(r.now, candidates(weft.Host, "203.0.113.1:5"))
	r.SetOnline(r.now, false)
	if sent := r.pass(time.Hour); len(sent) != 0 {
		t.Errorf("sent %d messages", len(sent))
	}
}

func TestThePeersSilenceEndsTheHellos(t *testing.T) {
	r := newRig(t)
	r.pass(10 * time.Minute)
	if sent := r.pass(time.Hour); len(sent) != 0 {
		t.Errorf("%d messages in an hour to a peer that is said to be there and never answered", len(sent))
	}
}
