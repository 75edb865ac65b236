package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

const (
	// clientQueue and clientAge bound what waits at the node for its stream, like Limits at the relay.
	clientQueue = 1 << 20
	clientAge   = 500 * time.Millisecond
	// rebindLeast is the least time between two Binds of one stream.
	rebindLeast = 10 * time.Second
)

// StreamConfig is what a node's stream to a relay is made of.
type StreamConfig struct {
	Relay   weft.Relay
	NodeKey key.NodePrivate
	// Ticket returns the latest ticket; it is called from goroutines of the stream and may wait.
	Ticket func() []byte
	// Deliver takes datagrams of one sender, in order, as many as were read at once. They are valid during the
	// call. The stream is not read meanwhile. It may be nil.
	Deliver func(src weft.NodeID, datagrams [][]byte)
	Logger  *slog.Logger
	// DialContext makes the TCP connection, if not nil.
	DialContext func(ctx context.Context, network, addr string) (net.Conn, error)
}

// Stream is a node's stream to a relay. Its methods may be called at once.
type Stream struct {
	cfg    StreamConfig
	log    *slog.Logger
	conn   net.Conn
	info   stream.Info
	box    key.Box
	nonce  []byte
	out    *queue
	start  time.Time
	heard  atomic.Int64
	lost   atomic.Uint64 // datagrams that were dropped before they were sent
	rebind *time.Timer

	done chan struct{}
	once sync.Once
	err  error // once done

	mu    sync.Mutex
	pings map[uint64]chan struct{}
	ping  uint64
}

// DialStream opens a stream to a relay and is admitted. The context bounds the dialling. When it returns, the
// relay has proved its key.
func DialStream(ctx context.Context, cfg StreamConfig) (*Stream, error) {
	s := &Stream{
		cfg: cfg, log: cfg.Logger, start: time.Now(), done: make(chan struct{}), pings: map[uint64]chan struct{}{},
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	var err error
	if s.box, err = wire.RelayBox(cfg.NodeKey, cfg.Relay.Key); err != nil {
		return nil, fmt.Errorf("relay %s: %w", cfg.Relay.Name, err)
	}
	s.conn, s.info, err = stream.Dial(ctx, stream.Options{
		URL: cfg.Relay.URL, Path: wire.RelayPath, Proto: wire.RelayProto,
		Fingerprint: cfg.Relay.Fingerprint, DialContext: cfg.DialContext,
	})
	if err != nil {
		return nil, err
	}
	tune(s.conn)
	stop := context.AfterFunc(ctx, func() { s.conn.Close() })
	_ = s.conn.SetDeadline(time.Now().Add(greetTimeout))
	lifetime, err := s.greet()
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		s.conn.Close()
		var e *weft.Error
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.As(err, &e) {
			return nil, e
		}
		return nil, fmt.Errorf("relay %s broke off its greeting: %w", cfg.Relay.Name, err)
	}
	_ = s.conn.SetDeadline(time.Time{})
	s.out = newQueue(clientQueue, clientAge, s.now, func(_ Drop, n int) { s.lost.Add(uint64(n)) })
	s.heard.Store(int64(s.now()))
	s.rebind = time.AfterFunc(rebindAfter(lifetime), s.bindAgain)
	go func() { s.end(s.read()) }()
	go func() {
		if err := s.out.writer(s.conn, func(int, int) {}, s.beat); err != nil {
			s.end(err)
		}
	}()
	return s, nil
}

func (s *Stream) now() time.Duration { return time.Since(s.start) }

func rebindAfter(lifetime time.Duration) time.Duration { return max(lifetime/2, rebindLeast) }

// greet answers Hello with Bind and waits for Bound.
func (s *Stream) greet() (lifetime time.Duration, err error) {
	name := s.cfg.Relay.Name
	_, nonce, err := readFrame(s.conn, wire.StreamHello, wire.StreamNonceSize)
	if err != nil {
		return 0, err
	}
	if len(nonce) != wire.StreamNonceSize {
		return 0, wire.ErrFrame
	}
	s.nonce = nonce
	ticket := s.cfg.Ticket()
	if len(ticket) != wire.TicketSize {
		return 0, &weft.Error{Code: weft.CodeUnavailable, Message: "there is no ticket for relay " + name + " yet: the server gives one as soon as it is reached"}
	}
	if _, err := s.conn.Write(wire.AppendStreamBind(nil, nonce, ticket, s.box)); err != nil {
		return 0, err
	}
	t, body, err := readFrame(s.conn, wire.StreamBound, key.Overhead+4)
	if err != nil {
		return 0, err
	}
	if t == wire.StreamRefused {
		return 0, s.refusal(body)
	}
	lifetime, err = wire.ParseStreamBound(body, nonce, s.box)
	if err != nil {
		return 0, &weft.Error{Code: weft.CodeWrongServer, Message: "what answers at " + s.cfg.Relay.URL + " does not hold the key of relay " + name +
			": the relay was set up anew and its server does not know yet, or something else is at that address"}
	}
	return lifetime, nil
}

