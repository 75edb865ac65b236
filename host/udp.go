package host

import (
	"fmt"
	"iter"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Batches of datagrams: what a relay, which does nothing but receive and send, needs of a UDP socket.
//
// A [UDPReader] takes up to UDPBatch messages per system call, each of which may be a run of equal datagrams of
// one sender that the kernel left together (UDP_GRO). A [UDPWriter] sends many messages per system call, and
// puts datagrams of one length for one receiver together into one that the kernel, or the network card, takes
// apart (UDP_SEGMENT). Both use the bytes where they are. Neither allocates. Where the kernel has none of this,
// the same calls send and receive one datagram at a time.
//
// Reads wait in the scheduler; the system calls themselves never block and so bypass its bookkeeping, which
// costs more than a small send.

const (
	// UDPBatch is how many messages one system call takes: enough that its cost is divided, few enough that
	// what was received is still in the cache when it is sent.
	UDPBatch = 32

	// udpSegments is how many datagrams one send may be taken apart into (UDP_MAX_SEGMENTS before Linux 6.9).
	udpSegments = 64
	// udpRunMost bounds in bytes what is put together: IPv6's payload is that of IPv4 less its header.
	udpRunMost = 65487
)

// UDPRead is one message that was received: one datagram, or a run of them from one sender.
type UDPRead struct {
	Data    []byte         // valid until the next Read, and the caller's to change
	Segment int            // length in bytes of each datagram of the run but the last, which may be shorter
	From    netip.AddrPort // IPv4 unmapped
	Local   netip.Addr     // address of this machine that it was sent to, or zero where the socket is bound to one
	Unread  time.Duration  // for how long it lay in the socket; 0 without Stamp
}

// UDPCount says what became of a batch that was sent.
type UDPCount struct {
	Datagrams, Bytes int
	Full             int // datagrams dropped because the socket's send buffer was full
	Failed           int // datagrams that the kernel refused
}

func (c *UDPCount) add(o UDPCount) {
	c.Datagrams += o.Datagrams
	c.Bytes += o.Bytes
	c.Full += o.Full
	c.Failed += o.Failed
}

// UDPSocket is a socket for batches. It does not own the connection. Its methods may be called at once.
type UDPSocket struct {
	conn  DatagramConn
	raw   syscall.RawConn
	local netip.AddrPort
	six   bool        // an IPv6 socket, which may carry IPv4 too
	info  bool        // bound to no address in particular: which one was hit comes with the message
	plain bool        // WithoutOffload
	gro   atomic.Bool // from its first reader on
	gso   atomic.Bool

	stamps atomic.Bool // the kernel tells when messages came
}

// NewUDPSocket prepares a bound, unconnected socket.
func NewUDPSocket(conn DatagramConn) (*UDPSocket, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, fmt.Errorf("a UDP socket for batches: %w", err)
	}
	local := conn.LocalAddr().(*net.UDPAddr).AddrPort()
	s := &UDPSocket{conn: conn, raw: raw, local: local, info: local.Addr().IsUnspecified()}
	if err := s.prepare(); err != nil {
		return nil, fmt.Errorf("a UDP socket for batches on %s: %w", local, err)
	}
	return s, nil
}

// Local is the address that the socket is bound to.
func (s *UDPSocket) Local() netip.AddrPort {
	return netip.AddrPortFrom(s.local.Addr().Unmap(), s.local.Port())
}

// Offload reports whether runs are sent and received as one. The first turns false when a network card
// refuses it, the second true with the first reader: a run is too long for who reads datagrams one by one.
func (s *UDPSocket) Offload() (send, receive bool) { return s.gso.Load(), s.gro.Load() }

// corruptsGSO reports whether a kernel is one of those that damage what they take apart: 7.0 to 7.1.4.
func corruptsGSO(release string) bool {
	var v [3]int
	for i, s := range strings.SplitN(release, ".", 3) {
		end := strings.IndexFunc(s, func(r rune) bool { return r < '0' || r > '9' })
		if end < 0 {
			end = len(s)
		}
		v[i], _ = strconv.Atoi(s[:end])
	}
	return v[0] == 7 && (v[1] == 0 || v[1] == 1 && v[2] <= 4)
}

// UDPDest is where datagrams go, and from which of this machine's addresses. Once set it is not changed, must
// not be copied, and may be used by many writers at once.
type UDPDest struct {
	socket *UDPSocket
	// most is the longest datagram in bytes that may be sent as one of a run, or 0 for any. A run of longer
	// ones was refused, as it is where they do not fit the path and the kernel would have to fragment them.
	most   atomic.Int32
	system udpName
}

// SetDest sets a destination; from, which may be zero, is what UDPRead.Local said of a datagram to be answered.
func (s *UDPSocket) SetDest(d *UDPDest, to netip.AddrPort, from netip.Addr) {
	d.socket = s
	d.most.Store(0)
	d.system.set(s, to, from)
}

