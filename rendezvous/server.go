package rendezvous

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
	"time"

	"weft"
	"weft/key"
	"weft/stream"
	"weft/wire"
)

// Config is what a Server is made of.
type Config struct {
	// Signing signs the tickets of members for the relay. Kept over restarts, it lets members go on using the relay
	// until they are back here.
	Signing key.SigningPrivate
	Relay   *weft.Relay // beside the rendezvous; nil: none
	// Networks are the IDs of those that are served; nil: any.
	Networks []string
	Limits   Limits
	Log      *slog.Logger // nil: slog.Default
}

// A Server is a rendezvous. It is an http.Handler for [wire.RendezvousPath]. All its state is in memory.
type Server struct {
	cfg   Config
	log   *slog.Logger
	total bucket

	mu        sync.Mutex
	networks  map[key.SigningPublic]*network
	sources   map[netip.Addr]int
	strangers int
	entered   int
	sessions  map[*session]struct{}
	closed    bool
}

// A network is what the rendezvous has of one. The server's lock guards all but rate.
type network struct {
	key      key.SigningPublic
	tag      string // wire.NameTag
	members  map[key.NodePublic]*member
	numbers  map[weft.NodeID]*member // whom tickets for a number are made out to
	sessions map[*session]struct{}   // of members, and of who has entered and claims nothing yet
	rate     bucket
}

// A member is one that has claimed a number.
type member struct {
	node    key.NodePublic
	number  weft.NodeID
	sealed  []byte
	heard   time.Time
	session *session // nil: the stream ended, and it is not forgotten yet
}

// New makes a server. Run does what is due.
func New(c Config) (*Server, error) {
	if c.Signing.IsZero() {
		return nil, errors.New("a rendezvous needs a signing key")
	}
	c.Limits = c.Limits.withDefaults()
	s := &Server{cfg: c, log: c.Log, networks: map[key.SigningPublic]*network{}, sources: map[netip.Addr]int{}, sessions: map[*session]struct{}{}}
	if s.log == nil {
		s.log = slog.Default()
	}
	return s, nil
}

// Run forgets who is silent, until ctx ends; then it ends all streams.
func (s *Server) Run(ctx context.Context) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			s.mu.Lock()
			defer s.mu.Unlock()
			s.closed = true
			for c := range s.sessions {
				c.conn.Close()
			}
			return
		case <-tick.C:
			s.forget(time.Now())
		}
	}
}

// forget takes out members whose last beat is long ago.
func (s *Server) forget(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, n := range s.networks {
		for _, m := range n.members {
			if now.Sub(m.heard) >= Forget {
				if m.session != nil {
					m.session.conn.Close()
				}
				s.remove(n, m)
			}
		}
		s.tidy(n)
	}
}

// remove takes a member out and tells the others. The lock is held.
func (s *Server) remove(n *network, m *member) {
	delete(n.members, m.node)
	s.entered--
	for c := range n.sessions {
		c.changed(m.node, nil)
	}
	s.release(n, m)
}

// release gives a member's number to who waits for it, if anybody does. The lock is held.
func (s *Server) release(n *network, m *member) {
	if n.numbers[m.number] != m {
		return
	}
	delete(n.numbers, m.number)
	for _, o := range n.members {
		if o != m && o.number == m.number {
			n.numbers[o.number] = o
			if o.session != nil {
				o.session.renew()
			}
			return
		}
	}
}

// tidy forgets a network that has nobody. The lock is held.
func (s *Server) tidy(n *network) {
	if len(n.members) == 0 && len(n.sessions) == 0 {
		delete(s.networks, n.key)
	}
}

// ServeHTTP serves the stream of one member, to its end.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	from, _ := netip.ParseAddrPort(r.RemoteAddr)
	at := source(from.Addr())
	if why := s.admit(at); why != nil {
		stream.WriteError(w, http.StatusServiceUnavailable, why)
		return
	}
	defer s.leave(at)
	known := sync.OnceFunc(func() { s.known() })
	defer known()
	conn, err := stream.Accept(w, r, wire.RendezvousProto)
	if err != nil {
		s.log.Debug("no stream", "remote", r.RemoteAddr, "error", err)
		return
	}
	s.serve(conn, r.RemoteAddr, known)
}

// serve serves a stream to its end; proved is called when it is a member's.
func (s *Server) serve(conn net.Conn, remote string, proved func()) {
	defer conn.Close()
	c := &session{s: s, conn: conn, log: s.log.With("remote", remote), pending: map[key.NodePublic][]byte{}, wake: make(chan struct{}, 1)}
	s.mu.Lock()
	closed := s.closed
	s.sessions[c] = struct{}{}
	s.mu.Unlock()
	if !closed {
		err := c.serve(proved)
		c.log.Debug("stream ended", "error", err)
	}
	s.mu.Lock()
	delete(s.sessions, c)
	s.mu.Unlock()
}

// admit counts a stream that came, unless there are too many.
func (s *Server) admit(at netip.Addr) *weft.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return &weft.Error{Code: weft.CodeUnavailable, Message: "the rendezvous is stopping: try again in a moment"}
	case s.strangers >= s.cfg.Limits.Strangers:
		return &weft.Error{Code: weft.CodeUnavailable, Message: "too many machines are connecting to the rendezvous at once: try again in a moment"}
	case s.sources[at] >= s.cfg.Limits.PerSource:
		return &weft.Error{Code: weft.CodeUnavailable, Message: fmt.Sprintf(
			"the rendezvous takes %d connections from one address, and has them: end some, or run a rendezvous of your own (weft server --rendezvous-only)", s.cfg.Limits.PerSource)}
	}
	s.strangers++
	s.sources[at]++
	return nil
}

