package netstack

import (
	"bytes"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"gvisor.dev/gvisor/pkg/buffer"
	"gvisor.dev/gvisor/pkg/tcpip/network/ipv4"
	"gvisor.dev/gvisor/pkg/tcpip/stack"

	"weft/engine"
	"weft/engine/segment"
)

// download has b's program send size bytes to a, and returns when they are there.
func download(t testing.TB, a *Netstack, to netip.Addr, size int) {
	t.Helper()
	data := bytes.Repeat([]byte("0123456789abcdef"), size/16)
	port := serve(t, func(c net.Conn) { c.Write(data) })
	c, err := dial(t, a, "tcp", to, port)
	if err != nil {
		t.Fatal(err)
	}
	c.SetDeadline(time.Now().Add(patience))
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d of %d bytes came, or others: %v", len(got), len(data), err)
	}
}

func TestStreamsLeaveInSuperPacketsThatFitOneSend(t *testing.T) {
	for _, to := range []netip.Addr{addrB4, addrB6} {
		var mu sync.Mutex
		var super, bytes int
		look := func(t testing.TB, to, from engine.Queue) {
			var s segment.Splitter
			for buf := make([]byte, engine.ReadSize); ; {
				n, err := readOf(from, buf)
				if err != nil {
					return
				}
				h := segment.ParseHeader(buf)
				to.Write(append([]byte(nil), buf[:n]...))
				if h.Type == segment.None {
					continue
				}
				sealed, pieces := 0, 0
				if err := s.Begin(h, buf[segment.HeaderSize:n]); err != nil {
					t.Error(err)
				}
				for p := s.Next(); p != nil; p = s.Next() {
					if len(p) > engine.MTU {
						t.Errorf("a piece of %d bytes", len(p))
					}
					sealed += (len(p)+15)/16*16 + 32 + 8 // WireGuard's padding, header and tag; the relay's
					pieces++
				}
				if sealed > 65487 || pieces > 64 {
					t.Errorf("%d pieces of %d bytes together do not leave in one send", pieces, sealed)
				}
				mu.Lock()
				super++
				bytes += n
				mu.Unlock()
			}
		}
		a, _ := wiredBy(t, look, engine.MTU)
		download(t, a, to, 8<<20)
		mu.Lock()
		// What a window or the end of the stream cuts off leaves by itself.
		if bytes < 8<<20/2 || bytes/max(1, super) < 4*engine.MTU {
			t.Errorf("of 8 MiB to %v, %d bytes went in %d super-packets", to, bytes, super)
		}
		mu.Unlock()
	}
}

func TestTheChecksumsOfWhatLeavesAreRight(t *testing.T) {
	// The other stack looks at each piece's, since nothing says that they were verified.
	a, _ := wiredBy(t, pieces, engine.MTU)
	for _, to := range []netip.Addr{addrB4, addrB6} {
		download(t, a, to, 1<<20)
	}
}

func TestTheStackFitsEveryMTU(t *testing.T) {
	for _, mtu := range []int{1280, 9000, 32000, 65535} {
		for _, w := range []cable{pieces, merged} {
			a, _ := wiredBy(t, w, mtu)
			for _, to := range []netip.Addr{addrB4, addrB6} {
				download(t, a, to, 2<<20)
			}
		}
	}
}

// udpData is a datagram with right checksums.
func udpData(from, to netip.Addr, port uint16, payload []byte) []byte {
	p := make([]byte, 28, 28+len(payload))
	p[0], p[8], p[9] = 0x45, 64, 17
	copy(p[12:], from.AsSlice())
	copy(p[16:], to.AsSlice())
	binary.BigEndian.PutUint16(p[2:], uint16(28+len(payload)))
	binary.BigEndian.PutUint16(p[20:], 4242)
	binary.BigEndian.PutUint16(p[22:], port)
	binary.BigEndian.PutUint16(p[24:], uint16(8+len(payload)))
	return summed(append(p, payload...))
}

// listen is a program of the user's that receives datagrams.
func listen(t *testing.T) (program *net.UDPConn, port uint16) {
	t.Helper()
	program, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { program.Close() })
	program.SetReadDeadline(time.Now().Add(patience))
	return program, program.LocalAddr().(*net.UDPAddr).AddrPort().Port()
}

