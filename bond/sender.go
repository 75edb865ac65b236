package bond

import (
	"time"

	"weft/wire"
)

// A SenderConfig is fixed for a Sender's life.
type SenderConfig struct {
	Control func() Control // congestion control, one for each path; nil: the default, NewBBR
	Memory  int            // bytes of copies; 0: DefaultMemory
}

// A Sender is the sending half of a bond with one peer. One goroutine at a time may use it.
type Sender struct{ cfg SenderConfig }

// NewSender returns a Sender without paths.
func NewSender(cfg SenderConfig) *Sender { return &Sender{cfg} }

// SetPaths says which paths live, by who probes them. What was sent by one that is gone goes again at once by others.
func (s *Sender) SetPaths(now time.Duration, list []Path) {}

// Next finds the path by which the packet at the head of the queue may go now. size is its length on the wire without
// the path's Overhead; backlog are the bytes that wait, it included. room is how many bytes may follow by the same path at
// once, at least size. When none may, ask again at Wake, or after Feedback.
func (s *Sender) Next(now time.Duration, size, backlog int) (p PathID, room int, ok bool) {
	return 0, 0, false
}

// Second finds another living path than not for a copy. It is not bound by pacing.
func (s *Sender) Second(now time.Duration, not PathID, size int) (PathID, bool) { return 0, false }

// Sent is told of each new message, and keeps a copy.
func (s *Sender) Sent(now time.Duration, p PathID, session uint32, counter uint64, message []byte) {}

// SentCopy is told of the same message by another path.
func (s *Sender) SentCopy(now time.Duration, p PathID, session uint32, counter uint64, size int) {}

// Again returns what is to be sent again, before anything new. It counts as sent when given; message is valid until the
// next call of anything.
func (s *Sender) Again(now time.Duration) (p PathID, message []byte, ok bool) { return 0, nil, false }

// Copies reports whether what is sent new now shall also go by Second: a path is coming back.
func (s *Sender) Copies() bool { return false }

// Idle says that the queue is empty: what follows is limited by the application.
func (s *Sender) Idle(now time.Duration) {}

// Feedback takes in what the receiver reports.
func (s *Sender) Feedback(now time.Duration, f *wire.Feedback) {}

// Tick is to be called when Wake is due.
func (s *Sender) Tick(now time.Duration) {}

// Wake returns when Next, Again or Tick may have something; Never.
func (s *Sender) Wake() time.Duration { return Never }

// Target returns CoDel's target for the queue in front.
func (s *Sender) Target() time.Duration { return 5 * time.Millisecond }

// Best returns the living path with the least delay, for what is single and urgent.
func (s *Sender) Best() (PathID, bool) { return 0, false }

// Status appends how each path does.
func (s *Sender) Status(dst []PathStatus) []PathStatus { return dst }

// Events appends the changes of state since last asked.
func (s *Sender) Events(dst []Event) []Event { return dst }
