package bond

import (
	"math"
	"time"
)

// Constants of RFC 9438 section 4.1 and 4.6. C is in segments per second cubed.
const (
	cubicC     = 0.4
	cubicBeta  = 0.7
	cubicAlpha = 3 * (1 - cubicBeta) / (1 + cubicBeta)
)

// cubic is CUBIC (RFC 9438) with HyStart++, in bytes but for the curve, which is in segments.
type cubic struct {
	lossBased
	start hystart
	most  float64 // W_max
	begin time.Duration
	k     float64 // seconds
	reno  float64 // W_est
}

// NewCubic returns CUBIC (RFC 9438), as congestion control.
func NewCubic() Control { return &cubic{lossBased: restarted(0)} }

func (c *cubic) Name() string { return "cubic" }

func (c *cubic) Restart(now, rtt time.Duration) { *c = cubic{lossBased: restarted(rtt)} }

func (c *cubic) Sample(now time.Duration, s Sample) {
	c.smooth(s.RTT)
	if c.recovery.begins(now, s) {
		c.reduce()
		return
	}
	if !c.used {
		if c.begin > 0 {
			c.begin = now // time without use does not count (section 4.2)
		}
		return
	}
	c.used = float64(s.InFlight) > c.window/2
	if c.window < c.threshold {
		by, over := c.start.grow(s)
		if c.window = min(c.window+by, mostWindow); over {
			c.threshold = c.window
		}
		return
	}
	c.avoid(now, s)
}

// again begins anew after a while in which the window was not used, as RFC 7661 section 4.4.3 has it: with what two round trips at a rate are, and in slow start up to the window of before.
func (c *cubic) again(rate float64, rtt time.Duration) {
	c.begin, c.rtt = 0, rtt
	if least := max(2*rate*rtt.Seconds(), initialWindow); least < c.window {
		c.threshold = max(c.threshold, c.window*3/4)
		c.window = least
	}
}

// reduce is section 4.6, with fast convergence (4.7).
func (c *cubic) reduce() {
	if c.window < c.most {
		c.most = c.window * (1 + cubicBeta) / 2
	} else {
		c.most = c.window
	}
	c.window = max(c.window*cubicBeta, leastWindow)
	c.threshold = c.window
	c.begin = 0
}

// avoid is sections 4.2 to 4.5.
func (c *cubic) avoid(now time.Duration, s Sample) {
	if c.begin == 0 {
		c.begin = now
		c.most = max(c.most, c.window)
		c.k = math.Cbrt((c.most - c.window) / segment / cubicC)
		c.reno = c.window
	}
	alpha := cubicAlpha
	if c.reno >= c.most {
		alpha = 1
	}
	c.reno += alpha * segment * float64(s.Bytes) / c.window
	at := func(t float64) float64 { return c.most + segment*cubicC*(t-c.k)*(t-c.k)*(t-c.k) }
	t := (now - c.begin).Seconds()
	if at(t) < c.reno {
		c.window = min(max(c.window, c.reno), mostWindow)
		return
	}
	target := min(max(at(t+c.rtt.Seconds()), c.window), 1.5*c.window)
	c.window = min(c.window+(target-c.window)*float64(s.Bytes)/c.window, mostWindow)
}
