// Package control is the coordination server: it lets machines into the network, gives each its number, name
// and addresses, and keeps every node's map of the network up to date.
//
// # One writer, many readers
//
// All state is in a [snapshot], which is never changed, behind one atomic pointer. Whoever reads, reads the
// newest snapshot and needs no lock; whoever wants something changed hands a function to the one goroutine that
// writes (writer.go). That goroutine takes all functions that wait, runs them one after the other on a copy,
// stores what must survive in one transaction, publishes the copy, and only then answers. A thousand machines that
// join at once so cost a few commits. What cannot be stored (a full disk) is refused with a sentence and leaves no
// trace, while everything that needs no storing goes on.
//
// The copy is cheap at any size of the network: nodes are in a [tree] that shares with its predecessor all but
// the path to what changed.
//
// # Deltas without queues
//
// A snapshot carries the log of the last changes: which node changed at which version. A session remembers the
// version that its node has. When there is a newer snapshot it looks into the log which nodes changed since, and
// sends those as the newest snapshot has them. That is the whole of the fan-out: nothing is queued for anybody,
// changes to the same node coalesce by themselves, a slow reader costs nothing and stalls nobody, and one that is
// further behind than the log reaches gets the whole map. A node that comes back with the version it has, of the
// same epoch, is served the same way.
//
// The maps of all nodes contain the same nodes; each is encoded once per change and copied into every message.
//
// # Who is in
//
// The Noise handshake has proved the machine key before anything is read; every request on a stream is that
// machine's. A machine that is not known needs the secret of a join key, which is stored as its hash. A machine that
// is known needs none, and whatever secret it sends is not looked at, but for that of an expired one: which is let in
// again by a key made since, not by an old one, or by its administrator. A node that has expired, waits for approval,
// or is disabled, itself or with its user, is out of everybody's map, and its relay tickets are revoked, as if it were
// removed (standing.go); but it keeps its number and addresses, and its stream, by which it hears when it is back.
//
// Numbers, and so IPv6 addresses, and IPv4 addresses are given once and never again, not even when the node that
// had them is gone: somebody may still have them in a configuration.
//
// # Presence
//
// Who is online and where it may be reached is known to the snapshot alone and told by the nodes anew after a
// restart. A node whose stream ends stays online for [OfflineAfter], so that a hiccup is not told to everybody;
// an ephemeral node is removed [EphemeralAfter] its stream ended. A vanished machine is found out because it
// says nothing for [SilenceTimeout].
//
// Clocks of nodes and relays are never looked at.
package control

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"weft"
	"weft/control/store"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

// Times of the server's side. None is compared with anybody else's clock.
const (
	// OfflineAfter is how long a node without a stream still counts as online: longer than a node needs to
	// notice a changed link and dial again (a second or two), short enough for a person who watches.
	OfflineAfter = 5 * time.Second

	// EphemeralAfter is how long an ephemeral node survives the end of its stream, or the server's start.
	EphemeralAfter = time.Minute

	// SilenceTimeout ends the stream of a machine that says nothing. Nodes say something every 20 s at least;
	// this is two of those and the time for TCP to send it again.
	SilenceTimeout = 45 * time.Second

	// TicketLifetime is how long a relay ticket holds; it is renewed when half of it has passed. A node that
	// cannot reach the server for half a day keeps its relays.
	TicketLifetime = 24 * time.Hour

	// helloTimeout is how long a connected machine has for its first message.
	helloTimeout = 10 * time.Second

	// writeTimeout ends the stream of a machine that does not read. The map of 10,000 nodes is some 5 MB: a line
	// of 0.5 Mbit/s makes it.
	writeTimeout = 90 * time.Second

	// lingerTimeout is how long a refused machine has to read why: closing at once would discard, with what it
	// has sent meanwhile, our last words (a TCP reset).
	lingerTimeout = 2 * time.Second

	// housekeeping is how often what is noted in passing is stored, and what has ended is dropped.
	housekeeping = time.Minute
)

// maxStrangers bounds the machines that have connected and not been let in yet. Each costs some 20 kB and two
// key agreements; a whole network that comes back at once passes through in seconds.
const maxStrangers = 2048

// Config is what a Server is made of. Keys, Store and URL are needed.
type Config struct {
	Keys  Keys
	Store store.Store // the server's alone until Close has returned

	// URL and Fingerprint go into join tokens: where the server is found, and the SHA-256 of its certificate
	// if that is self-signed.
	URL         string
	Fingerprint []byte

	// Relay is the embedded relay, which is in the map as number 1; nil: there is none.
	Relay *weft.Relay

	// IPv4 and IPv6 are the ranges that nodes get their addresses from. Zero leaves them as they are; at the
	// first start that is DefaultIPv4 and a random range of RFC 4193.
	IPv4, IPv6 netip.Prefix

	// Dir is the directory that the server's files are in, for backups; "": there is none.
	Dir string

	// Approve has nodes wait for an administrator, but for those that join with a key that says otherwise.
	Approve bool

	// SignIn has machines that come with nothing wait for their person to sign in; the pages are package signin's. They are
	// members for SignInFor then; zero: for ever.
	SignIn    bool
	SignInFor time.Duration

	Log *slog.Logger // nil: slog.Default
}

