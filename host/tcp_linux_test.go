package host

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// busyPair is a connection over loopback whose one end is busy.
func busyPair(t *testing.T) (busy *BusyTCP, other *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); d.Close() })
	if busy, err = NewBusyTCP(c.(*net.TCPConn)); err != nil {
		t.Fatal(err)
	}
	return busy, d.(*net.TCPConn)
}

// Far more is written in both directions at once than the kernel keeps, so that each waits for the other again and again.
func TestABusyConnectionCarriesEveryByteInOrder(t *testing.T) {
	busy, other := busyPair(t)
	const size = 32 << 20
	carry := func(from io.Writer, to io.Reader, seed uint64) error {
		written := make(chan error, 1)
		go func() {
			rnd, bytes := rand.New(rand.NewPCG(seed, 0)), rand.NewChaCha8([32]byte{byte(seed)})
			for left := size; left > 0; {
				b := make([]byte, min(left, 1+rnd.IntN(300<<10)))
				bytes.Read(b)
				n, err := from.Write(b)
				if err == nil && n != len(b) {
					err = io.ErrShortWrite
				}
				if err != nil {
					written <- err
					return
				}
				left -= n
			}
			written <- nil
		}()
		rnd, want := rand.New(rand.NewPCG(seed, 1)), rand.NewChaCha8([32]byte{byte(seed)})
		b, w := make([]byte, 100<<10), make([]byte, 100<<10)
		for left := size; left > 0; {
			n, err := to.Read(b[:1+rnd.IntN(len(b)-1)])
			if err != nil {
				return err
			}
			want.Read(w[:n])
			if !bytes.Equal(b[:n], w[:n]) {
				return errors.New("other bytes come than were written")
			}
			left -= n
		}
		return <-written
	}
	back := make(chan error, 1)
	go func() { back <- carry(other, busy, 1) }()
	if err := carry(busy, other, 2); err != nil {
		t.Error(err)
	}
	if err := <-back; err != nil {
		t.Error(err)
	}
}

func TestABusyConnectionEndsAsAnyOther(t *testing.T) {
	b := make([]byte, 10)
	busy, other := busyPair(t)
	_ = busy.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	if _, err := busy.Read(b); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("after its time a read says %v", err)
	}
	_ = busy.SetDeadline(time.Time{})
	ended := make(chan error, 1)
	go func() {
		_, err := busy.Read(b)
		ended <- err
	}()
	_ = other.CloseWrite()
	if err := <-ended; err != io.EOF {
		t.Errorf("at the end a read says %v", err)
	}
	much := make([]byte, 64<<20)
	_ = busy.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
	if n, err := busy.Write(much); n == 0 || n == 64<<20 || !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a write that nobody reads wrote %d bytes and says %v", n, err)
	}
	_ = other.SetLinger(0)
	other.Close() // resets it
	_ = busy.SetDeadline(time.Now().Add(10 * time.Second))
	for err := error(nil); ; _, err = busy.Write(b) {
		if errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
			break
		}
		if err != nil {
			t.Fatalf("to one who has left a write says %v", err)
		}
	}

	busy, _ = busyPair(t)
	go func() {
		_, err := busy.Read(b)
		ended <- err
	}()
	busy.Close()
	if err := <-ended; !errors.Is(err, net.ErrClosed) {
		t.Errorf("when it is closed a read says %v", err)
	}
	if _, err := busy.Write(b); !errors.Is(err, net.ErrClosed) {
		t.Errorf("when it is closed a write says %v", err)
	}
}

func TestABusyConnectionAllocatesNothing(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector allocates")
	}
	busy, other := busyPair(t)
	b := make([]byte, 16<<10)
	allocs := testing.AllocsPerRun(100, func() {
		if _, err := busy.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(other, b); err != nil {
			t.Fatal(err)
		}
		if _, err := other.Write(b); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(busy, b); err != nil {
			t.Fatal(err)
		}
	})
	if allocs > 0 {
		t.Errorf("%.0f allocations", allocs)
	}
}
