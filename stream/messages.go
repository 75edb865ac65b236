package stream

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"time"

	"github.com/flynn/noise"
)

const (
	// RekeyRecords is after how many records a direction changes its key. A key serves for at most 64 MiB
	// then; changing it costs less than sealing one record of 64 bytes.
	RekeyRecords = 1024

	// maxRecord is the longest Noise message (section 3 of its specification), tag included.
	maxRecord = noise.MaxMsgLen
	tagSize   = 16
	lengthOf  = 4 // bytes of a message's length

	// readBuffer spares system calls on short messages; a long record is read past it.
	readBuffer = 4 << 10
	// trust is how much memory in bytes the length of a message is worth before its bytes have come.
	trust = 64 << 10
)

var (
	// ErrTooLong is returned for a message longer than its reader wants.
	ErrTooLong = errors.New("the message is longer than allowed")
	// ErrRecord is returned for bytes on the stream that are no record of the other end's.
	ErrRecord = errors.New("the stream was tampered with or damaged")
)

// Messages is a stream of sealed messages. One goroutine may read and any number write, each message whole.
// After an error, a deadline's included, that direction is over; Close ends both and may be called at any time.
type Messages struct {
	conn net.Conn
	info Info

	in      *bufio.Reader
	receive sealer
	readErr error

	mu       sync.Mutex // held for a whole message
	send     sealer
	writeErr error
}

func newMessages(conn net.Conn, info Info, send, receive *noise.CipherState) *Messages {
	return &Messages{
		conn: conn, info: info,
		in:   bufio.NewReaderSize(conn, readBuffer),
		send: sealer{state: send}, receive: sealer{state: receive},
	}
}

// sealer is one direction's key.
type sealer struct {
	state *noise.CipherState
	n     int // records since the key changed
}

func (s *sealer) count() {
	if s.n++; s.n == RekeyRecords {
		s.n = 0
		s.state.Rekey()
	}
}

func (s *sealer) seal(dst, plain []byte) ([]byte, error) {
	b, err := s.state.Encrypt(dst, nil, plain)
	s.count()
	return b, err
}

// open decrypts in place.
func (s *sealer) open(record []byte) ([]byte, error) {
	b, err := s.state.Decrypt(record[:0], nil, record)
	if err != nil {
		return nil, ErrRecord
	}
	s.count()
	return b, nil
}

// WriteMessage sends one message. It blocks while the other end does not read: set a deadline.
func (m *Messages) WriteMessage(b []byte) error {
	if uint64(len(b)) > 1<<32-1 {
		return ErrTooLong
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.writeErr == nil {
		m.writeErr = m.write(b)
	}
	return m.writeErr
}

func (m *Messages) write(b []byte) error {
	const most = maxRecord - tagSize
	out := make([]byte, 0, 2+min(lengthOf+len(b), most)+tagSize)
	// The first record's plaintext is put together in a place of its own; the others are b's own.
	first := min(len(b), most-lengthOf)
	plain := binary.BigEndian.AppendUint32(make([]byte, 0, lengthOf+first), uint32(len(b)))
	plain, b = append(plain, b[:first]...), b[first:]
	for {
		out = binary.BigEndian.AppendUint16(out[:0], uint16(len(plain)+tagSize))
		var err error
		if out, err = m.send.seal(out, plain); err != nil {
			return err
		}
		if _, err := m.conn.Write(out); err != nil {
			return err
		}
		if len(b) == 0 {
			return nil
		}
		n := min(len(b), most)
		plain, b = b[:n], b[n:]
	}
}

// ReadMessage returns the next message, which is the caller's, if it has at most limit bytes. At the end of the
// stream between two messages it returns io.EOF; nothing tells an end that the other side meant from one that
// somebody in between made.
func (m *Messages) ReadMessage(limit int) ([]byte, error) {
	if m.readErr != nil {
		return nil, m.readErr
	}
	b, err := m.read(limit)
	m.readErr = err
	return b, err
}

func (m *Messages) read(limit int) ([]byte, error) {
	plain, err := m.record(nil)
	if err != nil {
		return nil, err
	}
	if len(plain) < lengthOf {
		return nil, fmt.Errorf("%w: a message of no length", ErrRecord)
	}
	size := int64(binary.BigEndian.Uint32(plain))
	if size > int64(limit) {
		return nil, fmt.Errorf("%w: %d bytes, not %d", ErrTooLong, size, limit)
	}
	plain = plain[lengthOf:]
	if int64(len(plain)) == size {
		return plain, nil // in one record: opened in place, copied nowhere
	}
	var buf []byte
	b := append(make([]byte, 0, min(size, trust)), plain...)
	for {
		switch {
		case int64(len(b)) == size:
			return b, nil
		case int64(len(b)) > size:
			return nil, fmt.Errorf("%w: a message longer than it says", ErrRecord)
		}
		if buf == nil {
			buf = make([]byte, maxRecord)
		}
		if plain, err = m.record(buf); err != nil {
			if isEnd(err) {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		if len(plain) == 0 {
			return nil, fmt.Errorf("%w: an empty record inside a message", ErrRecord)
		}
		b = append(b, plain...)
	}
}

// record reads and opens a record, into buf if there is one.
func (m *Messages) record(buf []byte) ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(m.in, head[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(head[:]))
	if n < tagSize {
		return nil, ErrRecord
	}
	if buf == nil {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(m.in, buf); err != nil {
		if isEnd(err) {
			err = io.ErrUnexpectedEOF
		}
		return nil, err
	}
	return m.receive.open(buf)
}

// Info tells how the stream came about.
func (m *Messages) Info() Info { return m.info }

// RemoteAddr is the other end's address, or that of the proxy in between.
func (m *Messages) RemoteAddr() net.Addr { return m.conn.RemoteAddr() }

// NetConn returns the connection below, for its socket's options.
func (m *Messages) NetConn() net.Conn { return m.conn }

// SetReadDeadline ends reading at t, for good. The zero time is never.
func (m *Messages) SetReadDeadline(t time.Time) error { return m.conn.SetReadDeadline(t) }

// SetWriteDeadline ends writing at t, for good. The zero time is never.
func (m *Messages) SetWriteDeadline(t time.Time) error { return m.conn.SetWriteDeadline(t) }

// Close ends the stream.
func (m *Messages) Close() error { return m.conn.Close() }
