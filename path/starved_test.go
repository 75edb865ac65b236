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

// send sends one packet of data by the way in use.
func (h *host) send(size int) {
	w, f := h.w, &h.flow
	via := h.agent.Selected()
	f.received, f.sentAt = append(f.received, time.Time{}), append(f.sentAt, w.now)
	w.transmit(h, via, payload{seq: f.sent, size: size})
	h.count(via, size, true)
	f.sent++
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
