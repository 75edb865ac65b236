package netstack

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"weft/engine"
	"weft/engine/segment"
)

const patience = 20 * time.Second

var (
	addrA4, addrA6 = netip.MustParseAddr("100.64.0.1"), netip.MustParseAddr("fd00:77::1")
	addrB4, addrB6 = netip.MustParseAddr("100.64.0.2"), netip.MustParseAddr("fd00:77::2")
)

// serve is a program of the user's that listens on loopback.
func serve(t testing.TB, handle func(net.Conn)) uint16 {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); handle(c) }()
		}
	}()
	return l.Addr().(*net.TCPAddr).AddrPort().Port()
}

func dial(t testing.TB, n *Netstack, network string, addr netip.Addr, port uint16) (net.Conn, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c, err := n.DialContext(ctx, network, netip.AddrPortFrom(addr, port))
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func TestAConnectionToAnOverlayAddressReachesTheProgramOnLoopback(t *testing.T) {
	a, b := wired(t)
	port := serve(t, func(c net.Conn) { io.Copy(c, c) })
	for _, to := range []netip.Addr{addrB4, addrB6} {
		c, err := dial(t, a, "tcp", to, port)
		if err != nil {
			t.Fatal(err)
		}
		sent := make([]byte, 1<<20)
		rand.Read(sent)
		go func() {
			c.Write(sent)
			c.(interface{ CloseWrite() error }).CloseWrite()
		}()
		if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
			t.Fatalf("to %v: %d of %d bytes came back: %v", to, len(got), len(sent), err)
		}
	}
	// And a node reaches its own programs by its overlay address.
	if c, err := dial(t, b, "tcp", addrB4, port); err != nil {
		t.Error(err)
	} else {
		c.Write([]byte("self"))
		got := make([]byte, 4)
		if _, err := io.ReadFull(c, got); err != nil || string(got) != "self" {
			t.Errorf("got %q, %v", got, err)
		}
	}
}

func TestAPortWhereNobodyListensIsRefused(t *testing.T) {
	a, _ := wired(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).AddrPort().Port()
	l.Close()
	if _, err := dial(t, a, "tcp", addrB4, port); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("got %v", err)
	}
}

func TestADialEndsWithItsContextAndSaysWhatFailed(t *testing.T) {
	a, _ := wired(t)
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	if _, err := a.DialContext(ctx, "tcp", netip.MustParseAddrPort("100.64.0.99:80")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("to nobody: %v", err)
	}
	only4dev, only4 := newStack(t, addrA4)
	if _, err := only4.DialContext(context.Background(), "tcp", netip.AddrPortFrom(addrB6, 80)); err == nil {
		t.Error("IPv6 without an address of IPv6 succeeds")
	} else if !errors.Is(err, syscall.ENETUNREACH) && !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("IPv6 without an address of IPv6: %v", err)
	}
	if _, err := a.DialContext(context.Background(), "sctp", netip.AddrPortFrom(addrB4, 80)); err == nil {
		t.Error("sctp succeeds")
	}
	if _, err := a.DialContext(context.Background(), "tcp", netip.AddrPort{}); err == nil {
		t.Error("nowhere succeeds")
	}
	only4dev.Close()
	if _, err := only4.DialContext(context.Background(), "tcp", netip.AddrPortFrom(addrB4, 80)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("through a stack that is closed: %v", err)
	}
}

func TestUDPFlowsReachTheProgramAndTheAnswerComesBack(t *testing.T) {
	a, _ := wired(t)
	program, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	go func() {
		for b := make([]byte, 1<<16); ; {
			n, from, err := program.ReadFrom(b)
			if err != nil {
				return
			}
			program.WriteTo(bytes.ToUpper(b[:n]), from)
		}
	}()
	port := program.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	for _, to := range []netip.Addr{addrB4, addrB6} {
		for _, size := range []int{3, 1200, 5000} { // the last in fragments
			c, err := dial(t, a, "udp", to, port)
			if err != nil {
				t.Fatal(err)
			}
			c.SetDeadline(time.Now().Add(patience))
			c.Write(bytes.Repeat([]byte("x"), size))
			got := make([]byte, 1<<16)
			if n, err := c.Read(got); err != nil || string(got[:n]) != strings.Repeat("X", size) {
				t.Errorf("%d bytes to %v: %d came back, %v", size, to, n, err)
			}
		}
	}
}

