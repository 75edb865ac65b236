package path

import (
	"testing"
	"time"

	"weft"
)

func TestOrdinaryLossAndBurstsAreNoReasonToLeave(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		w.loss = 0.03
		w.jitter = 15 * time.Millisecond // reorders, too
		for range 20 {
			w.run(time.Duration(w.rng.IntN(4000)) * time.Millisecond)
			if w.rng.IntN(2) == 0 { // bursts and pauses, from one side or both
				w.a.talk(time.Millisecond, 1200, w.now.Add(300*time.Millisecond))
			} else {
				w.a.flow.until, w.b.flow.until = w.now, w.now
				w.run(time.Duration(w.rng.IntN(3000)) * time.Millisecond)
				w.talkBoth(10 * time.Minute)
			}
		}
		w.run(10 * time.Second)
		w.needSwitches(2) // once in a while, by bad luck, and back
		if !w.bothDirect() {
			w.failf("not direct in the end")
		}
	})
}

func TestAPathWithSomeLossIsNotTakenForDead(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		w.loss = 0.08 // of pings, reports and data alike
		w.run(2 * time.Minute)
		w.needSwitches(2)
	})
}

func TestADirectPathThatLosesMuchMoreThanTheRelayIsLeft(t *testing.T) {
	forSeeds(t, 6, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		w.loss = 0.25
		w.run(20 * time.Second)
		relayed := 0
		for range 100 { // it is tried again after 30 s, and after 60 s
			w.run(time.Second)
			if w.a.agent.Selected() == relayUDP {
				relayed++
			}
		}
		if relayed < 60 {
			w.failf("by the relay in %d of 100 s only, where the direct path loses 25 %%", relayed)
		}
		w.needSwitches(8)
	})
}

func TestADirectPathThatLosesNoMoreThanTheRelayIsKept(t *testing.T) {
	forSeeds(t, 6, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		w.loss, w.relayLoss = 0.22, 0.12 // the relay has two legs
		w.run(2 * time.Minute)
		w.needSwitches(8)
		direct := 0
		for range 180 {
			w.run(time.Second)
			if w.a.agent.Selected().Method == weft.Direct {
				direct++
			}
		}
		if direct < 60 {
			w.failf("direct in %d of 180 s only, where the relay is no better", direct)
		}
	})
}

func TestADirectPathThatIsFarSlowerThanTheRelayDoesNotWin(t *testing.T) {
	forSeeds(t, 6, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.oneWay, w.relayLeg = 200*time.Millisecond, 10*time.Millisecond
		w.bootBoth()
		w.talkBoth(5 * time.Minute)
		w.run(20 * time.Second)
		if !w.both(weft.RelayUDP)() {
			w.failf("a path of 400 ms won against a relay of 40 ms")
		}
		w.run(2 * time.Minute)
		w.needSwitches(3)
		w.oneWay = 15 * time.Millisecond // a better route
		w.until(3*time.Minute, "both direct, now that it is fast", w.bothDirect)
	})
}

func TestADirectPathIsKeptWhereTheRelayHasBecomeAsSlow(t *testing.T) {
	forSeeds(t, 6, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.oneWay, w.relayLeg = 20*time.Millisecond, 12*time.Millisecond
		w.bootBoth()
		w.talkBoth(5 * time.Minute)
		w.until(10*time.Second, "both direct", w.bothDirect)
		w.run(time.Minute)
		before := len(w.a.switches) + len(w.b.switches)
		w.oneWay, w.relayLeg = 120*time.Millisecond, 112*time.Millisecond // what one of them leaves by has become slow
		w.run(2 * time.Minute)
		if n := len(w.a.switches) + len(w.b.switches) - before; n > 0 || !w.bothDirect() {
			w.failf("a path was left %d times for a relay that is no faster", n)
		}
	})
}
