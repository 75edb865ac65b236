package dns

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	miekg "github.com/miekg/dns"
	"golang.org/x/sync/singleflight"
)

const (
	// Port of DNS: RFC 1035 section 4.2.
	Port = 53

	// ednsSize in bytes is what we say we can take by UDP: 1232 goes through any
	// path unfragmented (DNS flag day 2020).
	ednsSize = 1232

	// maxUDPReply in bytes bounds what we send by UDP to a client that takes
	// more: it sits on this machine, where fragments are no matter.
	maxUDPReply = 4096

	// maxForwards is how many questions may wait for an upstream at once. A
	// desktop has some ten; at the bound, who asks is told so at once and not left
	// to wait.
	maxForwards = 256

	// maxConns is how many TCP connections may be open at once.
	maxConns = 64

	// bindTries and bindPause: an address that was just added, or waits for
	// duplicate address detection (1 s, RFC 4862), cannot be bound yet.
	bindTries = 40
	bindPause = 100 * time.Millisecond

	// portTries is how often a free port is looked for that both protocols have.
	portTries = 10

	// shutdownTimeout bounds the wait for answers that are being written.
	shutdownTimeout = time.Second
)

// Config says where a server listens and whom it asks.
type Config struct {
	// Zone and Split to begin with.
	Zone  *Zone
	Split Split

	// Listen are the addresses, UDP and TCP each. Port 0 takes a free one.
	Listen []netip.AddrPort

	// ListenConfig makes the sockets. With Control set to host.FreeBind the
	// server can start ahead of the link.
	ListenConfig net.ListenConfig

	// Bind, if there is one, makes the sockets of an address instead: UDP and
	// TCP of a network stack that is not the system's.
	Bind func(netip.AddrPort) (net.PacketConn, net.Listener, error)

	// Upstreams are asked for a name that is neither the zone's nor in the split, best first. It is called for each
	// such question and may be nil.
	Upstreams func(name string) []netip.AddrPort

	// Allow says who may ask. Nil allows loopback and the addresses listened
	// on, which is this machine.
	Allow func(netip.Addr) bool

	// Logger may be nil for slog.Default.
	Logger *slog.Logger
}

// Server answers questions. Its methods may be called at once.
type Server struct {
	cfg   Config
	log   *slog.Logger
	zone  atomic.Pointer[Zone]
	split atomic.Pointer[Split]

	forwards  chan struct{} // one token per question that waits for an upstream
	inFlight  singleflight.Group
	exchange  func(context.Context, *miekg.Msg, []netip.AddrPort) (*miekg.Msg, error)
	lifetime  context.Context
	endOfLife context.CancelFunc

	mu      sync.Mutex
	servers []*miekg.Server
	addrs   atomic.Pointer[[]netip.AddrPort] // what is listened on
}

// NewServer makes a server that does not listen yet.
func NewServer(cfg Config) (*Server, error) {
	if cfg.Zone == nil {
		return nil, errors.New("names of the overlay: no zone is given")
	}
	s := &Server{
		cfg:      cfg,
		log:      cfg.Logger,
		forwards: make(chan struct{}, maxForwards),
		exchange: forwarder{pace: upstreamPace, total: upstreamTotal}.exchange,
	}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.lifetime, s.endOfLife = context.WithCancel(context.Background())
	s.Replace(cfg.Zone, cfg.Split)
	s.addrs.Store(new([]netip.AddrPort))
	return s, nil
}

// Replace takes another zone and split for all questions from now on.
func (s *Server) Replace(z *Zone, split Split) {
	s.zone.Store(z)
	s.split.Store(&split)
}

// Lookup is that of the current zone.
func (s *Server) Lookup(name string) []netip.Addr { return s.zone.Load().Lookup(name) }

// Addrs are the addresses listened on.
func (s *Server) Addrs() []netip.AddrPort { return slices.Clone(*s.addrs.Load()) }

// Start binds all addresses and serves them until Close. It waits a few seconds for
// an address that the machine does not have yet. On an error nothing is left open.
func (s *Server) Start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.lifetime.Err() != nil {
		return errors.New("names of the overlay: the server is closed")
	}
	if len(s.servers) > 0 {
		return errors.New("names of the overlay: the server is started already")
	}
	var servers []*miekg.Server
	var addrs []netip.AddrPort
	for _, a := range s.cfg.Listen {
		udp, tcp, err := s.bind(ctx, a)
		if err != nil {
			for _, m := range servers {
				closeSockets(m)
			}
			return err
		}
		addrs = append(addrs, udp.LocalAddr().(*net.UDPAddr).AddrPort())
		servers = append(servers,
			&miekg.Server{PacketConn: udp, Handler: s, UDPSize: ednsSize},
			&miekg.Server{Listener: &guardedListener{Listener: tcp, allow: s.allowed, slots: make(chan struct{}, maxConns)}, Handler: s})
	}
	for i, a := range addrs {
		addrs[i] = netip.AddrPortFrom(a.Addr().Unmap(), a.Port())
	}
	s.addrs.Store(&addrs)
	s.servers = servers
	for _, m := range servers {
		started := make(chan struct{})
		m.NotifyStartedFunc = func() { close(started) }
		go func() {
			if err := m.ActivateAndServe(); err != nil && s.lifetime.Err() == nil {
				s.log.Error("names of the overlay are not answered any more", "on", addrs, "err", err)
			}
		}()
		<-started
	}
	return nil
}

