package host

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"weft/engine/segment"
)

// A cell is a network namespace with a thread in it.
type cell struct{ calls chan func() }

func newCell(t testing.TB) *cell {
	t.Helper()
	c := &cell{calls: make(chan func())}
	made := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the namespace ends with the thread
		made <- unix.Unshare(unix.CLONE_NEWNET)
		for f := range c.calls {
			f()
		}
	}()
	t.Cleanup(func() { close(c.calls) })
	if err := <-made; errors.Is(err, unix.EPERM) {
		t.Skipf("needs root to create a network namespace: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	return c
}

// do does something in the namespace.
func (c *cell) do(t testing.TB, f func() error) {
	t.Helper()
	done := make(chan error)
	c.calls <- func() { done <- f() }
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

const tunMTU = 1408 // bytes

// tun opens a TUN in the namespace, with the addresses 10.9.0.<host> and fd09::<host>.
func (c *cell) tun(t testing.TB, host byte, queues int, try []features) (tun *TUN) {
	t.Helper()
	c.do(t, func() (err error) {
		if tun, err = openTUNQueues(tunDevice, "t0", queues, try); err != nil {
			return err
		}
		v4, v6 := cellAddr(host, false), cellAddr(host, true)
		return ConfigureLink("t0", []netip.Prefix{netip.PrefixFrom(v4, 32), netip.PrefixFrom(v6, 128)},
			[]netip.Prefix{netip.PrefixFrom(v4, 24).Masked(), netip.PrefixFrom(v6, 64).Masked()}, tunMTU)
	})
	// The kernel takes packets for an IPv6 address only when it has made a route for it, which it does when it has time.
	for deadline := time.Now().Add(10 * time.Second); ; {
		ready := false
		c.do(t, func() error {
			list, err := netlink.RouteGet(cellAddr(host, true).AsSlice())
			ready = len(list) > 0 && list[0].Type == unix.RTN_LOCAL
			return err
		})
		if ready {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the kernel does not take up the IPv6 address")
		}
		runtime.Gosched()
	}
	t.Cleanup(func() { tun.Close() })
	return tun
}

func cellAddr(host byte, six bool) netip.Addr {
	if six {
		return netip.AddrFrom16([16]byte{0: 0xfd, 1: 9, 15: host})
	}
	return netip.AddrFrom4([4]byte{10, 9, 0, host})
}

// carried counts what a bridge carried.
type carried struct{ packets, super, segments atomic.Int64 } // segments: of the largest super-packet

func (c *carried) count(h segment.Header, size int) {
	c.packets.Add(1)
	if h.Type != segment.None {
		c.super.Add(1)
		if n := int64((size - int(h.HeaderLen) + int(h.Size) - 1) / int(h.Size)); n > c.segments.Load() {
			c.segments.Store(n)
		}
	}
}

// bridge carries packets from one interface to another until they are closed: as they are, or taken apart and put
// together as on the way through a tunnel.
func bridge(t testing.TB, from, to *TUN, apart bool) *carried {
	var wg sync.WaitGroup
	c := &carried{}
	for i, q := range from.Queues() {
		out := to.Queues()[i%len(to.Queues())]
		if apart {
			wg.Go(func() { carryApart(t, q, out, c) })
		} else {
			wg.Go(func() { carry(t, q, out, c) })
		}
	}
	t.Cleanup(func() { from.Close(); to.Close(); wg.Wait() })
	return c
}

func carry(t testing.TB, from, to *TUNQueue, c *carried) {
	for buf := make([]byte, 1<<16+64); ; {
		n, err := readOf(from, buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
			return
		}
		if n > 0 {
			c.count(segment.ParseHeader(buf), n-segment.HeaderSize)
			_ = to.Write(buf[:n])
		}
	}
}

func carryApart(t testing.TB, from, to *TUNQueue, c *carried) {
	buf := make([]byte, 1<<16+64)
	m, spare := segment.NewMerger(64), segment.NewMerger(64)
	var s segment.Splitter
	for {
		n, err := readOf(from, buf)
		if err != nil {
			if !errors.Is(err, os.ErrClosed) {
				t.Error(err)
			}
			return
		}
		for ; n > 0; n, _ = from.TryRead(buf) {
			h := segment.ParseHeader(buf)
			c.count(h, n-segment.HeaderSize)
			if err := s.Begin(h, buf[segment.HeaderSize:n]); err != nil {
				t.Error(err)
				return
			}
			for p := s.Next(); p != nil; p = s.Next() {
				dst := m.Place(len(p))
				if dst == nil {
					_ = to.Write(m.Take())
					dst = m.Place(len(p))
				}
				copy(dst[:len(p)], p)
				if !m.Add(len(p)) {
					m.Move(len(p), spare)
					_ = to.Write(m.Take())
					m, spare = spare, m
				}
			}
		}
		if m.Len() > 0 {
			_ = to.Write(m.Take())
		}
	}
}

// pair is two namespaces, each with a TUN; what goes into one comes out of the other.
func pair(t testing.TB, queues int, apart bool, try []features) (a, b *cell, ab, ba *carried) {
	t.Helper()
	a, b = newCell(t), newCell(t)
	ta, tb := a.tun(t, 1, queues, try), b.tun(t, 2, queues, try)
	return a, b, bridge(t, ta, tb, apart), bridge(t, tb, ta, apart)
}

// talk sends size bytes each way over one TCP connection from a to b, and sees that they are the same there.
func talk(t testing.TB, a, b *cell, six bool, size int) {
	t.Helper()
	var l net.Listener
	b.do(t, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(cellAddr(2, six), 0).String())
		return err
	})
	defer l.Close()
	var c net.Conn
	a.do(t, func() (err error) {
		c, err = net.DialTimeout("tcp", l.Addr().String(), 10*time.Second)
		return err
	})
	d, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, size)
	src := rand.NewChaCha8([32]byte{byte(size)})
	_, _ = src.Read(data)
	want := sha256.Sum256(data)
	var wg sync.WaitGroup
	for _, conn := range []net.Conn{c, d} {
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(30 * time.Second))
		wg.Go(func() {
			if _, err := conn.Write(data); err != nil {
				t.Error(err)
			}
			_ = conn.(*net.TCPConn).CloseWrite()
		})
		wg.Go(func() {
			h := sha256.New()
			if n, err := io.Copy(h, conn); err != nil || !bytes.Equal(h.Sum(nil), want[:]) {
				t.Errorf("%d of %d bytes came, or others: %v", n, size, err)
			}
		})
	}
	wg.Wait()
}

