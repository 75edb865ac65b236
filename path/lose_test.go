package path

import (
	"net/netip"
	"testing"
	"time"

	"weft"
)

// settled is a world of two homes that talk and have been direct for a few seconds.
func settled(t *testing.T, seed uint64) *world {
	w := homes(t, seed, portRestricted, portRestricted)
	w.bootBoth()
	w.run(200 * time.Millisecond)
	w.talkBoth(10 * time.Minute)
	w.until(3*time.Second, "both direct", w.bothDirect)
	w.run(time.Duration(2000+w.rng.IntN(3000)) * time.Millisecond)
	for _, h := range w.hosts {
		h.switches = nil
	}
	return w
}

// needOutageBelow checks how long no data came through, of that sent in the span from a time on.
func (w *world) needOutageBelow(limit time.Duration, from time.Time, span time.Duration) {
	w.t.Helper()
	for _, h := range w.hosts {
		if out := h.flow.outage(from, from.Add(span)); out > limit {
			w.failf("data of %s was out for %v, want at most %v", h.name, out, limit)
		}
	}
}

// needSwitches checks that no side switched more than so many times.
func (w *world) needSwitches(limit int) {
	w.t.Helper()
	for _, h := range w.hosts {
		if len(h.switches) > limit {
			w.failf("%s switched %d times, want at most %d", h.name, len(h.switches), limit)
		}
	}
}

func TestWhenTheDirectPathDiesDataGoesOnByTheRelayWithinASecond(t *testing.T) {
	forSeeds(t, 25, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		cut, span := w.now, time.Duration(5+w.rng.IntN(25))*time.Second
		w.a.fault.direct, w.b.fault.direct = true, true
		w.run(span)
		w.needOutageBelow(time.Second, cut, span)
		w.needSwitches(1)
		w.a.fault, w.b.fault = fault{}, fault{}
		w.until(6*time.Second, "both direct again", w.bothDirect)
		w.run(3 * time.Second)
		w.needSwitches(3)
	})
}

func TestWhenOneDirectionDiesDataGoesOnInBoth(t *testing.T) {
	forSeeds(t, 25, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		cut := w.now
		w.hosts[w.rng.IntN(2)].fault.direct = true
		w.run(12 * time.Second)
		w.needOutageBelow(time.Second, cut, 12*time.Second)
		w.needSwitches(1)
		w.a.fault, w.b.fault = fault{}, fault{}
		w.until(6*time.Second, "both direct again", w.bothDirect)
	})
}

func TestAPathThatAnswersPingsAndLosesDataIsLeftWithinASecond(t *testing.T) {
	forSeeds(t, 8, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		cut := w.now
		one := w.hosts[w.rng.IntN(2)]
		one.fault.data = true
		w.run(90 * time.Second)
		w.needOutageBelow(time.Second, cut, 4*time.Second)
		// It is tried again ever more rarely: after 5, 10, 20, 40 s.
		w.needSwitches(10)
		if n := len(w.other(one).switches); n > 2 {
			w.failf("%s, whose data gets through, switched %d times", w.other(one).name, n)
		}
		if n := one.flow.lostBetween(cut, cut.Add(90*time.Second)); n > 6*25 {
			w.failf("%d packets were lost in the hole", n)
		}
		one.fault.data = false
		w.until(200*time.Second, "both direct again", w.bothDirect)
		w.run(20 * time.Second)
		if !w.bothDirect() {
			w.failf("it did not stay direct")
		}
	})
}

func TestAPathThatLosesLongPacketsAloneIsNotTriedWithDataAgain(t *testing.T) {
	forSeeds(t, 6, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		cut := w.now
		one := w.hosts[w.rng.IntN(2)]
		one.fault.maxBytes = 1000
		w.run(2 * time.Minute)
		w.needOutageBelow(time.Second, cut, 4*time.Second)
		// Pings as long as the data find out that the hole is still there.
		if len(one.switches) != 1 {
			w.failf("%s switched %d times", one.name, len(one.switches))
		}
		one.fault.maxBytes = 0
		w.until(2*time.Minute, "both direct again", w.bothDirect)
	})
}

func TestWithoutUDPDataGoesOnByTheStreamAndReturns(t *testing.T) {
	forSeeds(t, 25, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		cut, span := w.now, time.Duration(10+w.rng.IntN(20))*time.Second
		w.hosts[w.rng.IntN(2)].fault.udp = true
		w.run(span)
		w.needOutageBelow(1500*time.Millisecond, cut, span)
		w.needSwitches(3)
		if !w.both(weft.RelayStream)() {
			w.failf("not by the stream")
		}
		w.a.fault, w.b.fault = fault{}, fault{}
		w.until(5*time.Second, "both direct again", w.bothDirect)
		w.run(3 * time.Second)
		w.needSwitches(6)
	})
}

