// Package underlay has all UDP sockets of a node: what the engine's packets leave by and come in by. It knows nothing
// of peers and nothing of what packets mean.
//
// Sockets are grouped in links, which have numbers:
//
//   - Link 0 is on no interface in particular: the kernel picks one by its routes. It is always there.
//   - Links from 1 are interfaces of this machine ([Sockets.SetLinks]). Their sockets are bound to the interface
//     (SO_BINDTODEVICE), so that what is sent by a link leaves by it even where the routes point elsewhere. They
//     share the port of link 0 where that can be had, and take what comes by their interface away from it: the
//     kernel prefers the socket that is bound more closely.
//   - Links from 0x8000 are spare sockets, one each, on ports of their own ([Sockets.Spares]): many at once to be found by a
//     peer that has to guess ports, of which one is left to carry data. Until it does ([Sockets.Carry]) it costs a
//     descriptor, a sleeping goroutine and 2 KiB; then it has what the others have.
//
// Links below 0x8000 have a socket per address family, or several of one port (Config.Shards) among which the kernel spreads
// senders, each with a goroutine that reads batches and calls Config.Receive. Where messages come closely and may lie for a little
// ([Incoming.MayLie]), one of these goroutines reads all such sockets in turn. A machine without IPv6 has IPv4 alone.
//
// Receive buffers are large, so that a reader that waits for a processor loses nothing. Send buffers are small: what
// waits shall wait in front of the cipher, where flows can be told apart, and not here.
//
// Sending is the caller's, with a [host.UDPWriter] and a destination from [Sockets.Dest]; [Sockets.WriteTo] is for single
// datagrams that are no data. Neither allocates once a destination is known. A destination whose socket was closed fails
// to send, and [Sockets.Generation] tells that there is such a one.
package underlay

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"

	"weft"
	"weft/host"
)

const (
	// receiveBuffer is the size in bytes of a socket's receive buffer: 40 ms of 1.4 Gbit/s, so that a receiver that
	// waits for a processor loses nothing. Sized buffers alone are worth a quarter of the throughput.
	receiveBuffer = 7 << 20
	// sendBuffer is the size in bytes of a socket's send buffer: some 12 super-packets with what the kernel adds in
	// bookkeeping, 6 ms of 1.4 Gbit/s.
	sendBuffer = 1 << 20
	// mostShards is how many sockets of a family share a port at most: past it, readers are no longer what is short.
	mostShards = 4
	// portTries is how often a free port is looked for that is free in both address families.
	portTries = 16
	// FirstSpare is the first number of a spare socket's link; those below are of the node's real links.
	FirstSpare weft.LinkID = 0x8000
	// MaxSpares is how many spare sockets there are at most: four sprays of 256.
	MaxSpares = 1024
)

var (
	// ErrNoWay is returned for a link that has no socket.
	ErrNoWay = errors.New("there is no socket on this link now")
	// ErrTooManySockets is returned for sockets beyond those that are kept open.
	ErrTooManySockets = fmt.Errorf("no more than %d spare sockets are kept open", MaxSpares)
)

// Config is what the sockets of a node are made of. Receive is required.
type Config struct {
	Port           uint16 // of link 0, and tried for other links; 0: any
	AnyPortIfTaken bool   // take any where Port is in use by another program
	Shards         int    // sockets of each family and link, for as many readers; 0: half the processors, at most 4
	// Receive gets what comes, in the goroutine of a socket: several messages at once, and of several sockets. It must not call Close.
	Receive func(in *Incoming)
	Logger  *slog.Logger // nil: none
}

// Sockets are all of a node's. Its methods may be called at any time from any goroutine.
type Sockets struct {
	cfg    Config
	port   uint16
	shared *link // link 0
	said   saidAt

	generation atomic.Uint64
	stamps     atomic.Bool // it is asked when messages came
	rounds     rounds
	done       chan struct{} // closed by Close
	ended      sync.WaitGroup

	mu      sync.RWMutex // guards what follows
	links   map[weft.LinkID]*link
	last    weft.LinkID // the number of a spare given last: numbers are not given again soon
	spared  int
	started bool
	closed  bool
}