func TestAWrongChecksumIsNeverMadeRight(t *testing.T) {
	dev, _ := newStack(t, addrA4)
	q := dev.Queues()[0]
	program, port := listen(t)
	for i, broken := range []int{-1, 26, 30, -1} { // the checksum, the payload
		p := udpData(addrB4, addrA4, port, []byte{byte(i), 1, 2, 3})
		if broken >= 0 {
			p[broken] ^= 0x40
		}
		if err := q.Write(bare(p)); err != nil {
			t.Fatal(err)
		}
	}
	// The packets of a flow arrive in order: those that came are the first and the last.
	buf := make([]byte, 100)
	for _, want := range []byte{0, 3} {
		if n, err := program.Read(buf); err != nil || n != 4 || buf[0] != want {
			t.Fatalf("got %v, %v, want packet %d", buf[:n], err, want)
		}
	}
	syn := tcpData(addrB4, addrA4, 1000)
	syn[36] ^= 1
	q.Write(bare(syn))
	half := udpData(addrB4, addrA4, port, make([]byte, 100)) // in two fragments, with a wrong byte in the second
	half[120] ^= 1
	for _, f := range []struct{ from, to, field int }{{20, 84, 0x2000}, {84, 128, 64 / 8}} {
		p := append(bytes.Clone(half[:20]), half[f.from:f.to]...)
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		binary.BigEndian.PutUint16(p[6:], uint16(f.field))
		p[10], p[11] = 0, 0
		binary.BigEndian.PutUint16(p[10:], internetChecksum(p[:20]))
		q.Write(bare(p))
	}
	q.Write(bare(udpData(addrB4, addrA4, port, []byte("end"))))
	if n, err := program.Read(buf); err != nil || string(buf[:n]) != "end" {
		t.Errorf("got %q, %v", buf[:n], err)
	}
	q.Write(bare(icmpEcho(addrB4, addrA4)))
	if p := one(t, dev); p[9] != 1 {
		t.Errorf("the wrong segment was answered: %x", p)
	}
}

// superUDP is a super-packet of UDP as a Merger leaves it: its checksum is that of the pseudo-header.
func superUDP(from, to netip.Addr, port uint16, payload []byte, size int) []byte {
	b := bare(udpData(from, to, port, payload))
	p := b[segment.HeaderSize:]
	pseudo := append(bytes.Clone(p[12:20]), 0, 17, p[24], p[25])
	binary.BigEndian.PutUint16(p[26:], ^internetChecksum(pseudo))
	segment.Header{Flags: segment.NeedsChecksum, Type: segment.UDP, HeaderLen: 28, Size: uint16(size), ChecksumStart: 20, ChecksumAt: 6}.Put(b)
	return b
}

func TestSuperPacketsOfUDPArriveAsDatagrams(t *testing.T) {
	dev, _ := newStack(t, addrA4)
	program, port := listen(t)
	payload := make([]byte, 10*1300-1)
	for i := range payload {
		payload[i] = byte(i / 1300)
	}
	if err := dev.Queues()[0].Write(superUDP(addrB4, addrA4, port, payload, 1300)); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 1<<16)
	for i := range 10 {
		n, err := program.Read(buf)
		if err != nil || !bytes.Equal(buf[:n], payload[i*1300:min(len(payload), (i+1)*1300)]) {
			t.Fatalf("datagram %d has %d bytes, %v", i, n, err)
		}
	}
}

func TestWhatTheStackForwardsGoesPacketByPacket(t *testing.T) {
	dev, n := newStack(t, addrA4)
	if err := n.stack.SetForwardingDefaultAndAllNICs(ipv4.ProtocolNumber, true); err != nil {
		t.Fatal(err)
	}
	super := tcpSuper(addrB4, netip.MustParseAddr("100.64.0.9"), 5*1000)
	if err := dev.Queues()[0].Write(super); err != nil {
		t.Fatal(err)
	}
	for i := range 5 {
		p := one(t, dev)
		if len(p) != 40+1000 || p[8] != 63 || binary.BigEndian.Uint32(p[24:]) != uint32(i*1000) {
			t.Fatalf("piece %d: %d bytes, TTL %d, %x", i, len(p), p[8], p[:40])
		}
		if sum := summed(bytes.Clone(p)); !bytes.Equal(sum, p) {
			t.Errorf("piece %d has a wrong checksum", i)
		}
	}
}

// tcpSuper is a super-packet of TCP with segments of 1,000 bytes.
func tcpSuper(from, to netip.Addr, size int) []byte {
	p := append(tcpData(from, to, 1000)[:40], make([]byte, size)...)
	p[6] = 0x40
	binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
	summed(p)
	b := bare(p)
	pseudo := append(bytes.Clone(p[12:20]), 0, 6, byte((len(p)-20)>>8), byte(len(p)-20))
	binary.BigEndian.PutUint16(b[segment.HeaderSize+36:], ^internetChecksum(pseudo))
	segment.Header{Flags: segment.NeedsChecksum, Type: segment.TCPv4, HeaderLen: 40, Size: 1000, ChecksumStart: 20, ChecksumAt: 16}.Put(b)
	return b
}

