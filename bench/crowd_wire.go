package bench

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"

	"weft/engine/segment"
	"weft/host"
)

// A crowdWire is what far ends receive from and send by. One goroutine has it; any may close it.
type crowdWire interface {
	// Read waits for messages, which are valid until the next call. It fails with net.ErrClosed when the wire is closed.
	Read() ([]host.UDPRead, error)
	// Meet says where an end's hub is, by a message of it.
	Meet(end *crowdEnd, m *host.UDPRead)
	// Room is where a datagram of an end is to be put, n bytes behind its length.
	Room(end *crowdEnd, n int) []byte
	// Add sends the last n bytes of what was room and has a datagram behind, soon: with others of its end, or at the next Flush.
	Add(end *crowdEnd, room []byte, n int)
	Flush()
	Close() error
}

// crowdSockets is a wire that is a socket on loopback.
type crowdSockets struct {
	conn   host.DatagramConn
	socket *host.UDPSocket
	reader *host.UDPReader
	writer *host.UDPWriter
	place  []byte // sealed
}

func (w *crowdSockets) Read() ([]host.UDPRead, error) { return w.reader.Read() }
func (w *crowdSockets) Close() error                  { return w.conn.Close() }

func (w *crowdSockets) Meet(end *crowdEnd, m *host.UDPRead) {
	w.socket.SetDest(&end.to, m.From, m.Local)
}

func (w *crowdSockets) Room(_ *crowdEnd, n int) []byte {
	if cap(w.place)-len(w.place) < n {
		w.Flush()
	}
	return w.place
}

func (w *crowdSockets) Add(end *crowdEnd, room []byte, n int) {
	w.place = room
	w.writer.Add(&end.to, room[len(room)-n:], n)
}

func (w *crowdSockets) Flush() {
	w.writer.Flush()
	w.place = w.place[:0]
}

// A crowdTUN is a wire that is an interface of this machine: what the hub sends ends in the interface's queue, as it would in a network card's,
// and what is then to be done to receive it far ends do themselves, when they read. On loopback it is who sends that does it, for each message:
// a hub with fifty peers would do for each acknowledgment what is another machine's work in the world.
// What far ends send is received by the kernel in their own call, and so is not the hub's time either way.
type crowdTUN struct {
	tun    *host.TUN
	queue  *host.TUNQueue
	memory host.Slab
	reads  [host.SlabPackets]host.UDPRead

	run  []byte    // headers, and datagrams of one length
	of   *crowdEnd // whose they are
	size int       // of each
	many int
}

const (
	// crowdHubAt is the hub's address of the interface, and crowdWireAt the first of its peers': of a network that is for benchmarks (RFC 2544).
	crowdHubAt, crowdWireAt = "198.19.0.1/32", "198.18.0.0/16"
	// crowdWirePort is where all far ends are.
	crowdWirePort = 51820
	// crowdWireMTU is Ethernet's.
	crowdWireMTU = 1500
	// crowdUnderlay is IPv4's header and UDP's.
	crowdUnderlay = 20 + 8
	// crowdRunMost is how many datagrams a run has at most, and crowdRunBytes how long it is: as one send of a socket.
	crowdRunMost, crowdRunBytes = 64, 65487
	// crowdReadBytes is how much is read at once, in bytes.
	crowdReadBytes = 256 << 10
)

func openCrowdTUN() (*crowdTUN, error) {
	tun, err := host.OpenTUN("wcrowd%d", 1)
	if err != nil {
		return nil, err
	}
	err = host.ConfigureLink(tun.Name(), []netip.Prefix{netip.MustParsePrefix(crowdHubAt)}, []netip.Prefix{netip.MustParsePrefix(crowdWireAt)}, crowdWireMTU)
	if err == nil && !tun.Offloads().UDP {
		err = errors.New("this kernel's TUN takes no runs of datagrams: Linux 6.2 does")
	}
	if err != nil && !errors.Is(err, host.ErrIPv6Disabled) {
		tun.Close()
		return nil, err
	}
	return &crowdTUN{tun: tun, queue: tun.Queues()[0], memory: host.TakeSlab(), run: make([]byte, 0, segment.HeaderSize+1<<16)}, nil
}

