package engine

import "time"

// A Device is where the overlay's packets come from and go to: a TUN interface, or a network stack in this process.
//
// Packets have a virtio-net header in front (package segment), and may be super-packets in both directions: TCP and UDP
// of up to 64 KiB that segment.Splitter takes apart, and what segment.Merger put together.
type Device interface {
	// Name is the interface's; "" where there is none.
	Name() string
	// Queues are there from the beginning, at least one. The kernel keeps each flow on one of them.
	Queues() []Queue
	// Offloads tells what the other side takes and gives, for people.
	Offloads() Offloads
	// Close ends all reads with os.ErrClosed.
	Close() error
}

// A Queue is one of a Device's. One goroutine at a time may wait, and one at a time may read; any number may write.
type Queue interface {
	// Await waits until there may be a packet, until it is woken, or so long at most; if that is negative, without an end.
	Await(most time.Duration) error
	// TryRead reads a packet, header and packet, into buf, which has room for ReadSize bytes. Zero without an error means
	// that there is none.
	TryRead(buf []byte) (int, error)
	// Write writes one: header and packet. It never waits: what the other side has no room for is lost, with an error.
	Write(packet []byte) error
	// Wake has the Await that waits, or else the next, return at once.
	Wake()
}

// Offloads is what a Device does in super-packets.
type Offloads struct {
	TCP bool `json:"tcp"` // TSO for IPv4 and IPv6
	UDP bool `json:"udp"` // USO
}

// ReadSize is the longest packet with its header that a Device gives, in bytes.
const ReadSize = 1<<16 + 64
