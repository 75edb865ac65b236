// Package engine is the data plane: packets of the overlay go in at a TUN device and come out as WireGuard
// packets on the underlay, and back. It knows how to reach a peer only by what it is told: which way is best
// is for package path to find out, and for the daemon to say.
//
//	device --> sender: drain, route, queue (fair, CoDel) --> split, seal in place --> one UDP_SEGMENT send
//	device <-- opener: check, open in place, merge <-- runs of a socket (UDP_GRO), or of a relay's stream
//	               |--> control: handshakes, timers      |--> Handler: STUN, weft frames
//
// # Run to completion
//
// A packet stays on the thread that took it: a sender for each queue of the device, an opener for each socket or
// stream that has something, and no channel between. Super-packets are split, sealed, opened and merged where they
// lie (package segment); the cipher is the only copy of a large transfer's bytes, and nothing is allocated for a packet.
//
// The queue is in front of the cipher (package queue): a sender takes all that waits in the device before it
// sends the next burst, so that what waits does so where flows can be told apart. Behind the cipher little can wait:
// the sockets' send buffers are small, and a full one holds its sender up.
//
// # Control
//
// One goroutine owns the protocol's slow half, wireguard.Device. What the fast half needs of it are atomics: the
// session to send by is a pointer in the peer, sessions are found by index in a table that is read without a lock,
// cryptokey routing is a snapshot. What it needs of the fast half are times of last packets, which it
// reads once a second from peers that have traffic.
//
// A handshake message of a stranger costs the check of its MAC on the thread that took it, and is dropped there. What passes
// waits in a short row for the control goroutine; when the row grows, that is the load under which cookies are asked for.
//
// # Routes are not learned
//
// SetRoute swaps a pointer and nothing else, so a switch in the middle of a batch loses nothing. A packet that comes
// from an address that nobody told of is worked on all the same, because WireGuard proves who sent it, but moves
// no route. Only peers that speak nothing but WireGuard roam as its paper says.
//
// A handshake response to an initiation from an unknown address goes back to that address, and one that came by a
// relay goes back by it if there is no route yet. Otherwise two nodes of which only one knows the way would
// wait for each other.
//
// Without a session, packets wait for it; without a route, they are dropped and counted, except the latest handshake
// message: WireGuard would not repeat it for five seconds (Rekey-Timeout, section 6.1 of its paper), so it is kept and
// sent, once, when the route comes. No handshake message is ever sent twice.
//
// # What is refused
//
// Data frames are taken from addresses of known relays and for known peers only. A relayed frame inside a
// relayed frame, STUN inside one, and what is of no known kind are dropped. An inner packet's source must belong to
// the peer whose session it came by, and the policy must let it in (package filter): so it is judged alone, before it is
// merged with others or waits for its turn in a bond. All drops are counted ([Drops]). Nothing that a stranger sends makes a line in
// the log above level debug.
//
// Failing sends are counted: whether a path is dead is judged elsewhere, by what the other side says has arrived
// ([PathCounters]). Counters are of packets before they are opened; who forges a peer's source address can raise its
// received count, and nothing more.
package engine

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/engine/underlay"
	"weft/host"
	"weft/key"
	"weft/wire"
	"weft/wireguard"
)

// MTU is the overlay's where nothing else was set, in bytes. An underlay packet of 1500 bytes (Ethernet) less 40 of
// IPv6 header, 8 of UDP, 8 of relay prefix (wire.DataPrefix) and 32 of WireGuard leaves 1412; rounded down to a
// multiple of 16, because WireGuard pads to that (section 5.4.6 of its paper).
const MTU = 1408

// idleAfter is how long a peer has to be without data to be called idle.
const idleAfter = time.Second

// Config is what an engine needs. All but AnyPortIfTaken, Port and MTU is required.
type Config struct {
	Key     key.NodePrivate
	Self    weft.NodeID
	Device  Device // the engine closes it, unless New fails
	MTU     int    // of the device; 0: the constant
	Port    uint16 // UDP port; 0: any that is free
	Handler Handler
	Logger  *slog.Logger

	// AnyPortIfTaken makes New take any free port where Port is in use by another program.
	AnyPortIfTaken bool
}

// A Handler gets what is not the data plane's. Its methods are called from the goroutines that move packets,
// several at once: they must be quick, must not wait for a lock that is held over a call to the Engine, and b
// is valid during the call only.
type Handler interface {
	// HandleDatagram gets what came to a UDP socket and is STUN (wire.ClassSTUN) or a weft frame
	// (wire.ClassWeft) other than wire.KindData.
	HandleDatagram(link weft.LinkID, from netip.AddrPort, class wire.Class, b []byte)
	// HandleRelayed gets a peer frame (wire.KindPeer) of a known peer that came through a relay.
	HandleRelayed(via weft.Via, src weft.NodeID, b []byte)
	// Active says that data begins to go to or come from a peer that had none for about a second. A handshake
	// that is begun counts as data: data waits for it.
	Active(id weft.NodeID)
	// Silent says that data by one of the ways of a peer's bond does not arrive, and why that is thought.
	Silent(id weft.NodeID, via weft.Via, reason string)
}

