package path

import (
	"net/netip"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

var (
	randomADF  = weft.NAT{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressDependentFiltering, Allocation: weft.RandomAllocation}
	inOrderNAT = weft.NAT{Mapping: weft.AddressAndPortDependentMapping, Filtering: weft.AddressAndPortDependentFiltering,
		Allocation: weft.SequentialAllocation, Step: 1}
	attested = addr("203.0.113.9:1").Addr()
)

// A lair is a rig whose peer, that has session 9, may be up to anything. The test serves its sockets.
type lair struct {
	*rig
	most      int
	sockets   map[weft.LinkID]bool
	last      weft.LinkID
	sprayed   []Transmit
	all       []Transmit
	said      []wire.Attempt
	perSecond map[int64]int
	silent    bool // sockets are not served
	mute      bool // pings are not answered
}

func newLair(t *testing.T, leads bool, own, theirs weft.NAT, at ...netip.Addr) *lair {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	l := &lair{
		rig:     &rig{Agent: New(now, Config{Session: 7, Rand: seededRand(1), Eager: true, Leads: leads}), t: t, now: now},
		sockets: map[weft.LinkID]bool{}, last: FirstSpare, perSecond: map[int64]int{},
	}
	l.SetLocal(now, append(candidates(weft.Host, "192.168.1.2:41641"), candidates(weft.ServerReflexive, "192.0.2.7:5555")...))
	l.SetNAT(now, own)
	l.SetRelays(now, []weft.Via{relayUDP})
	l.SetAttested(now, at)
	l.SetOnline(now, true)
	l.step()
	l.hear(wire.Candidates{Session: 9, Seq: 1, NAT: theirs, List: candidates(weft.ServerReflexive, "198.51.100.66:7777")})
	return l
}

// step polls once and serves what is asked for.
func (l *lair) step() {
	l.sent = l.poll()
	l.all = append(l.all, l.sent...)
	for _, x := range l.sent {
		switch m := x.Message.(type) {
		case wire.Ping:
			if m.Path == 0 {
				l.sprayed = append(l.sprayed, x)
				l.perSecond[l.now.Unix()]++
			} else if x.Via == relayUDP && !l.mute {
				l.Handle(l.now, relayUDP, wire.Pong{Path: m.Path, Tx: m.Tx})
			}
		case wire.Attempt:
			l.said = append(l.said, m)
		}
	}
	for _, link := range l.out.Close {
		if !l.sockets[link] {
			l.t.Fatalf("closes socket %d, which is not open", link)
		}
		delete(l.sockets, link)
	}
	if n := l.out.Open.Count; n > 0 && !l.silent {
		var list []Opened
		for range n {
			if l.last++; l.last == 0 {
				l.last = FirstSpare
			}
			l.sockets[l.last] = true
			list = append(list, Opened{Link: l.last, Port: uint16(l.last), Mapped: netip.AddrPortFrom(addr("192.0.2.7:1").Addr(), 40000)})
		}
		if l.most = max(l.most, len(l.sockets)); l.most > MaxSockets {
			l.t.Fatalf("%d sockets are open", l.most)
		}
		l.Opened(l.now, list)
		l.step()
	}
}

func (l *lair) hear(m wire.PeerMessage) {
	l.Handle(l.now, relayUDP, m)
	l.step()
}

// wait lets time go by.
func (l *lair) wait(d time.Duration) {
	end := l.now.Add(d)
	l.step()
	for !l.out.Next.IsZero() && !l.out.Next.After(end) {
		l.now = l.out.Next
		l.step()
	}
	l.now = end
}

// lastSaid is the last message of an attempt.
func (l *lair) lastSaid() wire.Attempt {
	if len(l.said) == 0 {
		return wire.Attempt{}
	}
	return l.said[len(l.said)-1]
}

func proposal(number uint32, way wire.AttemptWay, leaderOpens bool) wire.Attempt {
	return wire.Attempt{Kind: wire.Propose, Way: way, LeaderOpens: leaderOpens, Session: 9, Other: 7, Number: number, Next: 6666, Step: 1}
}

func TestNobodyIsSprayedWhoIsNotAttested(t *testing.T) {
	for _, c := range []struct {
		name string
		m    wire.Attempt
		own  weft.NAT
	}{
		{"as prober", proposal(1, wire.Spray, true), randomADF},
		{"as opener", proposal(1, wire.Spray, false), randomADF},
		{"in a prediction", proposal(1, wire.Predict, false), inOrderNAT},
	} {
		// The peer announces a stranger's address, and says things from there by frames of its own that it sends
		// with his source address.
		stranger := direct("198.51.100.66:7777")
		l := newLair(t, false, c.own, weft.NAT{})
		l.Handle(l.now, stranger, wire.Ping{Path: 3, Tx: wire.TxID{1}})
		l.hear(c.m)
		l.wait(10 * time.Second)
		if len(l.sprayed) != 0 || l.lastSaid().Result != wire.Declined || l.most != 0 {
			t.Errorf("%s, nothing attested: %d packets, %d sockets, said %+v", c.name, len(l.sprayed), l.most, l.lastSaid())
		}

		l = newLair(t, false, c.own, weft.NAT{}, attested)
		l.Handle(l.now, stranger, wire.Ping{Path: 3, Tx: wire.TxID{1}})
		l.hear(c.m)
		if c.m.Way == wire.Predict {
			begin := c.m
			begin.Kind = wire.Begin
			l.wait(50 * time.Millisecond)
			l.hear(begin)
		}
		l.wait(10 * time.Second)
		if len(l.sprayed) == 0 {
			t.Errorf("%s: nothing was sent to the attested address", c.name)
		}
		for _, x := range l.sprayed {
			if x.Via.Addr.Addr() != attested {
				t.Fatalf("%s: sprays %v", c.name, x.Via)
			}
		}
	}
}

func TestAddressesThatMeanNothingOutsideAreNoTargets(t *testing.T) {
	var list []netip.Addr
	for _, s := range []string{"0.0.0.0", "127.0.0.1", "169.254.1.1", "224.0.0.1", "255.255.255.255", "::1", "2001:db8::1", "fe80::1"} {
		list = append(list, netip.MustParseAddr(s))
	}
	l := newLair(t, false, randomADF, weft.NAT{}, append(list, netip.Addr{})...)
	l.hear(proposal(1, wire.Spray, true))
	l.wait(5 * time.Second)
	if len(l.sprayed) != 0 || l.lastSaid().Result != wire.Declined {
		t.Errorf("%d packets, said %+v", len(l.sprayed), l.lastSaid())
	}
	l = newLair(t, false, randomADF, weft.NAT{}, netip.MustParseAddr("::ffff:203.0.113.9"))
	l.hear(proposal(1, wire.Spray, true))
	l.wait(time.Second)
	if len(l.sprayed) == 0 || l.sprayed[0].Via.Addr.Addr() != attested {
		t.Errorf("the mapped form of an address is another: %d packets", len(l.sprayed))
	}
}

func TestAFrameOfAnAttemptThatIsRepeatedLaterBringsNothingBack(t *testing.T) {
	l := newLair(t, false, randomADF, weft.NAT{}, attested)
	old := proposal(5, wire.Spray, true)
	l.hear(old)
	l.wait(300 * time.Millisecond)
	end := old
	end.Kind, end.Result = wire.End, wire.Exhausted
	l.hear(end)
	sent := len(l.sprayed)
	if sent == 0 {
		t.Fatal("the attempt did not run")
	}
	for _, m := range []wire.Attempt{
		old, end,
		proposal(4, wire.Spray, true),
		{Kind: wire.Begin, Way: wire.Spray, LeaderOpens: true, Session: 9, Other: 7, Number: 5},
		{Kind: wire.Agree, Way: wire.Spray, LeaderOpens: true, Session: 9, Other: 7, Number: 5},
		{Kind: wire.Propose, Way: wire.Spray, LeaderOpens: true, Session: 8, Other: 7, Number: 99}, // of an earlier session of the peer's
		{Kind: wire.Propose, Way: wire.Spray, LeaderOpens: true, Session: 9, Other: 6, Number: 99}, // and of ours
		{Kind: wire.Propose, Way: wire.Spray, LeaderOpens: true, Session: 7, Other: 9, Number: 99}, // reflected
	} {
		l.hear(m)
		l.wait(2 * time.Second)
		if len(l.sprayed) != sent || l.attempts.run != nil {
			t.Fatalf("%+v has %d packets sent", m, len(l.sprayed)-sent)
		}
	}
	l.hear(proposal(6, wire.Spray, true))
	l.wait(time.Second)
	if len(l.sprayed) == sent {
		t.Error("the next attempt is refused as well")
	}
}

func TestWhoLeadsIsNotLed(t *testing.T) {
	l := newLair(t, true, inOrderNAT, weft.NAT{Mapping: weft.AddressAndPortDependentMapping,
		Filtering: weft.AddressAndPortDependentFiltering, Allocation: weft.RandomAllocation}, attested)
	m := proposal(1, wire.Spray, true)
	l.hear(m)
	m.Session, m.Other = 7, 9
	l.hear(m)
	m.Kind = wire.Agree // to what was never proposed
	l.hear(m)
	l.wait(10 * time.Second)
	if len(l.sprayed) != 0 || l.most != 0 || len(l.said) != 0 {
		t.Errorf("%d packets, %d sockets, said %v", len(l.sprayed), l.most, l.said)
	}
}

func TestOnlyTheRightAnswerFromTheRightPlaceCounts(t *testing.T) {
	l := newLair(t, false, randomADF, weft.NAT{}, attested)
	l.hear(proposal(1, wire.Spray, true))
	l.wait(100 * time.Millisecond)
	probe := l.sprayed[3]
	tx := probe.Message.(wire.Ping).Tx
	if tx == l.sprayed[4].Message.(wire.Ping).Tx {
		t.Fatal("two probes have one transaction")
	}
	for _, forged := range []struct {
		via weft.Via
		m   wire.Pong
	}{
		{weft.DirectVia(0, netip.AddrPortFrom(attested, 4)), wire.Pong{Tx: tx}},                                   // another port
		{weft.DirectVia(0, addr("198.51.100.66:7777")), wire.Pong{Tx: tx}},                                        // a stranger
		{weft.DirectVia(3, probe.Via.Addr), wire.Pong{Tx: tx}},                                                    // another link
		{probe.Via, wire.Pong{Tx: wire.TxID{1, 2, 3}}},                                                            // another transaction
		{relayUDP, wire.Pong{Tx: tx}},                                                                             // by the relay
		{weft.DirectVia(FirstSpare+5, probe.Via.Addr), wire.Pong{Tx: tx}},                                         // a socket that was never opened
		{probe.Via, wire.Pong{Path: 1, Tx: tx}}, {probe.Via, wire.Pong{Path: 60000, Observed: addr("1.1.1.1:1")}}, // another path
	} {
		l.Handle(l.now, forged.via, forged.m)
	}
	for _, p := range l.pairs {
		if p.probe.asked && p.via.Method == weft.Direct || p.via.Method == weft.Direct && p.health.state != Untested {
			t.Errorf("%v is asked for or valid by a forged answer", p.via)
		}
	}
	if l.find(weft.DirectVia(FirstSpare+5, probe.Via.Addr)) != nil {
		t.Error("there is a pair of a socket that was never opened")
	}
	l.Handle(l.now, probe.Via, wire.Pong{Tx: tx})
	if p := l.find(probe.Via); p == nil || !p.probe.asked || p.health.state != Untested {
		t.Errorf("the right answer has %+v asked", p)
	}
}

// TestAPeerThatProposesWithoutEndIsHeldToItsAllowance has the peer propose what costs most, one after the other.
func TestAPeerThatProposesWithoutEndIsHeldToItsAllowance(t *testing.T) {
	for _, between := range []time.Duration{20 * time.Millisecond, 3 * time.Second, 30 * time.Second} {
		l := newLair(t, false, inOrderNAT, weft.NAT{}, attested)
		n, opened := uint32(0), 0
		const minutes = 20
		for begin := l.now; l.now.Sub(begin) < minutes*time.Minute; {
			n++
			before := l.last
			switch n % 3 {
			case 0:
				l.hear(proposal(n, wire.Spray, true))
			case 1:
				l.hear(proposal(n, wire.Spray, false))
			case 2:
				l.hear(proposal(n, wire.Predict, false))
				l.hear(wire.Attempt{Kind: wire.Begin, Way: wire.Predict, Session: 9, Other: 7, Number: n, Next: 5000, Step: 3})
			}
			l.wait(between)
			opened += int((l.last - before) & 0x7FFF)
		}
		limit := int(Allowance + minutes*time.Minute/allowanceEvery)
		if len(l.sprayed)+opened > limit {
			t.Errorf("proposed every %v: %d packets and %d sockets in %d minutes, want at most %d of both", between, len(l.sprayed), opened, minutes, limit)
		}
		for at, n := range l.perSecond {
			if n > DefaultRate+DefaultRate/20 {
				t.Errorf("%d packets in second %d", n, at)
			}
		}
		if l.wait(2 * time.Minute); len(l.sockets) != 0 {
			t.Errorf("%d sockets are left open", len(l.sockets))
		}
		if len(l.attempts.history) > keptAttempts {
			t.Errorf("%d attempts are remembered", len(l.attempts.history))
		}
	}
}

func TestSocketsAreGivenBackHoweverItEnds(t *testing.T) {
	for _, c := range []struct {
		name string
		end  func(l *lair)
	}{
		{"the peer says that it is over", func(l *lair) {
			l.hear(wire.Attempt{Kind: wire.End, Way: wire.Spray, Session: 9, Other: 7, Number: 1, Result: wire.Exhausted})
		}},
		{"the peer says that it has a path, and has none", func(l *lair) {
			l.hear(wire.Attempt{Kind: wire.End, Way: wire.Spray, Session: 9, Other: 7, Number: 1, Result: wire.Found})
			l.wait(10 * time.Second)
		}},
		{"nothing more is heard", func(l *lair) { l.wait(attemptFor + time.Second) }},
		{"the network changes", func(l *lair) { l.NetworkChanged(l.now); l.step() }},
		{"the peer begins anew", func(l *lair) { l.hear(wire.Candidates{Session: 10, Seq: 1}) }},
		{"the peer proposes something else", func(l *lair) { l.hear(proposal(2, wire.Spray, true)); l.wait(10 * time.Second) }},
		{"the peer is no longer in the network", func(l *lair) {
			l.Leave(l.now, &l.out)
			for _, link := range l.out.Close {
				delete(l.sockets, link)
			}
			if len(l.out.Send) == 0 {
				l.t.Error("the peer is not told")
			}
		}},
		{"a direct path is found", func(l *lair) {
			via := weft.DirectVia(0, netip.AddrPortFrom(attested, 999))
			l.Handle(l.now, via, wire.Ping{Path: 5})
			l.step()
			p := pings(l.sent, via)[0]
			l.now = l.now.Add(time.Millisecond)
			l.Handle(l.now, via, wire.Pong{Path: p.Path, Tx: p.Tx})
			l.step()
			if !l.onDirect() || l.attempts.history[0].Result != "a direct path was found" || !l.attempts.history[0].Found {
				l.t.Errorf("on %v, %+v", l.Selected(), l.attempts.history)
			}
		}},
		{"sockets come too late", func(l *lair) {
			l.hear(wire.Attempt{Kind: wire.End, Way: wire.Spray, Session: 9, Other: 7, Number: 1, Result: wire.Exhausted})
			l.sockets[FirstSpare] = true
			l.Opened(l.now, []Opened{{Link: FirstSpare}})
			l.step()
		}},
	} {
		l := newLair(t, false, randomADF, weft.NAT{}, attested)
		l.hear(proposal(1, wire.Spray, false))
		l.wait(100 * time.Millisecond)
		if len(l.sockets) != MaxSockets {
			t.Fatalf("%s: %d sockets are open", c.name, len(l.sockets))
		}
		if c.end(l); len(l.sockets) != 0 {
			t.Errorf("%s: %d sockets are left", c.name, len(l.sockets))
		}
		if l.cfg.Budget.holder != nil {
			t.Errorf("%s: the lease is left", c.name)
		}
	}
}

func TestWithoutSocketsTheAttemptIsDeclined(t *testing.T) {
	l := newLair(t, false, randomADF, weft.NAT{}, attested)
	l.silent = true
	l.hear(proposal(1, wire.Spray, false))
	l.Opened(l.now, nil)
	l.step()
	if l.lastSaid().Result != wire.Declined || l.attempts.run != nil {
		t.Errorf("said %+v", l.lastSaid())
	}
	// Nor are more kept than were asked for.
	l.hear(proposal(3, wire.Spray, false))
	var list []Opened
	for i := range 2 * MaxSockets {
		list = append(list, Opened{Link: FirstSpare + weft.LinkID(i)})
		l.sockets[list[i].Link] = true
	}
	l.Opened(l.now, append(list, Opened{Link: 3}, list[0])) // and one of ours, and one twice
	if l.step(); len(l.sockets) != MaxSockets || len(l.attempts.spares) != MaxSockets {
		t.Errorf("%d sockets are kept, %d of them known", len(l.sockets), len(l.attempts.spares))
	}
	l.NetworkChanged(l.now)
	l.step()

	// And a caller that never answers does not keep it waiting.
	l.hear(proposal(4, wire.Spray, false))
	l.wait(socketsWithin + time.Millisecond)
	if l.attempts.run != nil || l.cfg.Budget.holder != nil {
		t.Error("it waits for sockets for ever")
	}
}

// TestAPeerThatDoesNotAnswerIsAskedEverMoreRarelyAndThenNoMore has the peer be there and say nothing.
func TestAPeerThatDoesNotAnswerIsAskedEverMoreRarelyAndThenNoMore(t *testing.T) {
	l := newLair(t, true, randomADF, inOrderNAT, attested)
	proposed := func() (n int) {
		for _, m := range l.said {
			if m.Kind == wire.Propose {
				n++
			}
		}
		return n
	}
	var perDay [3]int
	for day := range perDay {
		before := proposed()
		for range 24 * 60 { // it keeps saying something, so that it counts as there
			l.wait(time.Minute)
			l.Handle(l.now, relayUDP, wire.Ping{Path: 9})
		}
		perDay[day] = proposed() - before
	}
	if perDay[0] == 0 || perDay[0] > maxPasses*SprayTries*sayTries || perDay[1] != 0 || perDay[2] != 0 {
		t.Errorf("proposed %v times a day", perDay)
	}
	if n := len(l.sprayed); n > maxPasses*SprayTries*MaxSockets {
		t.Errorf("%d packets for a peer that says nothing", n)
	}
	if len(l.sockets) != 0 {
		t.Errorf("%d sockets are left", len(l.sockets))
	}
	l.mute = true // nor anything else any more
	l.wait(2 * presentFor)
	l.SetNAT(l.now, inOrderNAT)
	if l.wait(5 * time.Second); proposed() != perDay[0] {
		t.Error("it is tried while it is not there")
	}
	l.mute = false
	l.Handle(l.now, relayUDP, wire.Ping{Path: 9})
	l.SetNAT(l.now, randomADF) // something changed
	if l.wait(5 * time.Second); proposed() == perDay[0] {
		t.Error("it is not tried again with another NAT")
	}
}

func TestWhatTurnsOutToBeHopelessIsStopped(t *testing.T) {
	l := newLair(t, true, weft.NAT{}, weft.NAT{}, attested)
	l.wait(plainFirst + 200*time.Millisecond)
	if l.attempts.run == nil || len(l.sprayed) == 0 {
		t.Fatal("of unknown NATs, nothing is tried")
	}
	hopeless := inOrderNAT
	hopeless.Allocation, hopeless.Step = weft.RandomAllocation, 0
	l.SetNAT(l.now, hopeless)
	l.hear(wire.Candidates{Session: 9, Seq: 2, NAT: hopeless})
	n := len(l.sprayed)
	if l.attempts.run != nil {
		t.Error("it goes on")
	}
	if l.wait(time.Hour); l.attempts.run != nil || len(l.sprayed) > n+1 || len(l.sockets) != 0 {
		t.Errorf("%d more packets, %d sockets", len(l.sprayed)-n, len(l.sockets))
	}
}

func TestLostMessagesOfAnAttemptAreRepeated(t *testing.T) {
	l := newLair(t, false, randomADF, weft.NAT{}, attested)
	count := func(kind wire.AttemptKind) (n int) {
		for _, m := range l.said {
			if m.Kind == kind {
				n++
			}
		}
		return n
	}
	l.hear(proposal(1, wire.Spray, true))
	l.wait(time.Second)
	if count(wire.Agree) != 1 {
		t.Errorf("agreed %d times to one proposal", count(wire.Agree))
	}
	l.hear(proposal(1, wire.Spray, true)) // the answer was lost
	if count(wire.Agree) != 2 {
		t.Errorf("agreed %d times to a repeated proposal", count(wire.Agree))
	}
	l.wait(attemptFor)
	if count(wire.End) != 1 {
		t.Fatalf("said %d times that it is over", count(wire.End))
	}
	l.hear(proposal(1, wire.Spray, true)) // the end was lost
	if count(wire.End) != 2 {
		t.Errorf("said %d times that it is over, to one that did not hear it", count(wire.End))
	}
}
