package path

import (
	"strings"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

// onDirectPath is a rig whose direct path works, with the round-trip times of all ways.
func onDirectPath(t *testing.T) (*rig, weft.Via, map[weft.Via]time.Duration) {
	r := newRig(t)
	by := direct("203.0.113.1:5")
	r.SetRemote(r.now, candidates(weft.Host, "203.0.113.1:5"))
	rtts := map[weft.Via]time.Duration{by: 20 * time.Millisecond, relayUDP: 40 * time.Millisecond, relayTCP: 45 * time.Millisecond}
	r.play(2*time.Second, rtts)
	if r.Selected() != by {
		t.Fatalf("selected %v", r.Selected())
	}
	return r, by, rtts
}

func TestAPathThatAnswersNoHeartbeatIsLeftEvenWithoutData(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	delete(rtts, by)
	r.play(HeartbeatIdle+2*time.Second, rtts)
	s := r.Snapshot(r.now)
	if s.Selected != relayUDP || !strings.HasPrefix(s.Reason, "no answer to 3 pings within ") {
		t.Errorf("selected %v because %q", s.Selected, s.Reason)
	}
}

func TestOneLostHeartbeatIsNoReasonToLeave(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	rtt := rtts[by]
	for range 20 {
		delete(rtts, by)
		r.play(HeartbeatIdle+minTimeout-3*time.Second, rtts)
		rtts[by] = rtt
		r.play(3*time.Second, rtts)
	}
	if n := len(r.Snapshot(r.now).Switches); n != 2 {
		t.Errorf("%d switches: %v", n, r.Snapshot(r.now).Switches)
	}
}

func TestAFailedPathHasToAnswerThreeTimes(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	delete(rtts, by)
	r.play(HeartbeatIdle+10*time.Second, rtts)
	if r.Selected() != relayUDP {
		t.Fatalf("selected %v", r.Selected())
	}
	r.play(10*time.Second, rtts)
	rtts[by] = 20 * time.Millisecond
	asked, first := 0, time.Time{}
	for r.Selected() != by {
		r.play(10*time.Millisecond, rtts)
		if n := len(pings(r.sent, by)); n > 0 && asked == 0 {
			asked, first = n, r.now
		} else {
			asked += n
		}
		if asked > 10 {
			t.Fatalf("after %d pings it is not back", asked)
		}
	}
	if took := r.now.Sub(first); asked < returnAnswers || took < silent.hold(1) || took > time.Second {
		t.Errorf("back after %d pings, in %v", asked, took)
	}
	if s := r.Snapshot(r.now); !strings.Contains(s.Reason, "answers again") {
		t.Errorf("selected %v because %q", s.Selected, s.Reason)
	}
}

// What is silent for a moment again and again does not come back before it has answered without one.
func TestWhatFlapsReturnsWhenItHasAnsweredWithoutAGap(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	p := r.find(by)
	p.health.returned, p.health.streak = r.now, 3 // it failed three times lately
	r.fail(r.now, p, silent, "it is silent")
	began := r.now
	for range 4 { // 1.2 s of every 2 are less than it takes
		rtts[by] = 20 * time.Millisecond
		r.play(1200*time.Millisecond, rtts)
		delete(rtts, by)
		r.play(800*time.Millisecond, rtts)
		if r.Selected() == by {
			t.Fatalf("back after %v", r.now.Sub(began))
		}
	}
	rtts[by] = 20 * time.Millisecond
	r.play(5*time.Second, rtts) // up to 2 s until it is asked, and 2 s in which it answers
	if r.Selected() != by {
		t.Error("it holds still and is not back")
	}
}

func TestTheRestDoublesWithEveryRelapse(t *testing.T) {
	for c, first := range map[cause]time.Duration{silent: 250 * time.Millisecond, blackHole: 5 * time.Second, lossy: 30 * time.Second, slow: 30 * time.Second} {
		if got := c.hold(1); got != first {
			t.Errorf("cause %d sits out %v at first, want %v", c, got, first)
		}
		if got := c.hold(3); got != 4*first {
			t.Errorf("cause %d sits out %v the third time, want %v", c, got, 4*first)
		}
		if got := c.hold(1000); got != holds[c].last {
			t.Errorf("cause %d sits out %v in the end, want %v", c, got, holds[c].last)
		}
	}
}

func TestDataThatArrivedAcquits(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	tx := uint64(0)
	send := func(n uint64, ms int) {
		tx += n
		r.Observe(r.now, []Traffic{{Via: by, TxPackets: tx, TxBytes: 100 * tx}})
		r.play(time.Duration(ms)*time.Millisecond, rtts)
	}
	number := r.find(by).number
	for range 20 { // reports come
		send(10, 60)
		r.handle(by, wire.Report{Paths: []wire.PathReport{{Path: number, Packets: tx}}})
		r.play(40*time.Millisecond, rtts)
	}
	for range 8 { // and then do not
		send(10, 100)
	}
	s := r.Snapshot(r.now)
	if s.Selected != relayUDP || !strings.Contains(s.Reason, "packets unacknowledged for") || !strings.Contains(s.Reason, "answered pings") {
		t.Fatalf("selected %v because %q", s.Selected, s.Reason)
	}
	if until := s.Pairs[len(s.Pairs)-1].Until.Sub(s.Since); until < 4*time.Second {
		t.Fatalf("sits out %v only", until)
	}
	r.handle(relayUDP, wire.Report{Paths: []wire.PathReport{{Path: number, Packets: tx}}})
	r.play(2*time.Second, rtts)
	if r.Selected() != by {
		t.Error("all had arrived, and it is not taken back")
	}
}

// Behind a relay the peer may have one way where we have two, and count what came by either for both.
func TestDataThatArrivedAcquitsOneOfARelaysTwoWaysIfThePeerCountsThemApart(t *testing.T) {
	for _, c := range []struct {
		name  string
		apart bool
	}{{"apart", true}, {"as one", false}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t)
			rtts := map[weft.Via]time.Duration{relayUDP: 40 * time.Millisecond, relayTCP: 45 * time.Millisecond}
			r.play(2*time.Second, rtts)
			udp, tcp := uint64(0), uint64(0)
			send := func(n uint64) {
				if r.Selected() == relayUDP {
					udp += n
				} else {
					tcp += n
				}
				r.Observe(r.now, []Traffic{{Via: relayUDP, TxPackets: udp, TxBytes: 100 * udp}, {Via: relayTCP, TxPackets: tcp, TxBytes: 100 * tcp}})
				r.play(60*time.Millisecond, rtts)
			}
			report := func(udp, tcp uint64) {
				if !c.apart {
					udp, tcp = udp+tcp, udp+tcp
				}
				r.Handle(r.now, relayTCP, wire.Report{Paths: []wire.PathReport{
					{Path: r.find(relayUDP).number, Packets: udp}, {Path: r.find(relayTCP).number, Packets: tcp}}})
				r.play(40*time.Millisecond, rtts)
			}
			for range 20 {
				send(10)
				report(udp, tcp)
			}
			arrived := udp
			for r.Selected() == relayUDP { // it loses data from here on, or its reports are late
				send(10)
				r.play(40*time.Millisecond, rtts)
			}
			if s := r.Snapshot(r.now); s.Selected != relayTCP || !strings.Contains(s.Reason, "answered pings") {
				t.Fatalf("selected %v because %q", s.Selected, s.Reason)
			}
			if c.apart {
				arrived = udp
			}
			for range 20 {
				if r.Selected() == relayTCP {
					send(10)
					report(arrived, tcp)
				} else {
					send(10)
					report(udp, tcp)
				}
			}
			if back := r.Selected() == relayUDP; back != c.apart {
				t.Errorf("2 s later it goes by %v", r.Selected())
			}
		})
	}
}