// refusal is the error of a Refused frame. Nothing proves who said it, so it is never final.
func (s *Stream) refusal(body []byte) error {
	why := "for no reason"
	if len(body) == 1 {
		why = wire.Refusal(body[0]).String()
	}
	return &weft.Error{Code: weft.CodeUnavailable, Message: "relay " + s.cfg.Relay.Name + " refuses this machine: " + why}
}

// bindAgain presents a ticket that is not older than the last, in time.
func (s *Stream) bindAgain() {
	ticket := s.cfg.Ticket()
	if len(ticket) != wire.TicketSize {
		s.rebind.Reset(rebindLeast)
		return
	}
	s.out.control(func(dst []byte) []byte { return wire.AppendStreamBind(dst, s.nonce, ticket, s.box) })
}

// SendTo sends datagrams to a node. It copies them and returns: what the stream cannot take soon enough is
// dropped, oldest first. The error is of a stream that has ended.
func (s *Stream) SendTo(id weft.NodeID, datagrams [][]byte) error {
	err := s.out.send(id, datagrams)
	if err == nil {
		return nil
	}
	if why := s.Err(); why != nil {
		return why
	}
	return err
}

// Ping asks the relay for an answer and returns how long it took. It passes by the datagrams that wait here.
func (s *Stream) Ping(ctx context.Context) (time.Duration, error) {
	answer := make(chan struct{})
	s.mu.Lock()
	s.ping++
	n := s.ping
	s.pings[n] = answer
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		delete(s.pings, n)
		s.mu.Unlock()
	}()
	sent := time.Now()
	s.sendPing(n)
	select {
	case <-answer:
		return time.Since(sent), nil
	case <-s.done:
		return 0, s.Err()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

func (s *Stream) sendPing(n uint64) {
	s.out.control(func(dst []byte) []byte {
		return binary.BigEndian.AppendUint64(wire.AppendStreamHeader(dst, wire.StreamPing, 8), n)
	})
}

// beat is called every beatEvery. It keeps the connection in use, and finds out one that is not any more.
func (s *Stream) beat() error {
	if s.now()-time.Duration(s.heard.Load()) >= deadAfter {
		return errSilent
	}
	s.sendPing(0)
	return nil
}

// read takes in what the relay sends.
func (s *Stream) read() error {
	f := frameReader{r: s.conn}
	defer f.close()
	var run [][]byte
	for {
		b, err := f.next()
		if err != nil {
			return err
		}
		s.heard.Store(int64(s.now()))
		for len(b) > 0 {
			if wire.StreamType(b[0]) != wire.StreamData {
				n := frameSize(b)
				if err := s.control(wire.StreamType(b[0]), b[wire.StreamHeaderSize:n]); err != nil {
					return err
				}
				b = b[n:]
				continue
			}
			n, _ := streamRun(b)
			run = datagramsOf(run[:0], b[:n])
			if len(run) > 0 && s.cfg.Deliver != nil {
				s.cfg.Deliver(frameNode(b), run)
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
func (s *Stream) control(t wire.StreamType, body []byte) error {
	switch {
	case t == wire.StreamPing && len(body) == 8:
		s.out.control(func(dst []byte) []byte {
			return append(wire.AppendStreamHeader(dst, wire.StreamPong, 8), body...)
		})
	case t == wire.StreamPong && len(body) == 8:
		s.mu.Lock()
		if answer := s.pings[binary.BigEndian.Uint64(body)]; answer != nil {
			delete(s.pings, binary.BigEndian.Uint64(body))
			close(answer)
		}
		s.mu.Unlock()
	case t == wire.StreamBound:
		lifetime, err := wire.ParseStreamBound(body, s.nonce, s.box)
		if err != nil {
			return err
		}
		s.rebind.Reset(rebindAfter(lifetime))
	case t == wire.StreamRefused:
		return s.refusal(body)
	default:
		return wire.ErrFrame
	}
	return nil
}

// end ends the stream.
func (s *Stream) end(err error) {
	s.once.Do(func() {
		var e *weft.Error
		if !errors.As(err, &e) && !errors.Is(err, net.ErrClosed) {
			err = fmt.Errorf("the stream to relay %s has ended: %w", s.cfg.Relay.Name, err)
		}
		s.err = err
		s.out.close() // from Done on, SendTo fails
		close(s.done)
		s.rebind.Stop()
		s.conn.Close()
	})
}

// Close ends the stream.
func (s *Stream) Close() error {
	s.end(net.ErrClosed)
	return nil
}

// Done is closed when the stream has ended.
func (s *Stream) Done() <-chan struct{} { return s.done }

// Err is why the stream has ended, and nil before.
func (s *Stream) Err() error {
	select {
	case <-s.done:
		return s.err
	default:
		return nil
	}
}

// Info tells how the stream came about.
func (s *Stream) Info() stream.Info { return s.info }

// Lost is how many datagrams were dropped because the stream did not take them in time.
func (s *Stream) Lost() uint64 { return s.lost.Load() }