func TestNoWakeUpOfTheDeviceIsLost(t *testing.T) {
	dev, _ := newStack(t, addrA4)
	q := dev.Queues()[0]
	buf := make([]byte, engine.ReadSize)
	q.Wake()
	if n, err := q.TryRead(buf); n != 0 || err != nil {
		t.Errorf("an empty device: %d, %v", n, err)
	}
	if n, err := readOf(q, buf); n != 0 || err != nil {
		t.Errorf("woken ahead: %d, %v", n, err)
	}
	const rounds = 20000
	var said atomic.Int64
	progress := make(chan int64)
	go func() {
		buf := make([]byte, engine.ReadSize)
		for seen := int64(0); seen < rounds; {
			if _, err := readOf(q, buf); err != nil {
				return
			}
			if now := said.Load(); now != seen {
				seen = now
				progress <- now
			}
		}
	}()
	fail := time.After(patience)
	for i := int64(1); i <= rounds; i++ {
		said.Store(i)
		q.Wake()
		select {
		case <-progress:
		case <-fail:
			t.Fatalf("the wake-up %d was lost", i)
		}
	}
}

func TestWhatWaitsForTheEngineIsBounded(t *testing.T) {
	for _, size := range []int{10, 1300, 60000} {
		dev, _ := newStack(t, addrA4)
		l := dev.(*port).link
		taken := 0
		for range 2 * maxPackets {
			var list stack.PacketBufferList
			list.PushBack(stack.NewPacketBuffer(stack.PacketBufferOptions{Payload: buffer.MakeWithData(make([]byte, size))}))
			n, err := l.WritePackets(list) // what is too much is dropped
			if err != nil {
				t.Fatal(err)
			}
			taken += n
			list.DecRef()
		}
		if want := min(maxPackets, maxBytes/size); taken != want {
			t.Errorf("%d packets of %d bytes wait, want %d", taken, size, want)
		}
		buf := make([]byte, engine.ReadSize)
		for range taken {
			if n, err := dev.Queues()[0].TryRead(buf); err != nil || n != segment.HeaderSize+size {
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		if n, err := dev.Queues()[0].TryRead(buf); n != 0 || err != nil || l.bytes != 0 {
			t.Errorf("behind the last: %d, %v, and %d bytes are said to wait", n, err, l.bytes)
		}
	}
}

func TestAReadThatWaitsEndsWithTheDevice(t *testing.T) {
	dev, _ := newStack(t, addrA4)
	ended := make(chan error)
	go func() {
		_, err := readOf(dev.Queues()[0], make([]byte, engine.ReadSize))
		ended <- err
	}()
	for range 100 {
		runtime.Gosched()
	}
	dev.Close()
	select {
	case err := <-ended:
		if err != os.ErrClosed {
			t.Errorf("it ends with %v", err)
		}
	case <-time.After(patience):
		t.Fatal("it waits for ever")
	}
	if name := dev.Name(); name != "" {
		t.Errorf("it has the name %q", name)
	}
}

// readOf waits for a packet and reads it; zero without an error: the queue was woken.
func readOf(q engine.Queue, buf []byte) (int, error) {
	if n, err := q.TryRead(buf); n > 0 || err != nil {
		return n, err
	}
	if err := q.Await(time.Hour); err != nil {
		return 0, err
	}
	return q.TryRead(buf)
}

func TestAWaitEndsWithItsTimeOrWithAPacket(t *testing.T) {
	dev, _ := newStack(t, addrA4)
	q, buf := dev.Queues()[0], make([]byte, engine.ReadSize)
	for range 3 {
		began := time.Now()
		if err := q.Await(20 * time.Millisecond); err != nil {
			t.Errorf("nothing came: %v", err)
		}
		if took := time.Since(began); took < 20*time.Millisecond {
			t.Errorf("it ended after %v", took)
		}
	}
	q.Wake()
	began := time.Now()
	if err := q.Await(time.Hour); err != nil || time.Since(began) > patience {
		t.Errorf("woken, it ended after %v: %v", time.Since(began), err)
	}
	dev.Close()
	if err := q.Await(time.Hour); err == nil {
		t.Error("a closed device is waited for")
	}
	if _, err := q.TryRead(buf); err == nil {
		t.Error("a closed device is read from")
	}
}