func TestAnotherNetworkClearsWhatWasHeldAgainstAPath(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	for range 3 { // it fails again and again
		rtt := rtts[by]
		delete(rtts, by)
		r.play(30*time.Second, rtts)
		rtts[by] = rtt
		r.play(10*time.Second, rtts)
	}
	r.fail(r.now, r.find(by), blackHole, "a hole")
	r.play(3*time.Second, rtts)
	if r.Selected() == by {
		t.Fatal("not out at all")
	}
	r.NetworkChanged(r.now)
	r.play(time.Second, rtts)
	if r.Selected() != by {
		t.Errorf("still by %v", r.Selected())
	}
}

func TestTheMoreIsLostTheLongerDataMayGoWithoutAReport(t *testing.T) {
	r, by, _ := onDirectPath(t)
	p := r.find(by)
	p.ledger = &ledger{}
	p.ledger.add(r.now, 5, 500)
	p.rtt = rtt{smoothed: 20 * time.Millisecond, samples: 1}
	r.reports = pace{r.now.Add(-150 * time.Millisecond), r.now.Add(-50 * time.Millisecond)}
	for _, c := range []struct {
		loss  float64
		rtt   time.Duration
		brisk bool
		want  time.Duration
	}{
		{0, 20, true, 320},
		{0, 300, true, 600},
		{0.05, 20, true, 520},
		{0.1, 20, true, 720},
		{0.9, 20, true, 820},
		{0, 20, false, 1020},
	} {
		p.ledger.loss = lossMeter{rate: c.loss, at: r.now}
		p.rtt.smoothed = c.rtt * time.Millisecond
		if !c.brisk {
			r.reports = pace{}
		}
		if got := r.ackTimeout(r.now, p); got != c.want*time.Millisecond {
			t.Errorf("%.0f %% loss, %d ms: %v, want %d ms", 100*c.loss, c.rtt, got, c.want)
		}
	}
}