func TestTwoSymmetricHomesMoveFromUDPToTheStreamAndBack(t *testing.T) {
	forSeeds(t, 15, func(t *testing.T, seed uint64) {
		w := homes(t, seed, symmetric, symmetric)
		w.bootBoth()
		w.talkBoth(2 * time.Minute)
		w.run(8 * time.Second)
		cut := w.now
		w.a.fault.relayUDP = true
		w.run(20 * time.Second)
		w.needOutageBelow(1200*time.Millisecond, cut, 20*time.Second) // the round trip is 200 ms at most
		if !w.both(weft.RelayStream)() {
			w.failf("not by the stream")
		}
		w.a.fault.relayUDP = false
		w.until(6*time.Second, "both by the relay's UDP again", w.both(weft.RelayUDP))
		w.run(20 * time.Second)
		w.needSwitches(4)
	})
}

func TestAPeerWithoutUDPIsReachedByWhicheverTransportWorks(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.b.fault.udp, w.b.noUDP = true, true
		w.bootBoth()
		w.talkBoth(10 * time.Minute)
		w.run(8 * time.Second)
		if w.a.agent.Selected() != relayUDP || w.b.agent.Selected() != relayTCP {
			w.failf("by %v and %v", w.a.agent.Selected(), w.b.agent.Selected())
		}
		cut := w.now
		w.a.fault.relayUDP = true
		w.run(20 * time.Second)
		w.needOutageBelow(1500*time.Millisecond, cut, 20*time.Second) // the round trip is 200 ms at most
		w.a.fault.relayUDP = false
		w.until(6*time.Second, "by the relay's UDP again", func() bool { return w.a.agent.Selected() == relayUDP })
		// Both of its relayed paths arrive at the peer by one stream, which counts them together. Now one of
		// them answers pings and loses data.
		cut = w.now
		w.a.switches, w.a.fault.relayData = nil, true
		w.run(2 * time.Minute)
		w.needOutageBelow(1500*time.Millisecond, cut, 4*time.Second)
		if n := len(w.a.switches); n > 10 {
			w.failf("a switched %d times", n)
		}
	})
}

func TestSparseDataFindsADeadPathToo(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.bootBoth()
		w.a.talk(time.Second, 100, w.now.Add(5*time.Minute))
		w.until(4*time.Second, "both direct", w.bothDirect)
		w.run(10 * time.Second)
		for _, h := range w.hosts {
			h.switches = nil
		}
		w.a.fault.direct, w.b.fault.direct = true, true
		w.run(10 * time.Second)
		if v := w.a.agent.Selected(); v != relayUDP {
			w.failf("a sends by %v", v)
		}
		if n := w.a.flow.lostBetween(w.now.Add(-10*time.Second), w.now.Add(-time.Second)); n > 2 {
			w.failf("%d of 9 packets were lost", n)
		}
		w.needSwitches(1)
	})
}

func TestASparseFlowLeavesABlackHoleByItsThirdPacket(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.bootBoth()
		w.a.talk(time.Second, 100, w.now.Add(5*time.Minute))
		w.until(4*time.Second, "both direct", w.bothDirect)
		w.run(10 * time.Second)
		w.a.fault.data = true
		cut := w.now
		w.run(20 * time.Second)
		if n := w.a.flow.lostBetween(cut, cut.Add(5*time.Second)); n > 5 {
			w.failf("%d packets were lost", n)
		}
		if w.a.flow.received[len(w.a.flow.received)-2].IsZero() {
			w.failf("data does not get through")
		}
	})
}

func TestAPeerThatIsGoneIsNotFlappedAbout(t *testing.T) {
	forSeeds(t, 8, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		w.b.halt()
		if w.rng.IntN(2) == 0 {
			w.a.agent.SetOnline(w.now, false)
			w.a.poll()
		}
		w.run(30 * time.Second)
		if m := w.a.agent.Selected().Method; !m.Relayed() {
			w.failf("a sends by %v to nobody", m)
		}
		if len(w.a.switches) > 3 {
			w.failf("a switched %d times", len(w.a.switches))
		}
		w.run(90 * time.Second) // the rest has been waited out
		was, sent := len(w.a.switches), w.a.sent
		w.run(5 * time.Minute)
		if len(w.a.switches) != was {
			w.failf("a still switches, to a peer that is gone")
		}
		if n := w.a.sent - sent; n > 300 {
			w.failf("a sent %d messages in 5 minutes to a peer that is gone", n)
		}
		w.b.boot()
		w.until(3*time.Second, "both direct once the peer is back", w.bothDirect)
	})
}

