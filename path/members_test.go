package path

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"weft"
	"weft/wire"
)

// linked is a rig of a node with two links, of which both bond, and whose peer says that it has these addresses.
func linked(t *testing.T, theirs ...weft.Candidate) *rig {
	r := newRig(t)
	r.SetBonding(r.now, true)
	r.SetLocal(r.now, []weft.Candidate{
		{Addr: addr("192.168.1.2:41641"), Kind: weft.Host, Link: 1}, {Addr: addr("[2001:db8:1::2]:41641"), Kind: weft.Host, Link: 1},
		{Addr: addr("192.168.9.2:41641"), Kind: weft.Host, Link: 2}, {Addr: addr("[2001:db8:9::2]:41641"), Kind: weft.Host, Link: 2},
	})
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: 1, List: theirs})
	r.Want(r.now)
	return r
}

func at(link weft.LinkID, a string) weft.Candidate {
	return weft.Candidate{Addr: addr(a), Kind: weft.ServerReflexive, Link: link}
}

func way(link weft.LinkID, a string) weft.Via { return weft.DirectVia(link, addr(a)) }

// vias are the members as the agent told them last.
func (r *rig) vias() (list []weft.Via) {
	for _, m := range r.bond.list {
		list = append(list, m.Via)
	}
	return list
}

func (r *rig) needMembers(want ...weft.Via) {
	r.t.Helper()
	got := r.vias()
	if len(got) != len(want) || slices.ContainsFunc(want, func(v weft.Via) bool { return !slices.Contains(got, v) }) {
		r.t.Fatalf("members are %v, want %v", got, want)
	}
}

const ms = time.Millisecond

func TestTheFasterFamilyCarriesBetweenTwoLinks(t *testing.T) {
	r := linked(t, at(0, "203.0.113.1:5"), at(0, "[2001:db8:7::1]:5"))
	v4, v6 := "203.0.113.1:5", "[2001:db8:7::1]:5"
	r.play(3*time.Second, map[weft.Via]time.Duration{way(1, v4): 20 * ms, way(1, v6): 50 * ms, way(2, v4): 60 * ms, way(2, v6): 25 * ms})
	r.needMembers(way(1, v4), way(2, v6))
	// One of the two works by IPv6 alone, the other by IPv4 alone.
	r = linked(t, at(0, v4), at(0, v6))
	r.play(3*time.Second, map[weft.Via]time.Duration{way(1, v6): 50 * ms, way(2, v4): 60 * ms})
	r.needMembers(way(1, v6), way(2, v4))
	// What it goes by is left, and the other family works.
	r.Silent(r.now, way(1, v6), "it is silent")
	r.play(300*ms, map[weft.Via]time.Duration{way(2, v4): 60 * ms})
	r.needMembers(way(2, v4))
	r.play(300*ms, map[weft.Via]time.Duration{way(1, v4): 20 * ms, way(2, v4): 60 * ms})
	if slices.Contains(r.vias(), way(1, v6)) {
		t.Error("a silent way is a member")
	}
}

func TestARelayStandsInWhereALinkHasNoDirectWay(t *testing.T) {
	r := linked(t, at(0, "203.0.113.1:5"))
	second := weft.Via{Method: weft.RelayUDP, Relay: 2}
	r.SetRelays(r.now, []weft.Via{relayUDP, second, relayTCP})
	r.SetRelayLinks(r.now, []wire.RelayLink{{Relay: 1, Link: 1}, {Relay: 2, Link: 2}})
	one := way(1, "203.0.113.1:5")
	rtts := map[weft.Via]time.Duration{one: 20 * ms, relayUDP: 30 * ms, second: 40 * ms, relayTCP: 30 * ms}
	r.play(4*time.Second, rtts)
	r.needMembers(one, second)
	// No direct way at all: several relays by several links, of those by one link the faster.
	delete(rtts, one)
	r.Silent(r.now, one, "it is silent")
	third := weft.Via{Method: weft.RelayUDP, Relay: 3}
	rtts[third] = 10 * ms
	r.SetRelays(r.now, []weft.Via{relayUDP, second, third})
	r.SetRelayLinks(r.now, []wire.RelayLink{{Relay: 1, Link: 1}, {Relay: 2, Link: 2}, {Relay: 3, Link: 1}})
	r.play(time.Second, rtts)
	r.needMembers(second) // the direct way may be back in a moment
	r.play(4*time.Second, rtts)
	r.needMembers(third, second)
	// The direct way is back: the relay goes.
	rtts[one] = 20 * ms
	r.play(5*time.Second, rtts)
	r.needMembers(one, second)
}

