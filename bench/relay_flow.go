package bench

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"
)

// flow is one sender and one receiver that a relay joins. Its datagrams are numbered from 0 on, and relays keep
// their order, so what lies behind the highest number that arrived and did not arrive itself is lost.
type flow struct {
	sent    atomic.Uint64 // datagrams; the sender's to write
	reached atomic.Uint64 // one more than the highest number that arrived; the receiver's
	arrived atomic.Uint64 // datagrams that did; the receiver's
	more    chan struct{} // something arrived
}

func newFlow() *flow { return &flow{more: make(chan struct{}, 1)} }

// tally is what a receiver counts by itself, to tell it once per read.
type tally struct{ reached, arrived uint64 }

func (t *tally) count(number uint64) {
	t.reached = max(t.reached, number+1)
	t.arrived++
}

// tell publishes a tally. The count of those that arrived comes first: whoever reads the highest number and then
// the count never takes a datagram for lost that came.
func (f *flow) tell(t *tally) {
	f.arrived.Store(t.arrived)
	f.reached.Store(t.reached)
	select {
	case f.more <- struct{}{}:
	default:
	}
}

// sender is a flow's one end.
type sender interface {
	// send sends n datagrams, numbered from first on.
	send(first uint64, n int) error
	io.Closer // ends both ends of the flow
}

// burst is how many datagrams are sent at once: the super-packet of 64 KiB that a data plane splits.
const burst = 44

// drive sends as a bulk transfer by TCP would: as much as its window lets it.
func (f *flow) drive(ctx context.Context, s sender) error {
	w := newWindow()
	timer := time.NewTimer(retransmitAfter)
	defer timer.Stop()
	for next := uint64(0); ctx.Err() == nil; {
		reached := f.reached.Load()
		w.heard(next, reached, f.arrived.Load())
		n := min(w.room(next), burst)
		if n < min(burst, w.most()/2+1) { // wait for room for a burst
			timer.Reset(retransmitAfter)
			select {
			case <-f.more:
			case <-ctx.Done():
				return nil
			case <-timer.C:
				if f.reached.Load() == reached {
					w.silent(next)
				}
			}
			continue
		}
		if err := s.send(next, n); err != nil {
			return err
		}
		next += uint64(n)
		f.sent.Store(next)
	}
	return nil
}

// flood sends as fast as the socket takes it, whatever becomes of it. It has a thread of its own, which makes way for
// all others: those of receivers, who have to be able to take what the relay forwards.
func (f *flow) flood(ctx context.Context, s sender) error {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	thread, err := os.Readlink("/proc/thread-self")
	if err != nil {
		return fmt.Errorf("flooding a relay: %w", err)
	}
	if out, err := exec.CommandContext(ctx, "renice", "-n", "19", "-p", filepath.Base(thread)).CombinedOutput(); err != nil {
		return fmt.Errorf("renice is needed (apt-get install bsdutils): %w: %s", err, out)
	}
	for next := uint64(0); ctx.Err() == nil; next += burst {
		if err := s.send(next, burst); err != nil {
			return err
		}
		f.sent.Store(next + burst)
	}
	return nil
}

const (
	// initialWindow and beta are RFC 9438's (CUBIC) and RFC 6928's: what the TCP inside a tunnel would do.
	initialWindow = 10
	beta          = 0.7
	// mostWindow is in datagrams half a MiB: more than bandwidth times delay of any relay on the same machine.
	mostWindow = 360
	// leastWindow is RFC 5681's after a loss.
	leastWindow = 2
	// retransmitAfter is the least retransmission timeout of Linux.
	retransmitAfter = 200 * time.Millisecond
)

// window is how many datagrams may be under way: slow start, then one more per round trip, less after a loss
// (RFC 5681). A relay that drops at small queues so gets what it can take, as from TCP inside a tunnel.
type window struct {
	size    float64
	grown   bool   // out of slow start
	acked   uint64 // below are none that are waited for
	lost    uint64 // that the window was made smaller for
	recover uint64 // losses of numbers below are of one and the same occasion
}

func newWindow() *window { return &window{size: initialWindow} }

// heard is told, when next is the number to be sent next, what has arrived.
func (w *window) heard(next, reached, arrived uint64) {
	lost := max(reached, arrived) - arrived
	if reached > w.acked {
		newly := float64(reached - w.acked)
		w.acked = reached
		if w.grown {
			newly /= w.size
		}
		w.size = min(w.size+newly, mostWindow)
	}
	if lost > w.lost {
		w.lost = lost
		if reached > w.recover {
			w.shrink(next, beta)
		}
	}
}

// silent is told that nothing has arrived for long: all that was under way is given up.
func (w *window) silent(next uint64) {
	w.acked = next
	w.shrink(next, 0)
}

func (w *window) shrink(next uint64, by float64) {
	w.size, w.grown, w.recover = max(leastWindow, w.size*by), true, next
}

func (w *window) most() int { return int(w.size) }

// room is how many more may be sent.
func (w *window) room(next uint64) int { return max(0, int(w.size)-int(next-min(next, w.acked))) }
