package splice

import (
	"bytes"
	"crypto/rand"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// tcpPair is the two ends of a TCP connection over loopback.
func tcpPair(t *testing.T) (near, far *net.TCPConn) {
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
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return c.(*net.TCPConn), s.(*net.TCPConn)
}

func TestTheEndOfDataIsPassedOnAndTheWayBackStaysOpen(t *testing.T) {
	client, a := tcpPair(t)
	b, server := tcpPair(t)
	done := make(chan struct{})
	go func() { defer close(done); Streams(a, b, time.Minute) }()

	request := make([]byte, 1<<20)
	rand.Read(request)
	go func() {
		client.Write(request)
		client.CloseWrite()
	}()
	got, err := io.ReadAll(server) // ends because the end was passed on
	if err != nil || !bytes.Equal(got, request) {
		t.Fatalf("%d bytes arrived of %d: %v", len(got), len(request), err)
	}
	if _, err := server.Write([]byte("answer")); err != nil {
		t.Fatal(err)
	}
	server.Close()
	if got, err := io.ReadAll(client); err != nil || string(got) != "answer" {
		t.Fatalf("the answer is %q, %v", got, err)
	}
	<-done
}

func TestAFailureOfOneSideClosesTheOther(t *testing.T) {
	client, a := tcpPair(t)
	b, server := tcpPair(t)
	done := make(chan struct{})
	go func() { defer close(done); Streams(a, b, time.Minute) }()
	server.SetLinger(0) // a reset
	server.Close()
	if _, err := io.ReadAll(client); err != nil {
		t.Logf("the client sees %v", err)
	}
	<-done
}

func TestASilentPairIsClosedAndABusyOneIsNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		client, a := net.Pipe()
		b, server := net.Pipe()
		done := make(chan struct{})
		go func() { defer close(done); Streams(a, b, time.Minute) }()
		go io.Copy(io.Discard, server)
		for range 5 { // one direction is enough
			time.Sleep(45 * time.Second)
			if _, err := client.Write([]byte("x")); err != nil {
				t.Fatalf("closed though data moved: %v", err)
			}
		}
		last := time.Now()
		<-done
		if after := time.Since(last); after < time.Minute || after > time.Minute+time.Second {
			t.Errorf("closed %v after the last byte", after)
		}
		if _, err := client.Write([]byte("x")); err == nil {
			t.Error("the client was left open")
		}
	})
}

func TestDatagramsKeepTheirBordersAndEmptyOnesCount(t *testing.T) {
	far, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	near, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	client, err := net.Dial("udp", near.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	b, err := net.Dial("udp", far.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		Datagrams(&dialled{near, client.LocalAddr()}, b, time.Minute)
	}()
	buf := make([]byte, 1<<16)
	for _, size := range []int{1, 0, 1400, 9000} {
		if _, err := client.Write(make([]byte, size)); err != nil {
			t.Fatal(err)
		}
		far.SetReadDeadline(time.Now().Add(10 * time.Second))
		if n, err := far.Read(buf); n != size || err != nil {
			t.Errorf("%d bytes became %d, %v", size, n, err)
		}
	}
	near.Close()
	<-done
}

// dialled is a listening socket that talks to one address.
type dialled struct {
	*net.UDPConn
	to net.Addr
}

func (d *dialled) Write(b []byte) (int, error) { return d.WriteTo(b, d.to) }