func TestALinkWithAHigherMetricIsAMemberThatWaits(t *testing.T) {
	r := linked(t, at(1, "203.0.113.1:5"), at(2, "198.51.100.7:5"))
	r.SetMetrics(r.now, map[weft.LinkID]int{1: 10, 2: 20})
	cheap, dear := way(1, "203.0.113.1:5"), way(2, "198.51.100.7:5")
	rtts := map[weft.Via]time.Duration{cheap: 20 * ms, dear: 10 * ms, way(1, "198.51.100.7:5"): 20 * ms, way(2, "203.0.113.1:5"): 10 * ms}
	r.play(3*time.Second, rtts)
	// Both of the peer's links are used by the one that is cheap; the other stands by.
	if got := r.bond.list; len(got) != 3 || got[0].Metric != 10 || got[1].Metric != 10 || got[2].Metric != 20 || got[0].Via.Link != 1 || got[1].Via.Link != 1 || got[2].Via.Link != 2 {
		t.Fatalf("members are %+v", got)
	}
	one := linked(t, at(0, "203.0.113.1:5"))
	one.SetMetrics(one.now, map[weft.LinkID]int{1: 20, 2: 10})
	one.play(3*time.Second, rtts)
	if got := one.bond.list; len(got) != 2 || got[0] != (Member{Via: way(2, "203.0.113.1:5"), Metric: 10, RTT: 10 * ms}) || got[1].Metric != 20 {
		t.Fatalf("members are %+v", got)
	}
	// The peer's say so, too: whichever is dearer counts.
	r.handle(relayUDP, wire.Uplinks{Session: 9, Seq: 5, Metrics: []wire.LinkMetric{{Link: 1, Metric: 30}}})
	r.play(5*time.Second, rtts)
	for _, m := range r.bond.list {
		_, theirs, _ := r.ends(r.find(m.Via))
		if want := map[weft.LinkID]int{1: 10, 2: 20}[m.Via.Link]; theirs == 1 && m.Metric != 30 || theirs == 2 && m.Metric != want {
			t.Errorf("metric is %+v to link %d", m, theirs)
		}
	}
	// And this node's are told.
	r.SetMetrics(r.now, map[weft.LinkID]int{1: 10, 2: 70000})
	r.play(3*time.Second, rtts)
	i := slices.IndexFunc(r.sent, func(x Transmit) bool { _, ok := x.Message.(wire.Uplinks); return ok })
	if i < 0 || !slices.Equal(r.sent[i].Message.(wire.Uplinks).Metrics, []wire.LinkMetric{{Link: 1, Metric: 10}, {Link: 2, Metric: wire.MaxMetric}}) {
		t.Errorf("told is nothing of it: %v", r.sent)
	}
}

func TestAnAddressThatNobodyToldOfIsOfTheLinkThatItsAnswersSay(t *testing.T) {
	r := linked(t, at(1, "203.0.113.1:5"), at(2, "198.51.100.7:5"))
	seen := way(2, "198.51.100.7:9999") // a NAT that gives another port for every destination
	r.handle(seen, wire.Ping{Path: 3})
	rtts := map[weft.Via]time.Duration{way(1, "203.0.113.1:5"): 20 * ms, seen: 20 * ms}
	r.play(2*time.Second, rtts)
	r.needMembers(way(1, "203.0.113.1:5"))
	x := pings(r.handle(seen, wire.Ping{Path: 3}), seen)
	for range 20 {
		if len(x) > 0 {
			break
		}
		r.now = r.now.Add(refreshAfter)
		x = pings(r.handle(seen, wire.Ping{Path: 3}), seen)
	}
	if len(x) == 0 {
		t.Fatal("it is not asked")
	}
	r.Want(r.now)
	r.handle(seen, wire.Pong{Path: x[0].Path, Tx: x[0].Tx, Link: 2})
	r.play(time.Second, rtts)
	r.needMembers(way(1, "203.0.113.1:5"), seen)
}