// A Link is an interface of this machine whose packets leave by it and no other.
type Link struct {
	ID     weft.LinkID // 1 to 0x7fff
	Device string      // its name
	Index  int         // its number; another interface of the same name has another. 0: not known
}

// A link is the sockets of one.
type link struct {
	Link
	port      uint16
	four, six []*socket // as many as there are shards; a spare has one in one of them
	spare     bool
}

// sockets are all of a link's.
func (l *link) sockets() []*socket { return slices.Concat(l.four, l.six) }

// Open opens the sockets of link 0. Nothing is received before [Sockets.Start].
func Open(cfg Config) (*Sockets, error) {
	if cfg.Receive == nil {
		return nil, errors.New("underlay: Receive is required")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Shards <= 0 {
		cfg.Shards = min(max(1, runtime.NumCPU()/2), mostShards)
	}
	s := &Sockets{cfg: cfg, links: map[weft.LinkID]*link{}, last: FirstSpare - 1, done: make(chan struct{})}
	shared, err := s.openLink(Link{}, cfg.Port)
	if cfg.AnyPortIfTaken && cfg.Port != 0 && errors.Is(err, syscall.EADDRINUSE) {
		cfg.Logger.Warn("UDP port is in use by another program, taking any", "port", cfg.Port)
		shared, err = s.openLink(Link{}, 0)
	}
	if err != nil {
		return nil, portError(cfg.Port, err)
	}
	s.shared, s.port = shared, shared.port
	return s, nil
}

func portError(port uint16, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("UDP port %d is in use by another program: stop that one or choose another port: %w", port, err)
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		return fmt.Errorf("no permission to use UDP port %d: choose one above 1023: %w", port, err)
	}
	return fmt.Errorf("opening UDP port %d: %w", port, err)
}

// openLink opens the sockets of a link on a port of both address families, or with port 0 on one that is free in both.
func (s *Sockets) openLink(of Link, port uint16) (*link, error) {
	for try := 1; ; try++ {
		l, err := s.tryLink(of, port)
		if err == nil || port != 0 || try == portTries || !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
	}
}

func (s *Sockets) tryLink(of Link, port uint16) (_ *link, err error) {
	l := &link{Link: of, port: port}
	defer func() {
		if err != nil {
			l.close()
		}
	}()
	l.four, err = s.listen(l, "udp4")
	if err != nil && !errors.Is(err, syscall.EAFNOSUPPORT) {
		return nil, err
	}
	if len(l.four) > 0 {
		l.port = l.four[0].port()
	}
	l.six, err = s.listen(l, "udp6")
	if err != nil && !(errors.Is(err, syscall.EAFNOSUPPORT) && len(l.four) > 0) {
		return nil, err
	}
	if len(l.six) > 0 {
		l.port = l.six[0].port()
	}
	return l, nil
}

// listen opens the sockets of one family on the link's port.
func (s *Sockets) listen(l *link, network string) (out []*socket, err error) {
	conns, err := host.UDPListenOn(l.Device, network, l.port, s.cfg.Shards)
	for _, c := range conns {
		x := &socket{link: l, conn: c, six: network == "udp6", stamps: &s.stamps}
		if err == nil {
			x.conn, err = unpolled(c)
		}
		if err == nil {
			err = x.enlarge()
		}
		out = append(out, x)
	}
	if err != nil {
		for _, x := range out {
			x.conn.Close()
		}
		return nil, err
	}
	return out, nil
}

// unpolled is host.Unpolled; the socket stays what it was if that fails.
func unpolled(c *net.UDPConn) (host.DatagramConn, error) {
	u, err := host.Unpolled(c)
	if err != nil {
		return c, err
	}
	return u, nil
}

func (l *link) close() {
	for _, x := range l.sockets() {
		x.conn.Close() // which ends its reader
	}
}

// Start begins to receive.
func (s *Sockets) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.closed {
		return
	}
	s.started = true
	s.begin(s.shared)
	for _, l := range s.links {
		s.begin(l)
	}
}

// begin starts a link's readers, unless that is for Start to do. The lock is held.
func (s *Sockets) begin(l *link) {
	if !s.started {
		return
	}
	for _, x := range l.sockets() {
		s.ended.Go(func() { s.read(x) })
	}
}

