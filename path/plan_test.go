package path

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/lab/vnet"
	"weft/wire"
)

// TestThePlanSaysWhatTheOracleSays compares the plan, which knows what two nodes tell each other, with the oracle, which
// knows the NATs.
func TestThePlanSaysWhatTheOracleSays(t *testing.T) {
	for _, allocations := range [][2]weft.Allocation{
		{weft.RandomAllocation, weft.RandomAllocation}, {weft.SequentialAllocation, weft.SequentialAllocation},
		{weft.SequentialAllocation, weft.RandomAllocation}, {weft.PreservingAllocation, weft.SequentialAllocation},
	} {
		for _, ka := range allNATs() {
			for _, kb := range allNATs() {
				a, b := ka.config(), kb.config()
				a.Public, b.Public = append(a.Public, addrPort(1).Addr()), append(b.Public, addrPort(2).Addr())
				a.Allocation, b.Allocation = allocations[0], allocations[1]
				way, why := vnet.Possible(vnet.Side{NATs: []vnet.NATConfig{a}}, vnet.Side{NATs: []vnet.NATConfig{b}})
				p := planFor(a.NAT(), b.NAT())
				got := vnet.Never
				switch {
				case p.plain:
					got = vnet.Plain
				case slices.ContainsFunc(p.steps, func(s step) bool { return s.way == wire.Spray }):
					got = vnet.Spray
				case len(p.steps) > 0:
					got = vnet.Predict
				}
				if got != way || p.plain != p.sure {
					t.Errorf("%v x %v, %v: the plan says %v, sure %v, the oracle %v: %s", ka, kb, allocations, got, p.sure, way, why)
				}
			}
		}
	}
}

func someNAT(t *rapid.T, name string) weft.NAT {
	n := weft.NAT{
		Mapping:    weft.Mapping(rapid.IntRange(0, int(weft.AddressAndPortDependentMapping)).Draw(t, name+" mapping")),
		Filtering:  weft.Filtering(rapid.IntRange(0, int(weft.AddressAndPortDependentFiltering)).Draw(t, name+" filtering")),
		Allocation: weft.Allocation(rapid.IntRange(0, int(weft.RandomAllocation)).Draw(t, name+" allocation")),
	}
	if n.Allocation == weft.SequentialAllocation {
		n.Step = rapid.Int16().Draw(t, name+" step")
	}
	return n
}

func TestAPlanIsTheSameWhoeverLeadsAndShort(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := someNAT(t, "a"), someNAT(t, "b")
		p, q := planFor(a, b), planFor(b, a)
		count := func(p plan, way wire.AttemptWay) (n int) {
			for _, s := range p.steps {
				if s.way == way {
					n++
				}
			}
			return n
		}
		if p.plain != q.plain || p.sure != q.sure || len(p.steps) != len(q.steps) || count(p, wire.Spray) != count(q, wire.Spray) {
			t.Fatalf("%v x %v: %+v, and %+v the other way round", a, b, p, q)
		}
		if n := count(p, wire.Spray); n > SprayTries {
			t.Fatalf("%d sprays", n)
		}
		if n := count(p, wire.Predict); n > PredictRounds || n > 0 && (!predictable(a) || !predictable(b)) {
			t.Fatalf("%d predictions between %v and %v", n, a, b)
		}
		for i, s := range p.steps {
			if i > 0 && i < 2 && s.chance > p.steps[i-1].chance {
				t.Fatalf("the likelier comes later: %+v", p.steps)
			}
		}
		if len(p.steps) == 0 && !p.plain && hopeless(a, b) == "" {
			t.Fatal("nobody says why nothing is tried")
		}
	})
}

func TestAProberWhoseAddressIsKnownIsPreferredToAFilterThatIsKind(t *testing.T) {
	restricted := natKind{weft.EndpointIndependentMapping, weft.AddressDependentFiltering}.config().NAT()
	hardest := natKind{weft.AddressDependentMapping, weft.AddressAndPortDependentFiltering}.config().NAT()
	for _, c := range []struct {
		leader, follower weft.NAT
		leaderOpens      bool
	}{{restricted, hardest, false}, {hardest, restricted, true}} {
		p := planFor(c.leader, c.follower)
		if len(p.steps) != SprayTries || p.steps[0].leaderOpens != c.leaderOpens || p.steps[SprayTries-2].leaderOpens != c.leaderOpens ||
			p.steps[SprayTries-1].leaderOpens == c.leaderOpens {
			t.Errorf("%v leads %v: %+v", c.leader, c.follower, p.steps)
		}
	}
	both := natKind{weft.AddressDependentMapping, weft.AddressDependentFiltering}.config().NAT()
	if p := planFor(both, both); len(p.steps) != SprayTries || p.steps[0].leaderOpens == p.steps[1].leaderOpens || p.steps[0] != p.steps[2] {
		t.Errorf("they do not take turns: %+v", p.steps)
	}
}