// sendRuns sends runs of datagrams from a to b and sees that each arrives.
func sendRuns(t *testing.T, a, b *cell, six bool) {
	t.Helper()
	var in, out *net.UDPConn
	b.do(t, func() (err error) {
		in, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(cellAddr(2, six), 0)))
		return err
	})
	defer in.Close()
	a.do(t, func() (err error) {
		out, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(cellAddr(1, six), 0)))
		return err
	})
	defer out.Close()
	_, _, _ = SetUDPBuffers(in, 4<<20)
	socket, err := NewUDPSocket(out)
	if err != nil {
		t.Fatal(err)
	}
	if gso, _ := socket.Offload(); !gso {
		t.Skip("this kernel has no UDP_SEGMENT")
	}
	var to UDPDest
	socket.SetDest(&to, in.LocalAddr().(*net.UDPAddr).AddrPort(), netip.Addr{})
	w := NewUDPWriter()
	w.Patient = true
	const each, last, datagrams = 1300, 77, 20
	sent := map[uint32]int{}
	for run := range uint32(10) {
		data := make([]byte, each*(datagrams-1)+last)
		for i := range uint32(datagrams) {
			id := run*datagrams + i
			binary.BigEndian.PutUint32(data[i*each:], id)
			sent[id] = each
		}
		sent[run*datagrams+datagrams-1] = last
		w.Add(&to, data, each)
		if c := w.Flush(); c.Datagrams != datagrams {
			t.Fatalf("sent %+v", c)
		}
	}
	buf := make([]byte, 1<<16)
	_ = in.SetReadDeadline(time.Now().Add(10 * time.Second))
	for len(sent) > 0 {
		n, err := in.Read(buf)
		if err != nil {
			t.Fatalf("%d datagrams are missing: %v", len(sent), err)
		}
		id := binary.BigEndian.Uint32(buf)
		if sent[id] != n {
			t.Fatalf("datagram %d has %d bytes, was sent with %d", id, n, sent[id])
		}
		delete(sent, id)
	}
}
