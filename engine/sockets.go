package engine

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.zx2c4.com/wireguard/conn"

	"weft/host"
)

// socketBuffer is the size in bytes of the sockets' buffers: 40 ms of 1.4 Gbit/s, so that a receiver that
// waits for a processor loses nothing. Sized buffers alone are worth a quarter of the throughput.
const socketBuffer = 7 << 20

// sockets is a conn.Bind of one UDP socket per address family, on one port: host's batches and runs behind
// wireguard-go's interface. Upstream's own bind is not used because it sends to wrong IPv6 addresses once it has
// sent to an IPv4 one (its pool of addresses keeps their lengths).
type sockets struct {
	mu   sync.Mutex
	four *socket
	six  *socket
}

type socket struct {
	conn  *net.UDPConn
	batch *host.UDPSocket
	// dests are the destinations of batches: peers and relays. Strangers are only ever sent single packets.
	dests    sync.Map // netip.AddrPort -> *host.UDPDest
	numDests atomic.Int32
}

// maxDests bounds the destinations that are kept; past it they are made anew.
const maxDests = 8192

var writerPool = sync.Pool{New: func() any {
	w := host.NewUDPWriter()
	w.Patient = true
	return w
}}

func newSockets() *sockets { return &sockets{} }

// Open opens both sockets on a port, or on one that is free for both. A machine without IPv6 has the other.
func (s *sockets) Open(port uint16) ([]conn.ReceiveFunc, uint16, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.four != nil || s.six != nil {
		return nil, 0, conn.ErrBindAlreadyOpen
	}
	four, err := listen("udp4", port)
	if err != nil && !errors.Is(err, syscall.EAFNOSUPPORT) {
		return nil, 0, err
	}
	if four != nil {
		port = four.batch.Local().Port()
	}
	six, err := listen("udp6", port)
	if err != nil && !(errors.Is(err, syscall.EAFNOSUPPORT) && four != nil) {
		if four != nil {
			four.conn.Close()
		}
		return nil, 0, err
	}
	var fns []conn.ReceiveFunc
	for _, x := range []*socket{four, six} {
		if x != nil {
			port = x.batch.Local().Port()
			fns = append(fns, x.receiver())
		}
	}
	s.four, s.six = four, six
	return fns, port, nil
}

func listen(network string, port uint16) (*socket, error) {
	c, err := net.ListenUDP(network, &net.UDPAddr{Port: int(port)})
	if err != nil {
		return nil, err
	}
	if _, _, err := host.SetUDPBuffers(c, socketBuffer); err != nil {
		c.Close()
		return nil, fmt.Errorf("sizing the buffers of UDP port %s: %w", strconv.Itoa(int(port)), err)
	}
	batch, err := host.NewUDPSocket(c)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &socket{conn: c, batch: batch}, nil
}

// receiver makes the function that wireguard-go receives with. A run of datagrams is taken apart into its
// buffers; what does not fit waits for the next call.
func (x *socket) receiver() conn.ReceiveFunc {
	reader := host.NewUDPReader(x.batch)
	var pending []host.UDPRead
	return func(bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, error) {
		if len(pending) == 0 {
			var err error
			if pending, err = reader.Read(); err != nil {
				return 0, err
			}
		}
		var n int
		n, pending = unpack(pending, bufs, sizes, eps)
		return n, nil
	}
}

// unpack takes runs of datagrams apart into buffers, and returns how many it filled and what did not fit.
func unpack(reads []host.UDPRead, bufs [][]byte, sizes []int, eps []conn.Endpoint) (int, []host.UDPRead) {
	n := 0
	for len(reads) > 0 && n < len(bufs) {
		run := &reads[0]
		ep := &conn.StdNetEndpoint{AddrPort: run.From}
		for len(run.Data) > 0 && n < len(bufs) {
			size := min(len(run.Data), max(run.Segment, 1))
			sizes[n] = copy(bufs[n], run.Data[:size])
			eps[n] = ep
			run.Data = run.Data[size:]
			n++
		}
		if len(run.Data) == 0 {
			reads = reads[1:]
		}
	}
	return n, reads
}

// errNotTaken is what packets met that the kernel refused: a firewall, a network that is gone.
var errNotTaken = errors.New("the kernel did not take a packet")

// Send sends packets to one address.
func (s *sockets) Send(bufs [][]byte, endpoint conn.Endpoint) error {
	ep, ok := endpoint.(*conn.StdNetEndpoint)
	if !ok {
		return conn.ErrWrongEndpointType
	}
	x := s.of(ep.Addr())
	if x == nil {
		return syscall.EAFNOSUPPORT
	}
	return x.send(bufs, ep)
}

// sendTTL sends one packet with a time to live.
func (s *sockets) sendTTL(b []byte, to netip.AddrPort, ttl uint8) error {
	x := s.of(to.Addr())
	if x == nil {
		return syscall.EAFNOSUPPORT
	}
	return host.WriteUDPTTL(x.conn, b, to, ttl)
}

// of is the socket for an address, or nil.
func (s *sockets) of(to netip.Addr) *socket {
	s.mu.Lock()
	defer s.mu.Unlock()
	if to.Is6() {
		return s.six
	}
	return s.four
}

func (x *socket) send(bufs [][]byte, ep *conn.StdNetEndpoint) error {
	if len(bufs) == 1 {
		_, err := x.conn.WriteToUDPAddrPort(bufs[0], ep.AddrPort)
		return err
	}
	w := writerPool.Get().(*host.UDPWriter)
	defer writerPool.Put(w)
	to := x.dest(ep.AddrPort)
	for _, b := range bufs {
		w.Add(to, b, len(b))
	}
	if c := w.Flush(); c.Failed > 0 || c.Full > 0 {
		return errNotTaken
	}
	return nil
}

// dest finds the destination for an address.
func (x *socket) dest(addr netip.AddrPort) *host.UDPDest {
	if d, ok := x.dests.Load(addr); ok {
		return d.(*host.UDPDest)
	}
	d := new(host.UDPDest)
	x.batch.SetDest(d, addr, netip.Addr{})
	if x.numDests.Add(1) > maxDests {
		x.dests.Clear()
		x.numDests.Store(1)
	}
	x.dests.Store(addr, d)
	return d
}

// Close closes the sockets; receivers end with net.ErrClosed.
func (s *sockets) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, x := range []*socket{s.four, s.six} {
		if x != nil {
			errs = append(errs, x.conn.Close())
		}
	}
	s.four, s.six = nil, nil
	return errors.Join(errs...)
}

// SetMark is part of conn.Bind and not used.
func (s *sockets) SetMark(uint32) error { return nil }

// ParseEndpoint reads an address.
func (s *sockets) ParseEndpoint(text string) (conn.Endpoint, error) {
	addr, err := netip.ParseAddrPort(text)
	if err != nil {
		return nil, err
	}
	return &conn.StdNetEndpoint{AddrPort: addr}, nil
}

// BatchSize is how many packets go in one call.
func (s *sockets) BatchSize() int { return conn.IdealBatchSize }
