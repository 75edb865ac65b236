package rendezvous

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"weft"
	"weft/stream"
	"weft/wire"
)

const (
	// dialTimeout bounds reaching the rendezvous: TCP, TLS and upgrade, with WebSocket as the second try.
	dialTimeout = 20 * time.Second
	// writeTimeout ends a connection whose other end does not read.
	writeTimeout = 20 * time.Second
	// leaveTimeout is how long a member that ends tries to say so.
	leaveTimeout = time.Second
	// trust is how much memory in bytes the length of a message is worth before its bytes have come.
	trust = 64 << 10
)

// writeMessage sends a document behind its length.
func writeMessage(c net.Conn, m any) error { return writeWithin(c, m, writeTimeout) }

func writeWithin(c net.Conn, m any, d time.Duration) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if err := c.SetWriteDeadline(time.Now().Add(d)); err != nil {
		return err
	}
	_, err = c.Write(append(binary.BigEndian.AppendUint32(make([]byte, 0, 4+len(b)), uint32(len(b))), b...))
	return err
}

// readMessage waits for a document of at most limit bytes.
func readMessage(r io.Reader, limit int) ([]byte, error) {
	var head [4]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return nil, err
	}
	n := int64(binary.BigEndian.Uint32(head[:]))
	if n > int64(limit) {
		return nil, fmt.Errorf("%w: %d bytes, more than %d", wire.ErrFrame, n, limit)
	}
	if n <= trust {
		b := make([]byte, n)
		_, err := io.ReadFull(r, b)
		return b, err
	}
	b, err := io.ReadAll(io.LimitReader(r, n)) // which grows with what comes
	if err == nil && int64(len(b)) < n {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

// A Conn is a member's end of the stream to a rendezvous. One goroutine may hear and any number say.
type Conn struct {
	Info stream.Info
	conn net.Conn
	url  string
	mu   sync.Mutex // held for a whole message
}

// Dial connects to the rendezvous at a server's URL. The context bounds the dialling.
func Dial(ctx context.Context, url string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	c, info, err := stream.Dial(ctx, stream.Options{URL: url, Path: wire.RendezvousPath, Proto: wire.RendezvousProto})
	if err != nil {
		return nil, err
	}
	return &Conn{Info: info, conn: c, url: url}, nil
}

// Say sends one document.
func (c *Conn) Say(m wire.MemberMessage) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return writeMessage(c.conn, m)
}

// Leave says that the member is to be forgotten, as well as that can be done in a moment.
func (c *Conn) Leave() error {
	_ = c.conn.SetWriteDeadline(time.Now().Add(leaveTimeout)) // also of a message that is stuck
	c.mu.Lock()
	defer c.mu.Unlock()
	return writeWithin(c.conn, wire.MemberMessage{Leave: &wire.Leave{}}, leaveTimeout)
}

// Hear waits for one document. Words of a refusal are fit for a terminal.
func (c *Conn) Hear() (wire.RendezvousMessage, error) {
	b, err := readMessage(c.conn, wire.MaxRendezvousMessage)
	if err != nil {
		return wire.RendezvousMessage{}, fmt.Errorf("the connection to %s ended: %w", c.url, err)
	}
	m, err := wire.ParseRendezvousMessage(b)
	if err != nil {
		return m, fmt.Errorf("%s said something that is no answer: %w", c.url, err)
	}
	if r := m.Refusal; r != nil {
		m.Refusal = &weft.Error{Code: weft.Code(stream.Printable(string(r.Code), 40)), Message: stream.Printable(r.Message, 400)}
	}
	return m, nil
}

// Close ends the connection.
func (c *Conn) Close() error { return c.conn.Close() }