func TestAReportOfPathsThatAreNoneChangesNothing(t *testing.T) {
	r, by, _ := onDirectPath(t)
	r.handle(by, wire.Report{Paths: []wire.PathReport{{Path: 999, Packets: 5}, {Path: 0, Packets: 1}, {Path: r.find(by).number, Packets: 1 << 63}}})
	r.handle(by, wire.Report{})
	if r.Selected() != by {
		t.Errorf("selected %v", r.Selected())
	}
}

func TestReasonsAreKeptOfTheLastSixteenSwitches(t *testing.T) {
	r := newRig(t)
	for i := range 40 {
		vias := []weft.Via{relayUDP}
		if i%2 == 1 {
			vias = []weft.Via{relayTCP}
		}
		r.SetRelays(r.now, vias)
		r.poll()
		r.now = r.now.Add(time.Second)
	}
	s := r.Snapshot(r.now)
	if len(s.Switches) != keptSwitches || s.Switches[keptSwitches-1].To != relayTCP {
		t.Fatalf("%d are kept, the last is %+v", len(s.Switches), s.Switches[len(s.Switches)-1])
	}
	for i := 1; i < len(s.Switches); i++ {
		if s.Switches[i].From != s.Switches[i-1].To || s.Switches[i].At.Before(s.Switches[i-1].At) || s.Switches[i].Reason == "" {
			t.Errorf("switch %d does not follow: %+v", i, s.Switches[i])
		}
	}
}

func TestDurationsAreSaidInFewDigits(t *testing.T) {
	for d, want := range map[time.Duration]string{
		1234567 * time.Nanosecond:   "1.2ms",
		23456789 * time.Nanosecond:  "23ms",
		430123456 * time.Nanosecond: "430ms",
		1530 * time.Millisecond:     "1.5s",
		95432 * time.Millisecond:    "1m35s",
	} {
		if got := inWords(d); got != want {
			t.Errorf("%v is said as %q, want %q", d, got, want)
		}
	}
}