func closeSockets(m *miekg.Server) {
	if m.PacketConn != nil {
		m.PacketConn.Close()
	}
	if m.Listener != nil {
		m.Listener.Close()
	}
}

// bind opens both sockets of an address on the same port.
func (s *Server) bind(ctx context.Context, a netip.AddrPort) (net.PacketConn, net.Listener, error) {
	if s.cfg.Bind != nil {
		return s.cfg.Bind(a)
	}
	for try := 1; ; try++ {
		udp, err := s.listenUDP(ctx, a)
		if err != nil {
			return nil, nil, bindError(a, err)
		}
		port := udp.LocalAddr().(*net.UDPAddr).AddrPort().Port()
		tcp, err := s.cfg.ListenConfig.Listen(ctx, "tcp", netip.AddrPortFrom(a.Addr(), port).String())
		if err == nil {
			return udp, tcp, nil
		}
		udp.Close()
		if a.Port() != 0 || try == portTries || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, nil, bindError(a, err)
		}
	}
}

func (s *Server) listenUDP(ctx context.Context, a netip.AddrPort) (net.PacketConn, error) {
	for try := 1; ; try++ {
		c, err := s.cfg.ListenConfig.ListenPacket(ctx, "udp", a.String())
		if !errors.Is(err, syscall.EADDRNOTAVAIL) || try == bindTries {
			return c, err
		}
		pause := time.NewTimer(bindPause)
		select {
		case <-ctx.Done():
			pause.Stop()
			return nil, ctx.Err()
		case <-pause.C:
		}
	}
}

func bindError(a netip.AddrPort, err error) error {
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("names of the overlay: another name server uses %v: "+
			"let that one listen on its own addresses only: %w", a, err)
	case errors.Is(err, syscall.EACCES):
		return fmt.Errorf("names of the overlay: no permission to listen on %v: "+
			"run as root or with CAP_NET_BIND_SERVICE: %w", a, err)
	}
	return fmt.Errorf("names of the overlay: listen on %v: %w", a, err)
}

// Close stops listening and lets go of questions that wait for an upstream.
func (s *Server) Close() error {
	s.endOfLife()
	s.mu.Lock()
	defer s.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
	defer cancel()
	var failed error
	for _, m := range s.servers {
		if err := m.ShutdownContext(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			failed = errors.Join(failed, err)
		}
	}
	s.servers = nil
	return failed
}

// allowed reports whether who has this address may ask.
func (s *Server) allowed(a netip.Addr) bool {
	if s.cfg.Allow != nil {
		return s.cfg.Allow(a)
	}
	return a.IsLoopback() || slices.ContainsFunc(*s.addrs.Load(), func(l netip.AddrPort) bool { return l.Addr() == a })
}

// isSelf reports whether asking this server would be asking ourselves.
func (s *Server) isSelf(u netip.AddrPort) bool {
	return slices.ContainsFunc(*s.addrs.Load(), func(l netip.AddrPort) bool {
		same := l.Addr() == u.Addr().Unmap() || l.Addr().IsUnspecified() && u.Addr().IsLoopback()
		return same && l.Port() == u.Port()
	})
}

// ServeDNS answers one question. It is called by the server's own sockets.
func (s *Server) ServeDNS(w miekg.ResponseWriter, r *miekg.Msg) {
	if r.Response {
		return // an answer to an answer would go on for ever
	}
	reply := s.reply(addrOf(w.RemoteAddr()), r)
	size := miekg.MaxMsgSize
	if _, udp := w.RemoteAddr().(*net.UDPAddr); udp {
		size = miekg.MinMsgSize
	}
	if opt := r.IsEdns0(); opt != nil {
		// RFC 6891 section 6.1.1: an OPT is answered with one.
		reply.SetEdns0(ednsSize, opt.Do())
		if size == miekg.MinMsgSize {
			size = min(max(int(opt.UDPSize()), miekg.MinMsgSize), maxUDPReply)
		}
	}
	reply.Compress = true
	reply.Truncate(size)
	packed, err := reply.Pack()
	if err != nil {
		// An upstream sent what can be read but not written, or a result that
		// takes EDNS to someone without.
		s.log.Debug("an answer cannot be passed on", "err", err)
		reply = new(miekg.Msg).SetRcode(r, miekg.RcodeServerFailure)
		if packed, err = reply.Pack(); err != nil {
			return // not even the question can be written
		}
	}
	if _, err := w.Write(packed); err != nil {
		s.log.Debug("an answer could not be sent", "to", w.RemoteAddr(), "err", err)
	}
}

