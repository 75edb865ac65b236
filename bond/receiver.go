package bond

import (
	"time"

	"weft/wire"
)

// ReceiverConfig says how a [Receiver] is to be.
type ReceiverConfig struct {
	Memory int // bytes held at most; 0: DefaultHold
}

// DefaultHold is how many bytes a Receiver holds back at most.
const DefaultHold = 8 << 20

// A Receiver puts the packets of one peer in order and tells the peer's Sender which came. Make it with [NewReceiver]; one
// goroutine at a time may use it.
type Receiver struct{}

// ReceiverStats counts what became of packets.
type ReceiverStats struct {
	Delivered  uint64 // given out, at once or later
	Held       uint64 // of them, that had to wait
	HeldBytes  int    // that wait now
	Reordered  uint64 // given out after a later one of their session: urgent ones let others overtake no one and are not counted
	Late       uint64 // of them, that came after their gap had been released
	Duplicates uint64
	Ignored    uint64 // absurd: counters far from all others
	ByPaths    uint64 // gaps released since all paths had passed them
	ByTime     uint64 // since they had been waited for long enough
	ByMemory   uint64 // since there was no room
}

// NewReceiver makes a Receiver.
func NewReceiver(c ReceiverConfig) *Receiver { return &Receiver{} }

// Arrive is told of an authentic message that came by a path; size is its length, packet what is to be delivered of it,
// nil: nothing (a keepalive, or a frame of weft's). If it is true the caller delivers the packet now; else a copy is held, and Next gives it
// when its turn comes. What is urgent never waits.
func (r *Receiver) Arrive(now time.Duration, p PathID, session uint32, counter uint64, size int, packet []byte, urgent bool) bool {
	return packet != nil
}

// Duplicate is told of a message whose counter had come before. It was not opened, so anybody may have sent it.
func (r *Receiver) Duplicate(now time.Duration, p PathID, session uint32, counter uint64, size int) {}

// Named is told by which number the peer's Sender calls a path, from its Offer.
func (r *Receiver) Named(p PathID, id uint16) {}

// Next is the held packet whose turn it is, nil if there is none; valid until the next call of any method.
func (r *Receiver) Next(now time.Duration) []byte { return nil }

// Wake is when Next or Feedback may have something, Never if nothing is waited for.
func (r *Receiver) Wake() time.Duration { return Never }

// Feedback fills f if one is due.
func (r *Receiver) Feedback(now time.Duration, f *wire.Feedback) bool { return false }

// Stats returns the counts.
func (r *Receiver) Stats() ReceiverStats { return ReceiverStats{} }