func TestAPeerThatRestartsIsDirectAgainSoon(t *testing.T) {
	forSeeds(t, 25, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		w.b.halt()
		w.run(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
		if w.rng.IntN(2) == 0 {
			w.b.inside = addr("10.0.2.2:50001") // it takes another port
		}
		w.b.boot()
		back := w.now
		w.until(3*time.Second, "both direct again", w.bothDirect)
		w.run(6 * time.Second)
		w.needOutageBelow(1200*time.Millisecond, back, 5*time.Second)
		if !w.bothDirect() {
			w.failf("it did not stay direct")
		}
	})
}

func TestANATThatForgetsCostsASecondOrTwo(t *testing.T) {
	forSeeds(t, 25, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		cut := w.now
		w.hosts[w.rng.IntN(2)].nat.Forget()
		w.run(8 * time.Second)
		w.needOutageBelow(1500*time.Millisecond, cut, 7*time.Second)
		w.until(6*time.Second, "both direct again, once the relay has seen the new address", w.bothDirect)
	})
}

func TestANodeThatMovesToAnotherNetworkTakesItsFlowsAlong(t *testing.T) {
	forSeeds(t, 25, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		cut := w.now
		moving := w.hosts[w.rng.IntN(2)]
		elsewhere := portRestricted.config()
		elsewhere.Public = []netip.Addr{addr("203.0.113.77:1").Addr()}
		w.behind(moving, elsewhere)
		moving.inside = addr("172.16.9.9:41641")
		moving.bound, _ = moving.out(moving.inside, relayAddr)
		w.run(time.Duration(w.rng.IntN(100)) * time.Millisecond)
		moving.agent.SetLocal(w.now, moving.candidates())
		moving.agent.NetworkChanged(w.now)
		moving.poll()
		w.until(2*time.Second, "both direct by the new address", func() bool {
			return w.bothDirect() && w.other(moving).agent.Selected().Addr.Addr() == elsewhere.Public[0]
		})
		w.run(5 * time.Second)
		w.needOutageBelow(1200*time.Millisecond, cut, 4*time.Second)
	})
}

// TestWhateverHappensItEndsDirectAndCalm lets faults come and go at random.
func TestWhateverHappensItEndsDirectAndCalm(t *testing.T) {
	forSeeds(t, 5, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		for range 15 {
			h := w.hosts[w.rng.IntN(2)]
			switch w.rng.IntN(9) {
			case 0:
				h.fault.udp = !h.fault.udp
			case 1:
				h.fault.direct = !h.fault.direct
			case 2:
				h.fault.data = !h.fault.data
			case 3:
				h.fault.relayUDP = !h.fault.relayUDP
			case 4:
				h.nat.Forget()
			case 5:
				w.loss = float64(w.rng.IntN(3)) * 0.1
			case 6:
				h.halt()
				w.run(time.Duration(w.rng.IntN(2000)) * time.Millisecond)
				h.boot()
			case 7:
				h.agent.NetworkChanged(w.now)
				h.poll()
			case 8:
				h.noUDP = !h.noUDP
				h.agent.SetRelays(w.now, h.vias())
				h.poll()
			}
			w.run(time.Duration(w.rng.IntN(8000)) * time.Millisecond)
		}
		w.loss = 0
		for _, h := range w.hosts {
			h.fault = fault{}
			if h.noUDP {
				h.noUDP = false
				h.agent.SetRelays(w.now, h.vias())
			}
			h.agent.SetLocal(w.now, h.candidates())
			h.poll()
		}
		w.talkBoth(20 * time.Minute)
		w.until(10*time.Minute, "both direct after it is all over", w.bothDirect)
		w.run(2 * time.Minute)
		for _, h := range w.hosts {
			h.switches, h.polls = nil, 0
		}
		w.run(5 * time.Minute)
		w.needSwitches(0)
		for _, h := range w.hosts {
			if h.polls > 5*60*60 {
				w.failf("%s was polled %d times in 5 minutes", h.name, h.polls)
			}
		}
	})
}

func TestTheSameSeedGivesTheSameStory(t *testing.T) {
	story := func(seed uint64) []string {
		w := settled(t, seed)
		w.loss = 0.1
		w.run(10 * time.Second)
		w.a.fault.direct = true
		w.run(20 * time.Second)
		w.note("%d %d %d %d", w.a.sent, w.b.sent, w.a.flow.lostBetween(w.start, w.now), w.b.polls)
		for _, s := range w.a.agent.Snapshot(w.now).Pairs {
			w.note("%+v", s)
		}
		return w.trace
	}
	for seed := range uint64(5) {
		one, two := story(seed), story(seed)
		for i := range max(len(one), len(two)) {
			if i >= len(one) || i >= len(two) || one[i] != two[i] {
				t.Fatalf("seed %d told another story in line %d of %d and %d", seed, i, len(one), len(two))
			}
		}
	}
}
