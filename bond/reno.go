package bond

import "time"

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

// pace is the rate at which a window is sent: somewhat faster than it comes back, so that pacing does not hold it below (as Linux does).
func pace(window float64, slow bool, rtt time.Duration) float64 {
	gain := 1.2
	if slow {
		gain = 2
	}
	return gain * window / max(rtt.Seconds(), 1e-4)
}

// reno is New Reno (RFC 5681, RFC 6582) in bytes.
type reno struct {
	window, threshold float64
	rtt               time.Duration
	recovery          recovery
	used              bool // the window, by more than half, since the last sample
}

// NewReno returns New Reno (RFC 5681, RFC 6582), as congestion control.
func NewReno() Control { return &reno{window: initialWindow, threshold: 1e12, rtt: firstRTT} }

func (r *reno) Name() string { return "reno" }

func (r *reno) Restart(now, rtt time.Duration) {
	*r = reno{window: initialWindow, threshold: 1e12, rtt: firstRTT}
	if rtt > 0 {
		r.rtt = rtt
	}
}

func (r *reno) Sent(now time.Duration, size, inFlight int) {
	r.used = r.used || float64(inFlight) > r.window/2
}

func (r *reno) Sample(now time.Duration, s Sample) {
	if s.RTT > 0 {
		r.rtt += (s.RTT - r.rtt) / 8
	}
	if r.recovery.begins(now, s) {
		r.threshold = max(r.window/2, leastWindow)
		r.window = r.threshold
		return
	}
	if !r.used {
		return
	}
	if r.window < r.threshold {
		r.window += float64(s.Bytes)
	} else {
		r.window += segment * float64(s.Bytes) / r.window
	}
	r.window = min(r.window, mostWindow)
	r.used = float64(s.InFlight) > r.window/2
}

func (r *reno) Rate() float64 { return pace(r.window, r.window < r.threshold, r.rtt) }

func (r *reno) Window() int { return int(r.window) }

func (r *reno) Capacity() float64 { return r.window / max(r.rtt.Seconds(), 1e-4) }
