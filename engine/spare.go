package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/conn"

	"weft"
	"weft/host"
)

const (
	// firstSpare is the first number of a spare socket's link; those below are of the node's real links.
	firstSpare weft.LinkID = 0x8000
	// maxSpares is how many spare sockets there are at most: four sprays of 256. Each is a file descriptor and a
	// goroutine with parcelSize bytes.
	maxSpares = 1024
)

// ErrTooManySockets is returned for sockets beyond those that an engine keeps open.
var ErrTooManySockets = fmt.Errorf("no more than %d spare sockets are kept open", maxSpares)

// spares are the sockets beside the shared ones, each on a port and a link of its own. What comes to one is read
// by a goroutine of its own. As long as it carries no data, that is all: a buffer for one packet, and packets for
// the device go through the inbox. Once it is a route (carry), it gets what the shared sockets have: large
// buffers, batches and segmentation offload, and its batches are taken by the device's queued receiver, since
// the device wants to know all its receivers at the start.
type spares struct {
	b     *bind
	ready chan arrival

	mu     sync.RWMutex // guards what follows
	open   map[weft.LinkID]*spare
	last   weft.LinkID // the number given last: numbers are not given again soon
	closed bool
	ended  sync.WaitGroup // the goroutines
}

type spare struct {
	link    weft.LinkID
	conn    *net.UDPConn
	six     bool
	carries atomic.Bool            // it is a route, or was
	full    atomic.Pointer[socket] // for batches, once it is
}

// An arrival is a batch of a spare socket that waits for the device. It is the socket's reader's again when taken
// was told.
type arrival struct {
	link  weft.LinkID
	reads []host.UDPRead
	taken chan struct{}
}

func newSpares(b *bind) *spares {
	return &spares{b: b, ready: make(chan arrival), open: make(map[weft.LinkID]*spare), last: firstSpare - 1}
}

// OpenSockets opens UDP sockets of one address family, each on a free port and on a link of its own, of which it
// returns the numbers and the ports. What comes to them is treated as what comes to the shared sockets. With an
// error it returns those that could be opened all the same.
func (e *Engine) OpenSockets(n int, v6 bool) ([]weft.LinkID, []uint16, error) {
	links, ports := make([]weft.LinkID, 0, n), make([]uint16, 0, n)
	for range n {
		x, err := e.bind.spares.add(v6)
		if err != nil {
			return links, ports, fmt.Errorf("opening UDP socket %d of %d: %w", len(links)+1, n, err)
		}
		links = append(links, x.link)
		ports = append(ports, x.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port())
	}
	return links, ports, nil
}

// CloseSocket closes a socket that OpenSockets opened. A link that is not open is none to close.
func (e *Engine) CloseSocket(link weft.LinkID) { e.bind.spares.remove(link) }

// Sockets is how many spare sockets are open.
func (e *Engine) Sockets() int {
	s := e.bind.spares
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.open)
}

// SendTTL is Send with a time to live, or hop limit, in the IP header: for packets that are to open a NAT's filter
// and not to arrive. By a relay, and with a ttl of zero, it is Send.
func (e *Engine) SendTTL(id weft.NodeID, via weft.Via, frame []byte, ttl uint8) error {
	if via.Method != weft.Direct || ttl == 0 {
		return e.Send(id, via, frame)
	}
	addr := unmap(via.Addr)
	switch x := e.bind.spares.find(via.Link); {
	case !addr.IsValid():
		return ErrNoWay
	case x != nil:
		return host.WriteUDPTTL(x.conn, frame, addr, ttl)
	case via.Link != 0:
		return ErrNoWay
	}
	if shared, ok := e.bind.inner.(*sockets); ok {
		return shared.sendTTL(frame, addr, ttl)
	}
	return e.bind.write(0, addr, frame)
}

// add opens one socket.
func (s *spares) add(v6 bool) (*spare, error) {
	network := "udp4"
	if v6 {
		network = "udp6"
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return nil, net.ErrClosed
	case len(s.open) >= maxSpares:
		return nil, ErrTooManySockets
	}
	c, err := net.ListenUDP(network, nil)
	if err != nil {
		return nil, err
	}
	for used := true; used; { // there are far more numbers than sockets
		if s.last++; s.last < firstSpare {
			s.last = firstSpare
		}
		_, used = s.open[s.last]
	}
	x := &spare{link: s.last, conn: c, six: v6}
	s.open[x.link] = x
	s.ended.Add(1)
	go s.read(x)
	return x, nil
}

