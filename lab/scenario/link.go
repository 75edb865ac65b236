package scenario

import "time"

// A Link is a leg of the network, each direction. It is vnet.LinkConfig by another name until that is there.
type Link struct {
	Rate          float64 // bit/s; 0: no limit
	Delay, Jitter time.Duration
	Loss, Reorder float64
	Queue         int // bytes
}
