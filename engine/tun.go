package engine

import (
	"fmt"
	"net/netip"
	"runtime"

	"weft/engine/segment"
	"weft/host"
)

const (
	// maxQueues bounds the queues of an interface: each is a thread's work, and memory for the longest packet.
	maxQueues = 8
	// overhead is what a packet grows by at most on its way into a UDP datagram, in bytes: WireGuard's header and tag,
	// and eight in front on the way by a UDP relay.
	overhead = 32 + 8
	// maxRun is how many bytes of datagrams one send has at most: IPv6's payload as it is for IPv4 less its header.
	maxRun = 65487
	// maxSegments is how many datagrams one send may be taken apart into (UDP_MAX_SEGMENTS before Linux 6.9).
	maxSegments = 64
)

// OpenTUN makes a TUN interface, down and without addresses, with segmentation offload and a queue for every two
// processors: the other half is for what comes in.
func OpenTUN(name string, mtu int) (Device, error) {
	t, err := host.OpenTUN(name, min(maxQueues, max(1, runtime.NumCPU()/2)))
	if err != nil {
		return nil, err
	}
	if err := host.SetLinkMTU(t.Name(), mtu); err != nil {
		t.Close()
		return nil, fmt.Errorf("making interface %s: %w", name, err)
	}
	_ = host.SetLinkSegments(t.Name(), Segments(mtu)) // without, a super-packet may take two sends
	return newTUNDevice(t), nil
}

// Segments is how many segments a super-packet of an interface should have at most, so that it leaves in one send: as many
// as one send may have when they are sealed, directly or by a relay.
func Segments(mtu int) int { return max(1, min(maxSegments, maxRun/(mtu+overhead))) }

// tunDevice is a TUN as a Device.
type tunDevice struct {
	*host.TUN
	queues []Queue
}

func newTUNDevice(t *host.TUN) *tunDevice {
	d := &tunDevice{TUN: t}
	for _, q := range t.Queues() {
		if t.Offloads().UDP {
			d.queues = append(d.queues, q)
		} else {
			d.queues = append(d.queues, plainQueue{q})
		}
	}
	return d
}

func (d *tunDevice) Queues() []Queue { return d.queues }

func (d *tunDevice) Offloads() Offloads {
	o := d.TUN.Offloads()
	return Offloads{TCP: o.TCP, UDP: o.UDP}
}

// Returns tells whether the kernel has a route into the interface for an address.
func (d *tunDevice) Returns(to netip.Addr) bool {
	in, err := host.Leads(d.Name(), to)
	return err == nil && in
}

// plainQueue is a queue of a kernel that takes no super-packets of UDP (before Linux 6.2): they are taken apart for it.
type plainQueue struct{ Queue }

// Write changes the packet.
func (q plainQueue) Write(packet []byte) error {
	if len(packet) < segment.HeaderSize {
		return segment.ErrShort
	}
	h := segment.ParseHeader(packet)
	if h.Type != segment.UDP {
		return q.Queue.Write(packet)
	}
	var s segment.Splitter
	if err := s.Begin(h, packet[segment.HeaderSize:]); err != nil {
		return err
	}
	for at := 0; ; at += int(h.Size) {
		p := s.Next()
		if p == nil {
			return nil
		}
		out := packet[at : at+segment.HeaderSize+len(p)] // over the end of the piece before, which is written
		clear(out[:segment.HeaderSize])
		if err := q.Queue.Write(out); err != nil {
			return err
		}
	}
}
