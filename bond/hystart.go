package bond

import "time"

// Constants of RFC 9406 section 4.3.
const (
	hystartLeast   = 4 * time.Millisecond
	hystartMost    = 16 * time.Millisecond
	hystartPart    = 8           // of the round trip
	hystartPackets = 8 * segment // bytes: as much has to be reported in a round for its round trip to count
	cssDivisor     = 4
	cssRounds      = 5
)

// A hystart ends slow start before something is lost (HyStart++, RFC 9406): when the least round trip of a round has grown by more than chance, the
// window grows by a quarter as much for five rounds, for it to be seen whether that was a burst.
type hystart struct {
	last, least time.Duration // round trips: the least of the round before, and of this one
	bytes       int           // reported in it
	base        time.Duration // in conservative slow start: the least when it began; 0: it has not
	rounds      int           // of conservative slow start that are over
}

// grow is by how much the window grows in slow start, in bytes. over: slow start has ended.
func (h *hystart) grow(s Sample) (by float64, over bool) {
	h.bytes += s.Bytes
	if s.RTT > 0 && (h.least == 0 || s.RTT < h.least) {
		h.least = s.RTT
	}
	if counts := h.bytes >= hystartPackets && h.least > 0; counts && h.base > 0 && h.least < h.base {
		h.base, h.rounds = 0, 0
	} else if counts && h.base == 0 && h.last > 0 && h.least >= h.last+min(max(h.last/hystartPart, hystartLeast), hystartMost) {
		h.base = h.least
	}
	by = float64(s.Bytes)
	if h.base > 0 {
		by /= cssDivisor
	}
	if !s.Round {
		return by, false
	}
	if h.base > 0 {
		h.rounds++
		over = h.rounds >= cssRounds
	}
	h.last, h.least, h.bytes = h.least, 0, 0
	return by, over
}