func TestTheFlowsThatPeersCanOpenAreBounded(t *testing.T) {
	a, b := wired(t)
	program, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	defer program.Close()
	port := program.LocalAddr().(*net.UDPAddr).AddrPort().Port()
	for range maxUDP {
		if !b.flows.take(&b.flows.udp, maxUDP) {
			t.Fatal("full too early")
		}
	}
	defer func() {
		for range maxUDP {
			b.flows.giveBack(&b.flows.udp)
		}
	}()
	ask := func() error {
		c, err := dial(t, a, "udp", addrB4, port)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("x"))
		program.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		_, err = program.Read(make([]byte, 9))
		return err
	}
	if err := ask(); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("one more than there may be: %v", err)
	}
	b.flows.giveBack(&b.flows.udp)
	if err := ask(); err != nil {
		t.Fatalf("a place is free again: %v", err)
	}
	b.flows.take(&b.flows.udp, maxUDP+1)

	for range maxTCP {
		b.flows.take(&b.flows.tcp, maxTCP)
	}
	defer func() {
		for range maxTCP {
			b.flows.giveBack(&b.flows.tcp)
		}
	}()
	web := serve(t, func(net.Conn) {})
	if _, err := dial(t, a, "tcp", addrB4, web); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a connection too many: %v", err)
	}
}

// icmpEcho is an IPv4 echo request.
func icmpEcho(from, to netip.Addr) []byte {
	p := make([]byte, 20+8+16)
	p[0] = 0x45
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	p[8], p[9] = 64, 1
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	p[20] = 8
	binary.BigEndian.PutUint16(p[22:], internetChecksum(p[20:]))
	binary.BigEndian.PutUint16(p[10:], internetChecksum(p[:20]))
	return p
}

func internetChecksum(b []byte) uint16 {
	var sum uint32
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) > 0 {
		sum += uint32(b[0]) << 8
	}
	sum = sum>>16 + sum&0xffff
	return ^uint16(sum>>16 + sum)
}

// one reads one packet from a device.
func one(t *testing.T, dev engine.Device) []byte {
	t.Helper()
	buf := make([]byte, engine.ReadSize)
	n, err := readOf(dev.Queues()[0], buf)
	if n == 0 || err != nil {
		t.Fatalf("read %d bytes, %v", n, err)
	}
	return buf[segment.HeaderSize:n]
}

func TestEchoRequestsAreAnsweredForTheNodesOwnAddressesOnly(t *testing.T) {
	dev, n := newStack(t, addrA4)
	send := func(to netip.Addr) {
		dev.Queues()[0].Write(bare(icmpEcho(addrB4, to)))
	}
	send(addrA4)
	if p := one(t, dev); p[9] != 1 || p[20] != 0 || netip.AddrFrom4([4]byte(p[16:])) != addrB4 {
		t.Errorf("not an echo reply: %x", p)
	}
	moved := netip.MustParseAddr("100.64.0.50")
	if err := n.SetAddrs([]netip.Addr{moved}); err != nil {
		t.Fatal(err)
	}
	send(addrA4) // is not ours any more; the answer to the next comes first
	send(moved)
	if p := one(t, dev); netip.AddrFrom4([4]byte(p[12:])) != moved {
		t.Errorf("answered by %v", netip.AddrFrom4([4]byte(p[12:])))
	}
}

func TestAChangeOfAddressesLeavesConnectionsOfTheOthersAlone(t *testing.T) {
	a, b := wired(t)
	port := serve(t, func(c net.Conn) { io.Copy(c, c) })
	c, err := dial(t, a, "tcp", addrB4, port)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.SetAddrs([]netip.Addr{netip.MustParseAddr("100.64.0.77"), addrB4}); err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("still"))
	got := make([]byte, 5)
	if _, err := io.ReadFull(c, got); err != nil || string(got) != "still" {
		t.Errorf("got %q, %v", got, err)
	}
	if _, err := dial(t, a, "tcp", netip.MustParseAddr("100.64.0.77"), port); err != nil {
		t.Errorf("to the new address: %v", err)
	}
	if err := b.SetAddrs([]netip.Addr{{}, netip.MustParseAddr("fe80::1%eth0")}); err == nil {
		t.Error("no address and one with a zone are overlay addresses")
	}
}

func TestGarbageFromThePeerLeavesTheStackWorking(t *testing.T) {
	dev, _ := newStack(t, addrA4, addrA6)
	good := icmpEcho(addrB4, addrA4)
	q := dev.Queues()[0]
	for i := range 12000 {
		g := make([]byte, i%200)
		rand.Read(g)
		const at = segment.HeaderSize
		if len(g) > at {
			switch i % 3 {
			case 0:
				copy(g[at:], good[:min(20, len(g)-at)])
				if len(g) > at+9 {
					g[at+9] = []byte{6, 17, 1}[i/3%3]
				}
			case 1:
				g[at] = 0x60
			}
			switch i % 4 {
			case 0:
				clear(g[:at])
			case 1:
				g[1] = []byte{segment.TCPv4, segment.TCPv6, segment.UDP}[i/4%3]
			}
		}
		q.Write(g)
	}
	q.Write(bare(good))
	deadline := time.After(patience)
	found := make(chan bool)
	go func() {
		for buf := make([]byte, engine.ReadSize); ; {
			n, err := readOf(q, buf)
			if err != nil {
				return
			}
			if p := buf[segment.HeaderSize:n]; len(p) > 20 && p[0] == 0x45 && p[9] == 1 && p[20] == 0 {
				found <- true
				return
			}
		}
	}()
	select {
	case <-found:
	case <-deadline:
		t.Fatal("no echo reply after garbage")
	}
}