func TestWhatThePeerTakesBackIsLeftUntilItAnswers(t *testing.T) {
	host := func(link weft.LinkID, a string) weft.Candidate {
		return weft.Candidate{Addr: addr(a), Kind: weft.Host, Link: link}
	}
	one, two := "203.0.113.1:5", "198.51.100.7:5"
	r := linked(t, host(1, one), host(2, two))
	rtts := map[weft.Via]time.Duration{way(1, one): 20 * ms, way(2, one): 21 * ms, way(1, two): 22 * ms, way(2, two): 20 * ms}
	r.play(3*time.Second, rtts)
	r.needMembers(way(1, one), way(2, two))
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: 2, List: []weft.Candidate{host(1, one)}})
	r.needMembers(way(1, one), way(2, one))
	if c := r.bond.changes[len(r.bond.changes)-2]; c.In || c.Via != way(2, two) || !strings.Contains(c.Reason, "its link is gone") {
		t.Errorf("the reason is %+v", c)
	}
	// A link whose address seen from outside goes for a moment is not gone.
	r = linked(t, host(1, one), host(2, "10.0.0.7:5"), at(2, two))
	r.play(3*time.Second, rtts)
	r.needMembers(way(1, one), way(2, two))
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: 2, List: []weft.Candidate{host(1, one), host(2, "10.0.0.7:5")}})
	r.needMembers(way(1, one), way(2, two))
}

// TestAPeerThatStartsAnewWithTheSameAddressesIsBonded has a node of one link meet a peer of two that begins anew, and has the ports that it had.
func TestAPeerThatStartsAnewWithTheSameAddressesIsBonded(t *testing.T) {
	r := newRig(t)
	r.SetBonding(r.now, true)
	theirs := []weft.Candidate{at(1, "203.0.113.1:5"), at(2, "198.51.100.7:5")}
	one, two := way(0, "203.0.113.1:5"), way(0, "198.51.100.7:5")
	rtts := map[weft.Via]time.Duration{one: 20 * ms, two: 20 * ms}
	for session := uint32(9); session < 12; session++ {
		r.handle(relayUDP, wire.Candidates{Session: session, Seq: 1, List: theirs})
		// And says by what it differs, so that it is looked which ways are to be members.
		r.handle(relayUDP, wire.Uplinks{Session: session, Seq: 1, Metrics: []wire.LinkMetric{{Link: 2, Metric: uint16(session)}}})
		r.Want(r.now)
		r.play(3*time.Second, rtts)
		r.needMembers(one, two)
	}
}

func TestACableBetweenTwoMachinesIsALinkOfItsOwn(t *testing.T) {
	r := linked(t, at(0, "203.0.113.1:5"), weft.Candidate{Addr: addr("10.77.0.2:5"), Kind: weft.Host})
	r.SetLocal(r.now, append(slices.Clone(r.local), weft.Candidate{Addr: addr("10.77.0.1:41641"), Kind: weft.Host}))
	cable := way(0, "10.77.0.2:5")
	rtts := map[weft.Via]time.Duration{
		way(1, "203.0.113.1:5"): 20 * ms, way(2, "203.0.113.1:5"): 20 * ms, cable: ms, way(0, "203.0.113.1:5"): 20 * ms,
	}
	r.play(3*time.Second, rtts)
	r.needMembers(way(1, "203.0.113.1:5"), way(2, "203.0.113.1:5"), cable)
}

