package bond

import "time"

// A Sample is what one feedback says of a path.
type Sample struct {
	Bytes    int           // newly reported arrived
	Lost     int           // bytes newly found lost
	LostSent time.Duration // when the latest of them was sent
	InFlight int           // bytes, what is left
	RTT      time.Duration // of the newest packet, without the time that the receiver held the report; 0: nothing newer arrived
	MinRTT   time.Duration // the least of lately
	Queue    time.Duration // what the newest packet waited on its way: how much longer it took than the fastest of lately
	Jitter   time.Duration // by how much packets in a row differ in that, without cause
	Nap      time.Duration // how late the sender may come when it is its turn: a queue that is shorter may run dry
	Rate     float64       // bytes/s by the receiver's clock, over about a round trip; 0: unknown
	Drain    float64       // bytes/s while there was a queue all the time: what the path carries; 0: unknown
	Limited  bool          // Rate is a lower bound: the path was not used as fast as it may
	Starved  bool          // since there was nothing to be sent
	Sent     time.Duration // when the newest packet was sent
	Load     int           // bytes that were in flight then, it included
	Round    bool          // a round trip ended: something arrived that was sent after the last end was known
}

// A Control is the congestion control of one path. The Sender tells it what happened, and asks how fast and how
// much at once may be sent.
type Control interface {
	Name() string
	Restart(now time.Duration, rtt time.Duration) // the path is new, or was silent; rtt 0: unknown
	Sent(now time.Duration, size, inFlight int)   // inFlight: size included
	Sample(now time.Duration, s Sample)
	Rate() float64     // bytes/s to send at
	Capacity() float64 // bytes/s that the path is believed to carry
	Loses() bool       // it sends more until something is lost: then losses do not mean that the path is bad
	Seeking() bool     // it is not known yet how much that is: what was sent did not fill the path
	Window() int       // bytes that may be in flight, as if each were reported at once
}

const (
	segment       = 1500                   // bytes: a full packet of Ethernet, as congestion windows count
	initialWindow = 10 * segment           // RFC 6928
	leastWindow   = 2 * segment            // RFC 5681's loss window, and one for the other direction's sake
	mostWindow    = 256 << 20              // bytes: 10 Gbit/s for 200 ms
	firstRTT      = 100 * time.Millisecond // until it is measured
)
