package path

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"weft"
	"weft/wire"
)

// narrow is two homes between which direct packets are at most so long, on the underlay.
func narrow(t *testing.T, seed uint64, mtu int) *world {
	w := homes(t, seed, portRestricted, portRestricted)
	w.a.mtu, w.b.mtu = mtu, mtu
	return w
}

// knows reports whether both sides send so much, directly.
func (w *world) knows(size int) func() bool {
	return func() bool {
		return w.bothDirect() && w.a.sizes[w.a.agent.Selected()] == size && w.b.sizes[w.b.agent.Selected()] == size
	}
}

func TestFullPacketsAreSentWhereTheyFit(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := narrow(t, seed, AssumedMTU)
		w.a.eager, w.b.eager = true, true
		w.bootBoth()
		w.until(5*time.Second, "both know", w.knows(AssumedMTU))
		w.run(5 * time.Second)
		for _, h := range w.hosts {
			if n := h.whole; n > 2 {
				w.failf("%s sent %d long probes where nobody talks and everything fits", h.name, n)
			}
		}
	})
}

// A path of 1,400 bytes carries 1,400 less IPv4 (20), UDP (8) and WireGuard (32), in units of 16.
func TestANarrowPathIsMeasuredInASecondAndLosesNoData(t *testing.T) {
	for _, c := range []struct{ underlay, want int }{
		{1500, 1408}, {1466, 1392}, {1400, 1328}, {1388, 1328}, {1387, 1312}, {1280, 1216}, {700, 640}, {576, 512},
	} {
		t.Run(fmt.Sprint(c.underlay), func(t *testing.T) {
			forSeeds(t, 8, func(t *testing.T, seed uint64) {
				w := narrow(t, seed, AssumedMTU)
				for _, h := range w.hosts {
					h.fault.whole = c.underlay - 28 // what is not to be whole is fragmented
				}
				w.bootBoth()
				w.run(200 * time.Millisecond)
				w.talkBoth(10 * time.Minute)
				w.until(4*time.Second, "both direct", w.bothDirect)
				took := w.until(5*time.Second, "both know", w.knows(c.want))
				if rtt := 2 * (w.oneWay + w.jitter); took > 500*time.Millisecond+12*max(minTimeout, rtt+80*time.Millisecond) {
					w.failf("it took %v", took)
				}
				// Hosts would go by a length that is too short for ten minutes.
				for _, h := range w.hosts {
					if h.shortest < c.want {
						w.failf("%s said %d first, and %d fit", h.name, h.shortest, c.want)
					}
				}
				from := w.now
				w.run(2 * time.Minute)
				for _, h := range w.hosts {
					if n := h.flow.lostBetween(from, w.now.Add(-time.Second)); n > 0 {
						w.failf("%s lost %d packets", h.name, n)
					}
				}
				if !w.knows(c.want)() {
					w.failf("another length is known now")
				}
			})
		})
	}
}

func TestJumboFramesAreFoundWhereBothSidesHaveThem(t *testing.T) {
	for _, c := range []struct{ a, b, underlay, want int }{
		{8904, 8904, 9000, 8904}, {8904, 8904, 8964, 8896}, {8904, 8904, 1500, 1440}, {8904, 1504, 9000, 1504}, {65456, 65456, 9000, 8928},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			forSeeds(t, 8, func(t *testing.T, seed uint64) {
				w := narrow(t, seed, 0)
				w.a.mtu, w.b.mtu = c.a, c.b
				for _, h := range w.hosts {
					h.fault.whole = c.underlay - 28
				}
				w.bootBoth()
				w.run(200 * time.Millisecond)
				w.talkBoth(time.Minute)
				w.until(10*time.Second, "both know", w.knows(c.want))
				w.run(5 * time.Second)
				if !w.knows(c.want)() {
					w.failf("another length is known now")
				}
			})
		})
	}
}

// What this machine's own interface cannot send is known without waiting.
func TestAnInterfaceThatIsTooNarrowIsFoundAtOnce(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := narrow(t, seed, AssumedMTU)
		for _, h := range w.hosts {
			h.fault.card = 1280 - 28
		}
		w.prompt = true
		w.bootBoth()
		w.run(200 * time.Millisecond)
		w.talkBoth(time.Minute)
		w.until(4*time.Second, "both direct", w.bothDirect)
		took := w.until(5*time.Second, "both know", w.knows(1216))
		if rtt := 2 * (w.oneWay + w.jitter); took > 2*rtt+50*time.Millisecond {
			w.failf("it took %v, and a round trip %v", took, rtt)
		}
	})
}

// A network that loses long packets without a word, of which the kernel would make fragments if it knew.
func TestABlackHoleForLongPacketsIsPassedByShorterOnes(t *testing.T) {
	forSeeds(t, 30, func(t *testing.T, seed uint64) {
		w := narrow(t, seed, AssumedMTU)
		w.bootBoth()
		w.run(200 * time.Millisecond)
		for _, h := range w.hosts {
			h.talk(20*time.Millisecond, AssumedMTU+32, w.now.Add(20*time.Minute))
		}
		w.until(5*time.Second, "both know", w.knows(AssumedMTU))
		w.run(time.Duration(w.rng.IntN(8000)) * time.Millisecond)
		cut := w.now
		one := w.hosts[w.rng.IntN(2)]
		one.fault.maxBytes = 1300 - 28
		w.until(4*time.Second, "both direct, and one of them by shorter packets", func() bool {
			return w.bothDirect() && one.sizes[one.agent.Selected()] == 1232
		})
		w.run(20 * time.Second)
		w.needOutageBelow(1500*time.Millisecond, cut, 20*time.Second)
		if n := len(one.switches); n > 6 {
			w.failf("%s switched %d times", one.name, n)
		}
		one.fault.maxBytes = 0
		w.until(mtuRaise+time.Minute, "full packets again", w.knows(AssumedMTU))
	})
}