func TestAWayThatAnswersPingsStaysAndOneThatDoesNotIsLeftAfterTwo(t *testing.T) {
	r := linked(t, at(0, "203.0.113.1:5"), at(0, "203.0.113.9:5"))
	one, two, other := way(1, "203.0.113.1:5"), way(2, "203.0.113.1:5"), way(2, "203.0.113.9:5")
	rtts := map[weft.Via]time.Duration{one: 20 * ms, two: 20 * ms, other: 25 * ms}
	r.play(5*time.Second, rtts)
	r.needMembers(one, two)
	r.Silent(r.now, two, "it is late")
	r.play(time.Second, rtts)
	r.needMembers(one, two)
	delete(rtts, two)
	delete(rtts, other)
	r.Silent(r.now, two, "it is late")
	r.Silent(r.now, two, "it is still late")
	r.play(110*ms, rtts)
	r.needMembers(one, two)
	if n := len(pings(r.sent, two)); n != 2 {
		t.Errorf("%d pings in 100 ms", n)
	}
	r.play(100*ms, rtts)
	r.needMembers(one)
	if c := r.bond.changes[len(r.bond.changes)-1]; c.In || c.Reason != "it is late" {
		t.Errorf("the reason is %+v", c)
	}
	// One that is late by itself does not count: this machine was asleep.
	r = linked(t, at(0, "203.0.113.1:5"))
	r.play(5*time.Second, rtts)
	rtts[two] = 20 * ms
	r.play(10*time.Second, rtts)
	r.needMembers(one, two)
	r.Silent(r.now, two, "it is late")
	sent := r.poll()
	r.now = r.now.Add(time.Second)
	r.poll()
	r.needMembers(one, two)
	r.answer(sent, two, 0)
	r.play(time.Second, rtts)
	r.needMembers(one, two)
}

// TestWhatIsFoundAnewByALinkThatFlapsHasToHoldStillToo has a link fail again and again. Whatever else answers by it in between, for the first time, fails with
// it a moment later.
func TestWhatIsFoundAnewByALinkThatFlapsHasToHoldStillToo(t *testing.T) {
	r := linked(t, at(0, "203.0.113.1:5"))
	r.SetTCP(r.now, TCP{Allowed: true})
	one, two, late := way(1, "203.0.113.1:5"), way(2, "203.0.113.1:5"), weft.TCPVia(2, addr("203.0.113.1:5"))
	rtts := map[weft.Via]time.Duration{one: 20 * ms, two: 20 * ms}
	r.play(5*time.Second, rtts)
	r.needMembers(one, two)
	flap := func() {
		clear(rtts)
		rtts[one] = 20 * ms
		r.Want(r.now)
		r.Silent(r.now, two, "it is silent")
		r.play(300*ms, rtts)
		rtts[two], rtts[late] = 20*ms, 20*ms
		r.play(300*ms, rtts)
	}
	for range 6 {
		flap()
	}
	r.up(Connection{Via: late, Dialed: true})
	for range 10 {
		r.needMembers(one)
		flap()
	}
	if p := r.find(late); p == nil || p.health.state == Untested {
		t.Fatal("it has not answered")
	}
	for range 6 { // it holds still
		r.Want(r.now)
		r.play(500*ms, rtts)
	}
	if got := r.vias(); len(got) != 2 || got[1].Link != 2 {
		t.Errorf("members are %v", got)
	}
}

func TestAWayThatIsSilentIsAskedOftenAsLongAsDataFlows(t *testing.T) {
	r := linked(t, at(0, "203.0.113.1:5"))
	one, two := way(1, "203.0.113.1:5"), way(2, "203.0.113.1:5")
	r.play(3*time.Second, map[weft.Via]time.Duration{one: 20 * ms, two: 20 * ms})
	r.Silent(r.now, two, "it is silent")
	asked := func(d time.Duration, busy bool) (n int) {
		for end := r.now.Add(d); r.now.Before(end); {
			if busy {
				r.Want(r.now)
			}
			r.play(time.Second, map[weft.Via]time.Duration{one: 20 * ms})
			n += len(pings(r.sent, two))
		}
		return n
	}
	if n := asked(10*time.Second, true); n < 70 || n > 100 {
		t.Errorf("%d pings in 10 s", n)
	}
	asked(time.Minute, true)
	if n := asked(10*time.Second, true); n < 25 || n > 45 {
		t.Errorf("%d pings in 10 s after a minute", n)
	}
	asked(20*time.Second, false)
	if n := asked(30*time.Second, false); n > 10 {
		t.Errorf("%d pings in 30 s while nobody sends", n)
	}
}