func (s *spares) remove(link weft.LinkID) {
	s.mu.Lock()
	x := s.open[link]
	delete(s.open, link)
	s.mu.Unlock()
	if x != nil {
		x.conn.Close() // which ends its goroutine
	}
}

func (s *spares) find(link weft.LinkID) *spare {
	if link < firstSpare {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.open[link]
}

// close closes all of them; there will be no others.
func (s *spares) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for link, x := range s.open {
		x.conn.Close()
		delete(s.open, link)
	}
}

// carry says that a link is a route now.
func (s *spares) carry(link weft.LinkID) {
	if x := s.find(link); x != nil && x.carries.CompareAndSwap(false, true) {
		x.conn.SetReadDeadline(time.Unix(1, 0)) // its goroutine, which waits for a packet, shall see it
	}
}

// send sends packets by a link to one address.
func (s *spares) send(link weft.LinkID, bufs [][]byte, ep *conn.StdNetEndpoint) error {
	x := s.find(link)
	switch {
	case x == nil:
		return ErrNoWay
	case x.six != ep.Addr().Is6():
		return syscall.EAFNOSUPPORT
	}
	if full := x.full.Load(); full != nil {
		return full.send(bufs, ep)
	}
	var firstErr error
	for _, b := range bufs {
		if _, err := x.conn.WriteToUDPAddrPort(b, ep.AddrPort); err != nil && firstErr == nil {
			firstErr = err
		}
	}
	return firstErr
}

// read reads one socket until it is closed.
func (s *spares) read(x *spare) {
	defer s.ended.Done()
	if s.light(x) {
		s.heavy(x)
	}
}

// light reads single packets, and returns true when the socket is to carry data.
func (s *spares) light(x *spare) bool {
	buf := parcelPool.Get().(*[parcelSize]byte)
	defer parcelPool.Put(buf)
	var (
		ep    conn.StdNetEndpoint
		bufs  = [1][]byte{buf[:]}
		sizes [1]int
		eps   [1]conn.Endpoint
	)
	for !x.carries.Load() {
		n, from, err := x.conn.ReadFromUDPAddrPort(buf[:])
		if err != nil {
			if !s.again(x, err) {
				return false
			}
			continue
		}
		if n == len(buf) { // it was longer, and has lost its end
			s.b.e.drops.strange.Add(1)
			continue
		}
		ep.AddrPort = unmap(from)
		sizes[0], eps[0] = n, &ep
		s.b.sieve(x.link, bufs[:], sizes[:], eps[:])
		if sizes[0] > 0 {
			s.b.post(eps[0], buf[:sizes[0]])
		}
	}
	return true
}

// heavy reads batches and hands them to the device's queued receiver.
func (s *spares) heavy(x *spare) {
	if _, _, err := host.SetUDPBuffers(x.conn, socketBuffer); err != nil && !closed(err) {
		s.b.e.log.Warn("a peer's own UDP socket keeps the system's small buffers and may be slow", "error", err)
	}
	batch, err := host.NewUDPSocket(x.conn)
	if err != nil {
		if !closed(err) {
			s.b.e.log.Warn("a peer's own UDP socket is closed", "error", err)
		}
		s.remove(x.link)
		return
	}
	x.full.Store(&socket{conn: x.conn, batch: batch})
	reader := host.NewUDPReader(batch)
	taken := make(chan struct{}, 1)
	for {
		reads, err := reader.Read()
		if err != nil {
			if !s.again(x, err) {
				return
			}
			continue
		}
		select {
		case s.ready <- arrival{x.link, reads, taken}:
		case <-s.b.done:
			return
		}
		select {
		case <-taken:
		case <-s.b.done:
			return
		}
	}
}

// again reports whether to go on reading after an error: the socket is open, and was only woken (carry), or the
// kernel could not read for a moment.
func (s *spares) again(x *spare, err error) bool {
	switch {
	case closed(err):
		return false
	case errors.Is(err, os.ErrDeadlineExceeded):
		return x.conn.SetReadDeadline(time.Time{}) == nil
	}
	s.b.e.quiet.say(slog.LevelWarn, "receive", "receiving from a UDP socket failed", "error", err)
	return s.b.pause()
}
