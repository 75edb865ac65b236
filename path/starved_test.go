package path

import (
	"testing"
	"time"

	"weft"
)

// starve takes the host's processor away again and again, for up to so long at a time, and gives it back for up to so long.
func (h *host) starve(most, between time.Duration, until time.Time) {
	w := h.w
	if !w.now.Before(until) {
		return
	}
	h.starved = w.now.Add(1 + time.Duration(w.rng.Int64N(int64(most))))
	w.at(h.starved.Add(1+time.Duration(w.rng.Int64N(int64(between)))), func() { h.starve(most, between, until) })
}

func TestANodeThatIsShortOfProcessorTimeKeepsAWayThatWorks(t *testing.T) {
	forSeeds(t, 25, func(t *testing.T, seed uint64) {
		w := settled(t, seed)
		w.a.fault.direct, w.b.fault.direct = true, true
		until := w.now.Add(time.Minute)
		for _, h := range w.hosts {
			if most := 500 * time.Millisecond; h == w.a || w.rng.IntN(2) == 0 {
				h.starve(most, most, until)
			}
		}
		w.run(3 * time.Second) // the direct way is left late, by who is late
		for w.now.Before(until) {
			if !w.both(weft.RelayUDP)() {
				w.until(2*time.Second, "both by the relay's UDP, which works", w.both(weft.RelayUDP))
			}
			w.run(50 * time.Millisecond)
		}
		w.needSwitches(3)
	})
}

func TestARelaysUDPIsTakenBackSoonAfterItAnswersAgain(t *testing.T) {
	forSeeds(t, 15, func(t *testing.T, seed uint64) {
		w := homes(t, seed, symmetric, symmetric)
		w.bootBoth()
		w.talkBoth(10 * time.Minute)
		w.run(8 * time.Second)
		for range 4 {
			w.a.fault.relayUDP = true
			w.run(time.Duration(4000+w.rng.IntN(6000)) * time.Millisecond)
			if !w.both(weft.RelayStream)() {
				w.failf("not by the stream")
			}
			w.a.fault.relayUDP = false
			// An eighth of the outage until it is asked, and 2 s at most until it has held still.
			w.until(4*time.Second, "both by the relay's UDP again", w.both(weft.RelayUDP))
			w.run(time.Duration(5000+w.rng.IntN(5000)) * time.Millisecond)
		}
	})
}

func TestAWayThatFlapsIsLeftAloneUntilItHoldsStill(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := homes(t, seed, symmetric, symmetric)
		w.bootBoth()
		w.talkBoth(10 * time.Minute)
		w.run(8 * time.Second)
		flap := func(d time.Duration) {
			for end := w.now.Add(d); w.now.Before(end); {
				w.a.fault.relayUDP = !w.a.fault.relayUDP
				w.run(3 * time.Second)
			}
			w.a.fault.relayUDP = false
		}
		flap(time.Minute)
		w.a.switches, w.b.switches = nil, nil
		flap(2 * time.Minute) // forty changes
		w.needSwitches(6)
		w.until(20*time.Second, "both by the relay's UDP once it holds still", w.both(weft.RelayUDP))
	})
}