// An Engine moves packets between a device and the underlay. Its methods may be called at any time from
// any goroutine.
type Engine struct {
	self    weft.NodeID
	key     key.NodePublic
	public  wireguard.Key
	mtu     int
	log     *slog.Logger
	quiet   *limiter
	handler Handler
	device  Device
	sockets *underlay.Sockets
	began   time.Time // the origin of the hot path's times

	control  *control
	senders  []*sender
	sessions *table
	routes   atomic.Pointer[routing]
	openers  openerPool

	setting sync.Mutex // serialises SetPeers

	mu      sync.RWMutex // guards what follows; never held over a call to the Handler
	peers   map[weft.NodeID]*peer
	sources map[netip.AddrPort]source
	sourced atomic.Uint64 // changed with mu held, when what source found may be true no more

	enforcer enforcer
	relays   atomic.Pointer[relays]
	relaying sync.Mutex // serialises SetRelay and RemoveRelay
	drops    drops

	course course
}

// A course is how far an engine has come: it starts once and ends once.
type course struct {
	starting, closing sync.Once
	ended             sync.WaitGroup
	done              chan struct{} // goroutines shall end
	gone              chan struct{} // sockets and device are closed
}

// New opens the sockets. Nothing is received before [Engine.Up].
func New(cfg Config) (*Engine, error) {
	switch {
	case cfg.Key.IsZero():
		return nil, errors.New("engine: there is no node key")
	case cfg.Device == nil, cfg.Handler == nil, cfg.Logger == nil:
		return nil, errors.New("engine: device, handler and logger are required")
	}
	e := &Engine{
		self:     cfg.Self,
		key:      cfg.Key.Public(),
		mtu:      cfg.MTU,
		log:      cfg.Logger,
		quiet:    newLimiter(cfg.Logger),
		handler:  cfg.Handler,
		device:   cfg.Device,
		began:    time.Now().Add(-time.Second), // so that no time of a packet is zero
		sessions: newTable(),
		peers:    make(map[weft.NodeID]*peer),
		sources:  make(map[netip.AddrPort]source),
		course:   course{done: make(chan struct{}), gone: make(chan struct{})},
	}
	if e.mtu == 0 {
		e.mtu = MTU
	}
	e.public = wireguard.Key(e.key.Bytes())
	e.relays.Store(&relays{})
	e.routes.Store(&routing{})
	sockets, err := underlay.Open(underlay.Config{
		Port: cfg.Port, AnyPortIfTaken: cfg.AnyPortIfTaken, Receive: e.receive, Logger: cfg.Logger,
	})
	if err != nil {
		return nil, err
	}
	e.sockets = sockets
	e.control = newControl(e, wireguard.New(wireguard.Config{
		Private: wireguard.Key(cfg.Key.RevealBytes()),
		Rand:    func(b []byte) { rand.Read(b) },
	}))
	for _, q := range cfg.Device.Queues() {
		e.senders = append(e.senders, newSender(e, q))
	}
	e.course.ended.Go(e.control.run)
	return e, nil
}

// Up starts moving packets.
func (e *Engine) Up() error {
	e.course.starting.Do(func() {
		host.MakePlaces()
		e.sockets.Start()
		for _, s := range e.senders {
			e.course.ended.Go(s.run)
		}
	})
	return nil
}

// Close stops the engine, closes its sockets and its device, and returns when its goroutines and timers have ended.
func (e *Engine) Close() error {
	e.stop(nil)
	e.course.ended.Wait()
	return nil
}

// stop ends all goroutines: because Close was called, or because the device went away.
func (e *Engine) stop(why error) {
	e.course.closing.Do(func() {
		if why != nil {
			e.log.Error("the interface is gone: the data plane ends", "error", why)
		}
		close(e.course.done)
		e.course.ended.Go(func() {
			defer close(e.course.gone)
			if err := errors.Join(e.sockets.Close(), e.device.Close()); err != nil {
				e.log.Warn("closing the data plane", "error", err)
			}
			for _, p := range e.known() {
				if r := p.order.Load(); r != nil {
					r.stop()
				}
			}
		})
	})
}

// Done is closed when the engine has ended: by Close, or because its device went away.
func (e *Engine) Done() <-chan struct{} { return e.course.gone }

// Port is the UDP port of the shared sockets.
func (e *Engine) Port() uint16 { return e.sockets.Port() }

// WriteTo sends one datagram from the socket of a link.
func (e *Engine) WriteTo(link weft.LinkID, addr netip.AddrPort, b []byte) error {
	return e.write(link, addr, b, 0)
}