func TestBondingSwitchedOffHasNoMembers(t *testing.T) {
	r := linked(t, at(0, "203.0.113.1:5"))
	one, two := way(1, "203.0.113.1:5"), way(2, "203.0.113.1:5")
	rtts := map[weft.Via]time.Duration{one: 20 * ms, two: 20 * ms}
	r.play(3*time.Second, rtts)
	r.needMembers(one, two)
	r.SetBonding(r.now, false)
	r.poll()
	if len(r.out.Bond) != 0 || !r.out.BondChanged {
		t.Errorf("members are %v", r.out.Bond)
	}
	r.Silent(r.now, one, "it is silent")
	if r.find(one).standing.out != (time.Time{}) {
		t.Error("what was silent for a bond that is no more is held against a way")
	}
	r.SetBonding(r.now, true)
	r.poll()
	r.needMembers(one, two)
}

func TestManyLinksOfBothSidesFindEachOther(t *testing.T) {
	r := newRig(t)
	r.SetBonding(r.now, true)
	var ours, theirs []weft.Candidate
	rtts := map[weft.Via]time.Duration{}
	for i := range 8 {
		l := weft.LinkID(i + 1)
		ours = append(ours, weft.Candidate{Addr: addrOf([4]byte{10, 0, byte(i), 2}, 41641), Kind: weft.Host, Link: l})
		outside := addrOf([4]byte{203, 0, 113, byte(i + 1)}, 5)
		theirs = append(theirs, weft.Candidate{Addr: addrOf([4]byte{10, 1, byte(i), 2}, 41641), Kind: weft.Host, Link: l},
			weft.Candidate{Addr: netip.AddrPortFrom(netip.MustParseAddr("2001:db8::").Next(), uint16(100+i)), Kind: weft.Host, Link: l},
			weft.Candidate{Addr: outside, Kind: weft.ServerReflexive, Link: l})
		for k := range 8 {
			rtts[weft.DirectVia(weft.LinkID(k+1), outside)] = time.Duration(10+(i+3*k)%8) * ms
		}
	}
	r.SetLocal(r.now, ours)
	r.handle(relayUDP, wire.Candidates{Session: 9, Seq: 1, List: theirs})
	r.Want(r.now)
	r.play(5*time.Second, rtts)
	l, f := map[weft.LinkID]bool{}, map[weft.LinkID]bool{}
	for _, m := range r.bond.list {
		a, b, _ := r.ends(r.find(m.Via))
		l[a], f[b] = true, true
	}
	if len(r.bond.list) != 8 || len(l) != 8 || len(f) != 8 {
		t.Errorf("members are %v", r.vias())
	}
}

func TestAMemberThatSeemedSlowIsAskedAgain(t *testing.T) {
	r := linked(t, at(0, "203.0.113.1:5"))
	one, two := way(1, "203.0.113.1:5"), way(2, "203.0.113.1:5")
	rtts := map[weft.Via]time.Duration{one: 20 * ms}
	r.play(2*time.Second, rtts)
	// The neighbour is found, the radio is awake: the pings that waited for it are answered all at once, and late.
	was := r.now
	rtts[two] = 500 * ms
	for len(r.bond.list) < 2 && r.now.Sub(was) < 5*time.Second {
		r.play(10*ms, rtts)
	}
	r.needMembers(one, two)
	rtts[two] = 30 * ms
	r.play(time.Second, rtts)
	for _, m := range r.bond.list {
		if m.Via == two && m.RTT != 30*ms {
			t.Errorf("a second after it joined, a member is said to take %v, and takes %v", m.RTT, rtts[two])
		}
	}
	// Then it is as any other.
	r.play(10*time.Second, rtts)
	if n := len(pings(r.sent, two)); n > 2 {
		t.Errorf("it is asked %d times in 10 s", n)
	}
}