// silence is a rig that sends data by its direct path and gets no more reports, until the path is left.
func silence(r *rig, by weft.Via, rtts map[weft.Via]time.Duration) (took time.Duration) {
	tx := uint64(0)
	observe := func() {
		tx += 10
		r.Observe(r.now, []Traffic{{Via: by, TxPackets: tx, TxBytes: 100 * tx}})
	}
	number := r.find(by).number
	for range 20 {
		observe()
		r.play(60*time.Millisecond, rtts)
		r.handle(by, wire.Report{Paths: []wire.PathReport{{Path: number, Packets: tx}}})
		r.play(40*time.Millisecond, rtts)
	}
	delete(rtts, by)
	begin := r.now
	for r.Selected() == by && r.now.Sub(begin) < 5*time.Second {
		observe()
		r.play(50*time.Millisecond, rtts)
	}
	return r.now.Sub(begin)
}

func TestAnotherDirectPathThatAnswersTakesOverBeforeTheRelay(t *testing.T) {
	for _, alive := range []bool{true, false} {
		r := newRig(t)
		by, other := direct("203.0.113.1:5"), direct("203.0.113.2:5")
		r.SetRemote(r.now, candidates(weft.Host, "203.0.113.1:5", "203.0.113.2:5"))
		rtts := map[weft.Via]time.Duration{
			by: 20 * time.Millisecond, other: 23 * time.Millisecond, relayUDP: 40 * time.Millisecond, relayTCP: 45 * time.Millisecond,
		}
		r.play(time.Second, rtts)
		want := other
		if !alive {
			delete(rtts, other)
			want = relayUDP
		}
		if took := silence(r, by, rtts); took > 700*time.Millisecond {
			t.Errorf("took %v", took)
		}
		if s := r.Snapshot(r.now); s.Selected != want {
			t.Errorf("other path alive is %v: moved to %v because %q, want %v", alive, s.Selected, s.Reason, want)
		}
	}
}

func TestTheCoordinatorsWordDoesNotEndAPathThatCarriesData(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	r.SetOnline(r.now, false)
	for i := range uint64(100) {
		r.Observe(r.now, []Traffic{{Via: by, TxPackets: i, RxPackets: i}})
		r.handle(by, wire.Report{Paths: []wire.PathReport{{Path: r.find(by).number, Packets: i}}})
		r.play(time.Second, rtts)
	}
	if s := r.Snapshot(r.now); s.Selected != by || len(s.Switches) != 2 {
		t.Errorf("selected %v after %v", s.Selected, s.Switches)
	}
}

func TestWithoutARelayADeadDirectPathIsKeptAndReturns(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	r.SetRelays(r.now, nil)
	rtt := rtts[by]
	silence(r, by, rtts)
	if s := r.Snapshot(r.now); s.Selected != by || s.Pairs[0].State != Failed {
		t.Fatalf("selected %v, %+v", s.Selected, s.Pairs[0])
	}
	rtts[by] = rtt
	r.play(10*time.Second, rtts)
	if s := r.Snapshot(r.now); s.Selected != by || s.Pairs[0].State != Valid {
		t.Errorf("selected %v, %+v", s.Selected, s.Pairs[0])
	}
}

func TestAStandbyThatMissedACheckReturnsWithOneAnswer(t *testing.T) {
	r, by, rtts := onDirectPath(t)
	rtt := rtts[relayUDP]
	delete(rtts, relayUDP)
	r.NetworkChanged(r.now) // which asks everything
	r.play(time.Second, rtts)
	if s := r.find(relayUDP).health.state; s != Failed || r.Selected() != by {
		t.Fatalf("the relay is %v, selected %v", s, r.Selected())
	}
	rtts[relayUDP] = rtt
	samples := r.find(relayUDP).rtt.samples
	for r.find(relayUDP).rtt.samples == samples {
		r.play(10*time.Millisecond, rtts)
	}
	if s := r.find(relayUDP).health.state; s != Valid {
		t.Errorf("after an answer the relay is %v", s)
	}
}
