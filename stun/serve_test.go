package stun

import (
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

func TestServeLeavesTheSocketsOpenAndUsable(t *testing.T) {
	c, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, &Responder{}, c) }()
	transact(t, addrPort(c.LocalAddr()), TransactionConfig{})
	stop()
	if err := <-ended; err != nil {
		t.Fatalf("Serve: %v", err)
	}
	// No deadline may be left behind: this read must wait for the packet.
	if _, err := c.WriteTo([]byte("hello"), c.LocalAddr()); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, _, err := c.ReadFrom(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}

func TestServeEndsWithAnErrorWhenASocketIsLost(t *testing.T) {
	a, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	ended := make(chan error, 1)
	go func() { ended <- Serve(context.Background(), &Responder{}, a, b) }()
	a.Close()
	select {
	case err := <-ended:
		if err == nil || !strings.Contains(err.Error(), a.LocalAddr().String()) {
			t.Errorf("Serve: %v; it must name the socket", err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("Serve goes on without one of its sockets")
	}
}

func TestGarbageDoesNotStopTheService(t *testing.T) {
	s := oneAddress(t)
	c, err := net.Dial("udp", s.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, b := range [][]byte{{}, {0}, make([]byte, 20), make([]byte, 9000), unhex(t, vectorIPv4)} {
		if _, err := c.Write(b); err != nil {
			t.Fatal(err)
		}
	}
	if r, local := transact(t, s, TransactionConfig{}); r.Mapped != local {
		t.Errorf("%+v", r)
	}
}
