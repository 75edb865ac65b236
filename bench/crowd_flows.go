package bench

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"weft"
	"weft/engine"
	"weft/engine/segment"
)

// The flows of a crowd, as the hub's device has them: what the kernel and its TCP would be. A flow is one super-packet after the
// other, one of them under way, in one of two directions:
//
//	out:  hub -> super-packet -> far end,  far end -> acknowledgment of it -> hub
//	in:   hub -> acknowledgment of what came: more may come -> far end,  far end -> super-packet -> hub
//
// So the hub alone says which flows go on, and notices what is lost; far ends only answer. All of it passes the tunnel, as
// TCP's own would, so the hub pays for acknowledgments what it pays for them in the world.

const (
	crowdHubs  = 2              // their numbers are 1 and 2
	crowdFirst = weft.NodeID(3) // of all their peers
	// crowdPiece is the payload of a segment: the engine's MTU less IPv4's and TCP's headers. crowdPieces of them are a
	// super-packet.
	crowdPiece  = engine.MTU - crowdHeader
	crowdPieces = 32
	crowdHeader = 20 + 20
	crowdSuper  = crowdPiece * crowdPieces
	// crowdPort is the port of the first flow, and crowdFlows how many a hub has at most: by its port a flow is told.
	crowdPort  = 10000
	crowdFlows = 1 << 12
	// crowdPatience is how long a flow waits for a super-packet before it takes it for lost: TCP's shortest timeout in
	// Linux (TCP_RTO_MIN).
	crowdPatience = 200 * time.Millisecond
)

// A heading is the direction of all flows, seen from the hub.
type heading int32

const (
	out heading = iota
	in
)

func crowdAddr(id weft.NodeID) netip.Addr {
	return netip.AddrFrom4([4]byte{100, 64, byte(id >> 8), byte(id)})
}

// crowdPrefixes are an IPv4 and an IPv6 address, as every node has them.
func crowdPrefixes(id weft.NodeID) []netip.Prefix {
	six := netip.MustParseAddr("fd00::").As16()
	binary.BigEndian.PutUint32(six[12:], uint32(id))
	return []netip.Prefix{netip.PrefixFrom(crowdAddr(id), 32), netip.PrefixFrom(netip.AddrFrom16(six), 128)}
}

// A crowdDevice is a hub's device.
type crowdDevice struct {
	hub     weft.NodeID
	first   weft.NodeID    // of its peers
	flows   [2][]crowdFlow // by heading
	heading atomic.Int32
	active  atomic.Int64 // peers: flow i is peer i's, modulo these
	limit   atomic.Int64 // flows that may go on now
	next    int          // the reader's
	more    chan struct{}
	lost    atomic.Uint64
	strange atomic.Uint64 // packets that are of no flow
	closed  atomic.Bool
}

type crowdFlow struct {
	wanted atomic.Uint64 // bytes: got, once what is under way has arrived
	got    atomic.Uint64
	since  time.Time // when the last was sent, or asked for; the reader's
	_      [24]byte  // no two flows' counts in one line of the cache
}

func newCrowdDevice(hub, first weft.NodeID, flows int) *crowdDevice {
	return &crowdDevice{hub: hub, first: first, flows: [2][]crowdFlow{make([]crowdFlow, flows), make([]crowdFlow, flows)}, more: make(chan struct{}, 1)}
}

// arrived is how many bytes have, of all flows of a heading.
func (d *crowdDevice) arrived(h heading) (n uint64) {
	for i := range d.flows[h] {
		n += d.flows[h][i].got.Load()
	}
	return n
}

func (d *crowdDevice) Name() string              { return "" }
func (d *crowdDevice) Queues() []engine.Queue    { return []engine.Queue{d} }
func (d *crowdDevice) Offloads() engine.Offloads { return engine.Offloads{TCP: true, UDP: true} }

func (d *crowdDevice) Wake() {
	select {
	case d.more <- struct{}{}:
	default:
	}
}

func (d *crowdDevice) Close() error {
	d.closed.Store(true)
	d.Wake()
	return nil
}

// port is the first flow's.
func (d *crowdDevice) port() int { return crowdPort + int(d.hub-1)*crowdFlows }

// quiet reports whether nothing is under way.
func (d *crowdDevice) quiet(h heading) bool {
	for i := range d.flows[h] {
		if f := &d.flows[h][i]; f.wanted.Load() > f.got.Load() {
			return false
		}
	}
	return true
}

// Await does not wait longer than for what is lost: no bond asks for less here.
func (d *crowdDevice) Await(time.Duration) error {
	select {
	case <-d.more:
	case <-time.After(crowdPatience):
	}
	return nil
}

