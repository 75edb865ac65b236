package underlay

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"weft/host"
)

const (
	// maxDests bounds the destinations that a socket keeps; past it they are made anew.
	maxDests = 8192
	// receiveRetry is the pause after a failing receive: long enough to leave the processor alone, short enough not to
	// be felt as an outage.
	receiveRetry = 50 * time.Millisecond
	// sayAgain is how long what every packet may cause stays unsaid after it was said.
	sayAgain = time.Minute
)

// A socket is one of a link's.
type socket struct {
	link    *link
	conn    host.DatagramConn
	light   *net.UDPConn // conn, of a spare socket, which others wait for until it carries data
	six     bool
	carries atomic.Bool  // of a spare socket: it is a route, or was
	working atomic.Bool  // what it read is being worked on
	stamps  *atomic.Bool // of Sockets

	growing sync.Mutex                     // serialises enlarge
	batch   atomic.Pointer[host.UDPSocket] // for batches; nil as long as a spare socket does not carry
	granted [2]int                         // bytes of buffers: receive, send

	mu    sync.RWMutex // guards what follows
	dests map[netip.AddrPort]*host.UDPDest
}

func (x *socket) port() uint16 { return x.conn.LocalAddr().(*net.UDPAddr).AddrPort().Port() }

// enlarge gives a socket what it needs to carry data: large buffers, batches and offload.
func (x *socket) enlarge() (err error) {
	x.growing.Lock()
	defer x.growing.Unlock()
	if x.batch.Load() != nil {
		return nil
	}
	if x.granted[0], x.granted[1], err = host.SizeUDPBuffers(x.conn, receiveBuffer, sendBuffer); err != nil {
		return err
	}
	if err := host.AllowFragments(x.conn); err != nil {
		return err
	}
	batch, err := host.NewUDPSocket(x.conn)
	if err != nil {
		return err
	}
	if err := batch.WithoutLocal(); err != nil { // answers go where routes say, not back where messages came to
		return err
	}
	x.batch.Store(batch)
	if x.stamps.Load() {
		_ = batch.Stamp() // see Sockets.Stamp
	}
	return nil
}

// dest finds the destination for an address, or makes it.
func (x *socket) dest(to netip.AddrPort) *host.UDPDest {
	x.mu.RLock()
	d := x.dests[to]
	x.mu.RUnlock()
	if d != nil {
		return d
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if d := x.dests[to]; d != nil {
		return d
	}
	if x.dests == nil || len(x.dests) >= maxDests {
		x.dests = make(map[netip.AddrPort]*host.UDPDest) // those that were given go on being good
	}
	d = new(host.UDPDest)
	x.batch.Load().SetDest(d, to, netip.Addr{})
	x.dests[to] = d
	return d
}

// read reads one socket until it is closed.
func (s *Sockets) read(x *socket) {
	if x.link.spare && !s.light(x) {
		return
	}
	s.heavy(x)
}

// again reports whether to go on reading after an error: the socket is open, and was only woken (carry), or the kernel
// could not read for a moment.
func (s *Sockets) again(x *socket, err error) bool {
	switch {
	case errors.Is(err, net.ErrClosed):
		return false
	case errors.Is(err, os.ErrDeadlineExceeded):
		return x.light != nil && x.light.SetReadDeadline(time.Time{}) == nil
	}
	s.say("receiving from a UDP socket failed", "port", x.link.port, "interface", x.link.Device, "error", err)
	select {
	case <-s.done:
		return false
	case <-time.After(receiveRetry):
		return true
	}
}

// saidAt is when something was said last.
type saidAt struct {
	mu sync.Mutex
	at time.Time
}

// say warns, once in a while.
func (s *Sockets) say(msg string, args ...any) {
	now := time.Now()
	s.said.mu.Lock()
	lately := !s.said.at.IsZero() && now.Sub(s.said.at) < sayAgain
	if !lately {
		s.said.at = now
	}
	s.said.mu.Unlock()
	if !lately {
		s.cfg.Logger.Warn(msg, args...)
	}
}
