package path

import (
	"testing"
	"time"

	"weft"
)

var (
	portRestricted = natKind{weft.EndpointIndependentMapping, weft.AddressAndPortDependentFiltering}
	symmetric      = natKind{weft.AddressAndPortDependentMapping, weft.AddressAndPortDependentFiltering}
)

// homes is a world of two homes behind NATs, both talking.
func homes(t *testing.T, seed uint64, a, b natKind) *world {
	w := newWorld(t, seed)
	w.behind(w.a, a.config())
	w.behind(w.b, b.config())
	return w
}

// talkBoth makes both sides send 25 packets a second for a time.
func (w *world) talkBoth(d time.Duration) {
	for _, h := range w.hosts {
		h.talk(40*time.Millisecond, 1200, w.now.Add(d))
	}
}

// bootBoth starts both, in an order and at a distance that the seed decides.
func (w *world) bootBoth() {
	first, second := w.a, w.b
	if w.rng.IntN(2) == 0 {
		first, second = w.b, w.a
	}
	first.boot()
	w.run(time.Duration(w.rng.IntN(400)) * time.Millisecond)
	second.boot()
}

func TestTwoPortRestrictedHomesBecomeDirectWithinASecond(t *testing.T) {
	forSeeds(t, 300, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.a.eager, w.b.eager = true, true
		w.bootBoth()
		w.until(time.Second, "both direct", w.bothDirect)
	})
}

func TestLossDelaysButDoesNotPreventADirectPath(t *testing.T) {
	forSeeds(t, 200, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.a.eager, w.b.eager = true, true
		w.loss, w.relayLoss = 0.05, 0.05
		w.bootBoth()
		w.until(3*time.Second, "both direct at 5 % loss", w.bothDirect)
	})
}

func TestItDoesNotMatterWhoStartsOrWhen(t *testing.T) {
	forSeeds(t, 40, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.a.eager, w.b.eager = true, true
		w.a.boot()
		w.run(time.Duration(w.rng.IntN(600)) * time.Second)
		w.b.boot()
		w.until(time.Second, "both direct after the other has come", w.bothDirect)
	})
}

func TestTrafficAloneFindsADirectPathAndLosesNothing(t *testing.T) {
	forSeeds(t, 50, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.bootBoth()
		begin := w.now
		one := w.hosts[w.rng.IntN(2)]
		one.talk(5*time.Millisecond, 1200, w.now.Add(4*time.Second))
		if w.rng.IntN(2) == 0 {
			w.other(one).talk(7*time.Millisecond, 100, w.now.Add(4*time.Second))
		}
		w.until(2500*time.Millisecond, "both direct, by data alone", w.bothDirect)
		w.run(5 * time.Second)
		for _, h := range w.hosts {
			if f := &h.flow; f.noWay+f.strange+f.lostBetween(begin, w.now) != 0 {
				w.failf("%s lost %d of %d packets on the way to a direct path (%d without a way, %d from unknown addresses)",
					h.name, f.lostBetween(begin, w.now), f.sent, f.noWay, f.strange)
			}
		}
	})
}

func TestTwoSymmetricHomesStayRelayedAndAreTriedEverMoreRarely(t *testing.T) {
	forSeeds(t, 2, func(t *testing.T, seed uint64) {
		w := homes(t, seed, symmetric, symmetric)
		w.bootBoth()
		for _, h := range w.hosts {
			h.talk(4*time.Second, 200, w.now.Add(6*time.Hour))
		}
		// Each hour costs as much as the last half, and all of them less than some seconds of browsing.
		for i, limit := range []int{700, 200, 120, 100, 80} {
			before := [2]int{directPings(w.a), directPings(w.b)}
			w.run(time.Hour)
			for k, h := range w.hosts {
				if n := directPings(h) - before[k]; n > limit {
					w.failf("%s sent %d direct pings in hour %d, want at most %d", h.name, n, i+1, limit)
				}
			}
		}
		if w.a.agent.Selected() != relayUDP || w.b.agent.Selected() != relayUDP {
			w.failf("by %v and %v", w.a.agent.Selected(), w.b.agent.Selected())
		}
		for _, h := range w.hosts {
			if len(h.switches) > 3 {
				w.failf("%s switched %d times", h.name, len(h.switches))
			}
		}
	})
}

func TestAFirewallThatOpensLateIsNoticed(t *testing.T) {
	forSeeds(t, 4, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.a.fault.direct = true
		w.bootBoth()
		w.a.talk(200*time.Millisecond, 1200, w.now.Add(time.Hour))
		shut := time.Duration(10+w.rng.IntN(600)) * time.Second
		w.run(shut)
		w.a.fault.direct = false
		if took := w.until(shut/2+10*time.Second, "both direct", w.bothDirect); took > shut/2+10*time.Second {
			w.failf("took %v", took)
		}
	})
}

// directPings counts a host's pings by direct ways.
func directPings(h *host) (n int) {
	for _, p := range h.agent.pairs {
		if p.via.Method == weft.Direct {
			n += p.probe.sent
		}
	}
	return n
}

func TestInOneLANTheLANIsUsed(t *testing.T) {
	forSeeds(t, 50, func(t *testing.T, seed uint64) {
		w := newWorld(t, seed)
		shared := natKind{weft.EndpointIndependentMapping, weft.EndpointIndependentFiltering}.config()
		shared.Hairpin = true
		w.behind(w.a, shared)
		w.b.nat = w.a.nat
		w.a.inside, w.b.inside = addr("192.168.7.2:41641"), addr("192.168.7.3:41641")
		// The NAT turns packets round faster than the LAN answers: the first answer is by the longer way.
		w.oneWay, w.jitter, w.lan = 100*time.Microsecond, 0, time.Millisecond
		w.a.eager, w.b.eager = true, true
		w.bootBoth()
		w.until(time.Second, "both direct", w.bothDirect)
		w.run(10 * time.Second)
		for _, h := range w.hosts {
			if v := h.agent.Selected(); v.Addr != w.other(h).inside {
				w.failf("%s sends by %v, not over the LAN", h.name, v)
			}
			if len(h.switches) > 3 {
				w.failf("%s switched %d times", h.name, len(h.switches))
			}
		}
	})
}

func TestAPublicNodeIsReachedFromBehindAnyNAT(t *testing.T) {
	forSeeds(t, 5, func(t *testing.T, seed uint64) {
		for _, k := range allNATs() {
			w := newWorld(t, seed)
			w.behind(w.a, k.config())
			w.b.inside = addr("203.0.113.200:41641")
			w.a.eager = w.rng.IntN(2) == 0
			w.b.eager = !w.a.eager
			w.bootBoth()
			w.until(1200*time.Millisecond, "both direct", w.bothDirect)
		}
	})
}