// A Server is the coordination server. It is an http.Handler for [wire.ControlPath]. Its methods may be called at
// once by any number of goroutines.
type Server struct {
	keys  Keys
	store store.Store
	url   string
	print []byte // the certificate's fingerprint
	epoch string // of versions: another one after every start
	// approve has new nodes wait; signIn lets people sign in for them, for signInFor.
	approve, signIn bool
	signInFor       time.Duration
	signIns         signIns
	dir             string
	backups         sync.Mutex
	log             *slog.Logger

	now   atomic.Pointer[snapshot]
	ops   chan op
	index index // the writer's

	bulk      gate // of memory for whole maps
	strangers atomic.Int64
	storeErr  atomic.Pointer[weft.Error] // why the last write was not stored; nil: it was

	mu       sync.Mutex
	sessions map[*session]struct{}
	closed   bool

	closing chan struct{}  // closed first
	running sync.WaitGroup // sessions and watchers
	quit    chan struct{}  // closed when these have ended
	written chan struct{}  // closed when the writer has ended
	stop    sync.Once
}

// New loads the state and starts the server.
func New(ctx context.Context, c Config) (*Server, error) {
	if err := wire.CheckServerURL(c.URL); err != nil {
		return nil, err
	}
	s := &Server{
		keys: c.Keys, store: c.Store, url: c.URL, print: c.Fingerprint, epoch: randomHex(), approve: c.Approve, signIn: c.SignIn, signInFor: c.SignInFor, dir: c.Dir, log: c.Log,
		ops: make(chan op, maxBatch), bulk: newGate(bulkMemory),
		sessions: make(map[*session]struct{}), closing: make(chan struct{}), quit: make(chan struct{}), written: make(chan struct{}),
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	if err := s.load(ctx, c); err != nil {
		return nil, err
	}
	go s.write()
	return s, nil
}

// errClosing is what everybody hears when the server stops.
var errClosing = &weft.Error{Code: weft.CodeUnavailable, Message: "the server is stopping: try again in a moment"}

// ServeHTTP serves the stream of one machine, to its end.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if s.strangers.Add(1) > maxStrangers {
		s.strangers.Add(-1)
		stream.WriteError(w, http.StatusServiceUnavailable, &weft.Error{
			Code: weft.CodeUnavailable, Message: "too many machines are connecting to the server at once: try again in a moment",
		})
		return
	}
	m, machine, err := stream.AcceptNoise(w, r, wire.ControlProto, s.keys.Server)
	if err != nil {
		s.strangers.Add(-1)
		s.log.Debug("no stream", "remote", r.RemoteAddr, "error", err)
		return
	}
	s.serve(m, machine)
}

// Close ends all streams, waits for them, and stores what was noted in passing. The store is not closed.
func (s *Server) Close() error {
	var err error
	s.stop.Do(func() {
		s.mu.Lock()
		s.closed = true
		for c := range s.sessions {
			c.end(errClosing)
		}
		s.mu.Unlock()
		close(s.closing)
		s.running.Wait()
		err = s.do(context.Background(), func(t *tx) error { return t.flushSeen(true) })
		close(s.quit)
		<-s.written
	})
	return err
}

// enter admits a session or a watcher to the running server; leave must follow.
func (s *Server) enter(c *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return false
	}
	s.running.Add(1)
	if c != nil {
		s.sessions[c] = struct{}{}
	}
	return true
}

func (s *Server) leave(c *session) {
	s.mu.Lock()
	delete(s.sessions, c)
	s.mu.Unlock()
	s.running.Done()
}

// SignInToken is the token of machines that their people sign in for; it holds no secret. Without sign-in there is none.
func (s *Server) SignInToken() (wire.Token, bool) {
	return wire.Token{URL: s.url, Server: s.keys.Server.Public(), Fingerprint: s.print, SignIn: true}, s.signIn
}

// Signing is the key that relay tickets are verified with.
func (s *Server) Signing() key.SigningPublic { return s.keys.Signing.Public() }

// Network is the network's name in relay tickets.
func (s *Server) Network() [8]byte { return s.now.Load().net.Name }

// Invited reports whether a join key was ever made. Where none was, nobody can have joined.
func (s *Server) Invited() bool { return s.now.Load().net.NextKey > firstKey }

// OnRevoked has f called with the nodes whose tickets relays no longer honour: now, and with all of them whenever
// they change. The calls follow one another and end with Close, which waits for them.
func (s *Server) OnRevoked(f func([]weft.NodeID)) {
	if !s.enter(nil) {
		return
	}
	go func() {
		defer s.leave(nil)
		for told := uint64(0); ; {
			snap := s.now.Load()
			if snap.revision != told {
				told = snap.revision
				f(snap.revokedNodes())
			}
			select {
			case <-snap.superseded:
			case <-s.closing:
				return
			}
		}
	}()
}

// errStore makes of a failure of the store the sentence that everybody hears whose change it was. What exactly
// failed is for the administrator's eyes.
func errStore(err error) *weft.Error {
	message := "the server could not store the change, so nothing was changed: its log says why"
	if errors.Is(err, store.ErrFull) {
		message = "the server's disk is full, so nothing was changed: free some space there and try again"
	}
	return &weft.Error{Code: weft.CodeUnavailable, Message: message}
}
