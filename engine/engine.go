// Package engine is the data plane: packets of the overlay go in at a TUN device and come out as WireGuard
// packets on the underlay, and back. It knows how to reach a peer only by what it is told: which way is best
// is for package path to find out, and for the daemon to say.
//
// This first version is upstream wireguard-go between the TUN device and a [conn.Bind] of our own. The bind
// wraps upstream's sockets, and with them batches and UDP segmentation offload in both directions:
//
//	TUN --> wireguard-go --> bind.Send --> the peer's route: socket | prefix, socket | stream of a relay
//	TUN <-- wireguard-go <-- bind's receivers <-- socket: WireGuard  | Handler: STUN, weft frames
//	                                          <-- DeliverStream: WireGuard | Handler: peer frames
//
// # Routes are not learned
//
// Upstream sends to a peer where it last heard from it. Here each peer has one [conn.Endpoint] for as long as
// it is known, the peer object itself, with the current route behind an atomic pointer: SetRoute swaps the
// pointer and nothing else, so a switch in the middle of a batch loses nothing. Roaming is turned off in the
// device, and each peer is given its endpoint before it starts, which is the order in which upstream honours
// that. A packet that comes from an address that nobody told of is worked on all the same, because WireGuard
// proves who sent it, but moves no route.
//
// One thing is answered where it came from: a handshake response to an initiation from an unknown address
// goes back to that address, and one that came by a relay goes back by it if there is no route yet. Otherwise
// two nodes of which only one knows the way would wait for each other.
//
// Without a route, packets are dropped and counted, except the latest handshake message: WireGuard would not
// repeat it for five seconds (Rekey-Timeout, section 6.1 of its paper), so it is kept and sent, once, when the
// route comes. No handshake message is ever sent twice.
//
// # What is refused
//
// Data frames are taken from addresses of known relays and for known peers only. A relayed frame inside a
// relayed frame, STUN inside one, and what is of no known kind are dropped. All drops are counted ([Drops]).
// Nothing that a stranger sends makes a line in the log below level debug.
//
// Failing sends are counted and not reported to wireguard-go, which would log each: whether a path is dead is
// judged elsewhere, by what the other side says has arrived ([PathCounters]). Counters are of packets before
// they are opened; who forges a peer's source address can raise its received count, and nothing more.
//
// # Sockets
//
// There is one shared socket per address family, link 0; the kernel picks source addresses by its routes. Beside
// them, spare sockets on links of their own are opened and closed as a NAT demands ([Engine.OpenSockets]): many at
// once to be found by a peer that has to guess ports, of which one is left to carry the data. It then does so as
// fast as the shared ones; the others cost a descriptor, a sleeping goroutine and 2 KiB each. Whose an underlay
// address is holds for all links; what has gone by each is counted by itself.
package engine

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/tun"

	"weft"
	"weft/key"
	"weft/wire"
)

// MTU is the overlay's, in bytes. An underlay packet of 1500 bytes (Ethernet) less 40 of IPv6 header, 8 of
// UDP, 8 of relay prefix (wire.DataPrefix) and 32 of WireGuard leaves 1412; rounded down to a multiple of 16,
// because WireGuard pads to that (section 5.4.6 of its paper).
const MTU = 1408

// idleAfter is how long a peer has to be without data to be called idle.
const idleAfter = time.Second

// Config is what an engine needs. All but AnyPortIfTaken and Port is required.
type Config struct {
	Key     key.NodePrivate
	Self    weft.NodeID
	Device  tun.Device // the engine closes it, unless New fails
	Port    uint16     // UDP port; 0: any that is free
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
}

// An Engine moves packets between a TUN device and the underlay. Its methods may be called at any time from
// any goroutine.
type Engine struct {
	self    weft.NodeID
	key     key.NodePublic
	log     *slog.Logger
	quiet   *limiter
	handler Handler
	bind    *bind
	dev     *device.Device
	began   time.Time // the origin of peer.lastData
	closing sync.Once

	setting sync.Mutex // serialises SetPeers

	mu      sync.RWMutex // guards what follows; never held over a call to wireguard-go or the Handler
	peers   map[weft.NodeID]*peer
	sources map[netip.AddrPort]source

	relays     atomic.Pointer[relays]
	relaying   sync.Mutex // serialises SetRelay and RemoveRelay
	callers    callers
	drops      drops
	handshakes handshakes
}

// New opens the sockets. Nothing is received before [Engine.Up].
func New(cfg Config) (*Engine, error) { return newEngine(cfg, newSockets()) }

