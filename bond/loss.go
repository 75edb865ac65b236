package bond

import (
	"math"
	"time"
)

// lossBased is what the classical congestion controls share: a window in bytes that grows until something is lost.
type lossBased struct {
	window, threshold float64
	rtt               time.Duration
	recovery          recovery
	used              bool // the window, by more than half, since the last sample
}

// restarted is one that knows nothing but perhaps the round-trip time.
func restarted(rtt time.Duration) lossBased {
	if rtt <= 0 {
		rtt = firstRTT
	}
	return lossBased{window: initialWindow, threshold: math.MaxFloat64, rtt: rtt}
}

// smooth takes a round-trip time in, as RFC 6298 does.
func (l *lossBased) smooth(rtt time.Duration) {
	if rtt > 0 {
		l.rtt += (rtt - l.rtt) / 8
	}
}

func (l *lossBased) Sent(now time.Duration, size, inFlight int) {
	l.used = l.used || float64(inFlight) > l.window/2
}

// Rate is that at which a window is sent: somewhat faster than it comes back, so that pacing does not hold it below (as Linux does).
func (l *lossBased) Rate() float64 {
	gain := 1.2
	if l.window < l.threshold {
		gain = 2
	}
	return gain * l.Capacity()
}

func (l *lossBased) Window() int { return int(l.window) }

func (l *lossBased) Loses() bool { return true }

func (l *lossBased) Seeking() bool { return l.window < l.threshold }

func (l *lossBased) Capacity() float64 { return l.window / max(l.rtt.Seconds(), 1e-4) }

// A loss is noted once a round trip: what is lost of what was sent before the last reduction is the same congestion (RFC 6582).
type recovery struct{ until time.Duration }

// begins reports whether a loss is news.
func (r *recovery) begins(now time.Duration, s Sample) bool {
	if s.Lost == 0 || s.LostSent <= r.until {
		return false
	}
	r.until = now
	return true
}
