package stream

import (
	"bytes"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"sync"
	"testing"
)

// counted counts the writes that reach a connection.
type counted struct {
	net.Conn
	mu     sync.Mutex
	writes []int
	fail   error
}

func (c *counted) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fail != nil {
		return 0, c.fail
	}
	c.writes = append(c.writes, len(b))
	return c.Conn.Write(b)
}

func (c *counted) take() []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	w := c.writes
	c.writes = nil
	return w
}

// gathering is a TLS connection, what is below it, and its other end.
func gathering(t *testing.T) (conn *tls.Conn, below *counted, far *tls.Conn) {
	t.Helper()
	dir := t.TempDir()
	cert, _, err := LoadOrCreateCertificate(filepath.Join(dir, "c"), filepath.Join(dir, "k"), nil)
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	raw, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	below = &counted{Conn: raw}
	far = tls.Server(other, &tls.Config{Certificates: []tls.Certificate{cert}})
	conn = tls.Client(&gather{Conn: below}, &tls.Config{
		InsecureSkipVerify: true, DynamicRecordSizingDisabled: true,
		ClientSessionCache: tls.NewLRUClientSessionCache(1), // so that there are records of TLS's own
	})
	t.Cleanup(func() { raw.Close(); other.Close() })
	shaken := make(chan error, 1)
	go func() { shaken <- far.Handshake() }()
	if err := errors.Join(conn.Handshake(), <-shaken); err != nil {
		t.Fatal(err)
	}
	below.take()
	return conn, below, far
}

func TestALongWriteOverTLSLeavesAsOne(t *testing.T) {
	conn, below, far := gathering(t)
	for _, c := range []struct{ size, writes int }{{1, 1}, {16 << 10, 1}, {64<<10 + 3, 1}, {68 << 10, 2}, {300 << 10, 5}} {
		want := bytes.Repeat([]byte{byte(c.size), byte(c.size >> 8), 7}, c.size)[:c.size]
		got := make([]byte, c.size)
		read := make(chan error, 1)
		go func() {
			_, err := io.ReadFull(far, got)
			read <- err
		}()
		if err := WriteWhole(conn, want); err != nil {
			t.Fatal(err)
		}
		if err := <-read; err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes do not arrive as they were written: %v", c.size, err)
		}
		if w := below.take(); len(w) != c.writes {
			t.Errorf("%d bytes are written as %v", c.size, w)
		}
	}
	if _, err := conn.Write(make([]byte, 32<<10)); err != nil {
		t.Fatal(err)
	}
	if w := below.take(); len(w) < 2 {
		t.Errorf("what nobody asked to gather is gathered: %v", w)
	}
	if c, ok := TCPConn(tls.Client(&gather{Conn: below.Conn}, &tls.Config{})); !ok || c != below.Conn {
		t.Error("there is no way down to the socket's options")
	}
}

func TestWhatIsGatheredAndCannotBeWrittenIsAnError(t *testing.T) {
	conn, below, _ := gathering(t)
	broken := errors.New("the cable was pulled")
	below.mu.Lock()
	below.fail = broken
	below.mu.Unlock()
	if err := WriteWhole(conn, make([]byte, 1000)); !errors.Is(err, broken) {
		t.Errorf("a write that nothing came of: %v", err)
	}
	if err := WriteWhole(conn, make([]byte, 1000)); err == nil {
		t.Error("and the next one succeeds")
	}
}

// What TLS says by itself, in answer to the other end, keeps its place among gathered records.
func TestAnotherGoroutinesWriteKeepsItsPlace(t *testing.T) {
	near, far := net.Pipe()
	g := &gather{Conn: near}
	got := make(chan []byte, 1)
	go func() {
		b, _ := io.ReadAll(far)
		got <- b
	}()
	g.hold()
	for _, s := range []string{"first ", "second, of another goroutine ", "third "} {
		done := make(chan error, 1)
		go func() {
			_, err := g.Write([]byte(s))
			done <- err
		}()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	if err := g.release(); err != nil {
		t.Fatal(err)
	}
	g.Write([]byte("last"))
	near.Close()
	if b := string(<-got); b != "first second, of another goroutine third last" {
		t.Errorf("%q", b)
	}
}

func TestWhatHasNothingBelowIsWrittenAsItIs(t *testing.T) {
	near, far := net.Pipe()
	go WriteWhole(&pipe{Conn: near, under: near}, []byte("plain"))
	b := make([]byte, 5)
	if _, err := io.ReadFull(far, b); err != nil || string(b) != "plain" {
		t.Errorf("%q: %v", b, err)
	}
}

func TestWhatIsBeneathTLSCanBeReplaced(t *testing.T) {
	conn, below, far := gathering(t)
	gatherOf(conn).Conn = below.Conn
	socket, ok := TCPConn(conn)
	if !ok {
		t.Fatal("there is no socket")
	}
	busy := &counted{Conn: socket}
	if err := Beneath(conn, func(t *net.TCPConn) (net.Conn, error) {
		if t != socket {
			return nil, errors.New("it is another socket")
		}
		return busy, nil
	}); err != nil {
		t.Fatal(err)
	}
	if err := WriteWhole(conn, []byte("as ever")); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 7)
	if _, err := io.ReadFull(far, b); err != nil || string(b) != "as ever" {
		t.Errorf("%q, %v", b, err)
	}
	if n := len(busy.take()); n != 1 {
		t.Errorf("%d writes came by what is beneath now", n)
	}
	gatherOf(conn).Conn = socket
	broken := errors.New("it cannot be had")
	if err := Beneath(conn, func(*net.TCPConn) (net.Conn, error) { return nil, broken }); err != broken {
		t.Errorf("it says %v", err)
	}
	if err := Beneath(socket, func(*net.TCPConn) (net.Conn, error) { return nil, broken }); err != nil {
		t.Errorf("without TLS it says %v", err)
	}
}