func TestARouteThatNarrowsUnderMixedTrafficIsMeasuredAgain(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := narrow(t, seed, AssumedMTU)
		w.bootBoth()
		w.run(200 * time.Millisecond)
		w.talkBoth(5 * time.Minute) // of 1,200 bytes: these go on
		w.until(5*time.Second, "both know", w.knows(AssumedMTU))
		w.run(10 * time.Second)
		switches := len(w.a.switches) + len(w.b.switches)
		w.a.fault.maxBytes, w.b.fault.maxBytes = 1400-28, 1400-28
		w.until(mtuConfirm+4*time.Second, "both know", w.knows(1328))
		w.run(20 * time.Second)
		if n := len(w.a.switches) + len(w.b.switches); n != switches {
			w.failf("%d switches", n-switches)
		}
	})
}

func TestLostProbesAreNoReasonForShortPackets(t *testing.T) {
	forSeeds(t, 20, func(t *testing.T, seed uint64) {
		w := narrow(t, seed, AssumedMTU)
		w.loss = 0.05
		w.bootBoth()
		w.run(200 * time.Millisecond)
		w.talkBoth(5 * time.Minute)
		w.until(10*time.Second, "both direct", w.bothDirect)
		short, samples := 0, 0
		for range 240 {
			w.run(time.Second)
			for _, h := range w.hosts {
				if via := h.agent.Selected(); via.Method == weft.Direct {
					samples++
					if h.sizes[via] < AssumedMTU {
						short++
					}
				}
			}
		}
		if short*50 > samples {
			w.failf("shorter packets in %d of %d seconds", short, samples)
		}
	})
}

// A machine without a processor for a while loses probes of every length. What was not answered then is asked again soon.
func TestWhatWasLostInABadMomentIsNotHeldToBeTooLongForTenMinutes(t *testing.T) {
	forSeeds(t, 30, func(t *testing.T, seed uint64) {
		w := narrow(t, seed, AssumedMTU)
		w.bootBoth()
		w.run(200 * time.Millisecond)
		w.talkBoth(5 * time.Minute)
		w.until(5*time.Second, "both know", w.knows(AssumedMTU))
		w.a.fault.maxBytes, w.b.fault.maxBytes = 1300-28, 1300-28
		w.run(mtuConfirm + 6*time.Second)
		w.a.fault.maxBytes, w.b.fault.maxBytes = 0, 0
		w.until(time.Minute, "full packets again", w.knows(AssumedMTU))
	})
}

func TestARelaysWayIsMeasuredToo(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := narrow(t, seed, AssumedMTU)
		for _, h := range w.hosts {
			h.fault.direct, h.fault.relayed = true, 1300-28
		}
		w.bootBoth()
		w.run(200 * time.Millisecond)
		w.talkBoth(time.Minute)
		w.until(10*time.Second, "both know", func() bool {
			return w.both(weft.RelayUDP)() && w.a.sizes[relayUDP] == 1232 && w.b.sizes[relayUDP] == 1232
		})
		w.run(time.Second)
		from := w.now
		w.run(20 * time.Second)
		for _, h := range w.hosts {
			if n := h.flow.lostBetween(from, w.now.Add(-time.Second)); n > 0 {
				w.failf("%s lost %d packets", h.name, n)
			}
		}
	})
}

func TestASearchAsksBetweenWhatFitsAndWhatDoesNot(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		best := rapid.IntRange(1, 4000).Draw(t, "best") * mtuStep
		least := best + rapid.IntRange(1, 9000).Draw(t, "more")
		list := between(best, least)
		if len(list) > mtuProbes || len(list) == 0 && least-best > mtuStep {
			t.Fatalf("%d lengths", len(list))
		}
		for i, n := range list {
			if n <= best || n >= least || n%mtuStep != 0 || i > 0 && n >= list[i-1] {
				t.Fatalf("%v between %d and %d", list, best, least)
			}
		}
		if len(list) < mtuProbes && len(list) != (least+mtuStep-1)/mtuStep-best/mtuStep-1 {
			t.Fatalf("%v leaves some out between %d and %d", list, best, least)
		}
	})
}

// A probe is as long as what it stands for.
func TestAProbeIsAsLongAsThePacketItAsksFor(t *testing.T) {
	for _, size := range []int{512, 1216, 1407, 1408, 8904, MaxMTU} {
		frame := wire.Ping{Path: 1, Padding: pingPadding(size)}
		if got, want := frameOverhead+frame.Padding, (size+15)/16*16+32; got != want {
			t.Errorf("%d bytes: the probe has %d, the packet %d", size, got, want)
		}
	}
	via := direct("[2001:db8::1]:5")
	for _, v := range []weft.Via{via, direct("203.0.113.1:5"), relayUDP} {
		for _, longest := range []int{AssumedMTU, 8904, MaxMTU, 512, 300} {
			list := ladder(v, longest)
			if list[0] != longest || len(list) > mtuProbes || !slices.IsSortedFunc(list, func(a, b int) int { return b - a }) {
				t.Errorf("%v up to %d: %v", v, longest, list)
			}
		}
	}
}

func TestNothingIsSearchedWithoutTheWish(t *testing.T) {
	r, _, rtts := onDirectPath(t)
	r.play(time.Minute, rtts)
	for _, x := range r.sent {
		if x.Whole {
			t.Fatalf("%+v", x)
		}
	}
	if len(r.out.MTUs) > 0 {
		t.Error(r.out.MTUs)
	}
}
