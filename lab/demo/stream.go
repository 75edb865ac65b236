package demo

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	// blockSize and blockEvery make 3.3 Mbit/s: a video call, which fills no path here and so
	// measures the path and not its queue. Stalls are seen to within blockEvery.
	blockSize  = 4 << 10
	blockEvery = 10 * time.Millisecond
)

// stream is one TCP connection that carries numbered blocks for as long as it lives. It knows
// whether every block came, once, in order and whole, and how long the longest silence was.
type stream struct {
	from, to *net.TCPConn
	wg       sync.WaitGroup

	mu       sync.Mutex
	sent     uint64
	received uint64
	last     time.Time     // arrival of the newest block
	longest  time.Duration // longest silence since the last look
	seen     uint64        // received at the last look
	err      error         // why the stream broke
	stopping bool
}

// startStream sends blocks over one end of a connection and checks them at the other.
func startStream(from, to *net.TCPConn) *stream {
	s := &stream{from: from, to: to, last: time.Now()}
	s.wg.Go(func() { s.end(s.send()) })
	s.wg.Go(func() { s.end(s.receive()) })
	return s
}

func (s *stream) send() error {
	tick := time.NewTicker(blockEvery)
	defer tick.Stop()
	block := make([]byte, blockSize)
	for number := uint64(0); ; number++ {
		fill(block, number)
		if _, err := s.from.Write(block); err != nil {
			return fmt.Errorf("sending block %d: %w", number, err)
		}
		s.mu.Lock()
		s.sent = number + 1
		s.mu.Unlock()
		if s.isStopping() {
			return s.from.CloseWrite()
		}
		<-tick.C
	}
}

func (s *stream) receive() error {
	got, want := make([]byte, blockSize), make([]byte, blockSize)
	for number := uint64(0); ; number++ {
		_, err := io.ReadFull(s.to, got)
		if err == io.EOF && s.isStopping() {
			return nil
		}
		if err != nil {
			return fmt.Errorf("waiting for block %d: %w", number, err)
		}
		if fill(want, number); string(got) != string(want) {
			return fmt.Errorf("block %d is not what was sent: it says to be block %d", number, binary.BigEndian.Uint64(got))
		}
		now := time.Now()
		s.mu.Lock()
		s.received = number + 1
		s.longest = max(s.longest, now.Sub(s.last))
		s.last = now
		s.mu.Unlock()
	}
}

// fill writes what block number holds: the number, and bytes that follow from it.
func fill(block []byte, number uint64) {
	binary.BigEndian.PutUint64(block, number)
	for i := 8; i < len(block); i++ {
		block[i] = byte(uint64(i) * (number + 1))
	}
}

// end keeps the first error; what follows at the other end is its echo.
func (s *stream) end(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *stream) isStopping() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stopping
}

// window is what happened to the stream between two looks.
type window struct {
	Blocks  uint64        // arrived
	Longest time.Duration // silence
}

// look returns what happened since the last look, and the error that ended the stream, if one did.
// A silence that is still going on counts.
func (s *stream) look() (window, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := window{s.received - s.seen, max(s.longest, time.Since(s.last))}
	s.seen, s.longest = s.received, 0
	return w, s.err
}

// finish ends the sending, waits for what is under way, closes the connection, and returns how many
// blocks were sent and how many of them did not come within the patience.
func (s *stream) finish(patience time.Duration) (sent, lost uint64, err error) {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	deadline := time.Now().Add(patience)
	s.from.SetWriteDeadline(deadline)
	s.to.SetReadDeadline(deadline)
	s.wg.Wait()
	s.from.Close()
	s.to.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sent, s.sent - s.received, s.err
}