func TestASprayWaitsForWhatItWouldDisturbAndNotForWhatItWouldNot(t *testing.T) {
	nat := func(m weft.Mapping, f weft.Filtering, a weft.Allocation) weft.NAT {
		return weft.NAT{Mapping: m, Filtering: f, Allocation: a}
	}
	const apdm, eim = weft.AddressAndPortDependentMapping, weft.EndpointIndependentMapping
	for _, c := range []struct {
		name string
		a, b weft.NAT
		want time.Duration
	}{
		{"nothing is known", weft.NAT{}, weft.NAT{}, plainFirst},
		{"one is unkind, and its ports are unknown", nat(apdm, 0, 0), nat(eim, 0, weft.RandomAllocation), plainFirst},
		{"one is unkind, and the filters are unknown", nat(apdm, 0, weft.RandomAllocation), nat(eim, 0, weft.RandomAllocation), plainShortly},
		{"one is unkind, the other a firewall", nat(apdm, 0, weft.RandomAllocation), nat(weft.NoNAT, weft.AddressAndPortDependentFiltering, 0), plainShortly},
		{"both may be kind", nat(0, weft.AddressAndPortDependentFiltering, weft.RandomAllocation), nat(eim, 0, weft.RandomAllocation), plainFirst},
		{"plain punching should work", nat(apdm, weft.EndpointIndependentFiltering, weft.RandomAllocation), nat(eim, weft.AddressDependentFiltering, weft.RandomAllocation), plainFirst},
	} {
		if p := planFor(c.a, c.b); p.patience() != c.want || !p.plain {
			t.Errorf("%s: %v, plain %v; want %v", c.name, p.patience(), p.plain, c.want)
		}
	}
}

func TestWhatWasKnownOfANATIsKeptUntilItIsAnother(t *testing.T) {
	l := newLair(t, false, inOrderNAT, weft.NAT{})
	for _, c := range []struct{ set, want weft.NAT }{
		{weft.NAT{Mapping: inOrderNAT.Mapping}, inOrderNAT},
		{weft.NAT{Mapping: inOrderNAT.Mapping, Allocation: weft.RandomAllocation},
			weft.NAT{Mapping: inOrderNAT.Mapping, Filtering: inOrderNAT.Filtering, Allocation: weft.RandomAllocation}},
		{weft.NAT{Mapping: weft.AddressDependentMapping}, weft.NAT{Mapping: weft.AddressDependentMapping}},
		{weft.NAT{}, weft.NAT{}},
		{weft.NAT{Mapping: weft.AddressDependentMapping}, weft.NAT{Mapping: weft.AddressDependentMapping}},
	} {
		if l.SetNAT(l.now, c.set); l.Snapshot(l.now).OwnNAT != c.want {
			t.Errorf("after %v: %v, want %v", c.set, l.Snapshot(l.now).OwnNAT, c.want)
		}
	}
}

func TestEveryPortIsGuessedOnceTheToldOnesFirst(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		named := rapid.SliceOfN(rapid.Uint16(), 0, 64).Draw(t, "named")
		next, step := rapid.Uint16().Draw(t, "next"), rapid.Int16().Draw(t, "step")
		g := newGuesser(named, next, step)
		fill := seededRand(rapid.Uint64().Draw(t, "seed"))
		var first []uint16
		for _, p := range named {
			if p >= firstPort && !slices.Contains(first, p) {
				first = append(first, p)
			}
		}
		if next >= firstPort && step != 0 {
			for k := range 20 {
				if p := inOrder(next, int(step), k); !slices.Contains(first, p) {
					first = append(first, p)
				}
			}
		}
		seen := map[uint16]bool{}
		for i := range 3000 {
			p := g.port(fill)
			if p < firstPort || seen[p] {
				t.Fatalf("guess %d is port %d, tried before: %v", i, p, seen[p])
			}
			if i < len(first) && p != first[i] {
				t.Fatalf("guess %d is %d, want the told %d", i, p, first[i])
			}
			seen[p] = true
		}
	})
	g := newGuesser(nil, 0, 0)
	fill, n := seededRand(1), 0
	for g.port(fill) != 0 {
		n++
	}
	if n != lastPort-firstPort+1 {
		t.Errorf("%d ports are guessed before there are none left", n)
	}
}

func TestPortsInOrderGoRound(t *testing.T) {
	for _, c := range []struct {
		from    uint16
		step, n int
		want    uint16
	}{{65535, 1, 1, 1024}, {1024, -1, 1, 65535}, {65534, 4, 1, 1026}, {1024, -2, 2, 65532}, {5000, 3, 10, 5030}, {5000, 64512, 3, 5000}} {
		if got := inOrder(c.from, c.step, c.n); got != c.want {
			t.Errorf("%d steps of %d from %d: %d, want %d", c.n, c.step, c.from, got, c.want)
		}
	}
}

