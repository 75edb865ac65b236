// Package relay carries datagrams between nodes that cannot reach each other: the server that does it, and a
// node's end of it.
//
// # What it forwards, and what not
//
// A node that holds a ticket, which the coordinator signed, is bound: to the UDP address that it proved to
// receive at, to a stream, or to both. Datagrams go from one bound node to the NodeID of another of the same
// network, and nowhere else: there is no frame that names an address. So nothing can be reached through a relay
// that has not asked for it, not a loopback or private address, not a stranger, and who has no ticket gets at
// most 28 bytes for his 180. The relay needs nobody to decide this: tickets end by themselves, and what the
// coordinator revokes earlier it is told ([Server.SetRevoked]).
//
// Over UDP the exchange is: Bind, answered statelessly by a Challenge with a cookie; Bind with the cookie, which
// proves the address; ticket and proof are looked into only then. A cookie says when it was made. A Bind with a
// later cookie moves the node to another address, one with an earlier cookie does not: what was recorded on a
// node's old network does not bring it back there.
//
// # What a node may ask
//
// Locate: at which address the relay sees another node of the network. That address is proved, so a node may send
// more than some datagrams there, whatever the peer tells of itself. Probe: to send one STUN message to a port of
// the asker's own IP address, from a port of the relay's that the asker chooses; it shows what a NAT lets through
// from where nothing was sent to. Both are sealed, both are paced per node, and no question is shorter than what
// it brings about: somebody who repeats one that he recorded has the relay send to its asker, no more than he
// sends himself, and no more than the pace.
//
// Networks that are not the coordinator's may be guests ([Guests]): those of a rendezvous in the same process. None are
// unless it is said, and what is forwarded for them is bounded.
//
// Beside the port for all this there may be an alternate one that answers STUN and nothing else (RFC 5780 with
// one address).
//
// # How it forwards
//
// UDP: one goroutine per socket, of which there may be several on a port, takes what there is (32 messages per system call, each a run of datagrams where
// the kernel has UDP_GRO), changes four bytes of each and sends it from where it lies, runs as runs
// (UDP_SEGMENT). The tables that it looks in are copied when they change; it takes no lock, allocates nothing and
// waits for nothing but input. Verifying signatures is another goroutine's work, and bounded. Under more load
// than it can take, the kernel drops at the socket's door, where a datagram has cost least; what goes through does
// not get less.
//
// Streams: per node a goroutine reads up to 128 KiB, hands runs of frames for one receiver to that receiver's
// queue in one copy, and another goroutine writes the queue, 64 KiB at a time and by one system call, over TLS too. The runtime is not told of
// these calls, none of which waits (host.BusyTCP).
// A queue is bounded in bytes and in age and drops from its head: what is late is worth least. It is long, because where relay and nodes
// share processors each has its turn for milliseconds, and CoDel keeps it from standing. So a reader that does
// not keep up loses, and nobody else waits for it. Where it is the relay that does not keep up, whoever finds a queue
// crowded lets others have the processor before it reads on: the relay reads no more than it can write, and the
// senders' TCP slows down. A stream frame and a UDP frame have prefixes of one length, which is how datagrams cross
// from one to the other in place. A datagram leaves by the transport that it came by if the receiver has that, else
// by the other.
//
// # The node's end
//
// [UDPBinding] is pure: frames in, frames out. [Stream] is a connection with the same queue in front of it.
package relay

import (
	"crypto/rand"
	"errors"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/key"
	"weft/wire"
)

// Limits bound what a relay takes on. A zero field means its default.
type Limits struct {
	// Nodes is how many nodes are bound at most; 65,536. A node costs about a KiB over UDP, and over a stream
	// two goroutines and 20 KiB while idle.
	Nodes int
	// Handshakes is how many streams may be in their handshake; 1,024. With more, any one of them is ended for
	// each that comes, so that who opens many and says nothing ends his own.
	Handshakes int
	// QueueBytes is what may wait for one node's stream; 4 MiB. What is more than 1 MiB is of the 64 MiB that all streams of the
	// process share.
	QueueBytes int
	// QueueAge is how long it may wait; 500 ms. A datagram that waited longer has been sent again.
	QueueAge time.Duration
}