// newEngine is New with the sockets of a test.
func newEngine(cfg Config, sockets conn.Bind) (*Engine, error) {
	switch {
	case cfg.Key.IsZero():
		return nil, errors.New("engine: there is no node key")
	case cfg.Device == nil, cfg.Handler == nil, cfg.Logger == nil:
		return nil, errors.New("engine: device, handler and logger are required")
	}
	e := &Engine{
		self:    cfg.Self,
		key:     cfg.Key.Public(),
		log:     cfg.Logger,
		quiet:   newLimiter(cfg.Logger),
		handler: cfg.Handler,
		began:   time.Now(),
		peers:   make(map[weft.NodeID]*peer),
		sources: make(map[netip.AddrPort]source),
	}
	e.relays.Store(&relays{})
	e.bind = newBind(e, sockets)
	err := e.bind.listen(cfg.Port)
	if cfg.AnyPortIfTaken && errors.Is(err, syscall.EADDRINUSE) {
		e.log.Warn("UDP port is in use by another program, taking any", "port", cfg.Port)
		err = e.bind.listen(0)
	}
	if err != nil {
		return nil, portError(cfg.Port, err)
	}
	e.dev = device.NewDevice(newShim(cfg.Device), e.bind, e.quiet.wireguard())
	e.dev.DisableSomeRoamingForBrokenMobileSemantics() // before there are peers: see the package comment
	if err := e.dev.SetPrivateKey(device.NoisePrivateKey(cfg.Key.RevealBytes())); err != nil {
		e.dev.Close()
		e.bind.shut()
		return nil, fmt.Errorf("engine: %w", err)
	}
	return e, nil
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

// Up starts moving packets.
func (e *Engine) Up() error {
	if err := e.dev.Up(); err != nil {
		return fmt.Errorf("starting the engine: %w", err)
	}
	return nil
}

// Close stops the engine, closes its sockets and its device, and returns when its goroutines have ended.
func (e *Engine) Close() error {
	e.closing.Do(func() {
		e.bind.shut() // first, so that no receiver waits for a socket
		e.dev.Close()
		<-e.dev.Wait()
		e.bind.spares.ended.Wait()
	})
	return nil
}

// Done is closed when the engine has ended: by Close, or because its device went away.
func (e *Engine) Done() <-chan struct{} { return e.dev.Wait() }

// Port is the UDP port of the sockets.
func (e *Engine) Port() uint16 { return e.bind.port }

// WriteTo sends one datagram from the socket of a link.
func (e *Engine) WriteTo(link weft.LinkID, addr netip.AddrPort, b []byte) error {
	return e.bind.write(link, addr, b)
}

// ErrNoWay is returned for a via that cannot carry anything now: the zero one, one of a relay that is not known or
// not connected, or one of a link that has no socket.
var ErrNoWay = errors.New("no way to send by this path now")

// Send sends one weft frame to a peer, which need not be known, by a via, which need not be its route.
func (e *Engine) Send(id weft.NodeID, via weft.Via, frame []byte) error {
	if via.Method == weft.Direct {
		return e.bind.write(via.Link, via.Addr, frame)
	}
	r := e.relays.Load().byID[via.Relay]
	if r == nil {
		return ErrNoWay
	}
	one := onePool.Get().(*one)
	defer one.put()
	one.bufs[0] = frame
	switch {
	case via.Method == weft.RelayUDP && r.udp != nil:
		return e.bind.sendPrefixed(id, r.udp, one.bufs[:])
	case via.Method == weft.RelayStream && r.stream != nil:
		return r.stream.SendTo(id, one.bufs[:])
	}
	return ErrNoWay
}

// touch notes that data goes to or comes from p now.
func (e *Engine) touch(p *peer) {
	now := int64(time.Since(e.began))
	last := p.lastData.Load()
	if now-last < int64(idleAfter) {
		p.lastData.Store(now)
		return
	}
	if p.lastData.CompareAndSwap(last, now) { // of those who saw it idle, one
		e.handler.Active(p.id)
	}
}

// closed reports whether an error means that the socket was closed.
func closed(err error) bool { return errors.Is(err, net.ErrClosed) }

// Drops counts the packets that went nowhere, since the engine began.
type Drops struct {
	NoRoute    uint64 `json:"no_route"`    // to a peer without a route, or by a relay that is not connected
	SendErrors uint64 `json:"send_errors"` // the socket or stream did not take them
	Strange    uint64 `json:"strange"`     // of no known kind
	NotRelay   uint64 `json:"not_relay"`   // data frames from an address that is no relay's
	NoPeer     uint64 `json:"no_peer"`     // relayed from a node that is not known
	StreamFull uint64 `json:"stream_full"` // came by stream faster than they were opened
	Crossed    uint64 `json:"crossed"`     // handshake initiations that gave way to ours
}

type drops struct {
	noRoute, sendErrors, strange, notRelay, noPeer, streamFull, crossed atomic.Uint64
}

// Drops returns the counts.
func (e *Engine) Drops() Drops {
	return Drops{
		NoRoute:    e.drops.noRoute.Load(),
		SendErrors: e.drops.sendErrors.Load(),
		Strange:    e.drops.strange.Load(),
		NotRelay:   e.drops.notRelay.Load(),
		NoPeer:     e.drops.noPeer.Load(),
		StreamFull: e.drops.streamFull.Load(),
		Crossed:    e.drops.crossed.Load(),
	}
}

var _ conn.Bind = (*bind)(nil)