func (s *Server) leave(at netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sources[at]--; s.sources[at] == 0 {
		delete(s.sources, at)
	}
}

func (s *Server) known() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strangers--
}

// enter takes a member in that has proved to be one.
func (s *Server) enter(c *session, e *wire.Enter) *weft.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	tag := string(e.Name)
	n := s.networks[e.Network]
	switch {
	case s.cfg.Networks != nil && !slices.Contains(s.cfg.Networks, ID(e.Network)):
		return &weft.Error{Code: weft.CodeUnavailable, Message: fmt.Sprintf(
			"this rendezvous serves only networks that it is told, and %s is none: have it started with --rendezvous-network %[1]s, or check the two words", ID(e.Network))}
	case n == nil && len(s.networks) >= s.cfg.Limits.Networks:
		return &weft.Error{Code: weft.CodeUnavailable, Message: "the rendezvous has as many networks as it takes: try later, or run one of your own (weft server --rendezvous-only)"}
	case (n == nil || len(n.members) == 0) && !e.Known && s.named(tag):
		return &weft.Error{Code: weft.CodeWrongSecret, Message: "the secret is not the one of the network of that name, which has members here: check it, or choose another name"}
	case n != nil && len(n.sessions) >= s.cfg.Limits.PerNetwork && n.members[e.Node] == nil:
		return &weft.Error{Code: weft.CodeUnavailable, Message: fmt.Sprintf("the network has %d machines here, which is as many as the rendezvous takes", len(n.sessions))}
	}
	if n == nil {
		n = &network{
			key: e.Network, tag: tag, members: map[key.NodePublic]*member{}, numbers: map[weft.NodeID]*member{}, sessions: map[*session]struct{}{},
		}
		s.networks[e.Network] = n
	}
	n.sessions[c] = struct{}{}
	c.network, c.node, c.whole = n, e.Node, true
	for k, m := range n.members {
		c.pending[k] = m.sealed
	}
	return nil
}

// named reports whether there is a network of a name. The lock is held.
func (s *Server) named(tag string) bool {
	for _, n := range s.networks {
		if n.tag == tag && len(n.members) > 0 {
			return true
		}
	}
	return false
}

// claim stores a member's record and tells the others.
func (s *Server) claim(c *session, q *wire.Claim) *weft.Error {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := c.network
	m := n.members[c.node]
	switch {
	case m != nil:
	case s.entered >= s.cfg.Limits.Members:
		return &weft.Error{Code: weft.CodeUnavailable, Message: "the rendezvous has as many members as it takes: try later, or run one of your own (weft server --rendezvous-only)"}
	case len(n.members) >= s.cfg.Limits.PerNetwork:
		return &weft.Error{Code: weft.CodeUnavailable, Message: fmt.Sprintf("the network has %d machines here, which is as many as the rendezvous takes", len(n.members))}
	default:
		m = &member{node: c.node}
		n.members[c.node] = m
		s.entered++
	}
	if m.session != nil && m.session != c { // the same node on a new stream: the old one is dead and does not know
		m.session.conn.Close()
	}
	fresh := m.session != c || m.number != q.Number
	if m.number != q.Number {
		s.release(n, m)
	}
	m.session, m.number, m.sealed, m.heard = c, q.Number, q.Sealed, time.Now()
	if n.numbers[m.number] == nil {
		n.numbers[m.number] = m
	}
	for o := range n.sessions {
		if o != c {
			o.changed(m.node, m.sealed)
		}
	}
	c.claimed = true
	if c.due.IsZero() || fresh {
		c.renew()
	}
	c.nudge()
	return nil
}

// beat notes that a member is there.
func (s *Server) beat(c *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if m := c.network.members[c.node]; m != nil && m.session == c {
		m.heard = time.Now()
	}
}

// gone takes a session out; with its member, if that said so.
func (s *Server) gone(c *session, left bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := c.network
	if n == nil {
		return
	}
	delete(n.sessions, c)
	if m := n.members[c.node]; m != nil && m.session == c {
		m.session = nil
		if left {
			s.remove(n, m)
		}
	}
	s.tidy(n)
}

// pay takes what is to be sent to a member from what its network, and all, may have; it returns how long that has to wait.
func (s *Server) pay(n *network, now time.Time, size int) time.Duration {
	return max(n.rate.take(now, size, s.cfg.Limits.NetworkRate, rateBurst), s.total.take(now, size, s.cfg.Limits.TotalRate, rateBurst))
}

// ticket is the relay ticket of a session's member, if it has its number.
func (s *Server) ticket(c *session, now time.Time) []byte {
	m := c.network.members[c.node]
	if m == nil || m.session != c || c.network.numbers[m.number] != m {
		return nil
	}
	return wire.SignTicket(nil, wire.Ticket{Node: m.number, Network: s.relayName(c.network.key), Key: m.node, NotAfter: now.Add(ticketLife)}, s.cfg.Signing)
}

// relayName is a network's name in tickets. It takes this server's key to find one whose name is another's.
func (s *Server) relayName(n key.SigningPublic) [8]byte {
	secret := sha256.Sum256([]byte("weft guests v1\x00" + s.cfg.Signing.Reveal()))
	mac := hmac.New(sha256.New, secret[:])
	mac.Write([]byte(n.String()))
	return [8]byte(mac.Sum(nil))
}

func nonce() []byte {
	b := make([]byte, wire.RendezvousNonceSize)
	rand.Read(b) // never fails (crypto/rand)
	return b
}