// runs reports whether datagrams of this length may be sent in runs.
func (d *UDPDest) runs(segment int) bool {
	most := int(d.most.Load())
	return d.socket.gso.Load() && (most == 0 || segment <= most)
}

// refused remembers that a run of datagrams of this length was.
func (d *UDPDest) refused(segment int) { d.most.Store(int32(max(1, segment-1))) }

// message is a run that waits in a writer: pieces of memory that together are datagrams of one length.
type message struct {
	to          *UDPDest
	segment     int // length of each datagram but the last
	size        int // bytes so far
	datagrams   int
	first, last int // pieces
	closed      bool
}

type piece struct {
	data []byte
	next int // index of the next, or -1
}

// UDPWriter gathers datagrams and sends them. It is one goroutine's; the sockets may be shared.
type UDPWriter struct {
	// Patient makes Flush wait for room in a full socket, as an end of a connection should, which slows its
	// sender down so. A relay drops instead: it must not hold up others.
	Patient bool

	messages []message
	pieces   []piece
	count    UDPCount
	system   udpSystem
	spare    *udpSystem // to take runs apart, once one was refused
}

// datagrams yields the pieces of a run one by one. Each piece of memory begins with a datagram's first byte.
func (w *UDPWriter) datagrams(m *message) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for p := m.first; p >= 0; p = w.pieces[p].next {
			for data := w.pieces[p].data; len(data) > 0; {
				n := min(len(data), m.segment)
				if !yield(data[:n]) {
					return
				}
				data = data[n:]
			}
		}
	}
}

// NewUDPWriter makes a writer.
func NewUDPWriter() *UDPWriter {
	w := &UDPWriter{messages: make([]message, 0, UDPBatch), pieces: make([]piece, 0, udpPieces)}
	w.system.init()
	return w
}

// udpPieces is how many pieces of memory wait at most. Each datagram may be one, if runs are to be had from
// datagrams that came one by one.
const udpPieces = 256

// lookBack is how many waiting messages are looked at for one that a datagram can join.
const lookBack = 8

// Add queues data: a datagram, or a run of them of segment bytes each but the last. Neither data nor to may
// change before Flush. Datagrams for one receiver leave in the order in which they were added.
func (w *UDPWriter) Add(to *UDPDest, data []byte, segment int) {
	if len(data) == 0 {
		return
	}
	if segment <= 0 || segment > len(data) {
		segment = len(data)
	}
	for len(data) > 0 {
		most := segment
		if to.runs(segment) {
			most = max(1, min(udpSegments, udpRunMost/segment)) * segment
		}
		n := min(len(data), most)
		w.add(to, data[:n], segment)
		data = data[n:]
	}
}

func (w *UDPWriter) add(to *UDPDest, data []byte, segment int) {
	if len(w.messages) == UDPBatch || len(w.pieces) == udpPieces {
		w.flush()
	}
	datagrams := (len(data) + segment - 1) / segment
	if to.runs(segment) {
		for i := len(w.messages) - 1; i >= max(0, len(w.messages)-lookBack); i-- {
			m := &w.messages[i]
			if m.to != to {
				continue
			}
			// A run that ends here may end with a shorter datagram; one that goes on may not hold it.
			fits := !m.closed && m.datagrams+datagrams <= udpSegments && m.size+len(data) <= udpRunMost &&
				(segment == m.segment || datagrams == 1 && len(data) < m.segment)
			if fits {
				w.join(m, data, datagrams)
				return
			}
			break // its order must hold: it begins a new message
		}
	}
	w.pieces = append(w.pieces, piece{data: data, next: -1})
	at := len(w.pieces) - 1
	w.messages = append(w.messages, message{
		to: to, segment: segment, size: len(data), datagrams: datagrams, first: at, last: at,
		closed: len(data)%segment != 0,
	})
}

func (w *UDPWriter) join(m *message, data []byte, datagrams int) {
	last := &w.pieces[m.last]
	if n := len(last.data); cap(last.data) >= n+len(data) && &last.data[:n+1][n] == &data[0] {
		last.data = last.data[:n+len(data)] // behind it in memory too
	} else {
		w.pieces = append(w.pieces, piece{data: data, next: -1})
		last.next = len(w.pieces) - 1
		m.last = last.next
	}
	m.size += len(data)
	m.datagrams += datagrams
	m.closed = m.size != m.datagrams*m.segment
}

// Flush sends what waits and says what became of everything added since the last Flush. It does not block, but
// for a Patient writer's: what a full socket does not take is dropped and counted, as a router would.
func (w *UDPWriter) Flush() UDPCount {
	w.flush()
	c := w.count
	w.count = UDPCount{}
	return c
}

func (w *UDPWriter) flush() {
	if len(w.messages) > 0 {
		w.send()
	}
	w.messages, w.pieces = w.messages[:0], w.pieces[:0]
}

func (m *message) lost(full bool) UDPCount {
	if full {
		return UDPCount{Full: m.datagrams}
	}
	return UDPCount{Failed: m.datagrams}
}
