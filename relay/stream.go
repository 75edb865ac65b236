package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"time"

	"weft"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

const (
	// clientQueue and clientAge bound what waits at the node for its stream, like Limits at the relay: 4 MiB, as in front of the
	// cipher.
	clientQueue = 4 << 20
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

// Stream is a node's stream to a relay: a pipe, and who is admitted to it. Its methods may be called at once.
type Stream struct {
	*Pipe
	cfg    StreamConfig
	info   stream.Info
	box    key.Box
	nonce  []byte
	rebind *time.Timer
}

// DialStream opens a stream to a relay and is admitted. The context bounds the dialling. When it returns, the
// relay has proved its key.
func DialStream(ctx context.Context, cfg StreamConfig) (*Stream, error) {
	s := &Stream{cfg: cfg}
	var err error
	if s.box, err = wire.RelayBox(cfg.NodeKey, cfg.Relay.Key); err != nil {
		return nil, fmt.Errorf("relay %s: %w", cfg.Relay.Name, err)
	}
	conn, info, err := stream.Dial(ctx, stream.Options{
		URL: cfg.Relay.URL, Path: wire.RelayPath, Proto: wire.RelayProto,
		Fingerprint: cfg.Relay.Fingerprint, DialContext: cfg.DialContext,
	})
	if err != nil {
		return nil, err
	}
	s.info = info
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(greetTimeout))
	lifetime, err := s.greet(conn)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		conn.Close()
		var e *weft.Error
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.As(err, &e) {
			return nil, e
		}
		return nil, fmt.Errorf("relay %s broke off its greeting: %w", cfg.Relay.Name, err)
	}
	_ = conn.SetDeadline(time.Time{})
	s.Pipe = NewPipe(conn, PipeConfig{
		Name: "relay " + cfg.Relay.Name, Deliver: cfg.Deliver, other: s.answer, ended: func() { s.rebind.Stop() },
	})
	s.rebind = time.AfterFunc(rebindAfter(lifetime), s.bindAgain)
	s.Start()
	return s, nil
}

func rebindAfter(lifetime time.Duration) time.Duration { return max(lifetime/2, rebindLeast) }

// greet answers Hello with Bind and waits for Bound.
func (s *Stream) greet(conn net.Conn) (lifetime time.Duration, err error) {
	name := s.cfg.Relay.Name
	_, nonce, err := readFrame(conn, wire.StreamHello, wire.StreamNonceSize)
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
	if _, err := conn.Write(wire.AppendStreamBind(nil, nonce, ticket, s.box)); err != nil {
		return 0, err
	}
	t, body, err := readFrame(conn, wire.StreamBound, key.Overhead+4)
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

// answer deals with what the relay says of the binding.
func (s *Stream) answer(t wire.StreamType, body []byte) error {
	switch t {
	case wire.StreamBound:
		lifetime, err := wire.ParseStreamBound(body, s.nonce, s.box)
		if err != nil {
			return err
		}
		s.rebind.Reset(rebindAfter(lifetime))
	case wire.StreamRefused:
		return s.refusal(body)
	default:
		return wire.ErrFrame
	}
	return nil
}

// Info tells how the stream came about.
func (s *Stream) Info() stream.Info { return s.info }