func (w *crowdTUN) Close() error { return w.tun.Close() }

// Read never waits otherwise than by looking again: who sends would have to wake it, which with fifty peers is more often.
func (w *crowdTUN) Read() ([]host.UDPRead, error) {
	n, size := 0, 0
	for n < len(w.reads) && size < crowdReadBytes {
		room := w.memory.Room(n)
		got, err := w.queue.TryRead(room)
		switch {
		case errors.Is(err, os.ErrClosed):
			return nil, net.ErrClosed
		case err != nil:
			return nil, err
		case got == 0 && n > 0:
			return w.reads[:n], nil
		case got > 0 && w.parse(room[:got], &w.reads[n]):
			size += got
			n++
		}
	}
	return w.reads[:n], nil
}

// parse takes the headers of a packet off; false: it is none of UDP over IPv4.
func (w *crowdTUN) parse(b []byte, m *host.UDPRead) bool {
	if len(b) < segment.HeaderSize+crowdUnderlay {
		return false
	}
	h, ip := segment.ParseHeader(b), b[segment.HeaderSize:]
	if ip[0] != 0x45 || ip[9] != 17 {
		return false
	}
	m.Data = ip[crowdUnderlay:]
	m.Segment = len(m.Data)
	if h.Type == segment.UDP {
		m.Segment = int(h.Size)
	}
	m.From = netip.AddrPortFrom(netip.AddrFrom4([4]byte(ip[12:])), binary.BigEndian.Uint16(ip[20:]))
	m.Local = netip.AddrFrom4([4]byte(ip[16:]))
	return true
}

func (w *crowdTUN) Meet(end *crowdEnd, m *host.UDPRead) { end.hub, end.at = m.From, m.Local }

func (w *crowdTUN) Room(end *crowdEnd, n int) []byte {
	if w.of != end || w.size != n || w.many == crowdRunMost || len(w.run)+n > segment.HeaderSize+20+crowdRunBytes {
		w.Flush()
		w.of, w.size = end, n
		w.run = w.run[:segment.HeaderSize+crowdUnderlay]
	}
	return w.run
}

func (w *crowdTUN) Add(_ *crowdEnd, room []byte, _ int) {
	w.run = room
	w.many++
}

// Flush sends the run. What the machine has no room for is lost.
func (w *crowdTUN) Flush() {
	if w.many > 0 {
		w.headers()
		_ = w.queue.Write(w.run)
	}
	w.of, w.many, w.run = nil, 0, w.run[:0]
}

// headers writes those of the run. The kernel makes UDP's checksum, if anybody asks for it.
func (w *crowdTUN) headers() {
	h := segment.Header{Flags: segment.NeedsChecksum, HeaderLen: crowdUnderlay, ChecksumStart: 20, ChecksumAt: 6}
	if w.many > 1 {
		h.Type, h.Size = segment.UDP, uint16(w.size)
	}
	h.Put(w.run)
	ip := w.run[segment.HeaderSize:]
	udp := ip[20:]
	clear(ip[:crowdUnderlay])
	ip[0], ip[8], ip[9] = 0x45, 64, 17
	binary.BigEndian.PutUint16(ip[2:], uint16(len(ip)))
	src, dst := w.of.at.As4(), w.of.hub.Addr().As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], ^crowdSum(ip[:20], 0))
	binary.BigEndian.PutUint16(udp[0:], crowdWirePort)
	binary.BigEndian.PutUint16(udp[2:], w.of.hub.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	binary.BigEndian.PutUint16(udp[6:], crowdSum(ip[12:20], uint32(17+len(udp))))
}
