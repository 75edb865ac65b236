package path

import (
	"testing"
	"time"

	"weft"
)

func TestAnIdleNodeFallsSilent(t *testing.T) {
	forSeeds(t, 10, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.bootBoth()
		w.run(time.Minute)
		if n := w.a.sent + w.b.sent; n != 0 {
			w.failf("%d messages between peers that do not talk", n)
		}
		w.talkBoth(10 * time.Second)
		w.run(10 * time.Second)
		before := w.a.sent
		w.run(4 * time.Minute)
		if n := w.a.sent - before; n < 16 || n > 80 {
			w.failf("%d messages in 4 minutes after the last data: want a heartbeat in 15 s", n)
		}
		if !w.bothDirect() {
			w.failf("no longer direct while it is kept warm")
		}
		w.run(3 * time.Minute)
		before = w.a.sent + w.b.sent
		w.run(time.Hour)
		if n := w.a.sent + w.b.sent - before; n != 0 {
			w.failf("%d messages in an hour without data", n)
		}
		for _, h := range w.hosts {
			if !h.actions.Next.IsZero() {
				w.failf("%s wants to be called in %v", h.name, h.actions.Next.Sub(w.now))
			}
			if v := h.agent.Selected(); v != relayUDP {
				w.failf("%s would send by %v, which the NATs have long forgotten", h.name, v)
			}
		}
		begin := w.now
		w.talkBoth(5 * time.Second)
		w.until(3*time.Second, "both direct, once they talk again", w.bothDirect)
		w.run(3 * time.Second)
		if n := w.a.flow.lostBetween(begin, w.now.Add(-time.Second)); n != 0 {
			w.failf("%d packets lost on waking up", n)
		}
	})
}

func TestAnEagerNodeKeepsItsPathWarmAndNoMore(t *testing.T) {
	forSeeds(t, 3, func(t *testing.T, seed uint64) {
		w := homes(t, seed, portRestricted, portRestricted)
		w.a.eager, w.b.eager = true, w.rng.IntN(2) == 0
		w.bootBoth()
		w.until(time.Second, "both direct", w.bothDirect)
		w.run(time.Minute)
		sent := w.a.sent
		w.run(time.Hour)
		if n := w.a.sent - sent; n < 200 || n > 800 {
			w.failf("%d messages in an hour of idleness", n)
		}
		if v := w.a.agent.Selected(); v.Method != weft.Direct || len(w.a.switches) > 3 {
			w.failf("a sends by %v after %d switches", v, len(w.a.switches))
		}
		begin := w.now
		w.a.talk(10*time.Millisecond, 500, w.now.Add(3*time.Second))
		w.run(4 * time.Second)
		if n := w.a.flow.lostBetween(begin, w.now); n != 0 {
			w.failf("%d packets lost by a path that was kept warm", n)
		}
	})
}