func TestNothingRunsOnAfterTheDeviceIsClosed(t *testing.T) {
	before := runtime.NumGoroutine()
	dev, n, err := New([]netip.Addr{addrA4}, engine.MTU, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	port := serve(t, func(c net.Conn) { io.Copy(c, c) })
	c, err := n.DialContext(context.Background(), "tcp", netip.AddrPortFrom(addrA4, port))
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("x"))
	dev.Close()
	c.Close()
	for deadline := time.Now().Add(patience); runtime.NumGoroutine() > before+1; runtime.Gosched() { // serve's
		if time.Now().After(deadline) {
			buf := make([]byte, 1<<16)
			t.Fatalf("%d goroutines, before %d:\n%s", runtime.NumGoroutine(), before, buf[:runtime.Stack(buf, true)])
		}
	}
}

func TestClosingTheDeviceEndsEveryConnection(t *testing.T) {
	devA, a := newStack(t, addrA4)
	ended := make(chan struct{})
	port := serve(t, func(c net.Conn) { io.Copy(io.Discard, c); close(ended) })
	c, err := dial(t, a, "tcp", addrA4, port) // to itself
	if err != nil {
		t.Fatal(err)
	}
	c.Write([]byte("x"))
	devA.Close()
	if a.flows.tcp != 0 {
		t.Errorf("Close has returned and %d connections are forwarded", a.flows.tcp)
	}
	devA.Close()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the program's connection was left open")
	}
	if _, err := readOf(devA.Queues()[0], make([]byte, engine.ReadSize)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("reading from a closed device: %v", err)
	}
	if err := devA.Queues()[0].Write(bare(icmpEcho(addrB4, addrA4))); !errors.Is(err, os.ErrClosed) {
		t.Errorf("writing to a closed device: %v", err)
	}
}

// tcpData is an IPv4 TCP segment with data, of no connection that exists.
func tcpData(from, to netip.Addr, port uint16) []byte {
	p := make([]byte, 20+20+10)
	p[0] = 0x45
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	p[8], p[9] = 64, 6
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	binary.BigEndian.PutUint16(p[20:], port)
	binary.BigEndian.PutUint16(p[22:], 9)
	p[32], p[33] = 5<<4, 0x10 // ACK
	return summed(p)
}

// summed makes the checksums of a packet of TCP or UDP over IPv4.
func summed(p []byte) []byte {
	p[10], p[11] = 0, 0
	binary.BigEndian.PutUint16(p[10:], internetChecksum(p[:20]))
	at := 20 + 16
	if p[9] == 17 {
		at = 20 + 6
	}
	p[at], p[at+1] = 0, 0
	pseudo := append(bytes.Clone(p[12:20]), 0, p[9], byte((len(p)-20)>>8), byte(len(p)-20))
	binary.BigEndian.PutUint16(p[at:], internetChecksum(append(pseudo, p[20:]...)))
	return p
}

func TestNoPacketStaysBehind(t *testing.T) {
	dev, _ := newStack(t, addrA4)
	const flows = 6
	q := dev.Queues()[0]
	for i := range uint16(flows) {
		q.Write(bare(tcpData(addrB4, addrA4, 1000+8*i)))
	}
	q.Write(bare(icmpEcho(addrB4, addrA4)))
	resets := 0
	for {
		p := one(t, dev)
		if p[9] == 1 { // the echo reply: nothing comes after it
			break
		}
		if p[33]&0x04 != 0 {
			resets++
		}
	}
	if resets != flows {
		t.Errorf("%d of %d segments were answered", resets, flows)
	}
}

func TestClosingDoesNotWaitForConnectionsThatNeverStood(t *testing.T) {
	dev, n := newStack(t, addrA4)
	port := serve(t, func(c net.Conn) { io.Copy(io.Discard, c) })
	syn := tcpData(addrB4, addrA4, 1000)[:40]
	binary.BigEndian.PutUint16(syn[2:], 40)
	binary.BigEndian.PutUint16(syn[22:], port)
	syn[33] = 0x02
	dev.Queues()[0].Write(bare(summed(syn)))
	if p := one(t, dev); p[33] != 0x12 {
		t.Fatalf("not a SYN-ACK: %x", p)
	}
	closed := make(chan struct{})
	go func() { defer close(closed); dev.Close() }()
	select {
	case <-closed:
	case <-time.After(patience):
		t.Fatalf("Close hangs, with %d connections", n.flows.tcp)
	}
}
