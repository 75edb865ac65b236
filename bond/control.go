package bond

import "time"

// A Sample is what one feedback says of a path.
type Sample struct {
	Bytes    int           // newly reported arrived
	Lost     int           // newly found lost
	InFlight int           // left
	RTT      time.Duration // of the newest packet, without the time that the receiver held the report; 0: unknown
	Queue    time.Duration // how much longer than the fastest of late the newest packet was on its way: what it waited in queues
	Rate     float64       // bytes/s by the receiver's clock, over about a round trip; 0: unknown
	Limited  bool          // by the application: Rate is then a lower bound
	Round    bool          // a round trip ended: what was sent after the last end has been reported
}

// A Control is the congestion control of one path. The Sender tells it what happened, and asks how fast (Rate) and how
// much at once (Window) may be sent.
type Control interface {
	Name() string
	Sent(now time.Duration, size, inFlight int) // inFlight: with size
	Sample(now time.Duration, s Sample)
	Restart(now time.Duration, rtt time.Duration) // the path is new, or was silent
	Rate() float64                                // bytes/s
	Window() int                                  // bytes
}