func (d *crowdDevice) TryRead(buf []byte) (int, error) {
	if d.closed.Load() {
		return 0, os.ErrClosed
	}
	h, limit := heading(d.heading.Load()), int(d.limit.Load())
	for range limit {
		i := d.next % limit
		d.next = i + 1
		f := &d.flows[h][i]
		wanted, got := f.wanted.Load(), f.got.Load()
		if wanted > got {
			if time.Since(f.since) < crowdPatience {
				continue
			}
			d.lost.Add(1)
		}
		p := crowdPacket{to: d.first + weft.NodeID(i%int(d.active.Load())), from: d.hub, source: uint16(d.hub), dest: uint16(d.port() + i)}
		if h == out {
			p.seq, p.payload = uint32(got), crowdSuper
		} else {
			p.ack = uint32(got)
		}
		f.since = time.Now()
		f.wanted.Store(got + crowdSuper)
		return p.put(buf), nil
	}
	return 0, nil
}

var errNoFlow = errors.New("the packet is of no flow of the crowd")

// Write takes what came from a far end: an acknowledgment, or payload, as much of the super-packet as the engine put together.
func (d *crowdDevice) Write(packet []byte) error {
	p, ok := parseCrowdPacket(packet[min(segment.HeaderSize, len(packet)):])
	h, i := in, int(p.source)-d.port()
	if p.payload == 0 {
		h = out
	}
	if !ok || i < 0 || i >= len(d.flows[h]) {
		d.strange.Add(1)
		return errNoFlow
	}
	f := &d.flows[h][i]
	n := uint64(p.payload)
	if h == out {
		n = uint64(max(0, int32(p.ack-uint32(f.got.Load()))))
	}
	if n > 0 && f.got.Add(n) >= f.wanted.Load() {
		d.Wake()
	}
	return nil
}

// A crowdPacket is one of TCP over IPv4, as far as flows of a crowd need it. Its payload is what lies behind its headers.
type crowdPacket struct {
	from, to     weft.NodeID
	source, dest uint16 // ports; the far end's says which flow
	seq, ack     uint32
	payload      int // bytes
}

// put writes a packet's headers as the kernel gives it to a device: a super-packet, if it is longer than a segment, and its
// checksum is left to be made. It returns the length of all.
func (p *crowdPacket) put(buf []byte) int {
	h := segment.Header{Flags: segment.NeedsChecksum, HeaderLen: crowdHeader, ChecksumStart: 20, ChecksumAt: 16}
	if p.payload > crowdPiece {
		h.Type, h.Size = segment.TCPv4, crowdPiece
	}
	h.Put(buf)
	b := buf[segment.HeaderSize:]
	p.headers(b)
	binary.BigEndian.PutUint16(b[20+16:], crowdSum(b[12:20], uint32(6+20+p.payload)))
	return segment.HeaderSize + crowdHeader + p.payload
}

// whole writes the headers of a segment with its checksum, of which the payload is zeros.
func (p *crowdPacket) whole(b []byte) {
	p.headers(b)
	sum := crowdSum(b[12:20], uint32(6+20+p.payload))
	binary.BigEndian.PutUint16(b[20+16:], ^crowdSum(b[20:crowdHeader], uint32(sum)))
}

// headers writes all but TCP's checksum, which is zero then.
func (p *crowdPacket) headers(b []byte) {
	ip, tcp := b[:20], b[20:crowdHeader]
	clear(b[:crowdHeader])
	const ect0 = 2 // a queue marks it where it would drop (RFC 3168)
	ip[0], ip[1], ip[6], ip[8], ip[9] = 0x45, ect0, 0x40, 64, 6
	binary.BigEndian.PutUint16(ip[2:], uint16(crowdHeader+p.payload))
	src, dst := crowdAddr(p.from).As4(), crowdAddr(p.to).As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], ^crowdSum(ip, 0))
	binary.BigEndian.PutUint16(tcp[0:], p.source)
	binary.BigEndian.PutUint16(tcp[2:], p.dest)
	binary.BigEndian.PutUint32(tcp[4:], p.seq)
	binary.BigEndian.PutUint32(tcp[8:], p.ack)
	tcp[12], tcp[13] = 5<<4, 0x10 // ACK
	binary.BigEndian.PutUint16(tcp[14:], 1<<15)
}

// parseCrowdPacket reads the headers of one; false: it is none. What is behind its length is padding.
func parseCrowdPacket(b []byte) (p crowdPacket, ok bool) {
	if len(b) < crowdHeader || b[0] != 0x45 || b[9] != 6 || b[20+12] != 5<<4 {
		return p, false
	}
	size := int(binary.BigEndian.Uint16(b[2:]))
	if size < crowdHeader || size > len(b) {
		return p, false
	}
	p = crowdPacket{
		source: binary.BigEndian.Uint16(b[20:]), dest: binary.BigEndian.Uint16(b[22:]),
		seq: binary.BigEndian.Uint32(b[24:]), ack: binary.BigEndian.Uint32(b[28:]), payload: size - crowdHeader,
	}
	return p, true
}

// crowdSum is the one's complement sum of RFC 1071.
func crowdSum(b []byte, sum uint32) uint16 {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint16(sum)
}