// Close closes all sockets and returns when their goroutines have ended.
func (s *Sockets) Close() error {
	s.mu.Lock()
	if !s.closed {
		s.closed = true
		close(s.done)
		s.shared.close()
		for id, l := range s.links {
			l.close()
			delete(s.links, id)
		}
		s.spared = 0
		s.generation.Add(1)
	}
	s.mu.Unlock()
	s.ended.Wait()
	return nil
}

// Port is the UDP port of link 0.
func (s *Sockets) Port() uint16 { return s.port }

// LinkPort is the UDP port of a link, which is link 0's unless another program has that; 0 if the link has no socket.
func (s *Sockets) LinkPort(id weft.LinkID) uint16 {
	if l := s.find(id); l != nil {
		return l.port
	}
	return 0
}

// Generation changes whenever destinations that Dest gave may be of no use any more.
func (s *Sockets) Generation() uint64 { return s.generation.Load() }

// find is a link by its number, or nil.
func (s *Sockets) find(id weft.LinkID) *link {
	if id == 0 {
		return s.shared
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.links[id]
}

// Dest is where batches for an address go by a link. A spare socket carries data from then on.
func (s *Sockets) Dest(id weft.LinkID, to netip.AddrPort) (*host.UDPDest, error) {
	to = unmap(to)
	x, err := s.socket(id, to)
	if err != nil {
		return nil, err
	}
	if x.batch.Load() == nil { // or another is about to enlarge it: that is waited for
		if err := s.carry(x); err != nil {
			return nil, err
		}
	}
	return x.dest(to), nil
}

// WriteTo sends one datagram by a link, with a time to live, or hop limit, in the IP header; 0 is the system's. One that
// is too short to arrive opens a NAT's filter and spoils nothing behind it.
func (s *Sockets) WriteTo(id weft.LinkID, to netip.AddrPort, b []byte, ttl uint8) error {
	to = unmap(to)
	x, err := s.socket(id, to)
	if err != nil {
		return err
	}
	if ttl != 0 {
		return host.WriteUDPTTL(x.conn, b, to, ttl)
	}
	_, err = x.conn.WriteToUDPAddrPort(b, to)
	return err
}

// Stamp has reads say from now on for how long they lay in the kernel (host.UDPRead.Unread), where the kernel knows it. It may be called
// again.
func (s *Sockets) Stamp() {
	if s.stamps.Swap(true) {
		return
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	list := s.shared.sockets()
	for _, l := range s.links {
		list = append(list, l.sockets()...)
	}
	for _, x := range list {
		if b := x.batch.Load(); b != nil {
			_ = b.Stamp() // without, what waits for a processor looks as if it had waited on its way
		}
	}
}

// Unread reports whether there is something from a link, of one address family, that was not worked on yet: it waits in
// the kernel, or was read. Mine says that it is the caller who works on it, which then does not count.
func (s *Sockets) Unread(id weft.LinkID, six, mine bool) bool {
	l := s.find(id)
	if l == nil {
		return false
	}
	list := l.four
	if six {
		list = l.six
	}
	for _, x := range list {
		if !mine && x.working.Load() {
			return true
		}
		if b := x.batch.Load(); b != nil && b.Unread() {
			return true
		}
	}
	return false
}

// socket is the one that a link sends to an address by: always the same one, and different ones for different
// addresses, where it has several.
func (s *Sockets) socket(id weft.LinkID, to netip.AddrPort) (*socket, error) {
	l := s.find(id)
	if l == nil || !to.IsValid() {
		return nil, ErrNoWay
	}
	list := l.four
	if to.Addr().Is6() {
		list = l.six
	}
	switch len(list) {
	case 0:
		return nil, syscall.EAFNOSUPPORT
	case 1:
		return list[0], nil
	}
	return list[int(shardOf(to))%len(list)], nil
}

// shardOf spreads addresses: FNV-1a of address and port.
func shardOf(a netip.AddrPort) uint32 {
	h := uint32(2166136261)
	ip := a.Addr().As16()
	for _, b := range ip {
		h = (h ^ uint32(b)) * 16777619
	}
	h = (h ^ uint32(a.Port()&0xff)) * 16777619
	return (h ^ uint32(a.Port()>>8)) * 16777619 >> 8 // the lowest bits are the last byte's parity
}

func unmap(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }
