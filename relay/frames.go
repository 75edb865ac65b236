package relay

import (
	"encoding/binary"
	"io"
	"net"
	"sync"
	"time"

	"weft"
	"weft/host"
	"weft/stream"
	"weft/wire"
)

const (
	// smallRead and bigRead are the sizes in bytes of a stream's receive buffer: while it is idle or slow, and
	// while it has filled the small one lately. The big ones are shared by all streams.
	smallRead = 4 << 10
	bigRead   = 128 << 10
	// mostRecord is what a TLS record holds at most, in bytes (RFC 8446 section 5.1).
	mostRecord = 16 << 10
	// calm is after how many small reads in a row a big buffer is given back.
	calm = 32

	// beatEvery is how often a stream is used at least: below the 60 s after which proxies and NATs commonly
	// close one. deadAfter is how long the other end may be silent, although asked, until the stream is over.
	beatEvery = 15 * time.Second
	deadAfter = 3 * beatEvery
	// writeTimeout is how long the other end may take for 64 KiB: below 17 kbit/s there is no stream.
	writeTimeout = 30 * time.Second
	// greetTimeout bounds Hello, Bind and Bound together.
	greetTimeout = 10 * time.Second
)

// tune sets what a stream of frames needs of its socket. The kernel sizes the buffers, which grow with the
// bandwidth-delay product of the path; a size of ours would be a limit.
func tune(c net.Conn) {
	if t, ok := stream.TCPConn(c); ok {
		_ = host.SetUnsentLimit(t, unsentLimit) // an optimisation
	}
	// This one is, too.
	_ = stream.Beneath(c, func(t *net.TCPConn) (net.Conn, error) { return host.NewBusyTCP(t) })
}

var bigReads = sync.Pool{New: func() any { return new([bigRead]byte) }}

// frameReader takes a stream apart into runs of whole frames.
type frameReader struct {
	r          io.Reader
	small      [smallRead]byte
	big        *[bigRead]byte
	start, end int // of what is not yet handed out
	calm       int
}

func (f *frameReader) buf() []byte {
	if f.big != nil {
		return f.big[:]
	}
	return f.small[:]
}

// next reads until there is a whole frame, and returns all whole frames there are. They are valid, and the
// caller's to change, until the next call.
func (f *frameReader) next() ([]byte, error) {
	f.resize()
	for {
		n, err := f.r.Read(f.buf()[f.end:])
		f.end += n
		if conn, ok := f.r.(net.Conn); ok {
			for err == nil && n > 0 && len(f.buf())-f.end >= mostRecord { // all that one read of the network has brought
				n, err = stream.ReadMore(conn, f.buf()[f.end:])
				f.end += n
			}
		}
		whole, bad := wholeFrames(f.buf()[f.start:f.end])
		if bad != nil {
			return nil, bad
		}
		if whole > 0 {
			b := f.buf()[f.start : f.start+whole]
			f.start += whole
			return b, nil // an error comes again
		}
		if err != nil {
			return nil, err
		}
		if f.end == len(f.buf()) {
			f.grow() // a frame longer than the small buffer; the big one holds any
		}
	}
}

// resize moves what is left to the front, and chooses the buffer by what the last read brought.
func (f *frameReader) resize() {
	full := f.end == len(f.buf())
	if f.end > smallRead {
		f.calm = 0
	} else {
		f.calm++
	}
	f.end = copy(f.buf(), f.buf()[f.start:f.end])
	f.start = 0
	switch {
	case f.big == nil && full:
		f.grow()
	case f.big != nil && f.calm >= calm && f.end == 0:
		bigReads.Put(f.big)
		f.big = nil
	}
}

func (f *frameReader) grow() {
	if f.big == nil {
		f.big = bigReads.Get().(*[bigRead]byte)
		f.end = copy(f.big[:], f.small[f.start:f.end])
		f.start = 0
	}
}

// close gives the buffer back.
func (f *frameReader) close() {
	if f.big != nil {
		bigReads.Put(f.big)
		f.big = nil
	}
}

// wholeFrames returns how many bytes of b are whole frames.
func wholeFrames(b []byte) (n int, err error) {
	for len(b)-n >= wire.StreamHeaderSize {
		_, body, err := wire.ParseStreamHeader(b[n:])
		if err != nil {
			return 0, err
		}
		if size := wire.StreamHeaderSize + body; size <= len(b)-n {
			n += size
		} else {
			break
		}
	}
	return n, nil
}

// readFrame reads one frame of a handshake, and not a byte more.
func readFrame(r io.Reader, want wire.StreamType, most int) (t wire.StreamType, body []byte, err error) {
	var head [wire.StreamHeaderSize]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	t, n, err := wire.ParseStreamHeader(head[:])
	if err != nil || n > most || t != want && t != wire.StreamRefused {
		return 0, nil, wire.ErrFrame
	}
	body = make([]byte, n)
	_, err = io.ReadFull(r, body)
	return t, body, err
}

// writer writes a queue to a connection until either ends. It calls beat every beatEvery.
func (q *queue) writer(conn net.Conn, wrote func(frames, bytes int), beat func() error) error {
	tick := time.NewTicker(beatEvery)
	defer tick.Stop()
	var urgent []byte
	for {
		first, c, open := q.take(urgent)
		urgent = first
		b := first
		if c != nil {
			b = c.b[c.start:c.end]
		}
		if len(b) > 0 {
			_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
			err := stream.WriteWhole(conn, b)
			if c != nil {
				if err == nil {
					wrote(c.count, len(b)-c.count*wire.StreamDataPrefix)
				}
				chunks.Put(c)
			}
			if err != nil {
				return err
			}
			select {
			case <-tick.C:
				if err := beat(); err != nil {
					return err
				}
			default:
			}
			continue
		}
		if !open {
			return nil
		}
		select {
		case <-q.wake:
		case <-tick.C:
			if err := beat(); err != nil {
				return err
			}
		}
	}
}

// frameNode and setFrameNode are for Data frames that are longer than their prefix.
func frameNode(b []byte) weft.NodeID {
	return weft.NodeID(binary.BigEndian.Uint32(b[wire.StreamHeaderSize:]))
}

func setFrameNode(b []byte, id weft.NodeID) {
	binary.BigEndian.PutUint32(b[wire.StreamHeaderSize:], uint32(id))
}