// reply makes the answer to a question, without EDNS.
func (s *Server) reply(from netip.Addr, r *miekg.Msg) *miekg.Msg {
	reply := new(miekg.Msg).SetReply(r)
	reply.RecursionAvailable = true
	refuse := func(rcode int) *miekg.Msg {
		reply.Rcode = rcode
		return reply
	}
	switch {
	case !s.allowed(from):
		return refuse(miekg.RcodeRefused)
	case r.Opcode != miekg.OpcodeQuery:
		return refuse(miekg.RcodeNotImplemented)
	case len(r.Question) != 1:
		return refuse(miekg.RcodeFormatError)
	}
	if opt := r.IsEdns0(); opt != nil && opt.Version() != 0 {
		return refuse(miekg.RcodeBadVers)
	}
	switch q := r.Question[0]; {
	case q.Qclass != miekg.ClassINET, q.Qtype == miekg.TypeAXFR, q.Qtype == miekg.TypeIXFR:
		return refuse(miekg.RcodeRefused)
	}
	if s.zone.Load().answer(reply) {
		return reply
	}
	return s.forward(r, reply)
}

// forward asks upstreams and fills in the reply.
func (s *Server) forward(r, reply *miekg.Msg) *miekg.Msg {
	name := r.Question[0].Name
	upstreams, split := s.split.Load().For(name)
	switch {
	case split && len(upstreams) == 0:
		reply.Rcode = miekg.RcodeNameError
		reply.Ns = append(reply.Ns, s.zone.Load().soa(name)) // RFC 2308: how long that may be remembered
		return reply
	case !split && s.cfg.Upstreams != nil:
		upstreams = s.cfg.Upstreams(name)
	}
	upstreams = slices.DeleteFunc(slices.Clone(upstreams), s.isSelf)
	if len(upstreams) == 0 {
		reply.Rcode = miekg.RcodeRefused
		return reply
	}
	select {
	case s.forwards <- struct{}{}:
		defer func() { <-s.forwards }()
	default:
		s.log.Debug("too many questions wait for an upstream", "limit", maxForwards)
		reply.Rcode = miekg.RcodeServerFailure
		return reply
	}
	query, key := questionFor(r)
	v, err, _ := s.inFlight.Do(key, func() (any, error) {
		return s.exchange(s.lifetime, query, upstreams)
	})
	if err != nil {
		s.log.Debug("no upstream answers", "upstreams", upstreams, "err", err)
		reply.Rcode = miekg.RcodeServerFailure
		return reply
	}
	// Others may hold the same answer.
	answer := v.(*miekg.Msg).Copy()
	answer.Id, answer.Question = reply.Id, reply.Question
	answer.Extra = slices.DeleteFunc(answer.Extra, func(rr miekg.RR) bool {
		t := rr.Header().Rrtype
		return t == miekg.TypeOPT || t == miekg.TypeTSIG // RFC 6891 section 6.1.1, RFC 8945: for one hop only
	})
	return answer
}

// questionFor is the question that we ask in turn, and a key that is equal for equal
// questions.
func questionFor(r *miekg.Msg) (query *miekg.Msg, key string) {
	q := r.Question[0]
	query = new(miekg.Msg)
	query.Id = miekg.Id()
	query.RecursionDesired, query.CheckingDisabled, query.AuthenticatedData = r.RecursionDesired, r.CheckingDisabled, r.AuthenticatedData
	query.Question = []miekg.Question{q}
	opt := r.IsEdns0()
	if opt != nil { // and only then: some home routers choke on it
		query.SetEdns0(ednsSize, opt.Do())
	}
	key = fmt.Sprint(strings.ToLower(q.Name), q.Qtype, r.RecursionDesired, r.CheckingDisabled, r.AuthenticatedData,
		opt != nil, opt != nil && opt.Do())
	return query, key
}

func addrOf(a net.Addr) netip.Addr {
	switch a := a.(type) {
	case *net.UDPAddr:
		return a.AddrPort().Addr().Unmap().WithZone("")
	case *net.TCPAddr:
		return a.AddrPort().Addr().Unmap().WithZone("")
	}
	return netip.Addr{}
}

// guardedListener closes connections of those who may not ask and those beyond the
// bound before a byte is read from them.
type guardedListener struct {
	net.Listener
	allow func(netip.Addr) bool
	slots chan struct{}
}

func (l *guardedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.allow(addrOf(c.RemoteAddr())) {
			select {
			case l.slots <- struct{}{}:
				return &countedConn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}, nil
			default:
			}
		}
		c.Close()
	}
}

// countedConn gives its slot back when it is closed.
type countedConn struct {
	net.Conn
	release func()
}

func (c *countedConn) Close() error {
	c.release()
	return c.Conn.Close()
}
