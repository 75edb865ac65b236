package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"

	"weft"
	"weft/stream"
	"weft/wire"
)

// framing is how a relay marks datagrams on a stream. Both ends of every flow are one piece of code, whatever the
// relay is, so that what they cost is the same.
type framing struct {
	prefix int // bytes in front of each datagram, in both directions
	// size is the length of the frame that b begins with, and whether it is a datagram. b has a prefix's length.
	size func(b []byte) (n int, data bool)
}

// streamFlow is a flow over a relay of streams.
type streamFlow struct {
	framing
	from, to net.Conn
	frames   []byte // a burst
	ended    chan struct{}
}

// streamRead is how much a receiver reads at once, in bytes, at most.
const streamRead = 128 << 10

// newStreamFlow starts the receiver; prefix is what the sender puts in front of each datagram.
func newStreamFlow(k framing, from, to net.Conn, prefix []byte, f *flow) *streamFlow {
	s := &streamFlow{framing: k, from: from, to: to, ended: make(chan struct{})}
	for range burst {
		s.frames = append(append(s.frames, prefix...), make([]byte, payload)...)
	}
	go func() {
		defer close(s.ended)
		s.receive(f)
	}()
	go io.Copy(io.Discard, from) // what a relay says to a sender, lest it waits
	return s
}

func (s *streamFlow) receive(f *flow) {
	buf, end := make([]byte, streamRead), 0
	for t := (tally{}); ; f.tell(&t) {
		n, err := s.to.Read(buf[end:])
		if err != nil {
			return
		}
		end += n
		at := 0
		for end-at >= s.prefix {
			size, data := s.size(buf[at:])
			if size < s.prefix && data || size > streamRead {
				return
			}
			if end-at < size {
				break
			}
			if data && size == s.prefix+payload {
				t.count(binary.BigEndian.Uint64(buf[at+s.prefix:]))
			}
			at += size
		}
		end = copy(buf, buf[at:end])
	}
}

func (s *streamFlow) send(first uint64, n int) error {
	frame := s.prefix + payload
	for i := range n {
		binary.BigEndian.PutUint64(s.frames[i*frame+s.prefix:], first+uint64(i))
	}
	if _, err := s.from.Write(s.frames[:n*frame]); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("sending to the relay: %w", err)
	}
	return nil
}

func (s *streamFlow) Close() error {
	s.from.Close()
	s.to.Close()
	<-s.ended
	return nil
}

var weftFraming = framing{prefix: wire.StreamDataPrefix, size: func(b []byte) (int, bool) {
	return wire.StreamHeaderSize + int(binary.BigEndian.Uint16(b[2:])), wire.StreamType(b[0]) == wire.StreamData
}}

// stream joins nodes 2i+1 and 2i+2 by streams.
func (n *network) stream(ctx context.Context, i int, f *flow) (sender, error) {
	ids := [2]weft.NodeID{weft.NodeID(2*i + 1), weft.NodeID(2*i + 2)}
	from, err := n.connect(ctx, ids[0])
	if err != nil {
		return nil, err
	}
	to, err := n.connect(ctx, ids[1])
	if err != nil {
		from.Close()
		return nil, err
	}
	return newStreamFlow(weftFraming, from, to, wire.AppendStreamData(nil, ids[1], payload), f), nil
}

// connect opens a node's stream to the relay.
func (n *network) connect(ctx context.Context, id weft.NodeID) (_ net.Conn, err error) {
	k, ticket := n.node(id)
	box, err := wire.RelayBox(k, n.relay.Key)
	if err != nil {
		return nil, err
	}
	c, _, err := stream.Dial(ctx, stream.Options{
		URL: n.relay.URL, Path: wire.RelayPath, Proto: wire.RelayProto, Fingerprint: n.relay.Fingerprint,
	})
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	frame := func(want wire.StreamType) (body []byte, err error) {
		var head [wire.StreamHeaderSize]byte
		if _, err = io.ReadFull(c, head[:]); err != nil {
			return nil, err
		}
		t, size, err := wire.ParseStreamHeader(head[:])
		if err != nil || t != want {
			return nil, fmt.Errorf("the relay answers with a frame of type %d, not %d: %w", t, want, err)
		}
		body = make([]byte, size)
		_, err = io.ReadFull(c, body)
		return body, err
	}
	nonce, err := frame(wire.StreamHello)
	if err == nil {
		_, err = c.Write(wire.AppendStreamBind(nil, nonce, ticket, box))
	}
	if err == nil {
		_, err = frame(wire.StreamBound)
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("a node of the benchmark is not bound to the relay: %w", err)
	}
	return c, nil
}
