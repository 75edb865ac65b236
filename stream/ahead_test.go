package stream

import (
	"bytes"
	"io"
	"math/rand/v2"
	"net"
	"testing"
	"time"
)

// calls counts the reads that reach a connection.
type calls struct {
	net.Conn
	n int
}

func (c *calls) Read(b []byte) (int, error) {
	c.n++
	return c.Conn.Read(b)
}

func TestWhatCameWithARecordIsReadWithIt(t *testing.T) {
	conn, below, far := gathering(t)
	g := gatherOf(conn)
	counter := &calls{Conn: below}
	g.Conn = counter
	rng := rand.New(rand.NewPCG(1, 2))
	want := make([]byte, 4<<20)
	for i := range want {
		want[i] = byte(rng.Uint32())
	}
	sent := make(chan error, 1)
	go func() {
		rng := rand.New(rand.NewPCG(3, 4))
		rest := want
		for len(rest) > 0 {
			n := min(len(rest), 1+rng.IntN(1<<rng.IntN(18)))
			if _, err := far.Write(rest[:n]); err != nil {
				sent <- err
				return
			}
			rest = rest[n:]
		}
		sent <- far.CloseWrite()
	}()
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	var got []byte
	reads := 0
	for {
		buf := make([]byte, 1+rng.IntN(64<<10))
		n, err := conn.Read(buf)
		got = append(got, buf[:n]...)
		reads++
		for err == nil {
			m := 0
			before := counter.n
			if m, err = ReadMore(conn, buf); m == 0 {
				break
			}
			if counter.n != before {
				t.Fatal("it waited for the network")
			}
			got = append(got, buf[:m]...)
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Fatalf("%d bytes came of %d, or others", len(got), len(want))
	}
	if few := 4 << 20 / (16 << 10); counter.n > few*3/4 {
		t.Errorf("the network was read %d times for %d bytes, about a record each", counter.n, len(want))
	}
}

func TestARecordOfTLSsOwnIsNotWaitedBehind(t *testing.T) {
	conn, _, far := gathering(t)
	g := gatherOf(conn)
	for !g.ahead.whole() { // the ticket of the session, which nobody has asked for
		if err := g.ahead.fill(g.Conn); err != nil {
			t.Fatal(err)
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(time.Minute))
	b := make([]byte, 100)
	if n, err := ReadMore(conn, b); n != 0 || err != nil {
		t.Fatalf("it gave %d, %v", n, err)
	}
	if _, err := far.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if n, err := conn.Read(b); err != nil || string(b[:n]) != "hello" {
		t.Fatalf("what came then is %q, %v", b[:n], err)
	}
}

func TestAnIdleConnectionKeepsNoLargeBuffer(t *testing.T) {
	conn, _, far := gathering(t)
	g := gatherOf(conn)
	long := make([]byte, 200<<10)
	for round := range 2 {
		go func() {
			_, _ = far.Write(long)
			_, _ = far.Write(long[:1])
		}()
		if _, err := io.ReadFull(conn, make([]byte, len(long))); err != nil {
			t.Fatal(err)
		}
		if g.ahead.big == nil && round == 0 {
			t.Error("what is much is read with a small buffer")
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if _, err := far.Write(long[:1]); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
				t.Fatal(err)
			}
		}
		if g.ahead.big != nil {
			t.Error("a connection that is idle keeps its large buffer")
		}
	}
}
