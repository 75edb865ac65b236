package node

import (
	"log/slog"
	"sync"
	"time"

	"weft"
)

const (
	// keepEvery is how often the map's file is written at most. In a large network the map changes several times
	// a second when many nodes come and go, each write is flushed to the disk, and the file only serves the next
	// start, at which the server tells what has changed since.
	keepEvery = 2 * time.Second
	// keepRetry is how soon a write that failed is tried again.
	keepRetry = 30 * time.Second
)

// A keeper writes the last map to its file, in a goroutine of its own: the first at once, and of those that follow
// soon only the last. Its methods may be called at any time from any goroutine.
type keeper struct {
	store  func(*weft.NetworkMap) error
	log    *slog.Logger
	wake   chan struct{} // of one place
	stop   chan struct{}
	ended  chan struct{}
	closed sync.Once

	writing sync.Mutex // held over a write
	mu      sync.Mutex // guards what follows
	next    *weft.NetworkMap
	failure string // of the last write
}

func newKeeper(log *slog.Logger, store func(*weft.NetworkMap) error) *keeper {
	k := &keeper{store: store, log: log, wake: make(chan struct{}, 1), stop: make(chan struct{}), ended: make(chan struct{})}
	go k.run()
	return k
}

// put takes a map to be written, in the place of any that waits.
func (k *keeper) put(m *weft.NetworkMap) {
	k.mu.Lock()
	k.next = m
	k.mu.Unlock()
	nudge(k.wake)
}

// drop forgets what waits, and has f run while nothing is written.
func (k *keeper) drop(f func() error) error {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.mu.Lock()
	k.next = nil
	k.mu.Unlock()
	return f()
}

// close writes what waits, and ends the goroutine.
func (k *keeper) close() {
	k.closed.Do(func() { close(k.stop) })
	<-k.ended
}

func (k *keeper) run() {
	defer close(k.ended)
	defer k.flush()
	for {
		select {
		case <-k.stop:
			return
		case <-k.wake:
		}
		for wait := keepEvery; ; wait = keepRetry {
			stored := k.flush()
			select {
			case <-k.stop:
				return
			case <-time.After(wait):
			}
			if stored {
				break
			}
		}
	}
}

// flush writes what waits, and reports whether there is nothing left to write.
func (k *keeper) flush() bool {
	k.writing.Lock()
	defer k.writing.Unlock()
	k.mu.Lock()
	m := k.next
	k.next = nil
	k.mu.Unlock()
	if m == nil {
		return true
	}
	err := k.store(m)
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.failure = ""
		return true
	}
	if k.next == nil {
		k.next = m
	}
	if k.failure != err.Error() {
		k.failure = err.Error()
		k.log.Error("the map was not stored; it is used all the same", "error", err)
	}
	return false
}
