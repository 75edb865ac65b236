package bond

import "time"

// reno is New Reno (RFC 5681, RFC 6582) in bytes.
type reno struct{ lossBased }

// NewReno returns New Reno (RFC 5681, RFC 6582), as congestion control.
func NewReno() Control { return &reno{restarted(0)} }

func (r *reno) Name() string { return "reno" }

func (r *reno) Restart(now, rtt time.Duration) { r.lossBased = restarted(rtt) }

func (r *reno) Sample(now time.Duration, s Sample) {
	r.smooth(s.RTT)
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