func TestManyPeersStayWithinOneBudgetAndEachHasItsTurn(t *testing.T) {
	t.Parallel()
	const peers = 12
	budget := NewBudget(0)
	var nodes []*lair
	for range peers {
		l := newLair(t, false, randomADF, weft.NAT{}, attested)
		l.cfg.Budget = budget
		nodes = append(nodes, l)
	}
	now := nodes[0].now
	perSlot := map[int64]int{} // of 100 ms
	done := map[int]time.Duration{}
	for begin := now; now.Sub(begin) < peers*6*time.Second && len(done) < peers; now = now.Add(5 * time.Millisecond) {
		spraying := 0
		for i, l := range nodes {
			l.now = now
			before := len(l.sprayed)
			if elapsed := now.Sub(begin); l.attempts.run == nil && elapsed%(200*time.Millisecond) == 0 {
				// Until it is taken, and then for more: nobody gets a second turn while others wait for their first.
				l.hear(proposal(uint32(elapsed/(200*time.Millisecond))+1, wire.Spray, true))
			}
			l.step()
			perSlot[now.UnixMilli()/100] += len(l.sprayed) - before
			if l.attempts.run != nil {
				spraying++
			}
			if len(l.sprayed) == MaxProbes && l.attempts.run == nil && done[i] == 0 {
				done[i] = now.Sub(begin)
			}
		}
		if spraying > 1 {
			t.Fatalf("%d peers are sprayed at once", spraying)
		}
	}
	if len(done) != peers {
		t.Errorf("%d of %d peers had their turn: %v", len(done), peers, done)
	}
	most := 0
	for _, n := range perSlot {
		most = max(most, n)
	}
	if limit := DefaultRate/10 + int(budgetBurst*DefaultRate/time.Second) + 1; most > limit {
		t.Errorf("%d packets in 100 ms, want at most %d", most, limit)
	}
}

func TestABudgetIsWhatItSays(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.IntRange(1, 5000).Draw(t, "rate")
		b := NewBudget(rate)
		now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
		begin, n := now, 0
		for range 200 {
			now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "pause")) * time.Millisecond)
			for {
				ok, next := b.take(now)
				if !ok {
					if !next.After(now) {
						t.Fatal("the next packet was due before")
					}
					break
				}
				n++
			}
		}
		if limit := int(float64(rate)*(now.Sub(begin)+budgetBurst).Seconds()) + 1; n > limit {
			t.Fatalf("%d packets in %v at %d a second", n, now.Sub(begin), rate)
		}
	})
}

func TestAttemptsAreExplained(t *testing.T) {
	l := newLair(t, false, inOrderNAT, weft.NAT{Mapping: weft.AddressDependentMapping, Filtering: weft.AddressAndPortDependentFiltering,
		Allocation: weft.RandomAllocation}, attested)
	l.wait(10 * time.Second)
	s := l.Snapshot(l.now)
	want := "both NATs give every peer another port and let in that very port of the peer's alone, so that each side would " +
		"have to know the other's port before there is one; the peer's chooses ports at random"
	if s.Blocked != want || s.OwnNAT != inOrderNAT || s.PeerNAT.Mapping != weft.AddressDependentMapping {
		t.Errorf("%q, %v, %v", s.Blocked, s.OwnNAT, s.PeerNAT)
	}
	if len(s.Advice) != 2 || len(s.Attempts) != 1 || s.Attempts[0].Way != "plain" || s.Attempts[0].Packets == 0 {
		t.Errorf("%q, %+v", s.Advice, s.Attempts)
	}

	l = newLair(t, false, randomADF, randomADF, attested)
	l.hear(proposal(1, wire.Spray, true))
	l.wait(time.Second)
	s = l.Snapshot(l.now)
	if n := len(s.Attempts); n != 2 || !s.Attempts[1].Running || s.Attempts[1].Role != "prober" || s.Attempts[1].Packets < 400 ||
		s.Attempts[1].Result != fmt.Sprintf("%d of 2048 ports tried", s.Attempts[1].Packets) || s.Blocked != "an attempt is under way" {
		t.Errorf("%+v, %q", s.Attempts, s.Blocked)
	}
	l.wait(10 * time.Second)
	s = l.Snapshot(l.now)
	if a := s.Attempts[1]; a.Running || a.Packets != MaxProbes || a.Result != "nothing got through" {
		t.Errorf("%+v", s.Attempts)
	}
	if want := "the two NATs need more than plain punching, and one attempt failed: nothing got through"; s.Blocked != want {
		t.Errorf("%q", s.Blocked)
	}

	l = newLair(t, false, randomADF, randomADF)
	l.wait(10 * time.Second)
	if s = l.Snapshot(l.now); s.Blocked != "no relay has seen the peer over UDP, so there is no address to send to" {
		t.Errorf("%q", s.Blocked)
	}
}