func (l Limits) withDefaults() Limits {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&l.Nodes, 65536)
	def(&l.Handshakes, 1024)
	def(&l.QueueBytes, 4<<20)
	if l.QueueAge == 0 {
		l.QueueAge = 500 * time.Millisecond
	}
	return l
}

const (
	// bindLifetime is how long a UDP binding stands without being renewed: nodes renew every 15 s, so that
	// three may be lost, and what a NAT has forgotten is not sent to for long.
	bindLifetime = 60 * time.Second
	// sweepEvery is how often bindings that ended are taken out of the tables. They are not used before.
	sweepEvery = 10 * time.Second
)

// Config is what a server is made of.
type Config struct {
	Key    key.RelayPrivate
	Issuer key.SigningPublic // whose tickets admit nodes; none until SetIssuer if it is zero
	Guests Guests            // none unless it has an issuer
	Limits Limits
	Logger *slog.Logger     // slog.Default if nil
	Now    func() time.Time // time.Now if nil
}

// Server is a relay. Its methods may be called at once.
type Server struct {
	key     key.RelayPrivate
	limits  Limits
	log     *slog.Logger
	clock   func() time.Time
	start   time.Time
	cookies cookies
	issuer  atomic.Pointer[key.SigningPublic]

	nodes  table[nodeName, *node]
	addrs  table[addrName, *binding]
	count  counters
	slow   admissions
	guests guestBook

	mu       sync.Mutex // for changes of the tables and of what follows
	revoked  map[weft.NodeID]bool
	sessions map[*session]struct{} // nil after Close
	closed   chan struct{}

	greetings sync.Mutex
	greeting  map[net.Conn]struct{}
}

// New makes a server, which serves nothing yet.
func New(c Config) (*Server, error) {
	if c.Key.IsZero() {
		return nil, errors.New("a relay needs a key")
	}
	if c.Now == nil {
		c.Now = time.Now
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	s := &Server{
		key: c.Key, limits: c.Limits.withDefaults(), log: c.Logger, clock: c.Now, start: c.Now(),
		nodes:    table[nodeName, *node]{shard: nodeName.shard},
		addrs:    table[addrName, *binding]{shard: addrName.shard},
		sessions: map[*session]struct{}{},
		closed:   make(chan struct{}),
		greeting: map[net.Conn]struct{}{},
		guests:   guestBook{Guests: c.Guests, networks: map[[8]byte]*guestNetwork{}},
	}
	var secret [16]byte
	if _, err := rand.Read(secret[:]); err != nil {
		return nil, err
	}
	s.cookies = newCookies(secret)
	s.slow.init()
	s.issuer.Store(&c.Issuer)
	return s, nil
}

// now is the time since the server's start. It goes forward only, whatever is done to the machine's clock.
func (s *Server) now() time.Duration { return s.clock().Sub(s.start) }

// SetIssuer replaces whose tickets admit nodes. Nodes that another's ticket admitted are dropped.
func (s *Server) SetIssuer(k key.SigningPublic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.issuer.Swap(&k)
	if *old == k {
		return
	}
	for _, n := range s.nodes.all() {
		if n.guest == nil {
			s.drop(n, wire.RefusedForged)
		}
	}
}

// SetRevoked replaces the list of nodes that are not admitted though their tickets have not ended. They are
// dropped at once.
func (s *Server) SetRevoked(nodes []weft.NodeID) {
	revoked := make(map[weft.NodeID]bool, len(nodes))
	for _, id := range nodes {
		revoked[id] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.revoked = revoked
	for name, n := range s.nodes.all() {
		if n.guest == nil && revoked[name.id] {
			s.drop(n, wire.RefusedRevoked)
		}
	}
}

// Close ends all streams, and ServeUDP. Their goroutines may take a moment longer.
func (s *Server) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions == nil {
		return nil
	}
	for ss := range s.sessions {
		ss.end(errClosed)
	}
	s.sessions = nil
	close(s.closed)
	return nil
}

var errClosed = errors.New("the relay is stopping")