func (e *Engine) write(link weft.LinkID, addr netip.AddrPort, b []byte, ttl uint8) error {
	if !addr.IsValid() {
		return ErrNoWay
	}
	return e.sockets.WriteTo(link, unmap(addr), b, ttl)
}

// ErrNoWay is returned for a via that cannot carry anything now: the zero one, one of a relay that is not known or
// not connected, or one of a link that has no socket.
var ErrNoWay = underlay.ErrNoWay

// Send sends one weft frame to a peer, which need not be known, by a via, which need not be its route.
func (e *Engine) Send(id weft.NodeID, via weft.Via, frame []byte) error {
	return e.SendTTL(id, via, frame, 0)
}

// SendTTL is Send with a time to live, or hop limit, in the IP header: for packets that are to open a NAT's filter
// and not to arrive. By a relay, and with a ttl of zero, it is Send.
func (e *Engine) SendTTL(id weft.NodeID, via weft.Via, frame []byte, ttl uint8) error {
	if via.Method == weft.Direct {
		return e.write(via.Link, via.Addr, frame, ttl)
	}
	return e.relayOne(id, via, frame)
}

// OpenSockets opens UDP sockets of one address family, each on a free port and on a link of its own, of which it
// returns the numbers and the ports. What comes to them is treated as what comes to the shared sockets. With an
// error it returns those that could be opened all the same.
func (e *Engine) OpenSockets(n int, v6 bool) ([]weft.LinkID, []uint16, error) {
	return e.sockets.Spares(n, v6)
}

// CloseSocket closes a socket that OpenSockets opened. A link that is not open is none to close.
func (e *Engine) CloseSocket(link weft.LinkID) { e.sockets.CloseSpare(link) }

// Sockets is how many spare sockets are open.
func (e *Engine) Sockets() int { return e.sockets.Spared() }

// SetLinks says which links there are beside link 0: each gets sockets that are bound to its device, and those of others
// are closed. An error names the links that are left out.
func (e *Engine) SetLinks(links []underlay.Link) error { return e.sockets.SetLinks(links) }

// SocketStatus tells what there is of sockets, and what the system gives them.
func (e *Engine) SocketStatus() []underlay.SocketStatus { return e.sockets.Status() }

// to finds where a direct way leads.
func (w *way) to(e *Engine, generation uint64) (*host.UDPDest, error) {
	if d := w.dest.Load(); d != nil && d.generation == generation {
		return d.to, nil
	}
	to, err := e.sockets.Dest(w.via.Link, w.via.Addr)
	if err != nil {
		return nil, err
	}
	w.dest.Store(&dest{to, generation})
	return to, nil
}

// touch notes that data goes to or comes from p now.
func (e *Engine) touch(p *peer, now int64) {
	last := p.lastData.Load()
	if now-last < int64(idleAfter) {
		if now > last {
			p.lastData.Store(now)
		}
		return
	}
	if p.lastData.CompareAndSwap(last, now) { // of those who saw it idle, one
		e.handler.Active(p.id)
	}
}

// Drops counts the packets that went nowhere, since the engine began.
type Drops struct {
	NoRoute    uint64 `json:"no_route"`    // to a peer without a route, or by a relay that is not connected
	NoSession  uint64 `json:"no_session"`  // to a peer with whom no handshake came about, or by a session that is no more
	SendErrors uint64 `json:"send_errors"` // the socket or stream did not take them
	Strange    uint64 `json:"strange"`     // of no known kind, or of no session's
	NotRelay   uint64 `json:"not_relay"`   // data frames from an address that is no relay's
	NoPeer     uint64 `json:"no_peer"`     // relayed from a node that is not known
	Unopened   uint64 `json:"unopened"`    // did not open under their session, or had come before
	Foreign    uint64 `json:"foreign"`     // opened, and were from an address that is not the peer's, or no IP packets
	DeviceFull uint64 `json:"device_full"` // the device did not take them
	Unroutable uint64 `json:"unroutable"`  // came from the device for an address that is no peer's
	TooLong    uint64 `json:"too_long"`    // longer than the path takes; their sender was told
	Congested  uint64 `json:"congested"`   // waited too long in front of the cipher, or were too many there
}

type drops struct {
	noRoute, noSession, sendErrors, strange, notRelay, noPeer, unopened, foreign, deviceFull, unroutable, tooLong, congested atomic.Uint64
}

// Drops returns the counts.
func (e *Engine) Drops() Drops {
	d := &e.drops
	return Drops{
		NoRoute: d.noRoute.Load(), NoSession: d.noSession.Load(), SendErrors: d.sendErrors.Load(), Strange: d.strange.Load(),
		NotRelay: d.notRelay.Load(), NoPeer: d.noPeer.Load(), Unopened: d.unopened.Load(), Foreign: d.foreign.Load(),
		DeviceFull: d.deviceFull.Load(), Unroutable: d.unroutable.Load(), TooLong: d.tooLong.Load(), Congested: d.congested.Load(),
	}
}
