package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/wire"
)

// pipeAhead bounds in bytes what is sent before the datagrams that wait: some frames of the longest. They are of those who
// find out how a way is, and repeat what is lost.
const pipeAhead = 8 << 10

// PipeConfig is what a pipe is made of.
type PipeConfig struct {
	// Name is what is at the other end, in errors: "relay munich".
	Name string
	// Deliver takes datagrams of one sender, in order, as many as were read at once. They are valid, and its to change,
	// during the call. The connection is not read meanwhile. It may be nil.
	Deliver func(src weft.NodeID, datagrams [][]byte)

	// other takes frames that are neither Data nor Ping nor Pong; nil: there are none.
	other func(t wire.StreamType, body []byte) error
	ended func()
}

// A Pipe is a connection whose ends know each other already, with frames both ways: the half of a [Stream] that does not
// depend on who is at the other end. Its methods may be called at once.
type Pipe struct {
	cfg   PipeConfig
	conn  net.Conn
	out   *queue
	start time.Time
	heard atomic.Int64
	lost  atomic.Uint64 // datagrams that were dropped before they were sent

	done chan struct{}
	once sync.Once
	err  error // once done

	mu    sync.Mutex
	pings map[uint64]chan struct{}
	ping  uint64
}

// NewPipe makes a pipe of a connection, which is the pipe's from now on. Nothing is read or written before Start.
func NewPipe(conn net.Conn, cfg PipeConfig) *Pipe {
	p := &Pipe{cfg: cfg, conn: conn, start: time.Now(), done: make(chan struct{}), pings: map[uint64]chan struct{}{}}
	p.out = newQueue(clientQueue, clientAge, p.now, func(_ Drop, n int) { p.lost.Add(uint64(n)) })
	p.out.ahead = pipeAhead
	tune(conn)
	return p
}

// Start begins to read and write.
func (p *Pipe) Start() {
	p.heard.Store(int64(p.now()))
	go func() { p.end(p.read()) }()
	go func() {
		if err := p.out.writer(p.conn, func(int, int) {}, p.beat); err != nil {
			p.end(err)
		}
	}()
}

func (p *Pipe) now() time.Duration { return time.Since(p.start) }

// SendTo sends datagrams to a node. It copies them and returns: what the connection cannot take soon enough is
// dropped, oldest first. The error is of one that has ended.
func (p *Pipe) SendTo(id weft.NodeID, datagrams [][]byte) error {
	err := p.out.send(id, datagrams)
	if err == nil {
		return nil
	}
	if why := p.Err(); why != nil {
		return why
	}
	return err
}

// SendAhead sends one datagram before those that wait.
func (p *Pipe) SendAhead(id weft.NodeID, b []byte) error {
	if len(b) == 0 || 4+len(b) > wire.MaxStreamBody {
		return wire.ErrFrame
	}
	p.out.control(func(dst []byte) []byte { return append(wire.AppendStreamData(dst, id, len(b)), b...) })
	return p.Err()
}

// Ping asks the other end for an answer and returns how long it took. It passes by the datagrams that wait here.
func (p *Pipe) Ping(ctx context.Context) (time.Duration, error) {
	answer := make(chan struct{})
	p.mu.Lock()
	p.ping++
	n := p.ping
	p.pings[n] = answer
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.pings, n)
		p.mu.Unlock()
	}()
	sent := time.Now()
	p.sendPing(n)
	select {
	case <-answer:
		return time.Since(sent), nil
	case <-p.done:
		return 0, p.Err()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (p *Pipe) sendPing(n uint64) {
	p.out.control(func(dst []byte) []byte {
		return binary.BigEndian.AppendUint64(wire.AppendStreamHeader(dst, wire.StreamPing, 8), n)
	})
}

// beat is called every beatEvery. It keeps the connection in use, and finds out one that is not any more.
func (p *Pipe) beat() error {
	if p.now()-time.Duration(p.heard.Load()) >= deadAfter {
		return errSilent
	}
	p.sendPing(0)
	return nil
}

// read takes in what the other end sends.
func (p *Pipe) read() error {
	f := frameReader{r: p.conn}
	defer f.close()
	var run [][]byte
	for {
		b, err := f.next()
		if err != nil {
			return err
		}
		p.heard.Store(int64(p.now()))
		for len(b) > 0 {
			if wire.StreamType(b[0]) != wire.StreamData {
				n := frameSize(b)
				if err := p.control(wire.StreamType(b[0]), b[wire.StreamHeaderSize:n]); err != nil {
					return err
				}
				b = b[n:]
				continue
			}
			n, _ := streamRun(b)
			run = datagramsOf(run[:0], b[:n])
			if len(run) > 0 && p.cfg.Deliver != nil {
				p.cfg.Deliver(frameNode(b), run)
			}
			b = b[n:]
		}
	}
}

// datagramsOf adds the datagrams of Data frames to dst.
func datagramsOf(dst [][]byte, frames []byte) [][]byte {
	for len(frames) > 0 {
		n := frameSize(frames)
		if n > wire.StreamDataPrefix {
			dst = append(dst, frames[wire.StreamDataPrefix:n:n])
		}
		frames = frames[n:]
	}
	return dst
}

// control deals with a frame that is not Data.
func (p *Pipe) control(t wire.StreamType, body []byte) error {
	switch {
	case t == wire.StreamPing && len(body) == 8:
		p.out.control(func(dst []byte) []byte {
			return append(wire.AppendStreamHeader(dst, wire.StreamPong, 8), body...)
		})
	case t == wire.StreamPong && len(body) == 8:
		p.mu.Lock()
		if answer := p.pings[binary.BigEndian.Uint64(body)]; answer != nil {
			delete(p.pings, binary.BigEndian.Uint64(body))
			close(answer)
		}
		p.mu.Unlock()
	case p.cfg.other != nil:
		return p.cfg.other(t, body)
	default:
		return wire.ErrFrame
	}
	return nil
}

// end ends the pipe.
func (p *Pipe) end(err error) {
	p.once.Do(func() {
		var e *weft.Error
		if !errors.As(err, &e) && !errors.Is(err, net.ErrClosed) {
			err = fmt.Errorf("the stream to %s has ended: %w", p.cfg.Name, err)
		}
		p.err = err
		p.out.close() // from Done on, SendTo fails
		close(p.done)
		if p.cfg.ended != nil {
			p.cfg.ended()
		}
		p.conn.Close()
	})
}

// Close ends the pipe.
func (p *Pipe) Close() error {
	p.end(net.ErrClosed)
	return nil
}

// Done is closed when the pipe has ended.
func (p *Pipe) Done() <-chan struct{} { return p.done }

// Err is why the pipe has ended, and nil before.
func (p *Pipe) Err() error {
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// Lost is how many datagrams were dropped because the connection did not take them in time.
func (p *Pipe) Lost() uint64 { return p.lost.Load() }
