package stream

import (
	"net"
	"sync"
)

// gather is a connection below TLS, in both directions; ahead is what it has of reading. TLS seals what is written in records of 16 KiB and hands down each by itself, so
// that 64 KiB cost four system calls and wake the other end four times. Here they wait for each other.
type gather struct {
	net.Conn

	mu   sync.Mutex // TLS answers the other end from the goroutine that reads
	held *gathered  // nil while everything is written at once

	ahead ahead // the reader's
}

// gathered has room for 64 KiB in records (22 bytes each of header and tag), with some to spare.
type gathered struct {
	n int
	b [68 << 10]byte
}

var gathers = sync.Pool{New: func() any { return new(gathered) }}

// NetConn returns the connection below, as tls.Conn does.
func (g *gather) NetConn() net.Conn { return g.Conn }

func (g *gather) Read(b []byte) (int, error) { return g.ahead.read(g.Conn, b) }

func (g *gather) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.held == nil {
		return g.Conn.Write(b)
	}
	if len(b) > len(g.held.b)-g.held.n {
		if err := g.flush(); err != nil {
			return 0, err
		}
		if len(b) > len(g.held.b) {
			return g.Conn.Write(b)
		}
	}
	g.held.n += copy(g.held.b[g.held.n:], b)
	return len(b), nil
}

// flush writes what waits. The lock is held.
func (g *gather) flush() error {
	if g.held.n == 0 {
		return nil
	}
	n := g.held.n
	g.held.n = 0
	_, err := g.Conn.Write(g.held.b[:n])
	return err
}

func (g *gather) hold() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = gathers.Get().(*gathered)
}

func (g *gather) release() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	err := g.flush()
	gathers.Put(g.held)
	g.held = nil
	return err
}

// WriteWhole writes b to a connection of this package, over TLS with one system call if b has 64 KiB at most. One
// goroutine at a time may use it. After an error that direction of the connection is over.
func WriteWhole(c net.Conn, b []byte) error {
	g := gatherOf(c)
	if g == nil {
		_, err := c.Write(b)
		return err
	}
	g.hold()
	_, err := c.Write(b)
	if released := g.release(); err == nil {
		err = released
	}
	return err
}

// ReadMore reads on after a Read of a connection of this package what has come already, if that can be told: over TLS.
// Zero without an error means that there is nothing yet. It never waits, and belongs to the goroutine that reads.
func ReadMore(c net.Conn, b []byte) (int, error) {
	g := gatherOf(c)
	if g == nil || !g.ahead.whole() {
		return 0, nil
	}
	g.ahead.atOnce = true
	n, err := c.Read(b)
	g.ahead.atOnce = false
	if err == errNotYet { // the record was one of TLS's own
		err = nil
	}
	return n, err
}

// Beneath replaces the socket beneath TLS by what reads and writes it in another manner. It does nothing where there is no TLS, or
// where something was read ahead of it. Nobody may read or write c meanwhile.
func Beneath(c net.Conn, by func(*net.TCPConn) (net.Conn, error)) error {
	g := gatherOf(c)
	if g == nil {
		return nil
	}
	socket, ok := TCPConn(g.Conn)
	if early, is := g.Conn.(*pipe); !ok || is && len(early.early) > 0 {
		return nil
	}
	next, err := by(socket)
	if err == nil {
		g.Conn = next
	}
	return err
}

func gatherOf(c net.Conn) *gather {
	for c != nil {
		switch t := c.(type) {
		case *gather:
			return t
		case interface{ NetConn() net.Conn }:
			c = t.NetConn()
		default:
			return nil
		}
	}
	return nil
}
