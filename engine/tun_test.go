package engine

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"weft/engine/segment"
	"weft/host"
)

// readOf waits for a packet and reads it; zero without an error: the queue was woken.
func readOf(q Queue, buf []byte) (int, error) {
	if n, err := q.TryRead(buf); n > 0 || err != nil {
		return n, err
	}
	if err := q.Await(time.Hour); err != nil {
		return 0, err
	}
	return q.TryRead(buf)
}

func TestASuperPacketLeavesInOneSendHoweverItIsSent(t *testing.T) {
	for mtu, want := range map[int]int{576: 64, 983: 64, 984: 63, 1280: 49, MTU: 45, 1420: 44, 8900: 7, 65000: 1, 1 << 17: 1} {
		if got := Segments(mtu); got != want {
			t.Errorf("%d segments at an MTU of %d, want %d", got, mtu, want)
		}
	}
	for mtu := 576; mtu < 1<<16; mtu++ {
		if n := Segments(mtu); n > 1 && n*(mtu+40) > 65487 || n > 64 {
			t.Fatalf("%d segments at an MTU of %d are too long for one send", n, mtu)
		}
	}
}

func TestATUNIsADeviceWithItsNameMTUAndOffloads(t *testing.T) {
	name := fmt.Sprintf("weftd%d", os.Getpid()%100000)
	dev, err := OpenTUN(name, 1300)
	if err != nil {
		t.Skipf("needs root and /dev/net/tun: %v", err)
	}
	defer dev.Close()
	if dev.Name() != name || !dev.Offloads().TCP || len(dev.Queues()) == 0 {
		t.Errorf("%q, %+v, %d queues", dev.Name(), dev.Offloads(), len(dev.Queues()))
	}
	if b, err := os.ReadFile("/sys/class/net/" + name + "/mtu"); err != nil || strings.TrimSpace(string(b)) != "1300" {
		t.Errorf("MTU %s, %v", b, err)
	}
	if _, err := OpenTUN(name, MTU); err == nil || !strings.Contains(err.Error(), "is in use") {
		t.Errorf("the same name again: %v", err)
	}
	if _, err := OpenTUN("", MTU); err == nil || !strings.Contains(err.Error(), "is not a name") {
		t.Errorf("no name: %v", err)
	}
	dev.Queues()[0].Wake()
	if n, err := readOf(dev.Queues()[0], make([]byte, ReadSize)); err != nil || n != 0 {
		t.Errorf("woken: %d, %v", n, err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
	if there, _ := host.LinkExists(name); there {
		t.Error("it is closed and there")
	}
}

// written is a Queue that keeps what is written.
type written struct {
	Queue
	list [][]byte
	err  error
}

func (w *written) Write(p []byte) error {
	w.list = append(w.list, bytes.Clone(p))
	return w.err
}

// superDatagram is a super-packet of UDP over IPv4 or IPv6.
func superDatagram(six bool, payload []byte, size int) []byte {
	ip := 20
	if six {
		ip = 40
	}
	b := make([]byte, segment.HeaderSize+ip+8, segment.HeaderSize+ip+8+len(payload))
	p := b[segment.HeaderSize:]
	if six {
		p[0], p[6], p[7], p[8], p[24] = 0x60, 17, 64, 0xfd, 0xfd
		binary.BigEndian.PutUint16(p[4:], uint16(8+len(payload)))
	} else {
		p[0], p[8], p[9], p[12], p[16] = 0x45, 64, 17, 10, 10
		binary.BigEndian.PutUint16(p[2:], uint16(28+len(payload)))
	}
	binary.BigEndian.PutUint16(p[ip:], 7)
	binary.BigEndian.PutUint16(p[ip+2:], 9)
	binary.BigEndian.PutUint16(p[ip+4:], uint16(8+len(payload)))
	segment.Header{
		Flags: segment.NeedsChecksum, Type: segment.UDP, HeaderLen: uint16(ip + 8), Size: uint16(size),
		ChecksumStart: uint16(ip), ChecksumAt: 6,
	}.Put(b)
	return append(b, payload...)
}

func TestAKernelThatTakesNoSuperPacketsOfUDPGetsDatagrams(t *testing.T) {
	payload := make([]byte, 5000)
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	for _, six := range []bool{false, true} {
		for _, size := range []int{5, 1300, 5000} {
			var w written
			q := plainQueue{&w}
			super := superDatagram(six, payload[:len(payload)-3], size)
			var want [][]byte
			var s segment.Splitter
			if err := s.Begin(segment.ParseHeader(super), bytes.Clone(super[segment.HeaderSize:])); err != nil {
				t.Fatal(err)
			}
			for p := s.Next(); p != nil; p = s.Next() {
				want = append(want, append(make([]byte, segment.HeaderSize), p...))
			}
			if err := q.Write(super); err != nil || !slices.EqualFunc(w.list, want, bytes.Equal) {
				t.Errorf("IPv6 %v, %d bytes each: %d packets, want %d, or others: %v", six, size, len(w.list), len(want), err)
			}
		}
	}
	var w written
	q := plainQueue{&w}
	tcp := append(segmentHeader(segment.Header{Type: segment.TCPv4, Size: 9}), 0x45)
	if err := q.Write(tcp); err != nil || len(w.list) != 1 || !bytes.Equal(w.list[0], tcp) {
		t.Errorf("what is not UDP is %v, %v", w.list, err)
	}
	w.err = os.ErrClosed
	for _, bad := range [][]byte{nil, make([]byte, 5), segmentHeader(segment.Header{Type: segment.UDP, Size: 9}), superDatagram(false, payload, 0),
		superDatagram(false, payload, 100)} {
		if err := q.Write(bad); err == nil {
			t.Errorf("%d bytes are written", len(bad))
		}
	}
	if len(w.list) != 2 {
		t.Errorf("after an error it went on: %d", len(w.list))
	}
}

func segmentHeader(h segment.Header) []byte {
	b := make([]byte, segment.HeaderSize)
	h.Put(b)
	return b
}

func TestTakingDatagramsApartForAnOldKernelCostsNoMemory(t *testing.T) {
	var q Queue = plainQueue{discard{}}
	super := superDatagram(false, make([]byte, 5000), 1000)
	packet := make([]byte, len(super))
	var err error
	if n := testing.AllocsPerRun(100, func() {
		copy(packet, super)
		err = errors.Join(err, q.Write(packet))
	}); n != 0 || err != nil {
		t.Errorf("%v allocations, %v", n, err)
	}
}

type discard struct{ Queue }

func (discard) Write([]byte) error { return nil }

// FuzzDatagramsForAnOldKernel takes whatever is written apart as the Splitter does, and nothing else.
func FuzzDatagramsForAnOldKernel(f *testing.F) {
	f.Add(superDatagram(false, make([]byte, 3000), 1000))
	f.Add(superDatagram(true, make([]byte, 3000), 999))
	f.Add(superDatagram(true, make([]byte, 3000), 0))
	f.Add(segmentHeader(segment.Header{Type: segment.UDP, Size: 1}))
	f.Add([]byte{1, 2, 3})
	f.Fuzz(func(t *testing.T, b []byte) {
		var w written
		err := plainQueue{&w}.Write(bytes.Clone(b))
		if len(b) < segment.HeaderSize || segment.ParseHeader(b).Type != segment.UDP {
			if err == nil && (len(w.list) != 1 || !bytes.Equal(w.list[0], b)) {
				t.Fatal("what is no super-packet of UDP was changed")
			}
			return
		}
		var s segment.Splitter
		if s.Begin(segment.ParseHeader(b), bytes.Clone(b[segment.HeaderSize:])) != nil {
			if err == nil || len(w.list) > 0 {
				t.Fatalf("%d packets were made of what cannot be taken apart", len(w.list))
			}
			return
		}
		for i := 0; ; i++ {
			p := s.Next()
			if (p == nil) != (i == len(w.list)) {
				t.Fatalf("%d packets were written, and there are fewer or more", len(w.list))
			}
			if p == nil {
				return
			}
			if !bytes.Equal(w.list[i], append(make([]byte, segment.HeaderSize), p...)) {
				t.Fatalf("packet %d is another", i)
			}
		}
	})
}
